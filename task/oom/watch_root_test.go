package oom

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"stepd/internal/testkit"
	"stepd/step"
	"stepd/step/launch"
)

// hogVar makes a process of this test binary use as many bytes, once its
// standard input has ended: alone, or as the child of a process that goes on.
const hogVar, childVar = "OOM_TEST_HOG", "OOM_TEST_CHILD"

func TestMain(m *testing.M) {
	n, err := strconv.Atoi(os.Getenv(hogVar))
	if err != nil {
		os.Exit(m.Run())
	}
	io.Copy(io.Discard, os.Stdin)
	if os.Getenv(childVar) != "" {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{fmt.Sprintf("%s=%d", hogVar, n)}
		cmd.Run() // it is killed
		os.Exit(0)
	}
	b := make([]byte, n)
	for i := 0; i < n; i += 4096 {
		b[i] = 1
	}
}

const limit = 64 << 20

// memoryTree makes the cgroups of a job with one step of two tasks, in the
// hierarchy that this machine limits memory in.
func memoryTree(t *testing.T) (job, stepDir string, v1 bool) {
	t.Helper()
	testkit.RequireRoot(t)
	top := "/sys/fs/cgroup/memory"
	_, err := os.Stat(top)
	if v1 = err == nil; !v1 {
		top = "/sys/fs/cgroup"
		writeTo(t, filepath.Join(top, "cgroup.subtree_control"), "+memory")
	}
	dirs := []string{filepath.Join(top, fmt.Sprintf("stepd-%08x", os.Getpid()))}
	for _, name := range []string{"job_1", "step_0", launch.TaskName(nodeRanks[0])} {
		dirs = append(dirs, filepath.Join(dirs[len(dirs)-1], name))
	}
	dirs = append(dirs, filepath.Join(dirs[2], launch.TaskName(nodeRanks[1])))
	for i, d := range dirs {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { removeGroup(t, d) })
		if !v1 && i < 3 {
			writeTo(t, filepath.Join(d, "cgroup.subtree_control"), "+memory")
		}
	}
	return dirs[1], dirs[2], v1
}

// removeGroup waits for processes that are on their way out.
func removeGroup(t *testing.T, dir string) {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		err := os.Remove(dir)
		if err == nil {
			return
		}
		if !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
			t.Error(err)
			return
		}
	}
}

func writeTo(t *testing.T, path, value string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

func setLimit(t *testing.T, dir string, v1 bool) {
	t.Helper()
	name := "memory.max"
	if v1 {
		name = "memory.limit_in_bytes"
	}
	writeTo(t, filepath.Join(dir, name), strconv.Itoa(limit))
}

type told struct {
	mu    sync.Mutex
	kills []step.OOMKill
}

func (t *told) hear(k step.OOMKill) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kills = append(t.kills, k)
}

// nodeRanks are the ranks of the two tasks that a node of several has.
var nodeRanks = []int{2, 5}

// run lets the second task of a step use too much and returns what the watch has told.
func run(t *testing.T, w *Watch, dir string, extraEnv ...string) (pid int) {
	t.Helper()
	if err := w.PreSetuid(); err != nil {
		t.Fatal(err)
	}
	var pids [2]int
	var cmds [2]*exec.Cmd
	var ins [2]io.WriteCloser
	for id := range 2 {
		size := 4 << 20
		if id == 1 {
			size = 4 * limit
		}
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{fmt.Sprintf("%s=%d", hogVar, size)}
		if id == 1 {
			cmd.Env = append(cmd.Env, extraEnv...)
		}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds[id], ins[id], pids[id] = cmd, in, cmd.Process.Pid
		if dir != "" {
			writeTo(t, filepath.Join(dir, launch.TaskName(nodeRanks[id]), "cgroup.procs"), strconv.Itoa(pids[id]))
		}
		if err := w.PreLaunchPriv(id, pids[id]); err != nil {
			t.Fatal(err)
		}
	}
	for id := range 2 {
		ins[id].Close()
		cmds[id].Wait()
		w.PostTerm(launch.TaskEnd{LocalID: id, Status: step.ExitStatus(cmds[id].ProcessState.Sys().(syscall.WaitStatus))})
	}
	if err := w.PostStep(); err != nil {
		t.Fatal(err)
	}
	return pids[1]
}

func TestRootWatchNamesTheLevel(t *testing.T) {
	for _, level := range []string{"task", "step", "job", "parent"} {
		t.Run(level, func(t *testing.T) {
			job, dir, v1 := memoryTree(t)
			at := map[string]string{"task": filepath.Join(dir, launch.TaskName(nodeRanks[1])), "step": dir, "job": job, "parent": filepath.Dir(job)}[level]
			setLimit(t, at, v1)
			kills := oneKill(t, dir, v1, []step.MemoryLevel{{Level: "step", Dir: dir}, {Level: "job", Dir: job}})
			k := kills.kill
			if k.Level != level || k.Rank == nil || *k.Rank != nodeRanks[1] || k.PID != kills.pid || k.Command == "" {
				t.Errorf("told %+v, want rank 5, pid %d, level %s", k, kills.pid, level)
			}
			if level == "parent" { // its figures are not the job's to know
				if want := "the limit of a cgroup above the job is reached"; k.LimitBytes != nil || !strings.Contains(k.String(), want) {
					t.Errorf("the line is %q, want %q", k, want)
				}
				return
			}
			if k.LimitBytes == nil || *k.LimitBytes != limit || k.PeakBytes == nil || *k.PeakBytes < limit-2*pageSlack {
				t.Errorf("limit and peak are %s", k)
			}
			if !strings.Contains(k.String(), "the memory limit of the "+level+" is reached (limit 64M, peak ") {
				t.Errorf("the line is %q", k)
			}
		})
	}
}

