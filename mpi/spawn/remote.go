package spawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/step"
)

// Remote is a spawned step of several nodes, or of another one, to be launched.
type Remote struct {
	Spec *step.Spec // as noded tells it to a launcher
	Key  []byte     // the launcher's
	// Out and Err take what its tasks write.
	Out, Err *os.File
	// Told takes the words of one of its nodes, one after the other.
	Told func(node int, m *stepapi.Msg)
}

// Reach connects to the first node's stepd of a step. Its ctx is for the connecting
// alone.
type Reach func(ctx context.Context, r Remote) (Reached, error)

// Reached is the connection to a step of several nodes. Order may be called from any
// goroutine.
type Reached interface {
	// Order sends a record to all of the step's nodes.
	Order(m *stepapi.Msg) error
	// Wait returns nil when the step is over and all that it wrote has been taken, or
	// why the connection was lost.
	Wait() error
	Close()
}

// startRemote launches a step that has other nodes.
func (c *child) startRemote(ctx context.Context, a *stepapi.Answer) error {
	if c.s.Reach == nil || a.Spec.Layout == nil {
		return fmt.Errorf("internal error: step %s is on other nodes, and the stepd of step %s knows none", c.id, c.s.Spec.ID)
	}
	c.nodes = make([]bool, len(a.Spec.Layout.Nodes))
	c.layout = a.Spec.Layout
	var err error
	for i := range c.out {
		if c.out[i], err = c.output(i + 1); err != nil {
			c.closeOutputs()
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c.last = make(chan *step.Record, 1)
	go func() { // ends with the step, or when no noded comes
		rec := c.awaitEnd()
		c.last <- rec
		cancel(errors.New("it has ended before it could be reached"))
	}()
	got, err := c.s.Reach(ctx, Remote{Spec: a.Spec, Key: a.Key, Out: c.out[0], Err: c.out[1], Told: c.heard})
	if err != nil {
		c.closeOutputs()
		select {
		case rec := <-c.last:
			if rec != nil && rec.Reason != "" {
				return &step.SpawnError{ID: c.id, Cause: rec.Reason}
			}
		default:
			c.cancelByNoded("its launcher cannot reach it")
		}
		return fmt.Errorf("cannot launch step %s: %w", c.id, err)
	}
	c.begun(func() { c.remote = got })
	return nil
}

// output is where the rank that has asked writes by descriptor fd; what it has closed
// is /dev/null. A pipe is opened anew, so that a write to it can be given up: the
// task's own must stay as it is.
func (c *child) output(fd int) (*os.File, error) {
	own, err := c.s.Stream(c.rank, fd)
	if err != nil {
		c.s.Log(fmt.Sprintf("descriptor %d of step %s is /dev/null: %v", fd, c.id, err))
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	var st unix.Stat_t
	if err := unix.Fstat(own, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return os.NewFile(uintptr(own), "output"), nil
	}
	defer unix.Close(own)
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(own), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot pass on the output of step %s: %w", c.id, err)
	}
	return f, nil
}

func (c *child) closeOutputs() {
	for _, f := range c.out {
		if f != nil {
			f.Close()
		}
	}
}

// awaitEnd returns the last record of the step, nil where no noded tells it.
func (c *child) awaitEnd() *step.Record {
	a, err := c.s.wait(context.Background(), &stepapi.Ask{Do: stepapi.AskEnd, ID: &c.id})
	if err != nil {
		c.s.Log(fmt.Sprintf("cannot tell how step %s has ended: %v", c.id, err))
		return nil
	}
	return a.Record
}

// cancelByNoded ends a step that could not be reached.
func (c *child) cancelByNoded(reason string) {
	ctx, cancel := context.WithTimeout(context.Background(), nodedPatience)
	defer cancel()
	if _, err := c.s.Ask(ctx, &stepapi.Ask{Do: stepapi.AskCancel, ID: &c.id, Reason: reason}); err != nil {
		c.s.Log(fmt.Sprintf("cannot end step %s: %v", c.id, err))
	}
}

// followRemote hears of the step until its end.
func (c *child) followRemote() {
	defer c.closeOutputs()
	defer c.remote.Close()
	go c.endWithParent()
	if err := c.remote.Wait(); err != nil {
		c.s.Log(fmt.Sprintf("step %s: %v", c.id, err))
	}
	c.ended(<-c.last)
}

// heard takes the words of one node.
func (c *child) heard(node int, m *stepapi.Msg) {
	if node < 0 || node >= len(c.nodes) {
		return
	}
	switch m.Type {
	case stepapi.TypeMessage:
		c.s.Say(m.Text)
	case stepapi.TypeTaskExit:
		if m.Status != nil && *m.Status != 0 {
			c.say(c.layout.Nodes[node].Name, "task %s: %s", step.FormatCPUList(m.Ranks), m.Status.Describe())
		}
	case stepapi.TypeReply:
		if m.Error != "" {
			c.s.Log(fmt.Sprintf("stepd of step %s on %s: %s", c.id, c.layout.Nodes[node].Name, m.Error))
		}
	case stepapi.TypeLaunched:
		c.launchedOn(node, m.Record)
	}
}

// launchedOn notes tasks of a node that were not started, or, without them, that the
// node has told all.
func (c *child) launchedOn(node int, rec *step.Record) {
	if c.told {
		return
	}
	if rec != nil {
		c.noteFailed(rec)
		return
	}
	c.nodes[node] = true
	for _, whole := range c.nodes {
		if !whole {
			return
		}
	}
	c.tellLaunched()
}
