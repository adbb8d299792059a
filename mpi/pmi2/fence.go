package pmi2

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"stepd/step"
	"stepd/step/launch"
)

// fence is the collective call in progress: PMI-1's barrier, PMI-2's kvs-fence
// and ring. Every rank of the step must enter it, each by its own protocol.
type fence struct {
	kind    fenceKind
	entered int // ranks of this node
	// away: all of this node's ranks are in, and other nodes are awaited.
	away bool
	// seq numbers the fences of this node.
	seq int
	// whole is closed when all of this node's ranks are in; nil where no clock is
	// watched.
	whole chan struct{}
}

type fenceKind string

const (
	kindFence fenceKind = "fence" // a PMI-1 barrier is one
	kindRing  fenceKind = "ring"
)

// entry is one rank's part in a fence.
type entry struct {
	m           message // what the answer needs of the request
	left, right string  // ring: what the neighbours are given
}

// enter puts a rank into the collective of a kind, and answers everybody when
// it is the last one. An answer of its own comes only with a refusal.
func (s *state) enter(r *rank, kind fenceKind, e entry) (outcome, *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.entry != nil:
		return outcome{}, refuse(codeArgument, "rank %d waits in a %s already", r.n, s.fence.kind)
	case s.fence.entered > 0 && s.fence.kind != kind:
		return outcome{}, refuse(codeArgument, "rank %d enters a %s while others wait in a %s", r.n, kind, s.fence.kind)
	}
	r.entry = &e
	s.fence.kind = kind
	s.fence.entered++
	if s.fence.entered < len(s.ranks) {
		s.note(r)
		out := outcome{abort: s.stuck(nil)}
		if s.fence.entered == 1 && s.conf.FenceTimeout > 0 {
			s.fence.whole = make(chan struct{})
			out.watch = &watch{s.fence.seq, s.fence.whole}
		}
		return out, nil
	}
	if s.fence.whole != nil {
		close(s.fence.whole)
	}
	if s.where.several() {
		s.note(r)
		return outcome{share: s.pack()}, nil
	}
	all := make([]rankShare, len(s.ranks))
	for i, r := range s.ranks {
		s.commit(r)
		all[i] = rankShare{n: r.n, left: r.entry.left, right: r.entry.right}
	}
	return outcome{deliveries: s.complete(all)}, nil
}

// complete ends a fence: every rank of this node gets the answer. all has the part of
// each rank of the step, by rank. The caller holds mu.
func (s *state) complete(all []rankShare) []delivery {
	out := make([]delivery, 0, len(s.ranks))
	for _, r := range s.ranks {
		out = append(out, delivery{r, s.fenceAnswer(r, all)})
	}
	for _, r := range s.ranks {
		r.entry = nil
		r.fences++
		s.note(r)
	}
	s.fence = fence{seq: s.fence.seq + 1}
	return out
}

func (s *state) fenceAnswer(r *rank, all []rankShare) []byte {
	switch {
	case r.speaks == 1:
		return line1("barrier_out", pair{"rc", "0"})
	case s.fence.kind == kindFence:
		return respond2(r.entry.m)
	}
	n := len(all)
	left, right := &all[(r.n+n-1)%n], &all[(r.n+1)%n]
	return respond2(r.entry.m,
		pair{"ring-count", itoa(r.n)},
		pair{"ring-left", left.right},
		pair{"ring-right", right.left})
}

// stuck reports whether ranks wait in a fence that others can never enter, and
// asks for the end of the step then: a fence that hangs says nothing to
// anybody. first is looked at for the exit code; it may be nil. The caller
// holds mu.
func (s *state) stuck(first *rank) *abort {
	if s.fence.entered == 0 || s.left == 0 || s.aborted {
		return nil
	}
	var missing []*rank
	for _, r := range s.ranks {
		if r.entry == nil && r.left {
			missing = append(missing, r)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if first == nil || first.entry != nil {
		first = missing[0]
	}
	numbers := make([]int, len(missing))
	for i, r := range missing {
		numbers[i] = r.n
	}
	return s.end(first.n, first.code(), "MPI %s cannot complete: %d of %d ranks%s wait in it, and %s will never enter it; rank %d %s",
		s.fence.kind, s.fence.entered, len(s.ranks), s.where.here(), ranksText(numbers), first.n, first.end())
}

// leave records that the rank can enter no fence any more. The caller holds mu.
func (s *state) leave(r *rank) {
	if !r.left {
		r.left = true
		s.left++
	}
}

// code is the step's exit code where this rank ended it.
func (r *rank) code() int {
	if r.status != nil && r.status.Code() != 0 {
		return r.status.Code()
	}
	return 1
}

// end says in words how the rank ended.
func (r *rank) end() string {
	var how string
	switch {
	case r.status != nil:
		how = "ended (" + r.status.Describe() + ") " + string(r.phase)
	case r.phase == phaseFinalized:
		how = "has finalized"
	case r.closed:
		how = "closed its PMI connection " + string(r.phase)
	default:
		how = "is " + string(r.phase)
	}
	if r.fences > 0 {
		how += fmt.Sprintf(", %d fences passed", r.fences)
	}
	return how
}

// phaseOf reports how far a rank came.
func (s *state) phaseOf(r *rank) phase {
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.phase
}

// advance records how far a rank came. One that has finalized leaves no fence
// behind that still waits for it.
func (s *state) advance(r *rank, to phase) outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.phase = to
	s.note(r)
	if to == phaseFinalized || to == phaseAborted {
		s.leave(r)
	}
	return outcome{abort: s.stuck(r), share: s.packLeft()}
}

// askedToAbort ends the step by a rank's own wish.
func (s *state) askedToAbort(r *rank, code int, text string) outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.phase = phaseAborted
	s.leave(r)
	said := "MPI rank " + itoa(r.n) + " called abort"
	if text != "" {
		said += ": " + quoteUpTo(text, s.conf.ValueBytes)
	}
	return outcome{abort: s.end(r.n, code, "%s", said)}
}

