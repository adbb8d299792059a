package pmi2

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"stepd/step/launch"
)

// The names of what nodes say to each other (launch.Peers).
const (
	meetFence = "pmi fence"
	callWhere = "pmi where"
)

// whereTimeout bounds the question how far the ranks of another node are, and
// whereNodes how many nodes are asked.
const (
	whereTimeout = 2 * time.Second
	whereNodes   = 8
)

// pack ends this node's part of a fence: what its ranks have put is on its way. The
// caller holds mu.
func (s *state) pack() []byte {
	sh := share{kind: s.fence.kind, ranks: make([]rankShare, 0, len(s.ranks))}
	for _, r := range s.ranks {
		rs := rankShare{n: r.n, left: r.entry.left, right: r.entry.right}
		if sh.kind == kindFence {
			r.sent, r.pending = r.pending, nil
			for key, text := range r.sent {
				rs.pairs = append(rs.pairs, pair{key, text})
			}
		}
		sh.ranks = append(sh.ranks, rs)
	}
	s.fence.away = true
	return sh.appendTo(nil)
}

// packLeft reports to the other nodes that this one will enter no fence any more, once,
// nil where that is not so. A rank that has left while others of its node wait is
// found by stuck. The caller holds mu.
func (s *state) packLeft() []byte {
	if !s.where.several() || s.left == 0 || s.toldLeft || s.aborted || s.fence.entered > 0 {
		return nil
	}
	s.toldLeft = true
	l := &leftShare{}
	for _, r := range s.ranks {
		if r.left {
			if l.ranks == nil {
				l.first, l.code, l.how = r.n, r.code(), r.end()
			}
			l.ranks = append(l.ranks, r.n)
		}
	}
	return (&share{kind: kindLeft, left: l}).appendTo(nil)
}

// exchange brings a node's share to the others and theirs here.
func (p *Plugin) exchange(data []byte) {
	ctx, limit := p.ctx, p.conf.FenceTimeout
	if limit > 0 && shareKinds[data[0]-1] != kindLeft {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	parts, err := p.job.Peers.Allgather(ctx, meetFence, p.state.where.meet, data)
	switch {
	case p.isClosing():
	case err == nil:
		p.settle(p.state.merge(parts))
	case shareKinds[data[0]-1] == kindLeft: // no rank waits here, and the others report what is lost
	default:
		p.settle(p.state.failed(p.whyMissing(ctx, err)))
	}
}

// whyMissing says in words why the other nodes' shares did not come.
func (p *Plugin) whyMissing(ctx context.Context, err error) string {
	missing, ok := errors.AsType[*launch.MissingError](err)
	if !ok || ctx.Err() == nil || len(missing.Nodes) == 0 {
		return err.Error()
	}
	words := fmt.Sprintf("after %v (PMI2FenceTimeout) ", p.conf.FenceTimeout)
	for i, node := range missing.Nodes {
		if i == whereNodes {
			return words + fmt.Sprintf("; and %d nodes more", len(missing.Nodes)-i)
		}
		if i > 0 {
			words += "; "
		}
		words += p.whereOf(node)
	}
	return words
}

// whereOf asks another node how far its ranks are.
func (p *Plugin) whereOf(node int) string {
	if node < 0 || node >= len(p.state.where.names) {
		return fmt.Sprintf("node %d has not come", node)
	}
	ctx, cancel := context.WithTimeout(p.ctx, whereTimeout)
	defer cancel()
	answer, err := p.job.Peers.Call(ctx, node, callWhere, nil)
	if err != nil {
		return fmt.Sprintf("node %q has not come and does not say why: %v", p.state.where.names[node], err)
	}
	return string(answer)
}

// absent says which ranks of this node are not in the fence, for the ranks that wait.
func (s *state) absent() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.absentLocked()
}

func (s *state) absentLocked() string {
	var late []int
	var first *rank
	for _, r := range s.ranks {
		if r.entry == nil {
			if first == nil {
				first = r
			}
			late = append(late, r.n)
		}
	}
	if first == nil {
		return "all ranks" + s.where.here() + " have come"
	}
	return fmt.Sprintf("%s%s not come; rank %d %s", ranksText(late), s.where.here()+has(late), first.n, first.end())
}

func has(ranks []int) string {
	if len(ranks) == 1 {
		return " has"
	}
	return " have"
}

// late ends a fence that some ranks of this node have not come to in time. seq is
// the fence's: another one is none of it.
func (s *state) late(seq int, limit time.Duration) outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fence.seq != seq || s.fence.entered == 0 || s.fence.away || s.aborted {
		return outcome{}
	}
	s.aborted = true
	i := slices.IndexFunc(s.ranks, func(r *rank) bool { return r.entry == nil })
	return outcome{abort: &abort{rank: s.ranks[i].n, code: 1, text: fmt.Sprintf(
		"MPI %s cannot complete: after %v (PMI2FenceTimeout) %d of %d ranks%s wait in it, and %s",
		s.fence.kind, limit, s.fence.entered, len(s.ranks), s.where.here(), s.absentLocked())}}
}

