package node

import (
	"context"
	"io"
	"time"

	"stepd/step"
)

// Meter gets the node's events, for figures over time. Its methods are called
// from several goroutines, which must not wait for them.
type Meter interface {
	// Request reports a request that was answered: the verb, the code and how long it
	// took.
	Request(verb, code string, took time.Duration)
	// StepEnded reports a step of this node that has ended; open opens its event log,
	// which the callee closes.
	StepEnded(rec *step.Record, open func() (io.ReadCloser, error))
	// Leak reports a leftover that was found.
	Leak(kind LeakKind)
	// Adopted reports how many steps of an earlier noded's run, and how long it took to
	// find out.
	Adopted(steps int, took time.Duration)
}

// LeakKind says what was left behind.
type LeakKind string

// The kinds of what is found.
const (
	LeakStep    LeakKind = "step"    // the cgroup of a step that has ended
	LeakFile    LeakKind = "file"    // a socket, result or folder of such a step
	LeakScript  LeakKind = "script"  // processes of a job's prolog or epilog
	LeakProcess LeakKind = "process" // processes of a step that SIGKILL does not end
)

// noMeter hears nothing.
type noMeter struct{}

func (noMeter) Request(string, string, time.Duration)                 {}
func (noMeter) StepEnded(*step.Record, func() (io.ReadCloser, error)) {}
func (noMeter) Leak(LeakKind)                                         {}
func (noMeter) Adopted(int, time.Duration)                            {}

// measure reports the step's end to the meter, when no client waits for it any more.
func (f *follower) measure() {
	if _, deaf := f.n.cfg.Meter.(noMeter); deaf {
		return
	}
	rec, name := f.record(), f.n.files.events(f.id)
	f.n.work.Go(func() {
		f.n.cfg.Meter.StepEnded(rec, func() (io.ReadCloser, error) {
			return f.n.openFile(name)
		})
	})
}

// Figures are the node as it is now, for a page of metrics.
type Figures struct {
	// State is IDLE, ALLOCATED, DRAINING or DRAINED.
	State string
	// Steps counts the steps that have not ended, by state; Jobs the jobs.
	Steps map[step.State]int
	Jobs  int
	// CPUs and MemoryMB are the node's, the free and used ones what jobs have left and
	// taken.
	CPUs, FreeCPUs   int
	MemoryMB, UsedMB uint64
	// Gres is what there is of each generic resource.
	Gres []GresFigure
	// Unkillable counts steps of which processes are left, Fallbacks what works less
	// well than configured, Connections the clients' connections.
	Unkillable, Fallbacks, Connections int
}

// GresFigure is one kind of generic resource.
type GresFigure struct {
	Name, Type  string
	Count, Used uint64
}

// Figures tells them.
func (n *Node) Figures() Figures {
	u := n.reg.usage()
	f := Figures{
		State: nodeState(u.drained.Drained, len(u.jobs)), Steps: map[step.State]int{}, Jobs: len(u.jobs),
		CPUs: len(n.cfg.CPUs), FreeCPUs: u.freeCPU, MemoryMB: n.cfg.Memory.MB, UsedMB: u.usedMB,
		Unkillable: len(n.health.Docs()), Fallbacks: len(n.fallbackList()),
	}
	if count := n.connections.Load(); count != nil {
		f.Connections = (*count)()
	}
	for _, s := range n.reg.followers() {
		f.Steps[s.state()]++
	}
	for _, g := range u.gres {
		f.Gres = append(f.Gres, GresFigure{Name: g.Name, Type: g.Type, Count: g.Count, Used: g.Used})
	}
	return f
}

func (f *follower) state() step.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rec.State
}

// NotReady says why the node takes no step of a user's now, a line each; none is
// that it takes them. It asks the spool, no longer than ctx lasts.
func (n *Node) NotReady(ctx context.Context) (why []string) {
	switch {
	case n.gate.Closing():
		why = append(why, "noded is stopping")
	case !n.serving.Load():
		why = append(why, "noded is starting")
	}
	if drained := n.gate.Drain(); drained.Drained {
		why = append(why, "the node is drained: "+drained.Reason)
	}
	if err := n.silence(); err != nil { // though its file system may answer
		return append(why, err.Error())
	}
	for _, t := range n.spoolWatch.look(ctx) {
		why = append(why, t.Text)
	}
	if err := n.store.Unwritable(); err != nil {
		why = append(why, err.Error())
	}
	return why
}
