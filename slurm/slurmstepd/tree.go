package slurmstepd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"stepd/slurm/munge"
	"stepd/slurm/rpc"
	"stepd/slurm/socket"
	"stepd/slurm/wire"
	"stepd/slurmconf"
)

// treeAbove is the number of nodes up to which each one tells slurmctld itself that the step has
// ended there: no node's end then depends on another's. Above it the ends go up slurmd's tree, so
// that slurmctld does not hear of all at once. Slurm's own always uses the tree.
const treeAbove = 32

// treeVariable is treeAbove in slurmd's environment, for tests.
const treeVariable = "STEPD_TREE_ABOVE"

const (
	// childPatience and levelPatience are how long a node waits for those below it, from its own
	// end on: the latter for each level below. What comes later is refused, and goes to slurmctld.
	childPatience = 60 * time.Second
	levelPatience = 3 * time.Second
	// parentTries is how often the parent's slurmd is asked, each second, before slurmctld is.
	parentTries = 5
)

// descendantsMax bounds the nodes below one.
const descendantsMax = 1 << 20

// tree is the step on the nodes below this one, which report to it. Their numbers follow its own.
type tree struct {
	first    uint32 // number
	patience time.Duration
	noted    func(i int, rc uint32) // that the i-th has ended, for the orphan

	mu      sync.Mutex
	ended   []bool
	missing int
	rc      uint32
	usage   *wire.Usage
	closed  bool          // this node has reported, or does
	done    chan struct{} // closed when none is missing, and by giveUp
}

// inTree reports whether the step's ends go up the tree.
func inTree(s *wire.Stream) bool {
	above := treeAbove
	if n, err := strconv.Atoi(os.Getenv(treeVariable)); err == nil {
		above = n
	}
	return s.Launch != nil && s.Launch.Nodes > uint32(above)
}

// newTree is the nodes below this one, nil where they report by themselves.
func newTree(s *wire.Stream, noted func(i int, rc uint32)) *tree {
	n := s.Tree.Children
	if !inTree(s) || n <= 0 || n > descendantsMax {
		return nil
	}
	return &tree{
		first: uint32(s.Tree.Rank) + 1, patience: childPatience + time.Duration(max(0, s.Tree.MaxDepth-s.Tree.Depth))*levelPatience,
		noted: noted, ended: make([]bool, n), missing: int(n), done: make(chan struct{}),
	}
}

// errReported is the answer to a node that reports too late.
var errReported = errors.New("this node has reported without it")

// add takes the end on nodes below.
func (t *tree) add(e *socket.NodesEnd) error {
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
func (t *tree) end() {
	select {
	case <-t.done:
	default:
		close(t.done)
	}
}

// giveUp ends the wait for nodes below: slurmd ends the job, whose other nodes have had KillWait.
func (t *tree) giveUp() {
	if t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.end()
	}
}

// gather waits for the nodes below, and returns what is to be reported: of each row of nodes
// without a gap one end, all with the highest status, the first with what all have used. waiting is
// called before a wait.
func (t *tree) gather(ctx context.Context, own *wire.StepComplete, waiting func()) (ends []*wire.StepComplete, missing int) {
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
	return rows(own, t.first, func(i int) bool { return i < len(t.ended) && t.ended[i] }, len(t.ended)), t.missing
}

// rows are the ends of a node and of those of the n below it that have ended.
func rows(own *wire.StepComplete, first uint32, ended func(i int) bool, n int) []*wire.StepComplete {
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

// Ended takes the step's end on other nodes. Where each reports by itself, it is Slurm's own step
// daemon that runs on the other: its report is passed on.
func (h *handler) Ended(e socket.NodesEnd) error {
	if h.tree != nil {
		err := h.tree.add(&e)
		if err != nil {
			h.log.Warnf("refused the end of nodes %d to %d of the step: %v", e.First, e.Last, err)
		}
		return err
	}
	used, err := wire.UnpackUsage(e.Usage)
	if err != nil {
		return err
	}
	return h.peers.passOn(context.Background(), &wire.StepComplete{Step: h.id(), First: e.First, Last: e.Last, RC: e.RC, Usage: used})
}

func (h *handler) id() wire.StepID { return (*daemon)(h).id() }

// parent is the address of the parent's slurmd in the step's tree, "" where slurmctld is told.
func (d *daemon) parent() string {
	s := d.stream
	if !inTree(s) || s.Tree.Parent < 0 {
		return ""
	}
	if s.ParentAddr.IsValid() && !s.ParentAddr.Addr().IsUnspecified() {
		return s.ParentAddr.String()
	}
	if s.Parent == "" {
		return ""
	}
	at, err := slurmconf.Addresses(d.conf.File, []string{s.Parent})
	if err != nil {
		d.log.Warnf("%v: to it this node is to report the step's end, and it reports to slurmctld", err)
		return ""
	}
	return at[s.Parent].HostPort()
}

// tellEnd reports the step's end to the parent, or to slurmctld where there is none or where it
// does not take it.
func (p *peers) tellEnd(ctx context.Context, end *wire.StepComplete) {
	if p.parent != "" && p.tellParent(ctx, end) {
		return
	}
	p.tellController(ctx, rpc.StepEnd(), end)
}

// tellParent reports whether the parent has taken the end. A refusal is no last word: the parent's
// own step daemon may be about to start.
func (p *peers) tellParent(ctx context.Context, end *wire.StepComplete) bool {
	self := uint32(os.Geteuid()) // slurmd's
	to := []rpc.Peer{{Addr: p.parent, Reader: self, Signers: []uint32{self}}}
	for try := 1; ; try++ {
		err := p.ctld.Deliver(ctx, to, end, rpc.Retry{})
		if p.attempted != nil {
			p.attempted()
		}
		if err == nil {
			return true
		}
		p.log.Infof("the step's end, to the parent's slurmd: %v", err)
		if try == parentTries {
			p.log.Warnf("slurmd at %s does not take the step's end: it is reported to slurmctld", p.parent)
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(time.Second):
		}
	}
}

// passOn gives slurmctld an end that is not this node's. It is tried once: who has reported it
// hears of an error, and reports it by itself.
func (p *peers) passOn(ctx context.Context, end *wire.StepComplete) error {
	var to []rpc.Peer
	for _, addr := range p.addrs {
		to = append(to, rpc.Peer{Addr: addr, Reader: munge.Anyone, Signers: []uint32{p.slurmUser, 0}})
	}
	return p.ctld.Deliver(ctx, to, end, rpc.Retry{})
}
