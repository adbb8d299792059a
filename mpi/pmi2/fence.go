package pmi2

import (
	"fmt"
	"strings"

	"stepd/step"
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
	s.aborted = true
	return &abort{rank: first.n, code: first.code(), text: fmt.Sprintf(
		"MPI %s cannot complete: %d of %d ranks%s wait in it, and %s will never enter it; rank %d %s",
		s.fence.kind, s.fence.entered, len(s.ranks), s.where.here(), ranksText(numbers), first.n, first.end())}
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
	if s.aborted {
		return outcome{}
	}
	s.aborted = true
	said := "MPI rank " + itoa(r.n) + " called abort"
	if text != "" {
		said += ": " + quoteUpTo(text, s.conf.ValueBytes)
	}
	return outcome{abort: &abort{rank: r.n, code: code, text: said}}
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
		s.aborted = true
		return outcome{abort: &abort{rank: r.n, code: r.code(), text: fmt.Sprintf(
			"MPI rank %d %s: it had not finalized", r.n, r.end())}}
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
