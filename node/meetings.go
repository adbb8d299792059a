package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"stepd/api/stepapi"
	"stepd/step"
)

// Bounds of what the steps of a job exchange by meetings: all of it is in noded's
// memory, and what the ranks have put is in it. meetBytesMax bounds all meetings of
// a job together.
const (
	meetingsMax    = 256
	meetPartiesMax = 64
	meetBytesMax   = 16 << 20
)

// meeting is one exchange between steps of a job (launch.MPIServices.Meet). It is in
// memory alone: a step that asks again after noded's restart makes it anew.
type meeting struct {
	parties []string
	came    map[string][]byte
	done    chan struct{} // closed when all parties came
}

// waitMax bounds a wait for another step: stepd asks again as long as it wants to
// wait. An answer to another node must come while that listens.
const waitMax = 5 * time.Second

// meet brings a party of a step to a meeting and waits for the others; an answer
// without parts says that they have not come.
func (n *Node) meet(ctx context.Context, j *job, ask *stepapi.Ask) (*stepapi.Answer, error) {
	m, err := n.reg.joinMeeting(j, ask)
	if err != nil {
		return nil, err
	}
	if !n.await(ctx, m.done, ask.WaitMS) && n.reg.leaveMeeting(j, string(ask.Name), ask.Party, m) {
		return &stepapi.Answer{}, nil
	}
	a := &stepapi.Answer{Found: true}
	for _, party := range m.parties { // it does not change any more
		a.Parts = append(a.Parts, step.KeyValue{Key: party, Value: m.came[party]})
	}
	return a, nil
}

// await waits for something that another step does.
func (n *Node) await(ctx context.Context, done <-chan struct{}, ms int64) bool {
	wait := time.NewTimer(min(time.Duration(ms)*time.Millisecond, waitMax))
	defer wait.Stop()
	select {
	case <-done:
		return true
	case <-wait.C:
	case <-n.stopping:
	case <-ctx.Done():
	}
	return false
}

func (r *registry) joinMeeting(j *job, ask *stepapi.Ask) (*meeting, error) {
	name := string(ask.Name)
	switch {
	case len(name) == 0 || len(name) > nameMax:
		return nil, fmt.Errorf("cannot meet by a name of %d bytes: want 1 to %d", len(name), nameMax)
	case len(ask.Parties) > meetPartiesMax || !slices.Contains(ask.Parties, ask.Party):
		return nil, fmt.Errorf("cannot meet: %d parties, at most %d, and %.64q must be one of them", len(ask.Parties), meetPartiesMax, ask.Party)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := j.meetings[name]
	if m == nil {
		if len(j.meetings) >= meetingsMax {
			return nil, fmt.Errorf("cannot meet: job %d has %d meetings, the limit", j.ID, len(j.meetings))
		}
		m = &meeting{parties: ask.Parties, came: make(map[string][]byte), done: make(chan struct{})}
		if j.meetings == nil {
			j.meetings = make(map[string]*meeting)
		}
		j.meetings[name] = m
	}
	size := len(ask.Port) - len(m.came[ask.Party])
	for _, other := range j.meetings {
		for _, data := range other.came {
			size += len(data)
		}
	}
	switch {
	case !slices.Equal(m.parties, ask.Parties):
		return nil, fmt.Errorf("cannot meet %q: the others want to meet %q", ask.Parties, m.parties)
	case size > meetBytesMax:
		if len(m.came) == 0 {
			delete(j.meetings, name)
		}
		return nil, fmt.Errorf("cannot meet: the meetings of job %d have %d bytes with this one's, the limit is %d", j.ID, size, meetBytesMax)
	}
	m.came[ask.Party] = ask.Port
	if len(m.came) == len(m.parties) {
		delete(j.meetings, name) // the next one of this name is another
		close(m.done)
	}
	return m, nil
}

// leaveMeeting is false where the meeting has taken place meanwhile.
func (r *registry) leaveMeeting(j *job, name, party string, m *meeting) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-m.done:
		return false
	default:
	}
	if delete(m.came, party); len(m.came) == 0 && j.meetings[name] == m {
		delete(j.meetings, name)
	}
	return true
}

// awaitName finds a published name; with a time to wait it waits for it.
func (n *Node) awaitName(ctx context.Context, j *job, ask *stepapi.Ask) (*stepapi.Answer, error) {
	deadline := time.Now().Add(min(time.Duration(ask.WaitMS)*time.Millisecond, waitMax))
	for {
		named := n.reg.named(j)
		port, found := n.reg.published(j, ask.Name)
		left := time.Until(deadline)
		if found || left <= 0 || !n.await(ctx, named, left.Milliseconds()+1) {
			return &stepapi.Answer{Port: port, Found: found}, nil
		}
	}
}

// named is closed when the job's names change.
func (r *registry) named(j *job) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if j.named == nil {
		j.named = make(chan struct{})
	}
	return j.named
}
