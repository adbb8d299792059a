package spank

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

// hostProgram is the built spankhost; without one the test has nothing to run.
func hostProgram(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("STEPD_BIN")
	if dir == "" {
		dir = "../bin"
	}
	path, err := filepath.Abs(filepath.Join(dir, "spankhost"))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		if os.Getenv("STRICT") == "1" {
			t.Fatalf("spankhost is not built: %v", err)
		}
		t.Skipf("spankhost is not built: %v", err)
	}
	return path
}

func sessionPlugin(t *testing.T, flags ...string) string {
	t.Helper()
	so := filepath.Join(t.TempDir(), "sess.so")
	args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-Ihost/include", "testdata/session.c", "-o", so}, flags...)
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return so
}

// heard collects what plugins say.
type heard struct {
	name  string     // of the session's job, "" is job.sh
	ended step.State // how it has ended
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (h *heard) log(r launch.HostRecord) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, r.Text)
}

func (h *heard) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.lines)
}

// jobOf is the job of a session that has one.
func jobOf(c Context, name string) *step.Spec {
	if c != ContextJobScript {
		return nil
	}
	return &step.Spec{
		Request: step.Request{Name: cmp.Or(name, "job.sh"), Cwd: "/w", CPUsPerTask: 2, SubmitHost: "login", Array: &step.ArrayTask{Job: 5, Task: 3}},
		Site:    step.Site{Cluster: "c", Partition: "p"}, ID: step.ID{Job: 7}, Origin: step.OriginBatch, JobNTasks: 6,
		NodeName: "vm", NodeList: "vm", JobCPUs: "0-3,8", JobMemoryMB: 5, JobStarted: time.Unix(1000000, 0), JobLimitS: 3601,
	}
}

// open starts a session; the plugin's line is required. What it said is
// complete after Close.
func open(t *testing.T, c Context, so string, h *heard, args ...string) *Session {
	t.Helper()
	s, problems, err := Open(t.Context(), SessionConfig{
		Program: hostProgram(t), Context: c, NodeName: "vm", User: step.User{Name: "root", UID: 12, GID: 13}, Job: jobOf(c, h.name), JobState: h.ended,
		Stack: Stack{Plugins: []Plugin{{Path: so, Required: true, Args: args, File: "plugstack.conf", Line: 1}}},
		Env:   []string{"PATH=/usr/bin", "HOME=/x"}, JobControl: [][]byte{[]byte("_SLURM_SPANK_OPTION_sess_reg=val"), []byte("OTHER=1")},
		HookTimeout: 2 * time.Second, Log: h.log,
	})
	if err != nil || len(problems) > 0 {
		t.Fatalf("open: %v, %v", problems, err)
	}
	return s
}

func finish(t *testing.T, s *Session) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestSessionLocal(t *testing.T) {
	so, h := sessionPlugin(t), &heard{}
	s := open(t, ContextLocal, so, h)
	options, err := s.Init()
	if err != nil || len(options) != 2 || options[0].Name != "table" || options[0].HasArg != 1 || options[1].Usage != "registered" || options[1].Plugin != "sess" || options[1].File != "sess.so" {
		t.Fatalf("init: %+v, %v", options, err)
	}
	if err := s.Give(options[1], []byte("v1")); err != nil {
		t.Error(err)
	}
	if err := s.Give(options[1], nil); err != nil {
		t.Error(err)
	}
	big := strings.Repeat("x", srunopt.OptionMax)
	if err := s.Give(options[1], []byte(big)); err != nil {
		t.Errorf("1 MB: %v", err)
	}
	if err := s.Give(options[1], []byte(big+"x")); err == nil {
		t.Error("more than 1 MB was taken")
	}
	var hook *launch.HookError
	if err := s.Give(options[0], []byte("bad")); !errors.As(err, &hook) || hook.RC == nil || *hook.RC != -1 {
		t.Errorf("a callback that fails: %v", err)
	}
	for _, call := range []func() error{
		func() error { return s.PostOpt(nil) },
		func() error {
			return s.LocalUserInit(LocalJob{ID: step.ID{Job: 9, Step: 2}, NNodes: 1, TotalTasks: 4, Argv: []string{"true"}, Env: []string{"SLURM_JOB_ID=9"}})
		},
	} {
		if err := call(); err != nil {
			t.Error(err)
		}
	}
	env, jc, _, err := s.State()
	if err != nil || !slices.Contains(env, "FROM_INIT=1") || !slices.Contains(env, "SLURM_JOB_ID=9") || !slices.Contains(env, "HOME=/x") {
		t.Errorf("state: %q, %v", env, err)
	}
	if len(jc) != 3 || string(jc[2]) != "JC=init" {
		t.Errorf("job control: %q", jc)
	}
	if err := s.Exit(nil); err != nil {
		t.Error(err)
	}
	<-s.Done()
	finish(t, s)
	said := strings.Join(h.all(), "\n")
	for _, want := range []string{
		"init ctx=1 remote=0 job=3009:0 step=3009:0 uid=3009 getopt=3009:NULL\noption 2=v1 remote=0\noption 2=NULL remote=0",
		"option 1=bad remote=0\ninit_post_opt ctx=1",
		"local_user_init ctx=1 remote=0 job=0:9 step=0:2 uid=0 getopt=0:xxx",
		"\nexit ctx=1 remote=0 job=3009:0",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q was not said", want)
		}
	}
}

