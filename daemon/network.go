package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"stepd/api/stepapi"
	"stepd/mpi/spawn"
	"stepd/step"
	"stepd/stepio/live"
	"stepd/task"
)

// Network is the other nodes of a step and its launcher, which is on none of them:
// *nodes.Tree.
type Network interface {
	task.Network
	task.Streams
	step.Peers
	// Begin joins the others and hands the tasks their streams. It is called before
	// the step runs.
	Begin(st *task.Step, view View) error
	// SetTap makes t hear what goes to the launcher by way of this node, nil nobody. It
	// must not block, and may be called before Begin.
	SetTap(t func(fd, rank int, data []byte))
	// Tell sends a record to the launcher; one that is a line may be dropped where
	// the launcher does not keep up.
	Tell(m *stepapi.Msg)
	// Finish says that the tasks here have ended, and returns when the step is over
	// on all nodes, or with ctx's cause. Close then leaves the others.
	Finish(ctx context.Context) error
	Close()
}

// View is what is seen of the step's output on this node. The connections are
// SOCK_SEQPACKET sockets with frames of package replay.
type View struct {
	// Terminal makes the launcher's end of the terminal of rank 0, where that is.
	Terminal func() (fd int, err error)
	// Watch makes a connection for one who watches.
	Watch func(w *stepapi.Watch) (watched *stepapi.Watched, fd int, err error)
}

// Several is what a stepd needs that has to do with other nodes.
type Several struct {
	// Join makes the Network of a step that has a Layout.
	Join func(spec *step.Spec, log func(text string)) (Network, error)
	// Reach connects to steps of several nodes that this one has spawned.
	Reach spawn.Reach
}

// reach is Reach, nil in a stepd for one node.
func (s *Several) reach() spawn.Reach {
	if s == nil {
		return nil
	}
	return s.Reach
}

// runOnAll runs the step. One of several nodes is over when it is on all: until
// then this stepd passes on what is the others'.
func runOnAll(ctx context.Context, h handler) (step.Record, error) {
	st, aud := h.st, h.aud
	if aud.net == nil {
		return st.Run(ctx), nil
	}
	view := View{
		Terminal: func() (int, error) { return h.output.Watch(live.Watching{Launcher: true, Replay: -1}) },
		Watch:    func(w *stepapi.Watch) (*stepapi.Watched, int, error) { return h.Watch(w, false) },
	}
	if err := aud.net.Begin(st, view); err != nil {
		return step.Record{}, err
	}
	rec := st.Run(ctx)
	ctx, stop := h.cancelled.bound(ctx)
	defer stop()
	if err := aud.net.Finish(ctx); err != nil {
		aud.Log(step.LogError, fmt.Sprintf("did not wait for the step's end on the other nodes: %v", err))
	}
	if !h.output.Terminal() {
		h.output.Drain() // of all nodes
	}
	aud.net.Close()
	aud.net.Fill(&rec) // what was on its way when the tasks ended has come
	return rec, nil
}

// finishPatience is how long a step that was cancelled waits for the other nodes,
// and for a launcher that does not take the last of its output.
const finishPatience = 30 * time.Second

// overdue notes that the step was cancelled.
type overdue struct {
	once sync.Once
	c    chan struct{}
}

func newOverdue() *overdue { return &overdue{c: make(chan struct{})} }

func (o *overdue) begin() { o.once.Do(func() { close(o.c) }) }

// bound returns a context that ends finishPatience after the cancel.
func (o *overdue) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancelCause(context.Background())
	go func() {
		select {
		case <-o.c:
		case <-ctx.Done():
		case <-out.Done():
			return
		}
		t := time.NewTimer(finishPatience)
		defer t.Stop()
		select {
		case <-t.C:
			cancel(fmt.Errorf("%v have passed since it was cancelled", finishPatience))
		case <-out.Done():
		}
	}()
	return out, func() { cancel(nil) }
}
