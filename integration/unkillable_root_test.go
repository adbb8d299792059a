package integration

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"stepd/internal/testkit"
)

// hangFS is a mounted file system that never answers a read.
type hangFS struct {
	dir string
	cmd *exec.Cmd
}

// mountHang mounts one. It is ended, and its waiting processes are released, at the end
// of the test at the latest.
func (n *node) mountHang(t *testing.T) *hangFS {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse: nothing else makes a process that sleeps in the kernel for ever")
	}
	h := &hangFS{dir: n.path("hang"), cmd: helper(t, "hangfs", "hang")}
	h.cmd.Dir = n.dir
	must(t, os.Mkdir(h.dir, 0o755))
	h.cmd.Stderr = os.Stderr
	out, err := h.cmd.StdoutPipe()
	must(t, err)
	must(t, h.cmd.Start())
	t.Cleanup(func() { h.end() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("hangfs: %q, %v", line, err)
	}
	return h
}

// helper is a program of testdata/tasks that is none of the node's: nothing in
// its command line and environment names the node's directory.
func helper(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	compile(t, "testdata/tasks/"+name+".c", "-o", path)
	cmd := exec.Command(path, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	return cmd
}

// end releases all that wait for it.
func (h *hangFS) end() {
	_ = h.cmd.Process.Kill() // it may have ended
	_ = h.cmd.Wait()
	_ = syscall.Unmount(h.dir, syscall.MNT_DETACH)
}

func (h *hangFS) file() string { return filepath.Join(h.dir, "file") }

// heldDoc is the part of the node document about survivors.
type heldDoc struct {
	State      string `json:"state"`
	Reason     string `json:"reason"`
	Unkillable []struct {
		JobID     uint32 `json:"job_id"`
		StepID    uint32 `json:"step_id"`
		Text      string `json:"text"`
		Processes []struct {
			PID   int    `json:"pid"`
			Comm  string `json:"comm"`
			State string `json:"state"`
			Grade string `json:"grade"`
			Wchan string `json:"wchan"`
			Files []struct {
				What   string `json:"what"`
				Path   string `json:"path"`
				Mount  string `json:"mount"`
				FSType string `json:"fs_type"`
				Waits  bool   `json:"waits"`
			} `json:"files"`
		} `json:"processes"`
	} `json:"unkillable"`
}

func (n *node) unkillable(t testing.TB) heldDoc {
	t.Helper()
	r := n.ctlRoot(t, "node", "status", "--json")
	var doc struct {
		Node heldDoc `json:"node"`
	}
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
		t.Fatalf("node status: %v: %v", err, r)
	}
	return doc.Node
}

// freed waits until nothing is held and the node takes steps again.
func (n *node) freed(t testing.TB) {
	t.Helper()
	eventually(t, callTimeout, "the end of the drain", func() error {
		if doc := n.unkillable(t); doc.State != "IDLE" || doc.Reason != "" || len(doc.Unkillable) > 0 {
			return fmt.Errorf("node %+v", doc)
		}
		return nil
	})
	n.checkClean(t)
	n.serves(t)
}

// hung starts a step whose task waits for the dead file system, and cancels it.
// It returns when stepd has given up.
func (n *node) hung(t *testing.T, h *hangFS) (result, stepDoc) {
	t.Helper()
	p := n.start(t, call{args: []string{"run", "sh", "-c", "exec cat " + h.file()}})
	id := n.running(t).id()
	eventually(t, callTimeout, "the read", func() error {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", *n.show(t, id).Tasks[0].PID)); string(b) != "request_wait_answer" {
			return fmt.Errorf("it waits in %q, %v", b, err)
		}
		return nil
	})
	ok(t, "cancel", n.ctl(t, "cancel", id))
	r := p.wait(t)
	return r, n.ended(t, id)
}

const quickKill = "KillWait=1\nUnkillableStepTimeout=1\n"

