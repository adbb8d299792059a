package spawn

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"stepd/api/stepapi"
	"stepd/step"
)

// far is a spawned step of two nodes, and the noded that tells of it.
type far struct {
	*played
	told  func(node int, m *stepapi.Msg) // once got
	got   chan Remote
	last  chan *step.Record // what noded answers to who waits for the end
	over  chan error        // Wait
	reach error

	mu     sync.Mutex
	orders []string // guarded by mu
}

func (f *far) Order(m *stepapi.Msg) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.orders = append(f.orders, string(m.Type)+" "+m.Reason)
	return nil
}
func (f *far) Wait() error { return <-f.over }
func (f *far) Close()      {}

func newFar(t *testing.T) *far {
	f := &far{played: newPlayed(t), last: make(chan *step.Record, 1), over: make(chan error, 1), got: make(chan Remote, 1)}
	f.svc.Reach = func(ctx context.Context, r Remote) (Reached, error) {
		if f.reach != nil {
			return nil, f.reach
		}
		f.got <- r
		return f, nil
	}
	f.svc.Ask = func(ctx context.Context, a *stepapi.Ask) (*stepapi.Answer, error) {
		f.note("asked " + a.Do + " " + a.Reason)
		switch a.Do {
		case stepapi.AskSpawn:
			spec := &step.Spec{ID: step.ID{Job: 7, Step: 1}, Layout: &step.Layout{Nodes: []step.LayoutNode{{Name: "a", Ranks: "0"}, {Name: "b", Ranks: "1"}}}}
			return &stepapi.Answer{ID: &spec.ID, Spec: spec, Key: []byte("key")}, nil
		case stepapi.AskEnd:
			return &stepapi.Answer{Found: true, Record: <-f.last}, nil
		}
		return &stepapi.Answer{}, nil
	}
	return f
}

func (f *far) spawn() chan error {
	done := make(chan error, 1)
	go func() {
		_, err := f.svc.Spawn(context.Background(), step.SpawnRequest{Rank: 2, Apps: []step.SpawnApp{{Argv: []string{"a"}, NTasks: 2}}})
		done <- err
	}()
	return done
}

// end ends the step, as its stepds and noded tell it.
func (f *far) endFar(rec *step.Record, err error) {
	f.last <- rec
	f.over <- err
}

// reached waits until the step's launcher is there.
func (f *far) reached() { f.told = (<-f.got).Told }

func (f *far) sent(words string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.orders {
		if strings.Contains(o, words) {
			n++
		}
	}
	return n
}

// TestRemote: MPI_Comm_spawn returns when all nodes have told that their tasks run,
// or which of them could not be started.
func TestRemote(t *testing.T) {
	code := 3
	for _, c := range []struct {
		name   string
		tell   func(f *far)
		rec    *step.Record
		err    error // of the connection
		want   string
		aborts string
	}{
		{name: "runs", rec: &step.Record{State: step.Completed}},
		{name: "its exit code is its own", rec: &step.Record{State: step.Failed, ExitCode: &code}},
		{name: "aborted", rec: &step.Record{State: step.Failed, ExitCode: &code, Aborted: true, Reason: "by rank 1"}, aborts: "FAILED: by rank 1"},
		{
			name: "a node is lost", rec: &step.Record{State: step.Failed, Reason: "stepd", Tasks: []step.Task{{State: step.TaskExited}}},
			err: errors.New("cut"), aborts: "FAILED: stepd",
		},
		{name: "no noded tells", aborts: "no noded tells how"},
		{name: "one cannot be started", tell: func(f *far) {
			f.told(1, &stepapi.Msg{Type: stepapi.TypeLaunched, Record: &step.Record{Tasks: []step.Task{{Rank: 1, State: step.TaskFailed, Stage: "exec", Errno: 2}}}})
		}, rec: &step.Record{State: step.Failed}, want: "rank 1): stage exec: no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFar(t)
			close(f.launched)
			done := f.spawn()
			f.reached()
			f.told(0, &stepapi.Msg{Type: stepapi.TypeLaunched})
			f.told(7, &stepapi.Msg{Type: stepapi.TypeLaunched})
			if c.tell != nil {
				c.tell(f)
			}
			select {
			case err := <-done:
				t.Fatalf("one node has told, and spawn returns %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			f.told(1, &stepapi.Msg{Type: stepapi.TypeLaunched})
			err := <-done
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			f.endFar(c.rec, c.err)
			f.svc.Close()
			select {
			case why := <-f.aborts:
				if c.aborts == "" || !strings.Contains(why, c.aborts) {
					t.Errorf("aborted: %q, want %q", why, c.aborts)
				}
			default:
				if c.aborts != "" {
					t.Errorf("no abort, want %q", c.aborts)
				}
			}
		})
	}
}

// TestRemoteUnreached: a step that cannot be reached is ended by noded; one that has
// ended before says why.
func TestRemoteUnreached(t *testing.T) {
	f := newFar(t)
	close(f.launched)
	f.reach = errors.New("no route")
	if err := <-f.spawn(); err == nil || !strings.Contains(err.Error(), "cannot launch step 7.1: no route") {
		t.Errorf("%v", err)
	}
	if !f.heard("asked cancel its launcher cannot reach it") {
		t.Error("the step was not cancelled")
	}
	f.last <- nil

	f = newFar(t)
	close(f.launched)
	f.svc.Reach = func(ctx context.Context, r Remote) (Reached, error) {
		<-ctx.Done() // when noded has told the end
		return nil, context.Cause(ctx)
	}
	f.last <- &step.Record{State: step.Failed, Reason: "prolog of n2"}
	err := <-f.spawn()
	if failed, ok := errors.AsType[*step.SpawnError](err); !ok || failed.Cause != "prolog of n2" {
		t.Errorf("%v", err)
	}
}

// TestRemoteEnds: the end of the step that has spawned it ends it.
func TestRemoteEnds(t *testing.T) {
	f := newFar(t)
	close(f.launched)
	done := f.spawn()
	f.reached()
	f.told(0, &stepapi.Msg{Type: stepapi.TypeLaunched})
	f.told(1, &stepapi.Msg{Type: stepapi.TypeLaunched})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	close(f.ending)
	for f.sent("cancel the step that has spawned it, 7.0, has been ended") == 0 {
		time.Sleep(time.Millisecond)
	}
	f.endFar(&step.Record{State: step.Cancelled}, nil)
	f.svc.Close()
	if len(f.aborts) > 0 {
		t.Errorf("aborted: %s", <-f.aborts)
	}
}
