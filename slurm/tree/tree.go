// Package tree gathers the end of a step from the nodes below one in slurmd's tree: a step of many
// nodes is reported to slurmctld by few of them.
//
// Begin with New and Tree.Gather.
package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"stepd/slurm/socket"
	"stepd/slurm/wire"
)

// treeAbove is the number of nodes up to which each one tells slurmctld itself that the step has
// ended there: no node's end then depends on another's. Above it the ends go up slurmd's tree, so
// that slurmctld does not get all at once. Slurm's own always uses the tree.
const treeAbove = 32

// treeVariable is treeAbove in slurmd's environment, for tests.
const treeVariable = "STEPD_TREE_ABOVE"

const (
	// childPatience and levelPatience are how long a node waits for those below it, from its own
	// end on: the latter for each level below. What comes later is refused, and goes to slurmctld.
	childPatience = 60 * time.Second
	levelPatience = 3 * time.Second
	// ParentTries is how often the parent's slurmd is asked, each second, before slurmctld is.
	ParentTries = 5
)

// descendantsMax bounds the nodes below one.
const descendantsMax = 1 << 20

// A Tree is the step on the nodes below this one, which report to it. Their numbers follow its own.
type Tree struct {
	first    uint32 // number
	patience time.Duration
	noted    func(i int, rc uint32) // that the i-th has ended, for the orphan

	mu      sync.Mutex
	ended   []bool
	missing int
	rc      uint32
	usage   *wire.Usage
	closed  bool          // this node has reported, or does
	done    chan struct{} // closed when none is missing, and by GiveUp
}

// In reports whether the step's ends go up the tree.
func In(s *wire.Stream) bool {
	above := treeAbove
	if n, err := strconv.Atoi(os.Getenv(treeVariable)); err == nil {
		above = n
	}
	return s.Launch != nil && s.Launch.Nodes > uint32(above)
}

// New is the nodes below this one, nil where they report by themselves.
func New(s *wire.Stream, noted func(i int, rc uint32)) *Tree {
	n := s.Tree.Children
	if !In(s) || n <= 0 || n > descendantsMax {
		return nil
	}
	return &Tree{
		first: uint32(s.Tree.Rank) + 1, patience: childPatience + time.Duration(max(0, s.Tree.MaxDepth-s.Tree.Depth))*levelPatience,
		noted: noted, ended: make([]bool, n), missing: int(n), done: make(chan struct{}),
	}
}

// Len is how many nodes there are.
func (t *Tree) Len() int {
	if t == nil {
		return 0
	}
	return len(t.ended)
}

// errReported is the answer to a node that reports too late.
var errReported = errors.New("this node has reported without it")

// Add takes the end on nodes below.
func (t *Tree) Add(e *socket.NodesEnd) error {
	used, err := wire.UnpackUsage(e.Usage)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.First < t.first || e.Last < e.First || uint64(e.Last) >= uint64(t.first)+uint64(len(t.ended)) {
		return fmt.Errorf("nodes %d to %d are not below this one, which has %d to %d", e.First, e.Last, t.first, int(t.first)+len(t.ended)-1)
	}
	if t.closed {
		return errReported
	}
	for n := e.First; n <= e.Last; n++ {
		if i := int(n - t.first); !t.ended[i] {
			t.ended[i] = true
			t.missing--
			t.noted(i, e.RC)
		}
	}
	t.rc = max(t.rc, e.RC)
	if t.usage == nil {
		t.usage = used
	} else if used != nil {
		t.usage.Add(used)
	}
	if t.missing == 0 {
		t.end()
	}
	return nil
}

// end ends the wait. The caller holds mu.
func (t *Tree) end() {
	select {
	case <-t.done:
	default:
		close(t.done)
	}
}

// LatePatience is how long nodes below have once slurmd has said that the job is over: as long as
// they ask a parent that has died before they report to slurmctld.
const LatePatience = 5 * time.Second

// GiveUp ends the wait for nodes below.
func (t *Tree) GiveUp() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end()
}

// Gather waits for the nodes below, and returns what is to be reported: of each row of nodes
// without a gap one end, all with the highest status, the first with what all have used. waiting is
// called before a wait.
func (t *Tree) Gather(ctx context.Context, own *wire.StepComplete, waiting func()) (ends []*wire.StepComplete, missing int) {
	if t == nil {
		return []*wire.StepComplete{own}, 0
	}
	select {
	case <-t.done:
	default:
		waiting()
	}
	select {
	case <-t.done:
	case <-time.After(t.patience):
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	own.RC = max(own.RC, t.rc)
	if own.Usage == nil {
		own.Usage = t.usage
	} else if t.usage != nil {
		own.Usage.Add(t.usage)
	}
	return Rows(own, t.first, func(i int) bool { return i < len(t.ended) && t.ended[i] }, len(t.ended)), t.missing
}

// Rows are the ends of a node and of the ones of the n nodes below it that have ended.
func Rows(own *wire.StepComplete, first uint32, ended func(i int) bool, n int) []*wire.StepComplete {
	ends := []*wire.StepComplete{own}
	for i := range n {
		if !ended(i) {
			continue
		}
		number, last := first+uint32(i), ends[len(ends)-1]
		if number != last.Last+1 {
			ends = append(ends, &wire.StepComplete{Step: own.Step, First: number, RC: own.RC})
			last = ends[len(ends)-1]
		}
		last.Last = number
	}
	return ends
}
