// Package exchange is what the programs of one job's steps have for each other in their node's
// daemon: published names (MPI_Publish_name) and meetings (step.MPIServices.Meet).
//
// It does not know steps, and starts none. Names are stored, so that the next daemon knows them;
// meetings are in memory alone: a step that asks again after a restart makes its meeting anew.
//
// Begin with New and Answer.
package exchange

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"stepd/api/stepapi"
	"stepd/node/state"
	"stepd/step"
)

// Bounds of what the programs of a job have in noded's memory, and of one answer's time.
const (
	// nameMax and portMax bound a published name and what it stands for, in bytes.
	nameMax = 1024
	portMax = 4096
	// meetBytesMax bounds what all meetings of a job have together.
	meetingsMax    = 256
	meetPartiesMax = 64
	meetBytesMax   = 16 << 20
	// waitMax bounds a wait for another step: stepd asks again as long as it wants to
	// wait. An answer to another node must come while that listens.
	waitMax = 5 * time.Second
)

// Config is what the exchanges of a node's jobs have in common.
type Config struct {
	// NamesMax bounds the published names of a job (PublishedNamesMax).
	NamesMax int
	// Store stores the names of a job that runs.
	Store func(job uint32, names []state.Name) error
	// Stopping is closed when noded stops: no program is kept waiting then.
	Stopping <-chan struct{}
}

// Exchange is one job's. Make it with New; methods may be called from several goroutines.
type Exchange struct {
	cfg *Config
	job uint32

	storing sync.Mutex // held while names are stored, in the order of their changes

	mu       sync.Mutex
	names    []state.Name        // guarded by mu
	named    chan struct{}       // guarded by mu: closed when names change
	meetings map[string]*meeting // guarded by mu: by name, those that not all parties have joined
}

// meeting is one exchange between steps of a job.
type meeting struct {
	parties []string
	came    map[string][]byte // guarded by Exchange.mu until done is closed
	done    chan struct{}     // closed when all parties came
}

// New returns the exchange of a job that has these names.
func New(cfg *Config, job uint32, names []state.Name) *Exchange {
	return &Exchange{cfg: cfg, job: job, names: names, named: make(chan struct{}), meetings: make(map[string]*meeting)}
}

// Answer does what a step's programs ask for, no longer than ctx lasts. known is false for a
// request that is not about names or meetings.
func (x *Exchange) Answer(ctx context.Context, ask *stepapi.Ask) (answer *stepapi.Answer, known bool, err error) {
	switch ask.Do {
	case stepapi.AskPublish:
		answer, err = &stepapi.Answer{}, x.publish(ask.Name, ask.Port)
	case stepapi.AskUnpublish:
		answer, err = &stepapi.Answer{}, x.unpublish(ask.Name)
	case stepapi.AskLookup:
		answer = x.lookUp(ctx, ask)
	case stepapi.AskMeet:
		answer, err = x.meet(ctx, ask)
	default:
		return nil, false, nil
	}
	return answer, true, err
}

// publish binds a name for all steps of the job, until it is taken back or the job
// ends.
func (x *Exchange) publish(name, port []byte) error {
	switch {
	case len(name) == 0 || len(name) > nameMax:
		return fmt.Errorf("cannot publish a name of %d bytes: want 1 to %d", len(name), nameMax)
	case len(port) > portMax:
		return fmt.Errorf("cannot publish %q: its port has %d bytes, and %d is the limit", name, len(port), portMax)
	}
	return x.setNames(func(names []state.Name) ([]state.Name, error) {
		if find(names, name) >= 0 {
			return nil, fmt.Errorf("cannot publish %q: it is published in job %d already; unpublish it first", name, x.job)
		}
		if len(names) >= x.cfg.NamesMax {
			return nil, fmt.Errorf("cannot publish %q: job %d has %d names, the limit (PublishedNamesMax)", name, x.job, len(names))
		}
		return append(slices.Clone(names), state.Name{Name: name, Port: port}), nil
	})
}

func (x *Exchange) unpublish(name []byte) error {
	return x.setNames(func(names []state.Name) ([]state.Name, error) {
		i := find(names, name)
		if i < 0 {
			return nil, fmt.Errorf("cannot unpublish %q: it is not published in job %d", name, x.job)
		}
		return slices.Delete(slices.Clone(names), i, i+1), nil
	})
}

