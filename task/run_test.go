package task

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/step"
	"stepd/step/launch"
)

// rig is a step whose neighbours are fakes: they note every call in one list,
// so that a test reads as the order of things.
type rig struct {
	mu     sync.Mutex
	calls  []string
	said   []string
	saidOf []int // the ranks that lines of one task were about; guarded by mu

	st   *Step
	spec *step.Spec
	ctx  context.Context

	plugins []Plugin

	// What the fakes do.
	fail    map[string]error                                              // by call
	during  map[string]func()                                             // by call, before it returns
	wait    func(ended func(launch.TaskEnd), epilog func(int, int) error) // what Wait does before ends
	ends    []launch.TaskEnd                                              // what Wait tells
	places  map[int]launch.HostPlace
	zombies bool  // the tasks have ended when they are looked at
	left    []int // PIDs
	kept    int   // helpers of the exit hooks
	hooks   []launch.HookTime
	acct    Accounting
	dead    bool
	escaped []launch.Escape
	launch  *launch.Launch
	sink    func(launch.HostRecord) // what the host tells
	cgroup  int                     // HostCgroup's, which is the tasks'; -1 is none
	streams Streams

	// The ranks that the neighbours were told: to track, of ends, and to the MPI plugin.
	tracked, told, exited, hooked []int
	job                           launch.MPIJob // what prefork was told
	pid                           int           // of the first task, 5000 without one; the others' follow
	events                        []eventlog.Event
	logged                        []string         // errors
	spared                        []int            // the host that each signal to all has passed over
	besides                       error            // of a signal past the host
	stalled                       chan step.Record // reports to noded about ranks that come no further
}

const fakeHostPID = 4242

func newRig(t *testing.T) *rig {
	r := &rig{
		ctx: context.Background(), spec: testSpec(), fail: map[string]error{}, during: map[string]func(){},
		places: map[int]launch.HostPlace{-1: {Plugin: -1}}, cgroup: -1, stalled: make(chan step.Record, 16),
	}
	r.spec.NTasks = 2
	r.spec.Stdout.Kind, r.spec.Stderr.Kind = step.StreamNull, step.StreamNull
	r.ends = []launch.TaskEnd{{LocalID: 0}, {LocalID: 1}}
	for rank := range 2 {
		r.places[rank] = launch.HostPlace{Plugin: -1, AtExec: true, Stage: "exec"}
	}
	return r
}

func (r *rig) run(t *testing.T) step.Record {
	t.Helper()
	plan, err := MakePlan(r.spec)
	if err != nil {
		t.Fatal(err)
	}
	none := make(chan struct{})
	close(none)
	if r.acct == nil {
		r.acct = noAccounting{}
	}
	if r.streams == nil {
		r.streams = noStreams{}
	}
	r.st = New(plan, Deps{
		Tracker: fakeTracker{r}, MPI: fakeMPI{r}, Audience: fakeAudience{r}, Accounting: r.acct, Plugins: r.plugins, Now: time.Now,
		Output: fakeOutput{r}, Streams: r.streams,
		StartHost:  func(int) (Host, error) { return fakeHost{r}, r.note("start") },
		NoChildren: func() <-chan struct{} { return none },
	})
	r.st.AttachDone()
	done := make(chan step.Record)
	go func() { done <- r.st.Run(r.ctx) }()
	select {
	case rec := <-done:
		return rec
	case <-time.After(20 * time.Second):
		t.Fatalf("Run does not return; calls: %v", r.calls)
		panic("unreachable")
	}
}

func (r *rig) note(call string) error {
	r.mu.Lock()
	r.calls = append(r.calls, call)
	f := r.during[call]
	err := r.fail[call]
	r.mu.Unlock()
	if f != nil {
		f()
	}
	return err
}

// die makes the host end as if by itself.
func (r *rig) die(status step.ExitStatus) {
	r.mu.Lock()
	was := r.dead
	r.dead = true
	r.mu.Unlock()
	if !was {
		r.st.ChildEnded(fakeHostPID, status, nil)
	}
}

// noAccounting and noStreams are the neighbours of a step that reads no usage and passes
// no stream on.
type noAccounting struct{}

