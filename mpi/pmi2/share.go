package pmi2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"stepd/step"
)

// share is what a node brings to a fence of all nodes: what its ranks have put, or
// given to their neighbours in a ring; or that it will bring nothing, ever, since
// a rank of its can enter no fence any more.
type share struct {
	kind  fenceKind
	ranks []rankShare // ascending
	left  *leftShare  // of kindLeft
}

// rankShare is one rank's part.
type rankShare struct {
	n           int
	pairs       []pair // fence
	left, right string // ring
}

// leftShare says which ranks have left, and how the first of them did.
type leftShare struct {
	ranks []int
	first int
	code  int
	how   string
}

// kindLeft is the share of a node that will come to no fence.
const kindLeft fenceKind = "left"

// shareKinds are numbered in the encoding, from 1.
var shareKinds = []fenceKind{kindFence, kindRing, kindLeft}

// appendTo encodes the share: numbers are varints, strings have their length before
// them.
func (s *share) appendTo(b []byte) []byte {
	b = append(b, byte(1+slices.Index(shareKinds, s.kind)))
	if s.left != nil {
		b = appendString(b, step.FormatCPUList(s.left.ranks))
		b = binary.AppendUvarint(b, uint64(s.left.first))
		b = binary.AppendVarint(b, int64(s.left.code))
		return appendString(b, s.left.how)
	}
	b = binary.AppendUvarint(b, uint64(len(s.ranks)))
	for i := range s.ranks {
		r := &s.ranks[i]
		b = binary.AppendUvarint(b, uint64(r.n))
		if s.kind == kindRing {
			b = appendString(appendString(b, r.left), r.right)
			continue
		}
		b = binary.AppendUvarint(b, uint64(len(r.pairs)))
		for _, p := range r.pairs {
			b = appendString(appendString(b, p.key), p.value)
		}
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// errShare is a share that no stepd of this kind has made.
var errShare = errors.New("cannot read another node's part of a fence: is its stepd of another version?")

// parseShare decodes a share. It allocates no more than a few times what there is.
func parseShare(b []byte) (*share, error) {
	d := &shareReader{b: b}
	kind := d.number()
	if d.bad || kind < 1 || kind > len(shareKinds) {
		return nil, errShare
	}
	s := &share{kind: shareKinds[kind-1]}
	if s.kind == kindLeft {
		s.left = d.leftShare()
	} else {
		for range d.count() {
			s.ranks = append(s.ranks, d.rankShare(s.kind))
			if d.bad {
				break
			}
		}
	}
	if d.bad || len(d.b) > 0 {
		return nil, errShare
	}
	return s, nil
}

// shareReader reads what appendTo has written; bad stays once it is set.
type shareReader struct {
	b   []byte
	bad bool
}

func (d *shareReader) number() int {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > 1<<31-1 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return int(v)
}

// count reads how many follow, of which each has a byte at least.
func (d *shareReader) count() int {
	n := d.number()
	if n > len(d.b) {
		d.bad = true
		return 0
	}
	return n
}

func (d *shareReader) str() string {
	n := d.count()
	if d.bad {
		return ""
	}
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

func (d *shareReader) rankShare(kind fenceKind) (r rankShare) {
	r.n = d.number()
	if kind == kindRing {
		r.left, r.right = d.str(), d.str()
		return r
	}
	for range d.count() {
		r.pairs = append(r.pairs, pair{d.str(), d.str()})
		if d.bad {
			break
		}
	}
	return r
}

func (d *shareReader) leftShare() *leftShare {
	ranks, err := step.ParseCPUList(d.str())
	first := d.number()
	code, n := binary.Varint(d.b)
	if err != nil || n <= 0 || d.bad || code < -1<<31 || code > 1<<31-1 || !slices.Contains(ranks, first) {
		d.bad = true
		return nil
	}
	d.b = d.b[n:]
	return &leftShare{ranks: ranks, first: first, code: int(code), how: d.str()}
}

// layout is where the ranks of the step are.
type layout struct {
	names []string // of nodes, by node id
	node  int      // this one
	of    []int    // node ids by rank
	// meet are the nodes that have ranks, nil where all have: they come to fences.
	meet []int
}

func layoutOf(spec *step.Spec) layout {
	l := layout{names: []string{spec.NodeName}, node: 0, of: spec.RankNodes()}
	if spec.Layout == nil {
		return l
	}
	l.names, l.node = nil, int(spec.NodeID)
	var meet []int
	for id, n := range spec.TaskCounts() {
		l.names = append(l.names, spec.Layout.Nodes[id].Name)
		if n > 0 {
			meet = append(meet, id)
		}
	}
	if len(meet) < len(l.names) {
		l.meet = meet
	}
	return l
}

// count counts the ranks of a node.
func (l *layout) count(node int) (n int) {
	for _, at := range l.of {
		if at == node {
			n++
		}
	}
	return n
}

// several reports whether ranks are on more than one node.
func (l *layout) several() bool { return len(l.names) > 1 && (l.meet == nil || len(l.meet) > 1) }

// at is where a rank is, in words: ` on node "n2"`; nothing in a step of one node.
func (l *layout) at(rank int) string {
	if rank < 0 || rank >= len(l.of) {
		return ""
	}
	return l.on(l.of[rank])
}

// here is the same of this node's ranks.
func (l *layout) here() string { return l.on(l.node) }

func (l *layout) on(node int) string {
	if len(l.names) == 1 {
		return ""
	}
	return fmt.Sprintf(" on node %q", l.names[node])
}

// mapping describes which ranks share a node, as PMI_process_mapping does: blocks of
// (first node, nodes, ranks on each), used again from the first one on until
// every rank has its node.
func (l *layout) mapping() string {
	blocks := l.blocks()
	for n := 1; n < len(blocks); n++ {
		if l.matches(blocks[:n]) {
			blocks = blocks[:n]
			break
		}
	}
	var b strings.Builder
	b.WriteString("(vector")
	for _, k := range blocks {
		fmt.Fprintf(&b, ",(%d,%d,%d)", k.first, k.nodes, k.each)
	}
	b.WriteByte(')')
	return b.String()
}

// block is one of a mapping's.
type block struct{ first, nodes, each int }

func (l *layout) blocks() (blocks []block) {
	for i := 0; i < len(l.of); {
		j := i + 1
		for j < len(l.of) && l.of[j] == l.of[i] {
			j++
		}
		last := len(blocks) - 1
		if last >= 0 && blocks[last].each == j-i && l.of[i] == blocks[last].first+blocks[last].nodes {
			blocks[last].nodes++
		} else {
			blocks = append(blocks, block{l.of[i], 1, j - i})
		}
		i = j
	}
	return blocks
}

// matches reports whether the blocks, used over and over, are the layout.
func (l *layout) matches(blocks []block) bool {
	for rank := 0; rank < len(l.of); {
		for _, k := range blocks {
			for i := range k.nodes * k.each {
				if rank == len(l.of) {
					return true
				}
				if l.of[rank] != k.first+i/k.each {
					return false
				}
				rank++
			}
		}
	}
	return true
}