// TestRootUnkillable: a process in state D ends the step, not stepd's nor noded's
// patience; everybody hears what it waits for; and its end ends the drain.
func TestRootUnkillable(t *testing.T) {
	t.Parallel()
	n := startNode(t, site{})
	h := n.mountHang(t)
	out := n.path("program.out")
	n.restartWith(t, quickKill+"UnkillableStepProgram="+n.script(t, "program", out, ""))
	began := time.Now()
	r, doc := n.hung(t, h)
	if took := time.Since(began); took > 30*time.Second && !testkit.InGuest() {
		t.Errorf("the step took %v to its end, want KillWait and UnkillableStepTimeout, 1 s each", took)
	}
	pid := *doc.Tasks[0].PID
	want := []string{
		fmt.Sprintf(`1 left: pid %d "cat" (state D: uninterruptible sleep in request_wait_answer, read of fd 3 %q on fuse.hangfs mount %q)`, pid, h.file(), h.dir),
		"still there 1s after SIGKILL (UnkillableStepTimeout)",
	}
	if r.code != 1 || doc.State != "CANCELLED" || doc.Tasks[0].State != "RUNNING" || doc.Tasks[0].ExitCode != nil {
		t.Errorf("run: %v; record %+v", r, doc)
	}
	contains(t, "stderr", r.err, want...)
	contains(t, "reason", doc.Reason, append(want, "cancelled by uid")...)
	contains(t, "events", n.ctl(t, "events", doc.id()).out, `"event":"unkillable"`)
	n.logs(t, "request_wait_answer")
	held := n.unkillable(t)
	contains(t, "drain", held.Reason, "Kill task failed: step "+doc.id(), want[0][:60])
	if !strings.HasPrefix(held.State, "DRAIN") || len(held.Unkillable) != 1 || len(held.Unkillable[0].Processes) != 1 {
		t.Fatalf("node %+v", held)
	}
	if p := held.Unkillable[0].Processes[0]; p.PID != pid || p.Grade != "uninterruptible" || len(p.Files) == 0 || !p.Files[0].Waits || p.Files[0].Mount != h.dir {
		t.Errorf("survivor %+v", p)
	}
	contains(t, "node status", n.ctl(t, "node", "status").out, "unkillable step "+doc.id())
	eventually(t, callTimeout, "UnkillableStepProgram", func() error {
		if b, err := os.ReadFile(out); err != nil || !strings.Contains(string(b), fmt.Sprintf("STEPD_UNKILLABLE_PIDS=%d\n", pid)) {
			return fmt.Errorf("%q, %v", b, err)
		}
		return nil
	})
	contains(t, "the program's environment", readFile(t, out), fmt.Sprintf("SLURM_JOB_ID=%d\n", doc.JobID), "SLURM_STEP_ID=0\n", fmt.Sprintf("SLURM_JOB_UID=%d\n", testUser(t).uid))
	eventually(t, goneWithin, "nothing but the process is left of the step, nor of the program", func() error {
		for _, p := range n.processes() {
			if p.pid != pid {
				return fmt.Errorf("left beside it: %s", p)
			}
		}
		return nil
	})
	refused(t, "a further step", n.ctl(t, "run", "true"), "node is drained: Kill task failed")

	n.kill9(t)
	n.boot(t)
	if doc := n.unkillable(t); !strings.HasPrefix(doc.State, "DRAIN") || len(doc.Unkillable) != 1 {
		t.Errorf("after noded's restart: %+v", doc)
	}
	h.end()
	n.freed(t)
}

// TestRootUnkillableOutput: a task that hangs in the opening of its output has not run, and a
// cancel of its step does not make it a success.
func TestRootUnkillableOutput(t *testing.T) {
	t.Parallel()
	n := startNode(t, site{Slurm: quickKill})
	h := n.mountHang(t)
	p := n.start(t, call{args: []string{"run", "-o", filepath.Join(h.dir, "lost"), "true"}})
	id := n.running(t).id()
	eventually(t, callTimeout, "the opening", func() error {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", *n.show(t, id).Tasks[0].PID)); string(b) != "request_wait_answer" {
			return fmt.Errorf("it waits in %q, %v", b, err)
		}
		return nil
	})
	ok(t, "cancel", n.ctl(t, "cancel", id))
	r := p.wait(t)
	doc := n.ended(t, id)
	if r.code != 1 || doc.State != "CANCELLED" || doc.Tasks[0].State != "FAILED" || doc.Tasks[0].ExitCode != nil {
		t.Errorf("run: %v; record %+v", r, doc)
	}
	contains(t, "explain", n.ctl(t, "explain", id).out, "rank 0 never ran: the step was ended while the files of its standard streams were opened")
	h.end()
	n.freed(t)
}

// TestRootUnkillableByDescent: without cgroups, and without stepd, the processes
// that were left are known by number and start time.
func TestRootUnkillableByDescent(t *testing.T) {
	t.Parallel()
	n := startNode(t, site{Slurm: quickKill + "ProctrackType=proctrack/linuxproc\n"})
	h := n.mountHang(t)
	r, doc := n.hung(t, h)
	contains(t, "reason", doc.Reason, "1 left: pid", h.file())
	if r.code != 1 || doc.State != "CANCELLED" {
		t.Errorf("run: %v; record %+v", r, doc)
	}
	n.kill9(t)
	n.boot(t)
	contains(t, "drain", n.unkillable(t).Reason, "Kill task failed: step "+doc.id(), h.file())
	h.end()
	n.freed(t)
}

