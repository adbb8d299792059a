package nodes

import (
	"context"
	"encoding/json"
	"fmt"

	"stepd/api/stepapi"
	"stepd/mpi/spawn"
	"stepd/stepio"
	"stepd/stepnet"
)

// Reach connects to a step of several nodes that this one has spawned, as its
// launcher: what its tasks write comes by whole lines.
func Reach(ctx context.Context, r spawn.Remote) (spawn.Reached, error) {
	s := &spawned{told: r.Told, remote: stepio.NewRemote(r.Spec, stepio.Options{Stdout: r.Out, Stderr: r.Err})}
	a, err := stepnet.Dial(ctx, stepnet.LauncherConfig{ID: r.Spec.ID, Layout: r.Spec.Layout, Key: r.Key, Sink: s})
	if err != nil {
		return nil, err
	}
	return &reached{a, s}, nil
}

// spawned takes what the nodes of a spawned step tell.
type spawned struct {
	told   func(node int, m *stepapi.Msg)
	remote *stepio.Remote
}

var _ stepnet.Sink = (*spawned)(nil)

func (s *spawned) Output(fd, rank int, data []byte, end bool) {
	s.remote.Output(fd, rank, data, end)
}

func (s *spawned) Record(node int, words []byte) {
	m := new(stepapi.Msg)
	if json.Unmarshal(words, m) == nil { // another one says nothing to us
		s.told(node, m)
	}
}

// reached is the launcher's end of one.
type reached struct {
	a *stepnet.Launcher
	s *spawned
}

var _ spawn.Reached = (*reached)(nil)

func (r *reached) Order(m *stepapi.Msg) error {
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("cannot encode %q record: %w", m.Type, err)
	}
	return r.a.Order(b)
}

func (r *reached) Wait() error {
	err := r.a.Wait()
	r.s.remote.End()
	return err
}

func (r *reached) Close() { r.a.Close() }
