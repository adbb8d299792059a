package spawn

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/step"
	"stepd/step/launch"
)

// played is the stepd of a spawned step, and the noded that starts it.
type played struct {
	t   *testing.T
	dir string
	svc *Services

	mu       sync.Mutex
	asked    []stepapi.Ask // guarded by mu
	said     []string      // guarded by mu
	attached []stepapi.StreamFD
	refuse   error // of Ask

	server    *stepapi.Server
	launched  chan struct{} // AttachDone
	cancelled chan string
	lost      chan struct{}
	aborts    chan string
	ending    chan struct{}
	rec       step.Record
}

func (p *played) Record() step.Record { return step.Record{State: step.Starting} }
func (p *played) Stat() step.Record   { return p.Record() }
func (p *played) AttachDone()         { close(p.launched) }
func (p *played) LauncherLost()       { close(p.lost) }
func (p *played) Signal(int, string) error {
	return nil
}
func (p *played) Cancel(reason string) error { p.cancelled <- reason; return nil }
func (p *played) Suspend(uint32) error       { return nil }
func (p *played) Resume(uint32) error        { return nil }
func (*played) Watch(*stepapi.Watch, bool) (*stepapi.Watched, int, error) {
	return nil, -1, errors.New("nothing is kept")
}
func (p *played) Attach(streams []stepapi.StreamFD, fds []int) error {
	for _, fd := range fds {
		unix.Close(fd)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attached = append(p.attached, streams...)
	return nil
}

func newPlayed(t *testing.T) *played {
	t.Helper()
	p := &played{
		t: t, dir: t.TempDir(), launched: make(chan struct{}), cancelled: make(chan string, 4),
		lost: make(chan struct{}), aborts: make(chan string, 4), ending: make(chan struct{}),
	}
	p.rec = step.Record{ID: step.ID{Job: 7, Step: 1}, State: step.Running, Tasks: []step.Task{
		{Rank: 0, State: step.TaskRunning}, {Rank: 1, State: step.TaskStarting},
	}}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: p.dir + "/7.1.sock", Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	p.server = stepapi.NewServer(step.ID{Job: 7, Step: 1}, uint32(os.Getuid()), p)
	p.server.Serve(l)
	spec := &step.Spec{ID: step.ID{Job: 7}, User: step.User{UID: 1000, GID: 50}, NodeName: "n1.site"}
	spec.Request = step.Request{
		Schema: step.Schema, Name: "parent", NTasks: 4, NNodes: 1, CPUsPerTask: 1, Argv: []string{"./p"}, Cwd: "/home/u",
		Env: []string{"PATH=/bin", "A=1"}, MPI: "pmi2", Stdin: step.Stream{Kind: step.StreamClient},
	}
	p.svc = New(Config{
		Spec: spec, Ask: p.ask,
		Stream: func(rank, fd int) (int, error) {
			if fd == 2 {
				return -1, errors.New("it has closed it")
			}
			return unix.Dup(1)
		},
		Say:    p.note,
		Log:    p.note,
		Abort:  func(rank, code int, text string) { p.aborts <- text },
		Ending: func() <-chan struct{} { return p.ending },
	})
	t.Cleanup(func() {
		p.end(step.Record{State: step.Completed})
		l.Close()
		p.server.Wait()
		p.svc.Close()
		if n := p.svc.Running(); n != 0 {
			t.Errorf("%d steps are left", n)
		}
	})
	return p
}

func (p *played) note(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = append(p.said, line)
}

func (p *played) heard(words string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Contains(strings.Join(p.said, "\n"), words)
}

func (p *played) ask(_ context.Context, a *stepapi.Ask) (*stepapi.Answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, *a)
	if p.refuse != nil {
		err := p.refuse
		p.refuse = nil
		return nil, err
	}
	switch a.Do {
	case stepapi.AskSpawn:
		return &stepapi.Answer{ID: &step.ID{Job: 7, Step: 1}, SocketDir: p.dir, SocketName: "7.1.sock"}, nil
	case stepapi.AskLookup:
		return &stepapi.Answer{Found: true, Port: append([]byte("port of "), a.Name...)}, nil
	}
	return &stepapi.Answer{}, nil
}

func (p *played) end(rec step.Record) {
	rec.Tasks = nil
	p.server.Finish(&stepapi.Msg{Type: stepapi.TypeResult, State: rec.State, Record: &rec}, 0)
}

// state reports how the step is, as its stepd does.
func (p *played) state() {
	parent := step.ID{Job: 7}
	rec := p.rec
	rec.Parent, rec.Tasks = &parent, slices.Clone(p.rec.Tasks)
	p.server.TellState(&rec)
}

type result struct {
	id  step.ID
	err error
}

