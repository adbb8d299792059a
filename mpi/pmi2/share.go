package pmi2

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"stepd/internal/wire"
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

// encode writes the share in the fields of package wire.
func (s *share) encode() []byte {
	w := &wire.Writer{}
	w.U16(uint16(1 + slices.Index(shareKinds, s.kind)))
	if s.left != nil {
		w.Str(step.FormatCPUList(s.left.ranks))
		w.U32(uint32(s.left.first))
		w.U32(uint32(int32(s.left.code)))
		w.Str(s.left.how)
		return w.B
	}
	w.U32(uint32(len(s.ranks)))
	for i := range s.ranks {
		r := &s.ranks[i]
		w.U32(uint32(r.n))
		if s.kind == kindRing {
			w.Str(r.left)
			w.Str(r.right)
			continue
		}
		w.U32(uint32(len(r.pairs)))
		for _, p := range r.pairs {
			w.Str(p.key)
			w.Str(p.value)
		}
	}
	return w.B
}

// errShare is a share that no stepd of this kind has made.
var errShare = errors.New("cannot read another node's part of a fence: is its stepd of another version?")

// parseShare decodes a share. It allocates no more than a few times what there is.
func parseShare(b []byte) (*share, error) {
	d := &shareReader{wire.Reader{B: b}}
	kind := int(d.U16())
	if d.Err != nil || kind < 1 || kind > len(shareKinds) {
		return nil, errShare
	}
	s := &share{kind: shareKinds[kind-1]}
	if s.kind == kindLeft {
		s.left = d.leftShare()
	} else {
		for n := d.count(); n > 0 && d.Err == nil; n-- {
			s.ranks = append(s.ranks, d.rankShare(s.kind))
		}
	}
	if d.Err != nil || len(d.B) > 0 {
		return nil, errShare
	}
	return s, nil
}

// shareReader reads what encode has written.
type shareReader struct{ wire.Reader }

func (d *shareReader) number() int {
	n := d.U32()
	if n > 1<<31-1 {
		d.Err = errShare
	}
	return int(n)
}

// count reads how many follow, of which each has a byte at least.
func (d *shareReader) count() int {
	n := d.number()
	if n > len(d.B) {
		d.Err = errShare
	}
	return n
}

func (d *shareReader) str() string { return string(d.Bytes()) }

func (d *shareReader) rankShare(kind fenceKind) (r rankShare) {
	r.n = d.number()
	if kind == kindRing {
		r.left, r.right = d.str(), d.str()
		return r
	}
	for n := d.count(); n > 0 && d.Err == nil; n-- {
		r.pairs = append(r.pairs, pair{d.str(), d.str()})
	}
	return r
}

func (d *shareReader) leftShare() *leftShare {
	ranks, err := step.ParseCPUList(d.str())
	l := &leftShare{ranks: ranks, first: d.number(), code: int(int32(d.U32())), how: d.str()}
	if err != nil || !slices.Contains(ranks, l.first) {
		d.Err = errShare
	}
	return l
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