func (noAccounting) Begin(int, bool, []int)         {}
func (noAccounting) HostMoved()                     {}
func (noAccounting) TaskEnded(launch.TaskEnd)       {}
func (noAccounting) OrphanEnded(int, *launch.Usage) {}
func (noAccounting) Sample()                        {}
func (noAccounting) Finish()                        {}
func (noAccounting) Fill(*step.Record)              {}

type noStreams struct{}

func (noStreams) Drain(time.Duration) []launch.Held { return nil }
func (noStreams) Used() bool                        { return false }
func (noStreams) Fill(*step.Record)                 {}

// fakeOutput is the output of a step with a terminal; of others it has nothing to drain.
type fakeOutput struct{ r *rig }

func (f fakeOutput) OpenTerminal() (int, error) { return 77, f.r.note("open terminal") }
func (f fakeOutput) Used() bool                 { return f.r.spec.Terminal != nil }
func (f fakeOutput) Drain() {
	if f.Used() {
		f.r.note("drain")
	}
}

type fakeHost struct{ r *rig }

func (h fakeHost) PID() int { return fakeHostPID }
func (h fakeHost) Setup(_ launch.HostSetup, sink func(launch.HostRecord)) ([]string, error) {
	h.r.sink = sink
	return nil, h.r.note("setup")
}
func (h fakeHost) LoadStack() ([]string, error) { return []string{"a warning"}, h.r.note("load") }
func (h fakeHost) Init() error                  { return h.r.note("init") }
func (h fakeHost) Launch(l *launch.Launch) error {
	h.r.launch = l
	return h.r.note("launch")
}
func (h fakeHost) UserInit(*os.File, func(int, *os.File)) error {
	return h.r.note("user_init")
}

func (h fakeHost) PostFork() error                 { return h.r.note("post_fork") }
func (h fakeHost) Hooks(bool) []launch.HookTime    { return h.r.hooks }
func (h fakeHost) PluginName(int) string           { return "x.so" }
func (h fakeHost) Required(i int) bool             { return i == 0 }
func (h fakeHost) Kill()                           { h.r.die(step.SignaledBy(syscall.SIGKILL)) }
func (h fakeHost) Close()                          { h.r.note("close host") }
func (h fakeHost) Where(rank int) launch.HostPlace { return h.r.places[rank] }

func (h fakeHost) Exit() error {
	err := h.r.note("exit")
	h.r.die(0)
	return err
}

func (h fakeHost) Fork() ([]launch.Forked, error) {
	var out []launch.Forked
	for id := range h.r.spec.LocalTasks() {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return nil, err
		}
		unix.Close(p[1])
		ended := uint(0)
		if h.r.zombies {
			ended = 1
		}
		fd, err := unix.Eventfd(ended, unix.EFD_CLOEXEC)
		if err != nil {
			return nil, err
		}
		out = append(out, launch.Forked{LocalID: id, PID: cmp.Or(h.r.pid, 5000) + id, PidFD: fd, Exec: p[0]})
	}
	return out, h.r.note("fork")
}

func (h fakeHost) Wait(ended func(launch.TaskEnd), epilog func(int, int) error) error {
	err := h.r.note("wait")
	if h.r.wait != nil {
		h.r.wait(ended, epilog)
	}
	for _, e := range h.r.ends {
		ended(e)
	}
	return err
}

func (h fakeHost) Crash(rank int, cause string) (*launch.HookError, bool) {
	p := h.r.places[rank]
	if !p.InHook() {
		return nil, false
	}
	e := &launch.HookError{Plugin: "x.so", Hook: p.Hook, Required: p.Plugin == 0, Cause: cause}
	if rank >= 0 {
		e.Rank = &rank
	}
	return e, true
}

type fakeTracker struct{ r *rig }