// TestSessionOrder: what a plugin says in a call is passed on before the call returns.
func TestSessionOrder(t *testing.T) {
	so, h := sessionPlugin(t), &heard{}
	s := open(t, ContextLocal, so, h)
	options, err := s.Init()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if err := s.Give(options[1], fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
		if said, want := h.all(), fmt.Sprintf("option 2=%d remote=0", i); said[len(said)-1] != want {
			t.Fatalf("after call %d the last word is %q", i, said[len(said)-1])
		}
	}
	finish(t, s)
}

func TestSessionAllocator(t *testing.T) {
	so, h := sessionPlugin(t), &heard{}
	s := open(t, ContextAllocator, so, h, "init_post_opt=rc:-1")
	options, err := s.Init()
	if err != nil || len(options) != 1 || options[0].Name != "reg" {
		t.Fatalf("the table's options are not for this context: %+v, %v", options, err)
	}
	var hook *launch.HookError
	if err := s.PostOpt(nil); !errors.As(err, &hook) || hook.Hook != "slurm_spank_init_post_opt" || !hook.Required {
		t.Errorf("init_post_opt: %v", err)
	}
	if err := s.LocalUserInit(LocalJob{ID: step.ID{Job: 1}}); err == nil {
		t.Error("local_user_init was called in allocator context")
	}
	if err := s.Exit(nil); err != nil {
		t.Error(err)
	}
	finish(t, s)
	if said := h.all(); !slices.Contains(said, "exit ctx=3 remote=0 job=3001:0 step=3001:0 uid=3009 getopt=3009:NULL") {
		t.Errorf("exit was not called: %q", said)
	}
}

func TestSessionJobScript(t *testing.T) {
	so, h := sessionPlugin(t), &heard{}
	s := open(t, ContextJobScript, so, h)
	if options, err := s.Init(); err != nil || len(options) != 0 {
		t.Fatalf("init: %+v, %v", options, err)
	}
	if err := s.Hook("slurm_spank_job_prolog"); err != nil {
		t.Error(err)
	}
	if err := s.Hook("slurm_spank_slurmd_exit"); err == nil {
		t.Error("slurmd_exit was called in job_script context")
	}
	finish(t, s)
	if said := h.all(); !slices.Equal(said, []string{"job_prolog ctx=5 remote=0 job=0:7 step=3009:0 uid=0 getopt=0:val"}) {
		t.Errorf("got %q", said)
	}
}

func TestSessionSlurmd(t *testing.T) {
	so, h := sessionPlugin(t), &heard{}
	s := open(t, ContextSlurmd, so, h)
	if _, err := s.Init(); err != nil {
		t.Fatal(err)
	}
	if err := s.Hook("slurm_spank_slurmd_exit"); err != nil {
		t.Error(err)
	}
	if s.Ending() != nil {
		t.Error("it lives")
	}
	finish(t, s)
	if said := h.all(); len(said) != 2 || !strings.HasPrefix(said[1], "slurmd_exit ctx=4 remote=0 job=3009:0 step=3009:0 uid=3009") {
		t.Errorf("got %q", said)
	}
}

// A plugin takes its host down, in every way; the session says who did it.
func TestSessionCrash(t *testing.T) {
	so := sessionPlugin(t)
	for _, c := range []struct{ do, want string }{
		{"segv", `plugin "sess.so": slurm_spank_init: killed by SIGSEGV`},
		{"exit", `plugin "sess.so": slurm_spank_init: called exit(3)`},
		{"hang", `plugin "sess.so": slurm_spank_init: did not return within 2s (HookTimeout in stepd.conf)`},
		{"rc:-5", `plugin "sess.so": slurm_spank_init: failed with rc=-5`},
	} {
		t.Run(c.do, func(t *testing.T) {
			h := &heard{}
			s := open(t, ContextLocal, so, h, "init="+c.do)
			_, err := s.Init()
			text, place, _ := strings.Cut(fmt.Sprint(err), " at ")
			if text != c.want || (c.do == "segv") != strings.Contains(place, "called at sess.so+0x") {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if c.do != "rc:-5" && (s.Exit(nil) == nil || s.Ending() == nil) {
				t.Error("a call to a dead host succeeded")
			}
			finish(t, s)
		})
	}
}

func TestSessionInitFailureMode(t *testing.T) {
	h := &heard{}
	s := open(t, ContextSlurmd, sessionPlugin(t, "-DFAILURE_MODE=ESPANK_JOB_FAILURE"), h, "init=rc:-1")
	var hook *launch.HookError
	if _, err := s.Init(); !errors.As(err, &hook) || *hook.RC != 3012 {
		t.Errorf("got %v", err)
	}
	finish(t, s)
}

// The end of the context ends a host that is in a hook.
func TestSessionEndedByContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	h := &heard{}
	so := sessionPlugin(t)
	s, _, err := Open(ctx, SessionConfig{
		Program: hostProgram(t), Context: ContextLocal,
		Stack: Stack{Plugins: []Plugin{{Path: so, Required: true, Args: []string{"init=hang"}}}}, Log: h.log,
	})
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { cancel(errors.New("interrupted")) })
	if _, err := s.Init(); err == nil || !strings.Contains(err.Error(), "slurm_spank_init: was ended: interrupted") {
		t.Errorf("got %v", err)
	}
	finish(t, s)
}