// ended records how a task ended, when all that it had sent was served. A rank
// that spoke PMI and did not finalize takes the step with it, whatever its
// exit code: the other ranks would wait for its messages for ever.
func (s *state) ended(r *rank, status step.ExitStatus) outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.closed = true
	r.status = &status
	s.leave(r)
	s.forget(r)
	if s.aborted {
		return outcome{}
	}
	if r.phase == phaseHello || r.phase == phaseReady {
		return outcome{abort: s.end(r.n, r.code(), "MPI rank %d %s: it had not finalized", r.n, r.end())}
	}
	return outcome{abort: s.stuck(r), share: s.packLeft()}
}

// hungUp records that a rank's connection is closed while its task lives on.
func (s *state) hungUp(r *rank) outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.closed = true
	s.leave(r)
	s.forget(r)
	return outcome{abort: s.stuck(r), share: s.packLeft()}
}

// ranksText writes ranks as "rank 3" or "ranks 0-2,7"; a long list is cut.
func ranksText(sorted []int) string {
	const most = 16
	var parts []string
	for i := 0; i < len(sorted); {
		if len(parts) == most {
			parts = append(parts, "...")
			break
		}
		j := i
		for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
			j++
		}
		part := itoa(sorted[i])
		if j > i {
			part += "-" + itoa(sorted[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	word := "ranks "
	if len(sorted) == 1 {
		word = "rank "
	}
	return word + strings.Join(parts, ",")
}

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
	return sh.encode()
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
	return (&share{kind: kindLeft, left: l}).encode()
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
	if s.fence.seq != seq || s.fence.entered == 0 || s.fence.away {
		return outcome{}
	}
	i := slices.IndexFunc(s.ranks, func(r *rank) bool { return r.entry == nil })
	return outcome{abort: s.end(s.ranks[i].n, 1, "MPI %s cannot complete: after %v (PMI2FenceTimeout) %d of %d ranks%s wait in it, and %s",
		s.fence.kind, limit, s.fence.entered, len(s.ranks), s.where.here(), s.absentLocked())}
}

// failed ends the step because the other nodes do not come to a fence.
func (s *state) failed(why string) outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	return outcome{abort: s.end(s.ranks[0].n, 1, "MPI %s cannot complete: all %d ranks%s wait in it: %s",
		s.fence.kind, len(s.ranks), s.where.here(), why)}
}

// end ends the step, once; nil where it was ended before. The caller holds mu.
func (s *state) end(rank, code int, format string, args ...any) *abort {
	if s.aborted {
		return nil
	}
	s.aborted = true
	return &abort{rank, code, fmt.Sprintf(format, args...)}
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
	if waits < 0 || (left < 0 && other < 0) {
		return nil
	}
	kind := shares[waits].kind
	if other >= 0 {
		a, b := shares[waits].ranks[0].n, shares[other].ranks[0].n
		return s.end(b, 1, "MPI %s cannot complete: rank %d%s waits in it, and rank %d%s in a %s",
			kind, a, s.where.at(a), b, s.where.at(b), shares[other].kind)
	}
	n := 0
	for _, sh := range shares {
		n += len(sh.ranks)
	}
	l := shares[left].left
	return s.end(l.first, l.code, "MPI %s cannot complete: %d of %d ranks wait in it, and %s%s will never enter it; rank %d %s",
		kind, n, s.size, ranksText(l.ranks), s.where.at(l.first), l.first, l.how)
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
	if s.bytes <= s.conf.TotalBytes {
		return nil
	}
	return s.end(s.ranks[0].n, 1, "MPI fence cannot complete: the ranks of all nodes store %d bytes together: more than %d (PMI2TotalBytes)", s.bytes, s.conf.TotalBytes)
}

// rank finds this node's rank of that number, nil if it is another's.
func (s *state) rank(n int) *rank {
	i, ok := slices.BinarySearchFunc(s.ranks, n, func(r *rank, n int) int { return r.n - n })
	if !ok {
		return nil
	}
	return s.ranks[i]
}
