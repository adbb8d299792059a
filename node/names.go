package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/node/state"
)

const (
	// nameMax and portMax bound a published name and what it stands for, in bytes.
	nameMax = 1024
	portMax = 4096
)

// asked takes one request of stepd's for its tasks, and answers it when it is
// done: a spawn must not keep the loop from hearing of the step.
func (f *follower) asked(m *stepapi.Msg) {
	if f.asks.Add(1) > stepapi.AsksMax {
		f.asks.Add(-1)
		f.send(&stepapi.Msg{Type: stepapi.TypeAnswer, Seq: m.Seq, Error: fmt.Sprintf("step %s waits for %d answers of noded already, the limit", f.id, stepapi.AsksMax)})
		return
	}
	f.n.work.Go(func() {
		defer f.asks.Add(-1)
		reply := &stepapi.Msg{Type: stepapi.TypeAnswer, Seq: m.Seq}
		answer, err := f.n.answer(context.Background(), f, m.Ask)
		if err != nil {
			reply.Error = api.MessageOf(err)
		} else {
			reply.Answer = answer
		}
		f.send(reply)
	})
}

// answer does what a step's tasks ask for.
func (n *Node) answer(ctx context.Context, f *follower, ask *stepapi.Ask) (*stepapi.Answer, error) {
	if ask == nil {
		return nil, errors.New("internal error: an empty request")
	}
	switch ask.Do {
	case stepapi.AskSpawn:
		return n.spawnStep(ctx, f, ask)
	case stepapi.AskPublish:
		return &stepapi.Answer{}, n.publish(f.job, ask.Name, ask.Port)
	case stepapi.AskLookup:
		return n.awaitName(ctx, f.job, ask)
	case stepapi.AskMeet:
		return n.meet(ctx, f.job, ask)
	case stepapi.AskUnpublish:
		return &stepapi.Answer{}, n.unpublish(f.job, ask.Name)
	}
	return nil, fmt.Errorf("cannot do %.40q: this noded does not know it", ask.Do)
}

// publish binds a name for all steps of the job, until it is taken back or the job
// ends.
func (n *Node) publish(j *job, name, port []byte) error {
	switch {
	case len(name) == 0 || len(name) > nameMax:
		return fmt.Errorf("cannot publish a name of %d bytes: want 1 to %d", len(name), nameMax)
	case len(port) > portMax:
		return fmt.Errorf("cannot publish %q: its port has %d bytes, and %d is the limit", name, len(port), portMax)
	}
	return n.setNames(j, func(names []state.Name) ([]state.Name, error) {
		if findName(names, name) >= 0 {
			return nil, fmt.Errorf("cannot publish %q: it is published in job %d already; unpublish it first", name, j.ID)
		}
		if len(names) >= n.cfg.NamesMax {
			return nil, fmt.Errorf("cannot publish %q: job %d has %d names, the limit (PublishedNamesMax)", name, j.ID, len(names))
		}
		return append(slices.Clone(names), state.Name{Name: name, Port: port}), nil
	})
}

func (n *Node) unpublish(j *job, name []byte) error {
	return n.setNames(j, func(names []state.Name) ([]state.Name, error) {
		i := findName(names, name)
		if i < 0 {
			return nil, fmt.Errorf("cannot unpublish %q: it is not published in job %d", name, j.ID)
		}
		return slices.Delete(slices.Clone(names), i, i+1), nil
	})
}

// setNames changes a job's names, in the store first: a noded that comes after
// this one knows them.
func (n *Node) setNames(j *job, change func([]state.Name) ([]state.Name, error)) error {
	j.naming.Lock()
	defer j.naming.Unlock()
	n.reg.mu.Lock()
	names, err := change(j.Names)
	n.reg.mu.Unlock()
	if err != nil {
		return err
	}
	if err := n.store.SetNames(j.ID, names); err != nil {
		return err
	}
	n.reg.mu.Lock()
	j.Names = names
	if j.named != nil {
		close(j.named)
		j.named = nil
	}
	n.reg.mu.Unlock()
	return nil
}

func (r *registry) published(j *job, name []byte) (port []byte, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := findName(j.Names, name); i >= 0 {
		return j.Names[i].Port, true
	}
	return nil, false
}

func findName(names []state.Name, name []byte) int {
	return slices.IndexFunc(names, func(p state.Name) bool { return bytes.Equal(p.Name, name) })
}
