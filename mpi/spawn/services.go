package spawn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"stepd/api/stepapi"
	"stepd/step"
	"stepd/step/launch"
)

// Config is what a step gives to its Services; all of it is needed.
type Config struct {
	Spec *step.Spec
	// Ask asks noded (stepapi.Server.Ask).
	Ask func(context.Context, *stepapi.Ask) (*stepapi.Answer, error)
	// Stream returns a copy of what a rank of this node has as descriptor 1 or 2; the
	// caller closes it.
	Stream func(rank, fd int) (int, error)
	// Say sends a line to the user's stderr, Log one to the administrator.
	Say func(line string)
	Log func(text string)
	// Abort ends this step because one that a rank has spawned was aborted.
	Abort func(rank, code int, text string)
	// Ending returns what is closed when the step's end has been asked for.
	Ending func() <-chan struct{}
}

// nodedPatience is how long a request waits for noded, which may be restarting.
const nodedPatience = 60 * time.Second

// Services are a step's launch.MPIServices. Make them with New; Close waits for what
// was spawned.
type Services struct {
	Config

	mu       sync.Mutex
	closed   bool                // guarded by mu
	children map[*child]struct{} // guarded by mu
	running  sync.WaitGroup
}

// New makes the services of one step.
func New(c Config) *Services {
	return &Services{Config: c, children: make(map[*child]struct{})}
}

// Publish binds a name for all steps of the job.
func (s *Services) Publish(ctx context.Context, name, port string) error {
	_, err := s.ask(ctx, &stepapi.Ask{Do: stepapi.AskPublish, Name: []byte(name), Port: []byte(port)})
	return err
}

// Lookup finds a name of the job's.
func (s *Services) Lookup(ctx context.Context, name string) (port string, found bool, err error) {
	return portOf(s.ask(ctx, &stepapi.Ask{Do: stepapi.AskLookup, Name: []byte(name)}))
}

// Unpublish takes a name back; any step of the job may.
func (s *Services) Unpublish(ctx context.Context, name string) error {
	_, err := s.ask(ctx, &stepapi.Ask{Do: stepapi.AskUnpublish, Name: []byte(name)})
	return err
}

// Await finds a name of the job's, waiting for it as long as ctx lasts.
func (s *Services) Await(ctx context.Context, name string) (port string, found bool, err error) {
	return portOf(s.wait(ctx, &stepapi.Ask{Do: stepapi.AskLookup, Name: []byte(name)}))
}

func portOf(a *stepapi.Answer, err error) (port string, found bool, _ error) {
	if err != nil {
		return "", false, err
	}
	return string(a.Port), a.Found, nil
}

// Meet exchanges data with other steps of the job.
func (s *Services) Meet(ctx context.Context, name string, parties []string, me string, data []byte) (map[string][]byte, error) {
	a, err := s.wait(ctx, &stepapi.Ask{Do: stepapi.AskMeet, Name: []byte(name), Parties: parties, Party: me, Port: data})
	if err != nil {
		return nil, err
	}
	if !a.Found {
		return nil, fmt.Errorf("cannot meet steps %q: not all came: %w", parties, context.Cause(ctx))
	}
	parts := make(map[string][]byte, len(a.Parts))
	for _, p := range a.Parts {
		parts[p.Key] = p.Value
	}
	return parts, nil
}

// wait asks until another step has done what is waited for, or ctx ends: noded
// answers after a few seconds at the latest, and may be restarting.
func (s *Services) wait(ctx context.Context, ask *stepapi.Ask) (*stepapi.Answer, error) {
	for {
		ask.WaitMS = int64(time.Hour / time.Millisecond)
		if deadline, ok := ctx.Deadline(); ok {
			ask.WaitMS = max(1, time.Until(deadline).Milliseconds())
		}
		// noded's last answer is to come before we give up.
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), nodedPatience)
		stop := context.AfterFunc(ctx, func() {
			if errors.Is(ctx.Err(), context.Canceled) {
				cancel()
			}
		})
		a, err := s.Ask(asking, ask)
		stop()
		cancel()
		switch {
		case errors.Is(err, stepapi.ErrNodedGone):
		case err != nil || a.Found:
			return a, err
		}
		if ctx.Err() != nil {
			return &stepapi.Answer{}, nil
		}
	}
}

// ask asks noded, and once more where that has gone meanwhile: a name that was
// published by the first request is then refused, which the user sees.
func (s *Services) ask(ctx context.Context, ask *stepapi.Ask) (*stepapi.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, nodedPatience)
	defer cancel()
	a, err := s.Ask(ctx, ask)
	if errors.Is(err, stepapi.ErrNodedGone) && ask.Do != stepapi.AskSpawn {
		a, err = s.Ask(ctx, ask)
	}
	return a, err
}

// Running counts the spawned steps that have not ended.
func (s *Services) Running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.children)
}

// Close waits until all that was spawned has ended. Nothing is spawned any more.
func (s *Services) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
}

// Cancel ends what was spawned.
func (s *Services) Cancel(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.children {
		c.cancel(reason)
	}
}

// Spawn starts another step and returns when its tasks run. One whose tasks cannot
// all be started is ended, and the error is a *launch.SpawnError. Where ctx ends
// first, the new step is ended.
func (s *Services) Spawn(ctx context.Context, r launch.SpawnRequest) (step.ID, error) {
	req, err := request(s.Spec, r)
	if err != nil {
		return step.ID{}, err
	}
	c, err := s.begin(r.Rank)
	if err != nil {
		return step.ID{}, err
	}
	if err := c.start(ctx, req, r); err != nil {
		s.end(c)
		return step.ID{}, err
	}
	go func() {
		defer s.end(c)
		c.follow()
	}()
	select {
	case err := <-c.launched:
		return c.id, err
	case <-ctx.Done():
		c.giveUp("the task that has spawned it is gone")
		return step.ID{}, fmt.Errorf("cannot wait for step %s: %w", c.id, context.Cause(ctx))
	}
}

// begin counts a child, unless this step has ended, or is about to.
func (s *Services) begin(rank int) (*child, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.Ending():
		s.closed = true
	default:
	}
	if s.closed {
		return nil, fmt.Errorf("cannot spawn: step %s is ending", s.Spec.ID)
	}
	c := &child{s: s, rank: rank, launched: make(chan error, 1), done: make(chan struct{})}
	s.children[c] = struct{}{}
	s.running.Add(1)
	return c, nil
}

func (s *Services) end(c *child) {
	close(c.done)
	s.mu.Lock()
	delete(s.children, c)
	s.mu.Unlock()
	s.running.Done()
}
