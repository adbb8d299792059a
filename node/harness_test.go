package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/internal/lookup"
	"stepd/node/fakestepd"
	"stepd/node/selection"
	"stepd/node/store"
	"stepd/step"
	"stepd/step/launch"
)

func TestMain(m *testing.M) {
	if fakestepd.Is() {
		fakestepd.Main()
	}
	os.Exit(m.Run())
}

// testTimeout bounds every wait of these tests.
const testTimeout = 20 * time.Second

// fakeTracker has no cgroups: it kills the stepd of the record.
type fakeTracker struct {
	mu     sync.Mutex
	ended  map[step.ID]int // guarded by mu
	places []step.ID       // guarded by mu: what Steps finds
}

func (t *fakeTracker) Kind() string                  { return "linuxproc" }
func (t *fakeTracker) AddStepd(step.ID, int) error   { return nil }
func (t *fakeTracker) Adopt(*step.Record, int) error { return nil }

func (t *fakeTracker) MakeScripts(step.ID) (*os.File, error)         { return nil, nil }
func (t *fakeTracker) Left(step.ID) ([]string, error)                { return nil, nil }
func (t *fakeTracker) MakeJob(uint32, []string) error                { return nil }
func (t *fakeTracker) MakeStep(step.ID, []string) (StepPlace, error) { return StepPlace{}, nil }
func (t *fakeTracker) Fallbacks() []Fallback                         { return nil }
func (t *fakeTracker) Prepare() error                                { return nil }
func (t *fakeTracker) EndJob(uint32) error                           { return nil }
func (t *fakeTracker) Remove() error                                 { return nil }
func (t *fakeTracker) Steps() ([]step.ID, error)                     { return t.places, nil }
func (t *fakeTracker) EndStep(_ context.Context, rec *step.Record) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended[rec.ID]++
	for _, task := range rec.Tasks {
		if task.PID != nil && *task.PID > 1 {
			if err := syscall.Kill(*task.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
	}
	return nil
}

func (t *fakeTracker) times(id step.ID) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended[id]
}

// fakeContainers remembers which jobs have one, and what it was called for.
type fakeContainers struct {
	mu    sync.Mutex
	jobs  map[uint32]bool // guarded by mu
	calls []string        // guarded by mu
	fail  error           // of Create
	init  error           // of Restore
}

func (c *fakeContainers) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, fmt.Sprintf(format, args...))
}

func (c *fakeContainers) Create(_ context.Context, job uint32, user step.User) error {
	c.note("create %d for %d", job, user.UID)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return c.fail
	}
	c.jobs[job] = true
	return nil
}
func (c *fakeContainers) Join(uint32) (launch.Namespaces, error) { return launch.Namespaces{}, nil }
func (c *fakeContainers) AddCont(job uint32, cont uint64) error {
	c.note("add_cont %d: %d", job, cont)
	return nil
}
func (c *fakeContainers) AddPID(job uint32, pid int, uid uint32) error {
	c.note("add_pid %d: %d of %d", job, pid, uid)
	return nil
}
func (c *fakeContainers) Fini() error { c.note("fini"); return nil }
func (c *fakeContainers) Delete(_ context.Context, job uint32) error {
	c.note("delete %d", job)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.jobs, job)
	return nil
}
func (c *fakeContainers) Restore(_ context.Context, running []uint32) error {
	c.note("restore %v", running)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs = map[uint32]bool{}
	for _, j := range running {
		c.jobs[j] = true
	}
	return c.init
}

func (c *fakeContainers) Try() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.fail, c.init)
}

func (c *fakeContainers) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail, c.init = nil, nil
}

func (c *fakeContainers) has(job uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.jobs[job]
}

// fakeUsers knows 1000 to 1999, and itself.
type fakeUsers struct{}

func (fakeUsers) ByUID(_ context.Context, uid uint32) (step.User, error) {
	if uid == 0 || uid >= 1000 && uid < 2000 || int(uid) == os.Getuid() {
		return step.User{Name: fmt.Sprintf("user%d", uid), UID: uid, GID: uid, Groups: []uint32{uid, 50}}, nil
	}
	return step.User{}, fmt.Errorf("cannot look up uid %d: %w", uid, lookup.ErrNoUser)
}

// testNode is a node with its service.
type testNode struct {
	*Node
	svc        *service
	tracker    *fakeTracker
	containers *fakeContainers
	dir        string
	t          testing.TB
}

func testConfig(t testing.TB, dir string) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(testWriter{t})
	log.SetLevel(logrus.DebugLevel)
	return Config{
		NodeName: "n1", RunDir: filepath.Join(dir, "run"), SpoolDir: filepath.Join(dir, "spool"),
		Select: selection.Config{CPUs: []int{0, 1, 2, 3}}, MPITypes: []string{"none", "pmi2"}, StepdPath: self,
		Users: fakeUsers{}, Tracker: &fakeTracker{ended: map[step.ID]int{}},
		Containers: &fakeContainers{jobs: map[uint32]bool{}}, Log: log,
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

// start makes a node on dir and recovers its state. stop ends it.
func start(t testing.TB, dir string, change func(*Config)) *testNode {
	t.Helper()
	cfg := testConfig(t, dir)
	if change != nil {
		change(&cfg)
	}
	t.Cleanup(func() { killLeft(t, dir) }) // the last of the test's cleanups
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tn := &testNode{Node: n, svc: newService(n), dir: dir, t: t}
	tn.tracker, _ = cfg.Tracker.(*fakeTracker)
	tn.containers, _ = cfg.Containers.(*fakeContainers)
	if err := n.Recover(context.Background()); err != nil {
		t.Fatal(err)
	}
	return tn
}

// killLeft ends the played stepds, and their children, that hold a file of dir
// open: a test may leave steps running.
func killLeft(t testing.TB, dir string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		to, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(to, dir+"/") {
			continue // gone meanwhile, or not ours
		}
		// This process, and a child of another test's before its exec, which has our files as well.
		process := strings.Split(link, "/")[2]
		if line, err := os.ReadFile("/proc/" + process + "/cmdline"); err != nil || bytes.Equal(line, self) {
			continue
		}
		if pid, err := strconv.Atoi(process); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may just have ended
		}
	}
}

