package pmi2

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"stepd/step"
	"stepd/step/launch"
)

// fakeJob is a job whose names and spawned steps live in this process.
type fakeJob struct {
	mu      sync.Mutex
	names   map[string]string     // guarded by mu
	spawned []launch.SpawnRequest // guarded by mu
	// answer is Spawn's; nil makes step 12.4.
	answer func(ctx context.Context, r launch.SpawnRequest) (step.ID, error)
}

func newFakeJob() *fakeJob { return &fakeJob{names: make(map[string]string)} }

func (j *fakeJob) Publish(_ context.Context, name, port string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.names[name]; ok {
		return fmt.Errorf("cannot publish %q: it is published in job 12 already", name)
	}
	j.names[name] = port
	return nil
}

func (j *fakeJob) Lookup(_ context.Context, name string) (string, bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if name == "broken" {
		return "", false, errors.New("noded has gone")
	}
	port, ok := j.names[name]
	return port, ok, nil
}

func (j *fakeJob) Await(ctx context.Context, name string) (string, bool, error) {
	return j.Lookup(ctx, name)
}

func (j *fakeJob) Meet(context.Context, string, []string, string, []byte) (map[string][]byte, error) {
	return nil, errors.New("PMI-2 has no meetings")
}

func (j *fakeJob) Unpublish(_ context.Context, name string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.names[name]; !ok {
		return fmt.Errorf("cannot unpublish %q: it is not published in job 12", name)
	}
	delete(j.names, name)
	return nil
}

func (j *fakeJob) Spawn(ctx context.Context, r launch.SpawnRequest) (step.ID, error) {
	j.mu.Lock()
	j.spawned = append(j.spawned, r)
	answer := j.answer
	j.mu.Unlock()
	if answer != nil {
		return answer(ctx, r)
	}
	if strings.HasPrefix(r.Apps[0].Argv[0], "/no/") {
		return step.ID{}, errors.New("no such file")
	}
	return step.ID{Job: 12, Step: 4}, nil
}

// last is what was asked of Spawn last.
func (j *fakeJob) last() launch.SpawnRequest {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.spawned) == 0 {
		return launch.SpawnRequest{}
	}
	return j.spawned[len(j.spawned)-1]
}
