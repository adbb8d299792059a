package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/node/spool"
	"stepd/node/state"
	"stepd/node/store"
	"stepd/step"
)

// stopSpool makes the files of a node's spool hang, until the function that it returns is
// called.
func (tn *testNode) stopSpool() (goOn func()) {
	tn.t.Helper()
	hang := make(chan struct{})
	tn.spool.SetPatience(100 * time.Millisecond)
	if err := tn.spool.Do(func() error { <-hang; return nil }); !errors.As(err, new(spool.SilentError)) {
		tn.t.Fatal(err)
	}
	return func() {
		tn.t.Helper()
		close(hang)
		tn.eventually("a spool that answers", func() bool { return tn.silence() == nil })
		tn.spool.SetPatience(spool.Patience)
	}
}

// TestSpoolStops: a spool that does not answer holds up no caller for long, and drains the
// node. Steps go on and end, and when it answers again all is as it should be.
func TestSpoolStops(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	tn := start(t, dir, nil)
	t.Cleanup(func() { tn.stop() })
	ends, goesOn := tn.run(1000, request("fifo", fifo)), tn.run(1000, request("wait"))
	tn.until(ends, step.Running)
	tn.until(goesOn, step.Running)
	goOn := tn.stopSpool()
	for range 3 {
		_, err := tn.svc.Run(as(1000), runRequest(request("exit", "0")))
		if api.CodeOf(err) != api.FailedPrecondition || !strings.Contains(err.Error(), tn.spool.Dir) || !strings.Contains(err.Error(), "has not answered for") {
			t.Errorf("a step is asked for: %v", err)
		}
	}
	inner := request("exit", "0")
	inner.Job, inner.Overlap = &goesOn.Job, true
	if _, err := tn.svc.Run(as(1000), runRequest(inner)); err == nil || !strings.Contains(err.Error(), "has not answered for") {
		t.Errorf("a step of a job that runs: %v", err)
	}
	if _, err := tn.svc.Run(as(uint32(os.Getuid())), runRequest(batch("exit 0"))); api.CodeOf(err) != api.FailedPrecondition {
		t.Errorf("a batch job is asked for: %v", err)
	}
	tn.Serving()
	if why := tn.NotReady(t.Context()); len(why) != 1 || !strings.Contains(why[0], tn.spool.Dir) || !strings.Contains(why[0], "has not answered for") {
		t.Errorf("not ready: %q", why) // its file system does answer
	}
	if d := tn.doc(); len(d.Jobs) != 2 || d.State != "DRAINING" || !strings.Contains(d.Reason, "has not answered for") || len(d.Fallbacks) != 1 || d.Fallbacks[0].What != "spool" || !strings.Contains(d.Fallbacks[0].Why, tn.spool.Dir) {
		t.Errorf("node %+v", d)
	}
	if err := os.WriteFile(fifo, []byte("9"), 0); err != nil {
		t.Fatal(err)
	}
	if rec := tn.wait(ends); rec.ExitCode == nil || *rec.ExitCode != 9 {
		t.Errorf("the one that ends: %+v", rec)
	}
	if rec, err := tn.store.Step(ends); err != nil || rec.ExitCode == nil || *rec.ExitCode != 9 {
		t.Errorf("its record: %+v, %v", rec, err)
	}
	tn.until(goesOn, step.Running)
	goOn()
	id := tn.run(1000, request("exit", "0"))
	tn.wait(id)
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(goesOn)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(goesOn)
	tn.idle()
	if d := tn.doc(); len(d.Fallbacks) != 0 || d.State != "IDLE" {
		t.Errorf("node %+v", d)
	}
	if why := tn.NotReady(t.Context()); len(why) != 0 {
		t.Errorf("ready: %q", why)
	}
}

// breakDurable makes every write of the durable journal fail, until the function that it
// returns is called.
func (tn *testNode) breakDurable() (mend func()) {
	tn.t.Helper()
	path := filepath.Join(tn.spool.Dir, store.DurableName)
	f, err := os.Open(path)
	if err != nil {
		tn.t.Fatal(err)
	}
	defer f.Close()
	fd := descriptorOf(tn.t, path, int(f.Fd()))
	// It cannot be written to, and no other can be made.
	if err := errors.Join(unix.Dup3(int(f.Fd()), fd, unix.O_CLOEXEC), os.Mkdir(path+".new", 0o700)); err != nil {
		tn.t.Fatal(err)
	}
	return func() {
		tn.t.Helper()
		if err := os.Remove(path + ".new"); err != nil {
			tn.t.Fatal(err)
		}
	}
}