func (tn *testNode) stop() {
	tn.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := tn.Close(ctx); err != nil {
		tn.t.Errorf("Close: %v", err)
	}
}

// asKilled returns a function that gives a node, which is stopped by then, the state of one
// that is killed here and now.
func (tn *testNode) asKilled() (kill func()) {
	tn.t.Helper()
	journals := map[string][]byte{filepath.Join(tn.spool.Run, "volatile.journal"): nil, filepath.Join(tn.spool.Dir, store.DurableName): nil}
	for path := range journals {
		text, err := os.ReadFile(path)
		if err != nil {
			tn.t.Fatal(err)
		}
		journals[path] = text
	}
	return func() {
		tn.t.Helper()
		for path, text := range journals {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				tn.t.Fatal(err)
			}
		}
	}
}

// fresh starts a node of its own and stops it at the end of the test.
func fresh(t testing.TB) *testNode {
	tn := start(t, t.TempDir(), nil)
	t.Cleanup(tn.stop)
	return tn
}

// as is the context of a request of uid's.
func as(uid uint32) context.Context {
	return requestOf(api.Peer{UID: uid, GID: uid})
}

// requestOf is the context of a request of p's.
func requestOf(p api.Peer) context.Context {
	return context.WithValue(context.Background(), peerKey{}, p)
}

func request(argv ...string) step.Request {
	null := step.Stream{Kind: step.StreamNull}
	return step.Request{
		Schema: step.Schema, Name: "test", NTasks: 1, NNodes: 1, CPUsPerTask: 1,
		Argv: argv, Env: []string{"PATH=/bin"}, Cwd: "/", Stdin: null, Stdout: null, Stderr: null,
	}
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// run starts a step as uid, or fails the test.
func (tn *testNode) run(uid uint32, req step.Request) step.ID {
	tn.t.Helper()
	reply, err := tn.svc.Run(as(uid), runRequest(req))
	if err != nil {
		tn.t.Fatalf("Run: %v", err)
	}
	return step.ID{Job: reply.JobID, Step: reply.StepID}
}

func ref(id step.ID) api.StepRef { return api.Ref(id) }

// runRequest is a request for a step, as it comes by the socket.
func runRequest(req step.Request) *api.RunRequest {
	req.Pack()
	return &api.RunRequest{Request: &req}
}

func (tn *testNode) waits(ctx context.Context, ref api.StepRef) ([]*step.Record, error) {
	return tn.svc.records(ctx, "wait", &api.RefRequest{StepRef: ref})
}

func (tn *testNode) shows(ctx context.Context, ref api.StepRef) ([]*step.Record, error) {
	return tn.svc.records(ctx, "show", &api.RefRequest{StepRef: ref})
}

func (tn *testNode) stats(ctx context.Context, ref api.StepRef) ([]*step.Record, error) {
	return tn.svc.records(ctx, "stat", &api.RefRequest{StepRef: ref})
}

func (tn *testNode) lists(ctx context.Context, all bool) ([]*step.Record, error) {
	return tn.svc.records(ctx, "list", &api.ListRequest{All: all})
}

// wait returns the step's final record.
func (tn *testNode) wait(id step.ID) step.Record {
	tn.t.Helper()
	ctx, cancel := context.WithTimeout(as(0), testTimeout)
	defer cancel()
	recs, err := tn.waits(ctx, ref(id))
	if err != nil || len(recs) != 1 {
		tn.t.Fatalf("Wait(%s): %d records, %v", id, len(recs), err)
	}
	return *recs[0]
}

// until waits for a state of the step.
func (tn *testNode) until(id step.ID, state step.State) step.Record {
	tn.t.Helper()
	deadline := time.Now().Add(testTimeout)
	for {
		rec, err := tn.API().Step(id)
		if err != nil {
			tn.t.Fatal(err)
		}
		if rec.State == state {
			return *rec
		}
		if time.Now().After(deadline) {
			tn.t.Fatalf("step %s is %s, want %s", id, rec.State, state)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// nothingLeft checks that the step's socket and result file are gone, and that
// its tracker was asked to end it.
func (tn *testNode) nothingLeft(id step.ID) {
	tn.t.Helper()
	for _, path := range []string{filepath.Join(tn.spool.StepsDir(), tn.spool.SocketName(id)), tn.spool.Result(id)} {
		if _, err := os.Lstat(path); err == nil {
			tn.t.Errorf("%s is left", path)
		}
	}
	if tn.tracker.times(id) == 0 {
		tn.t.Errorf("step %s was never ended", id)
	}
	// A wait that begins while the job ends does not see its end.
	tn.eventually(fmt.Sprintf("the end of job %d's container", id.Job), func() bool { return !tn.containers.has(id.Job) })
	if f := tn.reg.follower(id); f != nil {
		tn.t.Errorf("step %s is still followed", id)
	}
}