type oneOf struct {
	kill step.OOMKill
	pid  int
}

func oneKill(t *testing.T, dir string, v1 bool, levels []step.MemoryLevel, change ...func(*Watch)) oneOf {
	t.Helper()
	var heard told
	c := Config{
		Tasks: dir, Ranks: nodeRanks, Command: "/bin/hog", Killed: heard.hear,
		Confine: step.Confinement{PerTask: true, Memory: levels},
		Problem: func(text string) { t.Errorf("problem: %s", text) },
	}
	if v1 {
		c.Confine.V1 = map[string]string{"memory": dir}
	}
	w := New(c)
	pid := runChanged(t, w, dir, change)
	if len(heard.kills) != 1 {
		t.Fatalf("%d kills were told, want 1: %v", len(heard.kills), heard.kills)
	}
	return oneOf{heard.kills[0], pid}
}

func runChanged(t *testing.T, w *Watch, dir string, change []func(*Watch)) int {
	for _, f := range change {
		f(w)
	}
	return run(t, w, dir)
}

// Without the kernel's log the counters show the task, and the only level with
// a limit is the one that was full.
func TestRootWatchWithoutLog(t *testing.T) {
	job, dir, v1 := memoryTree(t)
	setLimit(t, dir, v1)
	n := uint64(limit)
	got := oneKill(t, dir, v1, []step.MemoryLevel{{Level: "step", Dir: dir, Bytes: &n}, {Level: "job", Dir: job}}, func(w *Watch) { w.noLog = true })
	if k := got.kill; k.Rank == nil || *k.Rank != nodeRanks[1] || k.PID != got.pid || k.Command != "hog" || k.Level != "step" {
		t.Errorf("told %+v", k)
	}
}

// A task's child that is killed is told, though the task itself goes on.
func TestRootWatchNamesChild(t *testing.T) {
	job, dir, v1 := memoryTree(t)
	setLimit(t, job, v1)
	var heard told
	c := Config{
		Tasks: dir, Ranks: nodeRanks, Killed: heard.hear,
		Confine: step.Confinement{PerTask: true, Memory: []step.MemoryLevel{{Level: "job", Dir: job}}},
	}
	if v1 {
		c.Confine.V1 = map[string]string{"memory": dir}
	}
	pid := run(t, New(c), dir, childVar+"=1")
	if len(heard.kills) != 1 {
		t.Fatalf("told %v", heard.kills)
	}
	if k := heard.kills[0]; k.Rank == nil || *k.Rank != nodeRanks[1] || k.PID == 0 || k.PID == pid {
		t.Errorf("told %+v, want a child of rank 5 (%d)", k, pid)
	}
}

// The kill of a step without limits is found in all of the kernel's log, or in what has come
// since its place there was kept.
func TestRootWatchWithoutLimits(t *testing.T) {
	for name, before := range map[string]func(*Watch){"early": func(*Watch) {}, "late": func(w *Watch) { w.openLog(false) }} {
		t.Run(name, func(t *testing.T) {
			job, dir, v1 := memoryTree(t)
			setLimit(t, job, v1)
			var heard told
			w := New(Config{Ranks: nodeRanks, Killed: heard.hear, Problem: func(s string) { t.Error(s) }})
			before(w)
			pid := run(t, w, dir)
			if len(heard.kills) != 1 || heard.kills[0].PID != pid || *heard.kills[0].Rank != nodeRanks[1] || heard.kills[0].Level != "parent" {
				t.Errorf("told %+v, want one of rank 5 (%d)", heard.kills, pid)
			}
			if w.log != nil || w.openLog(true) != nil {
				t.Error("the log is open after the step")
			}
		})
	}
}

// A step without limits has no report where its task was killed by
// another process.
func TestRootWatchKnowsOtherKills(t *testing.T) {
	testkit.RequireRoot(t)
	w := New(Config{Ranks: []int{0}, Killed: func(k step.OOMKill) { t.Errorf("told %v", k) }, Problem: func(s string) { t.Error(s) }})
	if err := errors.Join(w.PreSetuid(), w.PreLaunchPriv(0, os.Getpid())); err != nil {
		t.Fatal(err)
	}
	w.PostTerm(launch.TaskEnd{LocalID: 0, Status: step.ExitStatus(syscall.SIGKILL)})
	if err := w.PostStep(); err != nil {
		t.Fatal(err)
	}
}