// spawn begins one, and waits for the launch.
func (p *played) spawn(ctx context.Context) chan result {
	got := make(chan result, 1)
	go func() {
		id, err := p.svc.Spawn(ctx, launch.SpawnRequest{Rank: 3, MPI: "pmi2", Apps: []launch.SpawnApp{{Argv: []string{"/x/c", "a"}, NTasks: 2}}})
		got <- result{id, err}
	}()
	select {
	case <-p.launched:
	case <-time.After(10 * time.Second):
		p.t.Fatal("no launch")
	}
	return got
}

func (p *played) wait(got chan result) result {
	p.t.Helper()
	select {
	case r := <-got:
		return r
	case <-time.After(10 * time.Second):
		p.t.Fatal("Spawn does not return")
		panic("unreachable")
	}
}

func wantString(t *testing.T, from chan string, words string) {
	t.Helper()
	select {
	case got := <-from:
		if !strings.Contains(got, words) {
			t.Errorf("got %q, want %q", got, words)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("nothing, want %q", words)
	}
}

// TestSpawn: the new step is launched with the rank's streams, and Spawn returns
// when its tasks run.
func TestSpawn(t *testing.T) {
	p := newPlayed(t)
	got := p.spawn(context.Background())
	p.state() // a task is still starting
	select {
	case r := <-got:
		t.Fatalf("returned too early: %+v", r)
	case <-time.After(20 * time.Millisecond):
	}
	p.rec.Tasks[1].State = step.TaskExited // and was never seen running
	p.state()
	if r := p.wait(got); r.err != nil || r.id != (step.ID{Job: 7, Step: 1}) {
		t.Fatalf("%+v", r)
	}
	if want := []stepapi.StreamFD{{FD: 1, Rank: launch.AllRanks}}; !reflect.DeepEqual(p.attached, want) || !p.heard("descriptor 2 of step 7.1 is /dev/null") {
		t.Errorf("attached %+v, said %q", p.attached, p.said)
	}
	var req step.Request
	if err := json.Unmarshal(p.asked[0].Request, &req); err != nil {
		t.Fatal(err)
	}
	if *req.Job != 7 || *req.UID != 1000 || *req.GID != 50 || req.NTasks != 2 || !req.Overcommit || req.Name != "c" || req.Stdin.Kind != step.StreamNull || req.Cwd != "/home/u" || len(req.Apps) != 1 {
		t.Errorf("request %+v", req)
	}
	p.server.Tell(&stepapi.Msg{Type: stepapi.TypeMessage, Text: "stepd-n1: error: x"})
	status := step.ExitedWith(3)
	p.server.Tell(&stepapi.Msg{Type: stepapi.TypeTaskExit, Ranks: []int{0, 1}, Status: &status})
	// A code of its tasks is not an end of ours.
	code := 3
	p.end(step.Record{State: step.Failed, ExitCode: &code})
	p.svc.Close()
	if !p.heard("stepd-n1: error: x") || !p.heard("step 7.1: task 0-1: Exited with exit code 3") {
		t.Errorf("said %q", p.said)
	}
	if len(p.aborts) > 0 {
		t.Errorf("aborted: %s", <-p.aborts)
	}
	if _, err := p.svc.Spawn(context.Background(), launch.SpawnRequest{Apps: []launch.SpawnApp{{Argv: []string{"a"}, NTasks: 1}}}); err == nil || !strings.Contains(err.Error(), "step 7.0 is ending") {
		t.Errorf("after Close: %v", err)
	}
}

func TestSpawnedAborts(t *testing.T) {
	code := 9
	for name, rec := range map[string]step.Record{
		"abort":  {State: step.Failed, ExitCode: &code, Aborted: true, Reason: "task 1: MPI abort"},
		"cancel": {State: step.Cancelled, Reason: "cancelled"},
		"memory": {State: step.OutOfMemory},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlayed(t)
			got := p.spawn(context.Background())
			p.rec.Tasks[1].State = step.TaskRunning
			p.state()
			if r := p.wait(got); r.err != nil {
				t.Fatal(r.err)
			}
			p.end(rec)
			wantString(t, p.aborts, "step 7.1, which it has spawned, has ended: "+string(rec.State)+":")
		})
	}
}

// Tasks that cannot be started are reported by rank, the others are ended, and the
// spawning step goes on.
func TestSpawnFails(t *testing.T) {
	p := newPlayed(t)
	got := p.spawn(context.Background())
	p.rec.Tasks[1] = step.Task{Rank: 1, State: step.TaskFailed, Stage: "exec", Errno: int(unix.ENOENT)}
	p.state()
	r := p.wait(got)
	failed, ok := errors.AsType[*launch.SpawnError](r.err)
	if !ok || len(failed.Failed) != 1 || !strings.Contains(failed.Failed[1], "no such file") {
		t.Fatalf("%v", r.err)
	}
	wantString(t, p.cancelled, "not all of its tasks could be started")
	p.end(step.Record{State: step.Cancelled})
	p.svc.Close()
	if len(p.aborts) > 0 {
		t.Errorf("aborted: %s", <-p.aborts)
	}
}