// failed ends the step because the other nodes do not come to a fence.
func (s *state) failed(why string) outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.aborted {
		return outcome{}
	}
	s.aborted = true
	return outcome{abort: &abort{rank: s.ranks[0].n, code: 1, text: fmt.Sprintf(
		"MPI %s cannot complete: all %d ranks%s wait in it: %s", s.fence.kind, len(s.ranks), s.where.here(), why)}}
}

// merge ends a fence of all nodes: their shares become visible.
func (s *state) merge(parts [][]byte) outcome {
	shares, err := s.parseParts(parts)
	if err != nil {
		return s.failed(err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.disagreed(shares); a != nil || !s.fence.away {
		return outcome{abort: a}
	}
	var all []rankShare
	for _, sh := range shares {
		all = append(all, sh.ranks...)
	}
	// As if all ranks were on one node: what the last of them has put wins.
	slices.SortFunc(all, func(a, b rankShare) int { return a.n - b.n })
	if s.fence.kind == kindFence {
		if a := s.commitAll(all); a != nil {
			return outcome{abort: a}
		}
	}
	out := outcome{deliveries: s.complete(all)}
	out.share = s.packLeft()
	return out
}

// parseParts decodes all shares; each is of the ranks of its node and no others.
func (s *state) parseParts(parts [][]byte) ([]*share, error) {
	shares := make([]*share, len(parts))
	for i, b := range parts {
		node := i
		if s.where.meet != nil {
			node = s.where.meet[i]
		}
		sh, err := parseShare(b)
		if err != nil {
			return nil, fmt.Errorf("node %q: %w", s.where.names[node], err)
		}
		// All of its ranks, and each once: what follows counts on that.
		last, missing := -1, s.where.count(node)
		if sh.kind == kindLeft {
			missing = 0
		}
		for _, r := range sh.ranks {
			if r.n <= last || r.n >= len(s.where.of) || s.where.of[r.n] != node {
				return nil, fmt.Errorf("node %q: %w", s.where.names[node], errShare)
			}
			last, missing = r.n, missing-1
		}
		if missing != 0 {
			return nil, fmt.Errorf("node %q: %w", s.where.names[node], errShare)
		}
		shares[i] = sh
	}
	return shares, nil
}

// disagreed reports whether not all nodes are in the same fence, and ends the step
// then, once. The caller holds mu.
func (s *state) disagreed(shares []*share) *abort {
	waits, other := -1, -1 // shares
	for i, sh := range shares {
		switch {
		case sh.kind == kindLeft:
		case waits < 0:
			waits = i
		case sh.kind != shares[waits].kind:
			other = i
		}
	}
	left := slices.IndexFunc(shares, func(sh *share) bool { return sh.kind == kindLeft })
	if waits < 0 || (left < 0 && other < 0) || s.aborted {
		return nil
	}
	s.aborted = true
	kind := shares[waits].kind
	if other >= 0 {
		a, b := shares[waits].ranks[0].n, shares[other].ranks[0].n
		return &abort{rank: b, code: 1, text: fmt.Sprintf("MPI %s cannot complete: rank %d%s waits in it, and rank %d%s in a %s",
			kind, a, s.where.at(a), b, s.where.at(b), shares[other].kind)}
	}
	n := 0
	for _, sh := range shares {
		n += len(sh.ranks)
	}
	l := shares[left].left
	return &abort{rank: l.first, code: l.code, text: fmt.Sprintf(
		"MPI %s cannot complete: %d of %d ranks wait in it, and %s%s will never enter it; rank %d %s",
		kind, n, s.size, ranksText(l.ranks), s.where.at(l.first), l.first, l.how)}
}

// commitAll makes visible what all ranks have put; the caller holds mu. What other
// nodes have accepted may be more than fits here.
func (s *state) commitAll(all []rankShare) *abort {
	for _, rs := range all {
		r := s.rank(rs.n)
		if r != nil {
			for key, text := range r.sent {
				s.replace(s.kvs, key, value{text: text, owner: r, charged: true})
			}
			r.sent = nil
			continue
		}
		for _, p := range rs.pairs {
			s.bytes += charge(p.key, p.value)
			s.replace(s.kvs, p.key, value{text: p.value, charged: true})
		}
	}
	if s.bytes <= s.conf.TotalBytes || s.aborted {
		return nil
	}
	s.aborted = true
	return &abort{rank: s.ranks[0].n, code: 1, text: fmt.Sprintf(
		"MPI fence cannot complete: the ranks of all nodes store %d bytes together: more than %d (PMI2TotalBytes)", s.bytes, s.conf.TotalBytes)}
}

// rank finds this node's rank of that number, nil if it is another's.
func (s *state) rank(n int) *rank {
	i, ok := slices.BinarySearchFunc(s.ranks, n, func(r *rank, n int) int { return r.n - n })
	if !ok {
		return nil
	}
	return s.ranks[i]
}
