package pmi2

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"stepd/step"
	"stepd/step/launch"
)

// needs skips a test whose Debian package is missing; with STRICT=1 in the
// environment (CI) it fails.
func needs(t *testing.T, file, debian string) {
	t.Helper()
	_, err := exec.LookPath(file)
	if filepath.IsAbs(file) {
		_, err = os.Stat(file)
	}
	switch {
	case err == nil:
	case os.Getenv("STRICT") == "1":
		t.Fatalf("this test needs Debian's %s (%s), and STRICT=1 forbids skipping it", debian, file)
	default:
		t.Skipf("needs Debian's %s (%s)", debian, file)
	}
}

// compile builds a test program.
func compile(t *testing.T, compiler string, args ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	out, err := exec.Command(compiler, append([]string{"-Wall", "-O1", "-o", program}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", compiler, args, err, out)
	}
	return program
}

// told is one call of Abort.
type told struct {
	rank, code int
	text       string
}

// run is a step of real processes, each with its socketpair: what stepd does
// with the plugin, and nothing else of stepd.
type run struct {
	plugin *Plugin
	tasks  []*exec.Cmd
	out    []bytes.Buffer
	job    *fakeJob

	mu    sync.Mutex
	told  []told   // guarded by mu
	log   []string // guarded by mu
	gates sync.WaitGroup
}

// runRanks runs n ranks of one program to their end. An abort kills them all,
// and so do 60 seconds.
func runRanks(t *testing.T, n int, command func(rank int) []string) *run {
	t.Helper()
	r := &run{plugin: New(step.PMI2Conf{}), out: make([]bytes.Buffer, n), job: newFakeJob()}
	job := launch.MPIJob{
		Spec: testSpec(n), Job: r.job,
		Abort: func(rank, code int, text string) {
			r.mu.Lock()
			r.told = append(r.told, told{rank, code, text})
			r.mu.Unlock()
			r.kill()
		},
		Log: func(text string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.log = append(r.log, text)
		},
	}
	r.gates.Add(1) // Abort kills tasks: not before all are started
	pre, err := r.plugin.Prefork(context.Background(), job)
	if err != nil {
		t.Fatal(err)
	}
	for rank := range n {
		r.tasks = append(r.tasks, r.exec(t, pre, rank, command(rank)))
	}
	r.gates.Done()
	watchdog := time.AfterFunc(60*time.Second, func() {
		t.Errorf("%d ranks ran for 60 s: %s", n, r.outputs())
		r.kill()
	})
	var waits sync.WaitGroup
	for rank, task := range r.tasks {
		waits.Go(func() {
			_ = task.Wait() // the status says it all
			ws := task.ProcessState.Sys().(syscall.WaitStatus)
			r.plugin.TaskExited(rank, step.ExitStatus(ws))
		})
	}
	waits.Wait()
	watchdog.Stop()
	if err := r.plugin.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	return r
}

func (r *run) exec(t *testing.T, pre launch.MPITasks, rank int, command []string) *exec.Cmd {
	task := exec.Command(command[0], command[1:]...)
	fd := pre.TaskFDs[rank][0]
	task.ExtraFiles = []*os.File{fd.File} // descriptor 3 of the task
	task.Env = append(os.Environ(), pre.TaskEnv[rank]...)
	task.Env = append(task.Env, fd.Var+"=3")
	task.Stdout, task.Stderr = &r.out[rank], &r.out[rank]
	if err := task.Start(); err != nil {
		t.Fatal(err)
	}
	fd.File.Close()
	return task
}

func (r *run) kill() {
	r.gates.Wait()
	for _, task := range r.tasks {
		_ = task.Process.Kill() // gone already is fine
	}
}

func (r *run) outputs() string {
	var all strings.Builder
	for rank := range r.out {
		fmt.Fprintf(&all, "\n[%d] %s", rank, r.out[rank].String())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return all.String() + "\n" + strings.Join(r.log, "\n") + fmt.Sprint(r.told)
}

// wantOK checks that every rank printed its last line and no program complained.
func (r *run) wantOK(t *testing.T) {
	t.Helper()
	n := len(r.tasks)
	for rank := range r.tasks {
		if want := fmt.Sprintf("ok %d of %d\n", rank, n); r.out[rank].String() != want {
			t.Fatalf("rank %d printed %q, want %q%s", rank, r.out[rank].String(), want, r.outputs())
		}
	}
	if len(r.told) > 0 || len(r.log) > 0 {
		t.Errorf("aborts %v, log %q", r.told, r.log)
	}
}

// wantAbort checks that the step was ended once, and why.
func (r *run) wantAbort(t *testing.T, rank, code int, words ...string) {
	t.Helper()
	if len(r.told) != 1 {
		t.Fatalf("aborts: %+v, want one%s", r.told, r.outputs())
	}
	got := r.told[0]
	if got.rank != rank || got.code != code {
		t.Errorf("abort by rank %d with code %d, want rank %d, code %d: %s", got.rank, got.code, rank, code, got.text)
	}
	for _, word := range words {
		if !strings.Contains(got.text, word) {
			t.Errorf("abort says %q, which lacks %q", got.text, word)
		}
	}
}

func testSpec(n int) *step.Spec {
	spec := &step.Spec{ID: step.ID{Job: 12, Step: 3}}
	spec.NTasks = n
	return spec
}