// setNames changes the names, in the store first: the next noded knows them.
func (x *Exchange) setNames(change func([]state.Name) ([]state.Name, error)) error {
	x.storing.Lock()
	defer x.storing.Unlock()
	names, err := change(x.names) // storing alone changes it
	if err != nil {
		return err
	}
	if err := x.cfg.Store(x.job, names); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.names = names
	close(x.named)
	x.named = make(chan struct{})
	return nil
}

func find(names []state.Name, name []byte) int {
	return slices.IndexFunc(names, func(n state.Name) bool { return bytes.Equal(n.Name, name) })
}

// lookUp finds a published name; with a time to wait it waits for it.
func (x *Exchange) lookUp(ctx context.Context, ask *stepapi.Ask) *stepapi.Answer {
	deadline := time.Now().Add(min(time.Duration(ask.WaitMS)*time.Millisecond, waitMax))
	for {
		x.mu.Lock()
		names, named := x.names, x.named
		x.mu.Unlock()
		if i := find(names, ask.Name); i >= 0 {
			return &stepapi.Answer{Port: names[i].Port, Found: true}
		}
		if left := time.Until(deadline); left <= 0 || !x.await(ctx, named, left) {
			return &stepapi.Answer{}
		}
	}
}

// await waits for something that another step does.
func (x *Exchange) await(ctx context.Context, done <-chan struct{}, most time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(min(most, waitMax)):
	case <-x.cfg.Stopping:
	case <-ctx.Done():
	}
	return false
}

// meet brings a party of a step to a meeting and waits for the others; an answer
// without parts says that they have not come.
func (x *Exchange) meet(ctx context.Context, ask *stepapi.Ask) (*stepapi.Answer, error) {
	m, err := x.join(ask)
	if err != nil {
		return nil, err
	}
	if !x.await(ctx, m.done, time.Duration(ask.WaitMS)*time.Millisecond) && x.leave(string(ask.Name), ask.Party, m) {
		return &stepapi.Answer{}, nil
	}
	a := &stepapi.Answer{Found: true}
	for _, party := range m.parties { // it does not change any more
		a.Parts = append(a.Parts, step.KeyValue{Key: party, Value: m.came[party]})
	}
	return a, nil
}

func (x *Exchange) join(ask *stepapi.Ask) (*meeting, error) {
	name := string(ask.Name)
	switch {
	case len(name) == 0 || len(name) > nameMax:
		return nil, fmt.Errorf("cannot meet by a name of %d bytes: want 1 to %d", len(name), nameMax)
	case len(ask.Parties) > meetPartiesMax || !slices.Contains(ask.Parties, ask.Party):
		return nil, fmt.Errorf("cannot meet: %d parties, at most %d, and %.64q must be one of them", len(ask.Parties), meetPartiesMax, ask.Party)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.meetings[name]
	if m == nil {
		if len(x.meetings) >= meetingsMax {
			return nil, fmt.Errorf("cannot meet: job %d has %d meetings, the limit", x.job, len(x.meetings))
		}
		m = &meeting{parties: ask.Parties, came: make(map[string][]byte), done: make(chan struct{})}
		x.meetings[name] = m
	}
	size := len(ask.Port) - len(m.came[ask.Party])
	for _, other := range x.meetings {
		for _, data := range other.came {
			size += len(data)
		}
	}
	switch {
	case !slices.Equal(m.parties, ask.Parties):
		return nil, fmt.Errorf("cannot meet %q: the others want to meet %q", ask.Parties, m.parties)
	case size > meetBytesMax:
		if len(m.came) == 0 {
			delete(x.meetings, name)
		}
		return nil, fmt.Errorf("cannot meet: the meetings of job %d have %d bytes with this one's, the limit is %d", x.job, size, meetBytesMax)
	}
	m.came[ask.Party] = ask.Port
	if len(m.came) == len(m.parties) {
		delete(x.meetings, name) // the next one of this name is another
		close(m.done)
	}
	return m, nil
}

// leave takes a party out of a meeting; false is that it has taken place meanwhile.
func (x *Exchange) leave(name, party string, m *meeting) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-m.done:
		return false
	default:
	}
	if delete(m.came, party); len(m.came) == 0 && x.meetings[name] == m {
		delete(x.meetings, name)
	}
	return true
}