// TestSessionStopped: a host that is stopped, between hooks or by one, is ended, and what waits for
// it says so; one that goes on is left alone.
func TestSessionStopped(t *testing.T) {
	const late = "was stopped, and did not go on within 100ms (UnkillableStepTimeout in slurm.conf)"
	so := sessionPlugin(t)
	stopped := func(h *heard, limit time.Duration, args ...string) *Session {
		s, _, err := Open(t.Context(), SessionConfig{
			Program: hostProgram(t), Context: ContextSlurmd, StopTimeout: limit, Log: h.log,
			Stack: Stack{Plugins: []Plugin{{Path: so, Required: true, Args: args}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	signal := func(s *Session, sig unix.Signal) {
		if err := unix.Kill(s.host.PID(), sig); err != nil {
			t.Fatal(err)
		}
	}
	h := &heard{}
	s := stopped(h, 100*time.Millisecond)
	if _, err := s.Init(); err != nil {
		t.Fatal(err)
	}
	signal(s, unix.SIGSTOP)
	finish(t, s)
	host := fmt.Sprintf("spankhost (slurmd context, pid %d)", s.host.PID())
	begun := " is stopped: it is killed, unless it goes on within 100ms (UnkillableStepTimeout)"
	if said, want := h.all(), []string{host + begun, host + ": " + late}; !slices.Equal(said, want) && (len(said) != 3 || !slices.Equal(said[1:], want)) {
		t.Errorf("closed between hooks: %q, want %q", said, want)
	}

	s = stopped(&heard{}, 100*time.Millisecond, "init=stop")
	if _, err := s.Init(); err == nil || !strings.HasSuffix(err.Error(), "slurm_spank_init: "+late) {
		t.Errorf("stopped by a hook: %v", err)
	}
	finish(t, s)

	h = &heard{}
	s = stopped(h, time.Hour)
	signal(s, unix.SIGSTOP)
	time.AfterFunc(50*time.Millisecond, func() { signal(s, unix.SIGCONT) })
	if _, err := s.Init(); err != nil {
		t.Errorf("a host that goes on: %v", err)
	}
	finish(t, s)
	if said := h.all(); len(said) != 2 || !strings.HasSuffix(said[0], " is stopped: it is killed, unless it goes on within 1h0m0s (UnkillableStepTimeout)") ||
		!strings.HasPrefix(said[1], "init ctx=4") {
		t.Errorf("a host that goes on: %q", said)
	}
}

func TestSessionMissingPlugin(t *testing.T) {
	for _, required := range []bool{true, false} {
		s, problems, err := Open(t.Context(), SessionConfig{
			Program: hostProgram(t), Context: ContextLocal,
			Stack: Stack{Plugins: []Plugin{{Path: "/no/such.so", Required: required, File: "plugstack.conf", Line: 3}}},
		})
		if required && (err == nil || !strings.Contains(err.Error(), "plugstack.conf:3: Failed to load plugin /no/such.so. Aborting")) {
			t.Errorf("required: %v", err)
		}
		if !required {
			if err != nil || len(problems) != 1 {
				t.Fatalf("optional: %v, %v", problems, err)
			}
			finish(t, s)
		}
	}
}

func FuzzParseState(f *testing.F) {
	w := &writer{}
	w.tlvStr(tagHostEnv, "A=b")
	w.tlvStr(tagJobControl, "C=d")
	w.tlvStr(tagEnvUnset, "E=")
	f.Add(w.B)
	f.Add([]byte("\x20\x00\x00\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		env, jc, unset, err := parseState(b)
		if err != nil {
			return
		}
		for _, e := range env {
			if strings.IndexByte(e, '=') < 1 {
				t.Fatalf("%q is no variable", e)
			}
		}
		for _, e := range jc {
			if strings.IndexByte(string(e), '=') < 1 {
				t.Fatalf("%q is no variable", e)
			}
		}
		for _, name := range unset {
			if len(name) == 0 || strings.ContainsAny(string(name), "=\x00") {
				t.Fatalf("%q is no name", name)
			}
		}
	})
}