// TestRootUnkillableWithoutStepd: noded finds out by itself, and an
// administrator's drain stays.
func TestRootUnkillableWithoutStepd(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: quickKill})
	h := n.mountHang(t)
	p := n.start(t, call{args: []string{"run", "sh", "-c", "exec cat " + h.file()}})
	id := n.running(t).id()
	eventually(t, callTimeout, "the read", func() error {
		if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", *n.show(t, id).Tasks[0].PID)); string(b) != "request_wait_answer" {
			return errors.New("not yet")
		}
		return nil
	})
	must(t, killNow(n.findProcess(t, "stepd").pid))
	if r := p.wait(t); r.code != 1 {
		t.Errorf("run: %v", r)
	}
	doc := n.ended(t, id)
	if doc.State != "FAILED" {
		t.Errorf("record %+v", doc)
	}
	contains(t, "reason", doc.Reason, "stepd", "SIGKILL", h.file())
	contains(t, "drain", n.unkillable(t).Reason, "Kill task failed", h.file())
	ok(t, "drain", n.ctlRoot(t, "node", "drain", "look", "at", "the", "server"))
	h.end()
	eventually(t, callTimeout, "the end of what is held", func() error {
		if doc := n.unkillable(t); len(doc.Unkillable) > 0 {
			return fmt.Errorf("node %+v", doc)
		}
		return nil
	})
	if doc := n.unkillable(t); doc.State != "DRAINED" || doc.Reason != "look at the server" {
		t.Errorf("node %+v", doc)
	}
	ok(t, "resume", n.ctlRoot(t, "node", "resume"))
	n.freed(t)
}

// TestRootUnkillableFrozen: a v1 freezer keeps SIGKILL from a process, and is named.
func TestRootUnkillableFrozen(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: quickKill})
	freezer := "/sys/fs/cgroup/freezer"
	if _, err := os.Stat(filepath.Join(freezer, "cgroup.procs")); err != nil {
		t.Skip("no v1 freezer here: on cgroup v2 a frozen process dies of SIGKILL, see TestRootGone")
	}
	dir := filepath.Join(freezer, filepath.Base(n.dir))
	must(t, os.Mkdir(dir, 0o755))
	thaw := func() { _ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0) } // best effort in the end
	t.Cleanup(func() { thaw(); time.Sleep(100 * time.Millisecond); _ = os.Remove(dir) })
	p := n.start(t, call{args: []string{"run", "sleep", "86396"}})
	id := n.running(t).id()
	pid := *n.show(t, id).Tasks[0].PID
	must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(pid)), 0))
	must(t, os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("FROZEN"), 0))
	ok(t, "cancel", n.ctl(t, "cancel", id))
	if r := p.wait(t); r.code != 1 {
		t.Errorf("run: %v", r)
	}
	contains(t, "reason", n.ended(t, id).Reason, fmt.Sprintf(`pid %d "sleep" (state D: frozen by %q`, pid, dir))
	thaw()
	n.freed(t)
}

// TestRootTraced: a tracer that stands still, outside of the step, keeps the
// tasks' ends for itself. The step ends all the same, with their statuses.
func TestRootTraced(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: quickKill})
	p := n.start(t, call{args: []string{"run", "-n", "2", "--overcommit", "sleep", "86397"}})
	id := n.running(t).id()
	pid := *n.show(t, id).Tasks[1].PID
	tracer := helper(t, "tracer", fmt.Sprint(pid))
	out, err := tracer.StdoutPipe()
	must(t, err)
	must(t, tracer.Start())
	t.Cleanup(func() { _ = tracer.Process.Kill(); _ = tracer.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("tracer: %q, %v", line, err)
	}
	began := time.Now()
	ok(t, "cancel", n.ctl(t, "cancel", id))
	r := p.wait(t)
	if took := time.Since(began); r.code != 137 && r.code != 143 || took > 30*time.Second {
		t.Errorf("after %v: %v", took, r)
	}
	contains(t, "stderr", r.err, fmt.Sprintf("task 1 (pid %d) is dead, and its tracer, pid %d", pid, tracer.Process.Pid))
	doc := n.ended(t, id)
	if doc.State != "CANCELLED" || doc.Tasks[1].Signal == nil || *doc.Tasks[1].Signal != 9 {
		t.Errorf("record %+v", doc)
	}
	// A zombie blocks nothing.
	if held := n.unkillable(t); strings.HasPrefix(held.State, "DRAIN") || len(held.Unkillable) > 0 {
		t.Errorf("node %+v", held)
	}
	n.checkClean(t)
	n.serves(t)
}