// descriptorOf is the descriptor of this process, other than not, by which it has a file
// open.
func descriptorOf(t testing.TB, path string, not int) int {
	t.Helper()
	links, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		fd, err := strconv.Atoi(l.Name())
		if err != nil {
			t.Fatal(err)
		}
		if to, _ := os.Readlink("/proc/self/fd/" + l.Name()); to == path && fd != not { // ReadDir's own is gone
			return fd
		}
	}
	t.Fatalf("%s is not open", path)
	return -1
}

// TestStateUnwritable: a node whose state cannot be stored says so until it can, though
// nothing is asked of it meanwhile. Steps of run need no write to the spool.
func TestStateUnwritable(t *testing.T) {
	t.Parallel()
	tn := fresh(t)
	tn.Serving()
	tn.wait(tn.run(1000, request("exit", "0")))
	tn.idle() // nothing is under way
	if why := tn.NotReady(t.Context()); len(why) != 0 {
		t.Errorf("before: %q", why)
	}
	mend := tn.breakDurable()
	journal := filepath.Join(tn.spool.Dir, store.DurableName)
	own := batch("exit 0")
	if _, err := tn.svc.Run(as(uint32(os.Getuid())), runRequest(own)); err == nil || !strings.Contains(err.Error(), journal) {
		t.Errorf("a batch job that cannot be stored: %v", err)
	}
	for range 2 {
		if why := tn.NotReady(t.Context()); len(why) != 1 || !strings.HasPrefix(why[0], fmt.Sprintf("cannot write %q", journal)) && !strings.HasPrefix(why[0], fmt.Sprintf("cannot write %q", journal+".new")) {
			t.Errorf("%q", why)
		}
	}
	tn.wait(tn.run(1000, request("exit", "0")))
	mend()
	tn.eventually("a node that is ready", func() bool { return len(tn.NotReady(t.Context())) == 0 })
	tn.wait(tn.batch("exit 0"))
}

// TestStoredLater: what has ended, or was found, while the durable journal could not be
// written is written when it can be; the next noded knows it, too.
func TestStoredLater(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tn := start(t, dir, nil)
	t.Cleanup(func() { tn.stop() })
	batch := tn.batch("wait")
	tn.until(batch, step.Running)
	held := step.Record{ID: step.ID{Job: 77}, BootID: tn.boot, Survivors: []step.Survivor{{PID: 1}}, SurvivorsTotal: 1}
	tn.health.Hold(&held)
	batchStep := tn.reg.follower(batch)
	mend := tn.breakDurable()
	if _, err := batchStep.cancel(as(0), "it is over"); err != nil {
		t.Fatal(err)
	}
	<-batchStep.ended
	<-batchStep.job.ended
	tn.health.AwaitEmpty(held.ID)
	tn.eventually("the end of what was left", func() bool { return !tn.health.Holds(held.ID) })
	if _, err := tn.svc.Drain(as(0), &api.DrainRequest{Reason: "refused"}); err == nil {
		t.Error("a drain is stored")
	}
	tn.health.Drain("found")
	check := func(s *state.State) {
		t.Helper()
		if jobs, err := s.Jobs(); err != nil || len(jobs) != 0 {
			t.Errorf("jobs %+v, %v", jobs, err)
		}
		if rec, err := s.Step(batch); err != nil || rec.State != step.Cancelled {
			t.Errorf("its record %+v, %v", rec, err)
		}
		if d, err := s.Drain(); err != nil || !d.Same(state.Drain{Drained: true, Reason: "found"}) || d.Since.IsZero() {
			t.Errorf("drain %+v, %v", d, err)
		}
		if left, err := s.Held(); err != nil || len(left) != 0 {
			t.Errorf("held %v, %v", left, err)
		}
	}
	check(tn.store)
	kill := tn.asKilled()
	mend()
	tn.eventually("a state that can be written", func() bool { return tn.store.Unwritable() == nil })
	tn.stop()
	kill()
	tn = start(t, dir, nil)
	check(tn.store)
	tn.stop()
	if err := os.Remove(filepath.Join(tn.spool.Run, "volatile.journal")); err != nil { // a reboot
		t.Fatal(err)
	}
	tn = start(t, dir, nil)
	check(tn.store)
	if _, err := os.Stat(tn.spool.Script(batch.Job)); err == nil {
		t.Error("the script is left")
	}
}