func (k fakeTracker) Create() error           { return k.r.note("track") }
func (k fakeTracker) HostCgroup() (int, bool) { return k.r.cgroup, k.r.cgroup >= 0 }
func (k fakeTracker) Add(rank, pid int) error {
	k.r.tracked = append(k.r.tracked, rank)
	return k.r.note(fmt.Sprintf("add %d", pid))
}
func (k fakeTracker) EvictHost(int) error                    { return k.r.note("evict") }
func (k fakeTracker) Escaped([]int) ([]launch.Escape, error) { return k.r.escaped, nil }
func (k fakeTracker) Helpers() (*os.File, error)             { return nil, nil }
func (k fakeTracker) PIDs() ([]int, error)                   { return k.r.left, k.r.note("pids") }
func (k fakeTracker) Signal(s syscall.Signal, host int) error {
	k.r.spared = append(k.r.spared, host)
	if err := k.r.note("signal " + unix.SignalName(s)); err != nil || host == 0 {
		return err
	}
	return k.r.besides
}
func (k fakeTracker) Kill(context.Context) error      { return k.r.note("kill") }
func (k fakeTracker) Freeze(context.Context) error    { return k.r.note("freeze") }
func (k fakeTracker) Thaw() error                     { return k.r.note("thaw") }
func (k fakeTracker) KeepHelpers(uint64) (int, error) { return k.r.kept, k.r.note("keep") }
func (k fakeTracker) Destroy(context.Context) error   { return k.r.note("destroy") }

type fakeMPI struct{ r *rig }

func (m fakeMPI) Prefork(_ context.Context, job launch.MPIJob) (launch.MPITasks, error) {
	m.r.job = job
	return launch.MPITasks{}, m.r.note("prefork")
}
func (m fakeMPI) TaskExited(rank int, _ step.ExitStatus) { m.r.exited = append(m.r.exited, rank) }
func (m fakeMPI) Close() error                           { return m.r.note("close mpi") }

type fakeAudience struct{ r *rig }

func (a fakeAudience) Say(line string) {
	a.r.mu.Lock()
	defer a.r.mu.Unlock()
	a.r.said = append(a.r.said, line)
}
func (a fakeAudience) SayTask(rank int, line string) {
	a.Say(line)
	a.r.mu.Lock()
	defer a.r.mu.Unlock()
	a.r.saidOf = append(a.r.saidOf, rank)
}
func (a fakeAudience) SayTo(f *os.File)                       { f.Close() }
func (a fakeAudience) TaskExited(rank int, _ step.ExitStatus) { a.r.told = append(a.r.told, rank) }
func (a fakeAudience) State(step.Record)                      {}
func (a fakeAudience) Event(e eventlog.Event) {
	a.r.mu.Lock()
	defer a.r.mu.Unlock()
	a.r.events = append(a.r.events, e)
}
func (a fakeAudience) Progress(rec step.Record)   { a.r.stalled <- rec }
func (a fakeAudience) Hooks(h eventlog.HookCalls) { a.r.hooked = h.Ranks }
func (a fakeAudience) Log(level launch.LogLevel, text string) {
	a.r.mu.Lock()
	defer a.r.mu.Unlock()
	if level == launch.LogError && strings.HasPrefix(text, "plugin ") {
		a.r.logged = append(a.r.logged, text)
	}
}

func wantCalls(t *testing.T, r *rig, want ...string) {
	t.Helper()
	if !slices.Equal(r.calls, want) {
		t.Errorf("calls:\n got %s\nwant %s", strings.Join(r.calls, ", "), strings.Join(want, ", "))
	}
}

var launchCalls = []string{"track", "start", "evict", "setup", "load", "init", "prefork", "launch", "user_init",
	"fork", "add 5000", "add 5001", "post_fork"}

// TestUnattended: the launch waits for no client, whatever the streams are.
func TestUnattended(t *testing.T) {
	r := newRig(t)
	r.spec.Unattended = true
	r.spec.Stdout.Kind = step.StreamClient // validation refuses it: the launch would wait for 30 s
	plan, err := MakePlan(r.spec)
	if err != nil {
		t.Fatal(err)
	}
	st := New(plan, Deps{Tracker: fakeTracker{r}, Audience: fakeAudience{r}, Now: time.Now})
	if err := st.clientStreams.wait(); err != nil {
		t.Error(err)
	}
}

func TestRunOrder(t *testing.T) {
	r := newRig(t)
	rec := r.run(t)
	wantCalls(t, r, append(slices.Clone(launchCalls), "wait", "pids", "exit", "close mpi", "destroy", "close host")...)
	if rec.State != step.Completed || rec.ExitCode == nil || *rec.ExitCode != 0 || rec.Ended == nil {
		t.Errorf("record is %+v", rec)
	}
	if !slices.Contains(r.said, "stepd-vm: error: a warning") {
		t.Errorf("the user was told %q", r.said)
	}
}

