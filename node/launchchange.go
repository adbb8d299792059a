package node

import (
	"bytes"
	"slices"

	"stepd/api"
	"stepd/step"
)

// claim returns the reservation that the caller may launch, claimed.
func (n launcher) claim(caller api.Peer, id step.ID) (*follower, error) {
	f := n.reg.follower(id)
	none := api.Errorf(api.NotFound, "no such reservation %q", id)
	if f == nil {
		return nil, none
	}
	if !caller.MayAct(f.by) {
		return nil, api.ErrDenied
	}
	if !f.claim() {
		return nil, none
	}
	return f, nil
}

// change puts what the client has changed since the reservation over the
// request. What its plugins have set for prolog and epilog counts where the
// step is the job's first one: of a job of its own it replaces the job's; in an
// allocation, whose own command has set some too, it is put over that.
func (f *follower) change(spec *step.Spec, c *step.LaunchChange) error {
	spec.Env = f.n.taskEnv(c.Env)
	spec.JobControl = c.JobControl
	first := f.job.Leads(f.id) || (f.job.Origin == step.OriginAlloc && f.id.Step == 0)
	if !first {
		return nil
	}
	old, err := f.n.store.JobControl(f.id.Job)
	if err != nil {
		return err
	}
	control := c.JobControl
	if !f.job.Leads(f.id) {
		control = overlay(old, control)
	}
	if slices.EqualFunc(old, control, bytes.Equal) {
		return nil
	}
	return f.n.store.SetJobControl(f.id.Job, control)
}

// overlay is env with what over has of the same names and beside them.
func overlay(env, over [][]byte) [][]byte {
	names := make(map[string]bool, len(over))
	for _, e := range over {
		name, _, _ := bytes.Cut(e, []byte{'='})
		names[string(name)] = true
	}
	out := make([][]byte, 0, len(env)+len(over))
	for _, e := range env {
		if name, _, _ := bytes.Cut(e, []byte{'='}); !names[string(name)] {
			out = append(out, e)
		}
	}
	return append(out, over...)
}
