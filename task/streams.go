package task

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// attachTimeout is how long a launch waits for a client that never comes;
// attachGrace how long it does where no stream goes to a client: then only
// lines about the launch would be lost.
const (
	attachTimeout = 30 * time.Second
	attachGrace   = time.Second
)

// attachments collects the descriptors that the launching client hands over.
type attachments struct {
	attMu    sync.Mutex
	streams  []step.TaskStream // guarded by attMu
	closed   bool              // guarded by attMu: too late
	attached chan struct{}     // closed when the client has handed over all
	attOnce  sync.Once
}

func (a *attachments) init() { a.attached = make(chan struct{}) }

// Attach takes over one descriptor for stream fd (0 to 2) of a rank, or of
// step.AllRanks. After an error the descriptor is closed.
func (s *Step) Attach(fd, rank, handle int) error {
	err := s.attach(fd, rank, handle)
	if err != nil {
		unix.Close(handle)
	}
	return err
}

func (s *Step) attach(fd, rank, handle int) error {
	id, ours := s.plan.localID(rank)
	switch {
	case fd < 0 || fd > 2:
		return fmt.Errorf("cannot attach stream %d: streams are 0, 1 and 2", fd)
	case rank == step.AllRanks:
		id = step.AllRanks
	case !ours:
		return fmt.Errorf("cannot attach stream %d of rank %d: the ranks here are %s", fd, rank, step.FormatCPUList(s.plan.Ranks))
	}
	switch {
	case !s.plan.NeedClient[fd]:
		return fmt.Errorf("cannot attach stream %d: it does not go to the client", fd)
	}
	s.attMu.Lock()
	defer s.attMu.Unlock()
	if s.closed || len(s.streams) > 3*len(s.plan.Ranks) {
		return fmt.Errorf("cannot attach stream %d of rank %d: the tasks have their streams already", fd, rank)
	}
	s.streams = append(s.streams, step.TaskStream{LocalID: id, FD: fd, Kind: step.StreamToHandle, Handle: handle})
	return nil
}

// AttachDone says that the client has handed over all that it will.
func (s *Step) AttachDone() { s.attOnce.Do(func() { close(s.attached) }) }

// LauncherLost says that the launching client is gone. Before every task has
// exec'd that ends the step, as a cancel does; after it the tasks find out by
// their pipes.
func (s *Step) LauncherLost() {
	s.mu.Lock()
	launched := s.launched
	s.mu.Unlock()
	if s.plan.Spec.Parent != nil {
		// They are connected, and their output has nowhere to go.
		s.Cancel("the step that has spawned it, " + s.plan.Spec.Parent.String() + ", is gone")
		return
	}
	if !launched {
		s.Cancel("the client went away before the tasks were started")
	}
}

// waitAttached waits for the client's streams.
func (s *Step) waitAttached() error {
	if isBatch(s.plan.Spec) || s.plan.Spec.ID.Step == step.ExternStep || s.plan.Spec.Unattended {
		return nil // they have no client
	}
	limit := attachTimeout
	needed := s.plan.NeedClient != [3]bool{}
	if !needed {
		limit = attachGrace
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-s.attached:
		return nil
	case <-s.cancelled:
		return s.endedBy()
	case <-t.C:
		if !needed {
			return nil
		}
		return fmt.Errorf("no client attached the tasks' streams within %v", attachTimeout)
	}
}

// attachedStreams are the client's, with /dev/null beneath: a client that has
// attached fewer than it promised starves itself, not the tasks.
func (s *Step) attachedStreams(p *Plan) []step.TaskStream {
	s.attMu.Lock()
	defer s.attMu.Unlock()
	s.closed = true
	var out []step.TaskStream
	for fd, need := range p.NeedClient {
		all := false
		for _, st := range s.streams {
			all = all || (st.FD == fd && st.LocalID == step.AllRanks)
		}
		restricted := [3]step.Stream{p.Spec.Stdin, p.Spec.Stdout, p.Spec.Stderr}[fd].Rank != nil
		if need && !all && !restricted {
			out = append(out, step.TaskStream{LocalID: step.AllRanks, FD: fd, Kind: step.StreamToNull})
		}
	}
	return append(out, s.streams...)
}

// closeAttached closes stepd's copies: the host has its own.
func (s *Step) closeAttached() {
	s.attMu.Lock()
	defer s.attMu.Unlock()
	s.closed = true
	for _, st := range s.streams {
		unix.Close(st.Handle)
	}
	s.streams = nil
}