func TestSpawnedEndsEarly(t *testing.T) {
	p := newPlayed(t)
	got := p.spawn(context.Background())
	p.end(step.Record{State: step.Failed, Reason: "plugin x.so"})
	if r := p.wait(got); r.err == nil || !strings.Contains(r.err.Error(), "FAILED: plugin x.so") {
		t.Errorf("%v", r.err)
	}
}

// The end of the spawning step, and of the rank, end what was spawned.
func TestSpawningEnds(t *testing.T) {
	t.Run("step", func(t *testing.T) {
		p := newPlayed(t)
		got := p.spawn(context.Background())
		p.rec.Tasks[1].State = step.TaskRunning
		p.state()
		p.wait(got)
		close(p.ending)
		wantString(t, p.cancelled, "the step that has spawned it, 7.0, has been ended")
	})
	t.Run("rank", func(t *testing.T) {
		p := newPlayed(t)
		ctx, cancel := context.WithCancel(context.Background())
		got := p.spawn(ctx)
		cancel()
		if r := p.wait(got); !errors.Is(r.err, context.Canceled) {
			t.Errorf("%v", r.err)
		}
		wantString(t, p.cancelled, "the task that has spawned it is gone")
	})
	t.Run("failure", func(t *testing.T) {
		p := newPlayed(t)
		got := p.spawn(context.Background())
		p.svc.Cancel("it has failed")
		wantString(t, p.cancelled, "it has failed")
		p.end(step.Record{State: step.Cancelled})
		p.wait(got)
	})
}

// A noded that restarts is asked again for names, and never twice for a step.
func TestNames(t *testing.T) {
	p := newPlayed(t)
	close(p.launched)
	ctx := context.Background()
	p.refuse = stepapi.ErrNodedGone
	if port, found, err := p.svc.Lookup(ctx, "a\xff"); err != nil || !found || port != "port of a\xff" {
		t.Errorf("%q %v %v", port, found, err)
	}
	if err := p.svc.Publish(ctx, "n", "p"); err != nil {
		t.Error(err)
	}
	if err := p.svc.Unpublish(ctx, "n"); err != nil {
		t.Error(err)
	}
	p.refuse = stepapi.ErrNodedGone
	if _, err := p.svc.Spawn(ctx, launch.SpawnRequest{Apps: []launch.SpawnApp{{Argv: []string{"a"}, NTasks: 1}}}); !errors.Is(err, stepapi.ErrNodedGone) {
		t.Errorf("%v", err)
	}
	if len(p.asked) != 5 {
		t.Errorf("asked %d times: %+v", len(p.asked), p.asked)
	}
}

func TestRequest(t *testing.T) {
	spec := newPlayed(t)
	close(spec.launched)
	app := func(argv0 string, info ...string) launch.SpawnApp {
		a := launch.SpawnApp{Argv: []string{argv0}, NTasks: 1}
		for i := 0; i < len(info); i += 2 {
			a.Info = append(a.Info, step.KeyValue{Key: info[i], Value: []byte(info[i+1])})
		}
		return a
	}
	req, err := request(spec.svc.Spec, launch.SpawnRequest{MPI: "pmi2", Apps: []launch.SpawnApp{
		app("a", "wdir", "/w", "path", "/opt/bin", "soft", "1:3", "host", "n1,n1.site,localhost"), {Argv: []string{"b\xff"}, NTasks: 5, Cwd: "sub"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if req.NTasks != 6 || string(req.Apps[0].Cwd) != "/w" || string(req.Apps[0].Env[0]) != "PATH=/opt/bin:/bin" || string(req.Apps[1].Cwd) != "sub" || string(req.Apps[1].Argv[0]) != "b\xff" {
		t.Errorf("%+v", req)
	}
	for _, c := range []struct {
		apps []launch.SpawnApp
		word string
	}{
		{nil, "there is no command"},
		{[]launch.SpawnApp{{NTasks: 1}}, "it is empty"},
		{[]launch.SpawnApp{{Argv: []string{"a"}}}, "0 tasks: want 1"},
		{[]launch.SpawnApp{{Argv: []string{"a"}, NTasks: 65000}, {Argv: []string{"a"}, NTasks: 65000}}, "cannot spawn 130000 tasks"},
		{[]launch.SpawnApp{app("a\x00")}, "NUL"},
		{[]launch.SpawnApp{app("a", "wdir", "x\x00")}, "NUL"},
		{[]launch.SpawnApp{app("a"), app("b", "host", "n2")}, `cannot spawn command 2 of 2: its hint host names "n2", and this node is "n1.site"; several nodes: use Slurm`},
		{[]launch.SpawnApp{app("a", "add-host", "n1, n3:4")}, `names "n3"`},
		{[]launch.SpawnApp{app("a", "hosts", "n1:0")}, `its hint host has "n1:0": after the colon`},
		{[]launch.SpawnApp{app("a", "host", "n1,")}, `names ""`},
	} {
		if _, err := request(spec.svc.Spec, launch.SpawnRequest{Apps: c.apps}); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%v, want %q", err, c.word)
		}
	}
}