// TestSpeaker holds that the Spec says by which name the node speaks to the user.
func TestSpeaker(t *testing.T) {
	r := newRig(t)
	r.spec.Speaker = "slurmstepd-vm"
	r.run(t)
	if !slices.Contains(r.said, "slurmstepd-vm: error: a warning") {
		t.Errorf("the user was told %q", r.said)
	}
}

// A stage that fails: the stages after it are not begun, and everything that
// was made is taken back, the last first.
func TestRunFailures(t *testing.T) {
	rc := -1
	hook := func(name string) error {
		return &launch.HookError{Plugin: "x.so", Hook: name, Required: true, RC: &rc}
	}
	begun := func(n int, more ...string) []string { return append(slices.Clone(launchCalls[:n]), more...) }
	tests := []struct {
		call  string
		err   error
		code  int
		calls []string
	}{
		{"track", errors.New("no space left on device"), 1, begun(1, "close host")},
		{"start", errors.New("exec format error"), 1, begun(2, "destroy")},
		{"load", errors.New("dlopen"), 1, begun(5, "pids", "exit", "destroy", "close host")},
		{"init", hook("slurm_spank_init"), 0, begun(6, "pids", "exit", "destroy", "close host")},
		{"prefork", errors.New("no sockets"), 1, begun(7, "pids", "exit", "close mpi", "destroy", "close host")},
		{"user_init", hook("slurm_spank_user_init"), 0, begun(9, "pids", "exit", "close mpi", "destroy", "close host")},
		{"add 5001", errors.New("no such process"), 1, begun(12, "pids", "exit", "close mpi", "destroy", "close host")},
		{"post_fork", hook("slurm_spank_task_post_fork"), 0, begun(13, "pids", "exit", "close mpi", "destroy", "close host")},
	}
	for _, tt := range tests {
		t.Run(tt.call, func(t *testing.T) {
			r := newRig(t)
			r.fail[tt.call] = tt.err
			rec := r.run(t)
			if tt.call == "track" || tt.call == "start" {
				tt.calls = slices.DeleteFunc(tt.calls, func(c string) bool { return c == "close host" })
			}
			wantCalls(t, r, tt.calls...)
			want := step.Failed
			if tt.code == 0 {
				want = step.Completed // the record says what the code says
			}
			if rec.State != want || *rec.ExitCode != tt.code || rec.NoTaskRan() != (tt.code == 0) {
				t.Errorf("state %s, exit code %d; want %s, %d", rec.State, *rec.ExitCode, want, tt.code)
			}
			if !strings.Contains(rec.Reason, tt.err.Error()) {
				t.Errorf("reason %q does not name %q", rec.Reason, tt.err)
			}
		})
	}
}

// A host that stands still outside of a hook can be cancelled: it is killed
// when KillWait is over.
func TestCancelOfIdleHost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.spec.KillWaitS = 1
	killed := make(chan struct{})
	r.fail["user_init"] = launch.ErrHostGone
	r.during["user_init"] = func() {
		r.st.Cancel("enough")
		go func() {
			<-r.st.host.gone
			close(killed)
		}()
		<-killed // the answer that never comes
	}
	r.places[-1] = launch.HostPlace{Plugin: -1, Stage: "host"}
	if rec := r.run(t); rec.State != step.Cancelled || rec.Reason != "enough" {
		t.Errorf("state %s, reason %q", rec.State, rec.Reason)
	}
}

// With SpankStrict=yes a required plugin's code above 0 fails the step, and an
// optional one's does not.
func TestSpankStrictCodes(t *testing.T) {
	for plugin, want := range []int{1, 0} {
		for _, strict := range []bool{true, false} {
			r := newRig(t)
			r.spec.Spank.Strict = strict
			r.hooks = []launch.HookTime{{Plugin: plugin, Hook: "slurm_spank_task_exit", LocalID: 1, StartNS: 1, EndNS: 2, RC: 7}}
			rec := r.run(t)
			if code := *rec.ExitCode; code != want && strict || code != 0 && !strict {
				t.Errorf("plugin %d, strict %v: exit code %d", plugin, strict, code)
			}
			if strict && plugin == 0 && rec.Reason != `plugin "x.so": slurm_spank_task_exit (rank 1): failed with rc=7` {
				t.Errorf("reason %q", rec.Reason)
			}
		}
	}
}

