package task

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/step"
	"stepd/step/launch"
)

// attachTimeout is how long a launch waits for a client that never comes;
// attachGrace how long it does where no stream goes to a client: then only
// lines about the launch would be lost.
const (
	attachTimeout = 30 * time.Second
	attachGrace   = time.Second
)

// clientStreams collects the descriptors that the launching client hands over. Any
// goroutine may use it.
type clientStreams struct {
	plan     *Plan
	causes   *causes
	attached chan struct{} // closed when the client has handed over all
	once     sync.Once

	mu      sync.Mutex
	streams []launch.TaskStream // guarded by mu
	closed  bool                // guarded by mu: too late
}

func newClientStreams(p *Plan, c *causes) *clientStreams {
	return &clientStreams{plan: p, causes: c, attached: make(chan struct{})}
}

// Attach takes over one descriptor for stream fd (0 to 2) of a rank, or of
// launch.AllRanks. After an error the descriptor is closed.
func (c *clientStreams) Attach(fd, rank, handle int) error {
	err := c.attach(fd, rank, handle)
	if err != nil {
		unix.Close(handle)
	}
	return err
}

func (c *clientStreams) attach(fd, rank, handle int) error {
	id, ours := c.plan.localID(rank)
	switch {
	case fd < 0 || fd > 2:
		return fmt.Errorf("cannot attach stream %d: streams are 0, 1 and 2", fd)
	case rank == launch.AllRanks:
		id = launch.AllRanks
	case !ours:
		return fmt.Errorf("cannot attach stream %d of rank %d: the ranks here are %s", fd, rank, step.FormatCPUList(c.plan.Ranks))
	}
	if !c.plan.NeedClient[fd] {
		return fmt.Errorf("cannot attach stream %d: it does not go to the client", fd)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.streams) > 3*len(c.plan.Ranks) {
		return fmt.Errorf("cannot attach stream %d of rank %d: the tasks have their streams already", fd, rank)
	}
	c.streams = append(c.streams, launch.TaskStream{LocalID: id, FD: fd, Kind: launch.StreamToHandle, Handle: handle})
	return nil
}

// AttachDone says that the client has handed over all that it will.
func (c *clientStreams) AttachDone() { c.once.Do(func() { close(c.attached) }) }

// wait waits for the client's streams.
func (c *clientStreams) wait() error {
	if isBatch(c.plan.Spec) || c.plan.Spec.ID.Step == step.ExternStep || c.plan.Spec.Unattended {
		return nil // they have no client
	}
	limit := attachTimeout
	needed := c.plan.NeedClient != [3]bool{}
	if !needed {
		limit = attachGrace
	}
	select {
	case <-c.attached:
		return nil
	case <-c.causes.cancelled:
		return c.causes.endedBy()
	case <-time.After(limit):
		if !needed {
			return nil
		}
		return fmt.Errorf("no client attached the tasks' streams within %v", attachTimeout)
	}
}

// take returns the client's streams, with /dev/null beneath: a client that has
// attached fewer than it promised starves itself, not the tasks. No more are attached.
func (c *clientStreams) take() []launch.TaskStream {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	var out []launch.TaskStream
	for fd, need := range c.plan.NeedClient {
		all := false
		for _, st := range c.streams {
			all = all || (st.FD == fd && st.LocalID == launch.AllRanks)
		}
		spec := c.plan.Spec
		restricted := [3]step.Stream{spec.Stdin, spec.Stdout, spec.Stderr}[fd].Rank != nil
		if need && !all && !restricted {
			out = append(out, launch.TaskStream{LocalID: launch.AllRanks, FD: fd, Kind: launch.StreamToNull})
		}
	}
	return append(out, c.streams...)
}

// close closes stepd's copies: the host has its own.
func (c *clientStreams) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, st := range c.streams {
		unix.Close(st.Handle)
	}
	c.streams = nil
}

// heldLimit is how long a stream may stay open when no process of the step is left.
const heldLimit = 5 * time.Second

// heldReported is how many held streams are reported to the user, and stand in the record;
// the event log has all.
const heldReported = 10

// drainStreams ends the streams that stepd passes on: the step is over when the last
// byte of its tasks is where it is to go.
func (t *teardown) drainStreams() error {
	limit := heldLimit
	if t.killing.givenUp {
		limit = 0 // processes that do not die hold them, and were reported
	}
	held := t.d.Streams.Drain(limit)
	if t.killing.givenUp {
		return nil
	}
	for i, h := range held {
		text := h.String()
		t.messages.event(eventlog.Event{Event: eventlog.EventHeldOpen, PID: h.PID, Text: text})
		if i < heldReported {
			t.ledger.write(func(rec *step.Record) { rec.HeldOpen = append(rec.HeldOpen, text) })
			t.messages.sayError(text + ", which is no process of the step: it was waited for in vain")
		}
	}
	return nil
}