// TestEventLogStops: no client waits for an event log that takes nothing.
func TestEventLogStops(t *testing.T) {
	t.Parallel()
	tn := fresh(t)
	id := tn.run(1000, request("wait"))
	pid := tn.until(id, step.Running).StepdPID
	log := tn.spool.Events(id)
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(log, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(log, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	fill := make([]byte, 4096)
	raw, err := pipe.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		for err == nil {
			_, err = unix.Write(int(fd), fill)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	tn.spool.SetPatience(100 * time.Millisecond)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if rec := tn.wait(id); rec.State != step.Failed || !strings.Contains(rec.Reason, "SIGKILL") {
		t.Errorf("record %+v", rec)
	}
	if tn.silence() == nil {
		t.Error("it took the lines")
	}
	tn.spool.SetPatience(spool.Patience)
	var read []byte
	for buf := make([]byte, 64<<10); !strings.Contains(string(read), `"event":"end"`); {
		n, err := pipe.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		read = append(slices.Clone(read[max(0, len(read)-4096):]), buf[:n]...)
	}
	pipe.Close()
	tn.eventually("a spool that answers", func() bool { return tn.silence() == nil })
	tn.eventually("the result", func() bool {
		rec, err := tn.store.Step(id)
		return err == nil && rec.State == step.Failed
	})
}

// TestScriptsSwept: a batch script that could not be removed is, by the next noded; others
// stay.
func TestScriptsSwept(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	over := tn.batch("exit 0")
	tn.wait(over)
	tn.idle()
	runs := tn.batch("wait")
	tn.until(runs, step.Running)
	files := tn.spool
	tn.stop()
	stay := []string{files.Script(runs.Job), files.Script(runs.Job + 1), filepath.Join(files.ScriptsDir(), "notes")}
	for _, path := range append(stay[1:], files.Script(over.Job)) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	tn = start(t, dir, nil)
	t.Cleanup(func() { tn.stop() })
	for _, path := range stay {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s is gone", path)
		}
	}
	if _, err := os.Stat(files.Script(over.Job)); err == nil {
		t.Error("the script is left")
	}
	tn.cancelJob(runs)
	tn.wait(runs)
}

// TestDamagedStateDrains: what the state has lost is named, and the node is drained until it
// is resumed.
func TestDamagedStateDrains(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	tn.wait(tn.run(1000, request("exit", "0")))
	tn.idle()
	tn.stop()
	path := filepath.Join(tn.spool.Run, "volatile.journal")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := strings.Replace(string(text), `"state":"COMPLETED"`, `"state":"COMPLETEX"`, 1)
	if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil || damaged == string(text) {
		t.Fatalf("%v\n%s", err, text)
	}
	for range 2 { // a restart changes nothing
		tn = start(t, dir, func(c *Config) { c.DrainReason = "gres/gpu: /dev/x: no such file or directory" })
		tn.idle() // the step counts as running again, and is buried
		if d := tn.doc(); d.State != "DRAINED" || !strings.HasPrefix(d.Reason, fmt.Sprintf("the state %q was damaged, the pieces are kept as ", path)) || !strings.Contains(d.Reason, "step 1.0") {
			t.Errorf("node %s %q", d.State, d.Reason)
		}
		tn.stop()
	}
	if kept, err := filepath.Glob(path + ".damaged-*"); err != nil || len(kept) != 1 {
		t.Errorf("kept %q, %v", kept, err)
	}
}

// TestNotReady: a noded that takes over a socket serves, though it publishes none.
func TestNotReady(t *testing.T) {
	tn := fresh(t)
	if why := tn.NotReady(t.Context()); len(why) != 1 || why[0] != "noded is starting" {
		t.Errorf("%q", why)
	}
	tn.Serving()
	if why := tn.NotReady(t.Context()); len(why) != 0 {
		t.Errorf("%q", why)
	}
}
