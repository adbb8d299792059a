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

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/step"
)

// TestSpoolStops: a spool that does not answer holds up no caller for long. Steps go on and
// end, new ones are refused, and when it answers again all is as it should be.
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
	hung, err := tn.store.db.Begin(true) // a write that does not end
	if err != nil {
		t.Fatal(err)
	}
	tn.store.gate.setPatience(200 * time.Millisecond)
	for range 3 {
		_, err := tn.svc.Run(as(1000), &api.RunRequest{Request: marshal(t, request("exit", "0"))})
		if api.CodeOf(err) != api.Internal || !strings.Contains(err.Error(), tn.files.spool) || !strings.Contains(err.Error(), "has not answered for") {
			t.Errorf("a step is asked for: %v", err)
		}
	}
	if _, err := tn.svc.Run(as(uint32(os.Getuid())), &api.RunRequest{Request: marshal(t, batch("exit 0"))}); api.CodeOf(err) != api.Internal {
		t.Errorf("a batch job is asked for: %v", err)
	}
	tn.Serving()
	if why := tn.NotReady(t.Context()); len(why) != 1 || !strings.Contains(why[0], tn.files.spool) || !strings.Contains(why[0], "has not answered for") {
		t.Errorf("not ready: %q", why) // its file system does answer
	}
	if d := tn.doc(); len(d.Jobs) != 2 || d.FreeCPUs != 2 || len(d.Fallbacks) != 1 || d.Fallbacks[0].What != "spool" || !strings.Contains(d.Fallbacks[0].Why, tn.files.spool) {
		t.Errorf("node %+v", d)
	}
	if err := os.WriteFile(fifo, []byte("9"), 0); err != nil {
		t.Fatal(err)
	}
	if rec := tn.wait(ends); rec.ExitCode == nil || *rec.ExitCode != 9 {
		t.Errorf("the one that ends: %+v", rec)
	}
	tn.until(goesOn, step.Running)
	tn.store.gate.setPatience(spoolPatience)
	if err := hung.Rollback(); err != nil {
		t.Fatal(err)
	}
	tn.eventually("a spool that answers", func() bool { return tn.store.gate.dead() == nil })
	id := tn.run(1000, request("exit", "0"))
	tn.wait(id)
	if id.Job != goesOn.Job+1 {
		t.Errorf("the next job is %d, after %d: the refused ones have numbers", id.Job, goesOn.Job)
	}
	tn.eventually("the record", func() bool {
		rec, err := tn.store.step(ends)
		return err == nil && rec.ExitCode != nil && *rec.ExitCode == 9
	})
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{Step: ref(goesOn)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(goesOn)
	if d := tn.doc(); len(d.Fallbacks) != 0 {
		t.Errorf("node %+v", d)
	}
	if why := tn.NotReady(t.Context()); len(why) != 0 {
		t.Errorf("ready: %q", why)
	}
}

// TestStateUnwritable: a node whose state cannot be stored says so until it can, though
// nothing is asked of it meanwhile.
func TestStateUnwritable(t *testing.T) {
	tn := fresh(t)
	tn.Serving()
	state := tn.files.state()
	tn.wait(tn.run(1000, request("exit", "0")))
	tn.idle() // nothing is under way
	fd := descriptorOf(t, state)
	reopen := func(flags int) {
		t.Helper()
		f, err := os.OpenFile(state, flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Dup3(int(f.Fd()), fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	if why := tn.NotReady(t.Context()); len(why) != 0 {
		t.Errorf("before: %q", why)
	}
	reopen(os.O_RDONLY)
	if _, err := tn.svc.Run(as(1000), &api.RunRequest{Request: marshal(t, request("exit", "0"))}); err == nil || !strings.Contains(err.Error(), state) {
		t.Errorf("a step whose number cannot be stored: %v", err)
	}
	for range 2 {
		if why := tn.NotReady(t.Context()); len(why) != 1 || !strings.HasPrefix(why[0], fmt.Sprintf("cannot store the state %q: ", state)) {
			t.Errorf("%q", why)
		}
	}
	// What the state itself refuses is no matter of its file.
	if err := tn.store.update(func(*bbolt.Tx) error { return errUnknown }); !errors.Is(err, errUnknown) {
		t.Error(err)
	}
	if why := tn.NotReady(t.Context()); len(why) != 1 {
		t.Errorf("%q", why)
	}
	reopen(os.O_RDWR)
	if why := tn.NotReady(t.Context()); len(why) != 0 {
		t.Errorf("afterwards: %q", why)
	}
	tn.wait(tn.run(1000, request("exit", "0")))
}

// descriptorOf is that of this process by which it has a file open.
func descriptorOf(t *testing.T, path string) int {
	t.Helper()
	links, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, _ := os.Readlink("/proc/self/fd/" + l.Name()); to == path { // ReadDir's own is gone
			fd, err := strconv.Atoi(l.Name())
			if err != nil {
				t.Fatal(err)
			}
			return fd
		}
	}
	t.Fatalf("%s is not open", path)
	return -1
}

// TestEventLogStops: nobody waits for an event log that takes nothing.
func TestEventLogStops(t *testing.T) {
	tn := fresh(t)
	id := tn.run(1000, request("wait"))
	pid := tn.until(id, step.Running).StepdPID
	log := tn.files.events(id)
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
	tn.store.gate.setPatience(100 * time.Millisecond)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if rec := tn.wait(id); rec.State != step.Failed || !strings.Contains(rec.Reason, "SIGKILL") {
		t.Errorf("record %+v", rec)
	}
	if tn.store.gate.dead() == nil {
		t.Error("it took the lines")
	}
	tn.store.gate.setPatience(spoolPatience)
	var read []byte
	for buf := make([]byte, 64<<10); !strings.Contains(string(read), `"event":"end"`); {
		n, err := pipe.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		read = append(slices.Clone(read[max(0, len(read)-4096):]), buf[:n]...)
	}
	pipe.Close()
	tn.eventually("a spool that answers", func() bool { return tn.store.gate.dead() == nil })
	tn.eventually("the result", func() bool {
		rec, err := tn.store.step(id)
		return err == nil && rec.State == step.Failed
	})
}

// TestMapping: what is on no local file system is kept in memory.
func TestMapping(t *testing.T) {
	if flags, lock := mapping("/proc"); flags != unix.MAP_POPULATE || !lock {
		t.Errorf("flags %#x, lock %v", flags, lock)
	}
	if _, lock := mapping("/dev/shm"); lock {
		t.Error("a file of a tmpfs is locked in memory")
	}
}