func TestSpankStrictFailsEveryRequiredHook(t *testing.T) {
	r := newRig(t)
	r.spec.Spank.Strict = true
	rc := -1
	r.fail["user_init"] = &launch.HookError{Plugin: "x.so", Hook: "slurm_spank_user_init", Required: true, RC: &rc}
	if rec := r.run(t); *rec.ExitCode != 1 {
		t.Errorf("exit code %d, want 1", *rec.ExitCode)
	}
}

// The host dies in a hook.
func TestHostDeath(t *testing.T) {
	segv := step.SignaledBy(syscall.SIGSEGV)
	inHook := func(hook string, plugin int) launch.HostPlace { return launch.HostPlace{Hook: hook, Plugin: plugin} }
	tests := []struct {
		name   string
		call   string
		place  launch.HostPlace
		state  step.State
		code   int
		reason string
		killed bool
	}{
		{"before the gate, optional", "user_init", inHook("slurm_spank_user_init", 1), step.Failed, 1,
			`plugin "x.so": slurm_spank_user_init: killed by SIGSEGV`, false},
		{"after the gate, required", "wait", inHook("slurm_spank_task_exit", 0), step.Failed, 1,
			`plugin "x.so": slurm_spank_task_exit: killed by SIGSEGV`, true},
		{"after the gate, outside of a hook", "wait", launch.HostPlace{Plugin: -1}, step.Failed, 1,
			"spankhost (pid 4242): killed by SIGSEGV", true},
		{"after the gate, optional", "wait", inHook("slurm_spank_task_exit", 1), step.Completed, 0,
			`plugin "x.so": slurm_spank_task_exit: killed by SIGSEGV`, false},
		{"in exit, required", "exit", inHook("slurm_spank_exit", 0), step.Failed, 1,
			`plugin "x.so": slurm_spank_exit: killed by SIGSEGV`, false},
		{"in fini, required", "exit", inHook(launch.HookFini, 0), step.Completed, 0, "", false},
		{"in a destructor, optional", "exit", inHook(launch.HookClose, 1), step.Completed, 0, "", false},
		{"in exit, optional", "exit", inHook("slurm_spank_exit", 1), step.Completed, 0,
			`plugin "x.so": slurm_spank_exit: killed by SIGSEGV`, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.places[-1] = tt.place
			r.fail[tt.call] = launch.ErrHostGone
			if tt.call == "wait" {
				r.ends = nil
				r.left = []int{5000, 5001}
			}
			r.during[tt.call] = func() {
				r.die(segv)
				if tt.call == "wait" && tt.place.Plugin == 1 {
					// stepd is the tasks' parent now.
					r.st.ChildEnded(5000, 0, nil)
					r.st.ChildEnded(5001, 0, nil)
				}
			}
			rec := r.run(t)
			if rec.State != tt.state || *rec.ExitCode != tt.code || rec.Reason != tt.reason {
				t.Errorf("%s, exit code %d, reason %q; want %s, %d, %q", rec.State, *rec.ExitCode, rec.Reason, tt.state, tt.code, tt.reason)
			}
			if slices.Contains(r.calls, "exit") != (tt.call == "exit") {
				t.Errorf("a dead host was asked for its exit hooks: %v", r.calls)
			}
			if tt.killed && !slices.Contains(r.calls, "kill") {
				t.Errorf("the tasks were not killed: %v", r.calls)
			}
		})
	}
}

// A status that died with the host is unknown, and none is invented.
func TestLostStatus(t *testing.T) {
	r := newRig(t)
	r.places[-1] = launch.HostPlace{Hook: "slurm_spank_task_exit", Plugin: 1}
	r.fail["wait"] = launch.ErrHostGone
	r.ends = nil
	r.during["wait"] = func() {
		r.die(step.SignaledBy(syscall.SIGABRT))
		r.st.ChildEnded(5001, step.ExitedWith(3), nil)
	}
	rec := r.run(t)
	if t0 := rec.Tasks[0]; t0.ExitCode != nil || t0.Signal != nil || t0.Status != nil {
		t.Errorf("rank 0, whose status was lost, has %+v", t0)
	}
	if t1 := rec.Tasks[1]; t1.ExitCode == nil || *t1.ExitCode != 3 {
		t.Errorf("rank 1 has %+v, want exit code 3", t1)
	}
	if *rec.ExitCode != 3 || rec.State != step.Failed {
		t.Errorf("step: %s, %d", rec.State, *rec.ExitCode)
	}
}

// All statuses are lost: nothing is invented, and the step has failed.
func TestAllStatusesLost(t *testing.T) {
	r := newRig(t)
	r.ends = nil
	r.fail["wait"] = errors.New("cannot learn how task 0 ended")
	rec := r.run(t)
	if rec.State != step.Failed || *rec.ExitCode != 1 || !strings.Contains(rec.Reason, "cannot learn how task 0 ended") {
		t.Errorf("%s, %d, %q", rec.State, *rec.ExitCode, rec.Reason)
	}
}

func TestVerdict(t *testing.T) {
	tests := []struct {
		name  string
		ends  []step.ExitStatus
		state step.State
		code  int
		why   string
	}{
		{"all well", []step.ExitStatus{0, 0}, step.Completed, 0, ""},
		{"the highest code", []step.ExitStatus{step.ExitedWith(3), step.ExitedWith(1)}, step.Failed, 3, "task 0: Exited with exit code 3"},
		{"a signal over a code", []step.ExitStatus{step.ExitedWith(3), step.SignaledBy(syscall.SIGKILL)}, step.Failed, 137, "task 1: Killed"},
		{"253 stays", []step.ExitStatus{step.ExitedWith(253), 0}, step.Failed, 253, "task 0: Exited with exit code 253"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			for i, st := range tt.ends {
				r.ends[i].Status = st
			}
			rec := r.run(t)
			if rec.State != tt.state || *rec.ExitCode != tt.code || rec.Reason != tt.why {
				t.Errorf("%s, %d, %q; want %s, %d, %q", rec.State, *rec.ExitCode, rec.Reason, tt.state, tt.code, tt.why)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	t.Run("before the gate", func(t *testing.T) {
		r := newRig(t)
		r.during["init"] = func() { r.st.Cancel("cancelled by uid 7001") }
		rec := r.run(t)
		if rec.State != step.Cancelled || slices.Contains(r.calls, "fork") {
			t.Errorf("%s after %v", rec.State, r.calls)
		}
	})
	t.Run("running", func(t *testing.T) {
		r := newRig(t)
		r.cgroup = 7
		term := make(chan struct{})
		r.during["signal SIGTERM"] = func() { close(term) }
		r.during["wait"] = func() { r.st.Cancel("cancelled by uid 7001"); <-term }
		for i := range r.ends {
			r.ends[i].Status = step.SignaledBy(syscall.SIGTERM)
		}
		rec := r.run(t)
		if rec.State != step.Cancelled || *rec.ExitCode != 143 || rec.Reason != "cancelled by uid 7001" {
			t.Errorf("%s, %d, %q", rec.State, *rec.ExitCode, rec.Reason)
		}
		evict, sig := slices.Index(r.calls, "evict"), slices.Index(r.calls, "signal SIGTERM")
		if (evict < 0 || evict > sig) && r.spared[0] != r.st.host.PID() {
			t.Errorf("the host is process %d, and process %d had no signal; the calls: %v", r.st.host.PID(), r.spared[0], r.calls)
		}
	})
	t.Run("when the tasks have ended", func(t *testing.T) {
		r := newRig(t)
		r.zombies = true
		term := make(chan struct{})
		r.during["signal SIGTERM"] = func() { close(term) }
		r.during["wait"] = func() { r.st.Cancel("the client went away"); <-term }
		r.ends[0].Status = step.ExitedWith(7)
		rec := r.run(t)
		if rec.State != step.Failed || *rec.ExitCode != 7 || rec.Reason != "task 0: Exited with exit code 7" {
			t.Errorf("%s, %d, %q", rec.State, *rec.ExitCode, rec.Reason)
		}
	})
	for name, c := range map[string]struct {
		status step.ExitStatus
		state  step.State
	}{
		"the host goes down":                     {step.SignaledBy(syscall.SIGTERM), step.NodeFail},
		"the host goes down, and tasks end well": {0, step.Completed},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ctx, down := context.WithCancelCause(context.Background())
			r.ctx = ctx
			term := make(chan struct{})
			r.during["signal SIGTERM"] = func() { close(term) }
			r.during["wait"] = func() {
				down(errors.New("stepd got SIGTERM"))
				<-term
			}
			for i := range r.ends {
				r.ends[i].Status = c.status
			}
			rec := r.run(t)
			if rec.State != c.state || c.state != step.Completed && rec.Reason != "stepd got SIGTERM" {
				t.Errorf("%s, %q", rec.State, rec.Reason)
			}
		})
	}
	t.Run("to SIGKILL after KillWait", func(t *testing.T) {
		r := newRig(t)
		killed := make(chan struct{})
		r.during["kill"] = func() { close(killed) }
		r.during["wait"] = func() { r.st.Cancel("enough"); <-killed }
		for i := range r.ends {
			r.ends[i].Status = step.SignaledBy(syscall.SIGKILL)
		}
		if rec := r.run(t); rec.State != step.Cancelled {
			t.Errorf("%s", rec.State)
		}
	})
}

func TestKillOnBadExit(t *testing.T) {
	r := newRig(t)
	r.spec.KillOnBadExit = true
	r.spec.KillWaitS = 30
	r.ends = []launch.TaskEnd{{LocalID: 1, Status: step.ExitedWith(4)}, {LocalID: 0, Status: step.SignaledBy(syscall.SIGTERM)}}
	rec := r.run(t)
	if rec.State != step.Failed || *rec.ExitCode != 143 {
		t.Errorf("%s, %d; want FAILED, 143", rec.State, *rec.ExitCode)
	}
}

// A task that dies in a hook was never exec'd: exit code 1, named plugin.
func TestTaskCrashInHook(t *testing.T) {
	r := newRig(t)
	r.places[1] = launch.HostPlace{Stage: "task_init", Hook: "slurm_spank_task_init", Plugin: 0}
	r.ends[1].Status = step.SignaledBy(syscall.SIGSEGV)
	rec := r.run(t)
	t1 := rec.Tasks[1]
	if t1.State != step.TaskFailed || t1.ExitCode == nil || *t1.ExitCode != 1 || t1.Signal != nil || t1.Stage != "task_init" {
		t.Errorf("task: %+v", t1)
	}
	if t1.Status == nil || *t1.Status != step.SignaledBy(syscall.SIGSEGV) {
		t.Errorf("the raw status was changed: %v", t1.Status)
	}
	want := `plugin "x.so": slurm_spank_task_init (rank 1): killed by SIGSEGV`
	if *rec.ExitCode != 1 || rec.Reason != want {
		t.Errorf("exit code %d, reason %q; want 1, %q", *rec.ExitCode, rec.Reason, want)
	}
	crash := slices.IndexFunc(r.events, func(e eventlog.Event) bool { return e.Event == eventlog.EventHookCrash })
	if crash < 0 || r.events[crash].Text != "killed by SIGSEGV" || r.events[crash].Plugin != "x.so" || r.events[crash].Hook != "slurm_spank_task_init" || *r.events[crash].Rank != 1 {
		t.Errorf("events %+v", r.events)
	}
}

// A hook that crashes in each of many tasks is said to the user of each, and once in the log.
func TestTaskCrashesAreLoggedOnce(t *testing.T) {
	r := newRig(t)
	for rank := range 2 {
		r.places[rank] = launch.HostPlace{Stage: "task_init", Hook: "slurm_spank_task_init", Plugin: 0}
		r.ends[rank].Status = step.SignaledBy(syscall.SIGSEGV)
	}
	r.run(t)
	if want := []string{`plugin "x.so": slurm_spank_task_init (rank 0): killed by SIGSEGV`}; !slices.Equal(r.logged, want) {
		t.Errorf("the log has %q, want %q", r.logged, want)
	}
	if n := strings.Count(strings.Join(r.said, "\n"), "killed by SIGSEGV"); n != 2 {
		t.Errorf("%d lines to the user: %q", n, r.said)
	}
}
