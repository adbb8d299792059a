package proctrack

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
	"stepd/step"
)

// wantEmpty fails unless the tracker has no process.
func wantEmpty(t *testing.T, tr interface{ PIDs() ([]int, error) }) {
	t.Helper()
	if pids, err := tr.PIDs(); err != nil || len(pids) != 0 {
		t.Errorf("PIDs() = %v, %v; want none", pids, err)
	}
}

func TestRootCgroupKillsWhatTasksStart(t *testing.T) {
	kills := map[string]func(*Cgroup, context.Context) error{
		"Kill":    (*Cgroup).Kill,
		"Destroy": (*Cgroup).Destroy,
		// What is done before Linux 5.14.
		"without cgroup.kill": func(c *Cgroup, ctx context.Context) error {
			return c.tasks.killFreezing(ctx, func() error { return c.tasks.signal(unix.SIGKILL) })
		},
	}
	for name, kill := range kills {
		for _, w := range wild {
			t.Run(name+"/"+w.name, func(t *testing.T) {
				_, _, c := testStep(t)
				spawnIn(t, c, w.script)
				pids, err := c.PIDs()
				if err != nil || len(pids) < w.min {
					t.Fatalf("PIDs() = %d processes, %v; want at least %d", len(pids), err, w.min)
				}
				if err := kill(c, shortly(t)); err != nil {
					t.Fatal(err)
				}
				wantEmpty(t, c)
			})
		}
	}
}

func TestRootCgroupKillsFrozen(t *testing.T) {
	for _, w := range wild {
		t.Run(w.name, func(t *testing.T) {
			_, _, c := testStep(t)
			spawnIn(t, c, w.script)
			if err := c.Freeze(shortly(t)); err != nil {
				t.Fatal(err)
			}
			if err := c.Kill(shortly(t)); err != nil {
				t.Fatal(err)
			}
			wantEmpty(t, c)
		})
	}
}

func TestRootCgroupFreezeAndThaw(t *testing.T) {
	_, _, c := testStep(t)
	cmd := spawnIn(t, c, `echo ready; while :; do :; done`)
	if err := c.Freeze(shortly(t)); err != nil {
		t.Fatal(err)
	}
	before := cpuTime(t, cmd.Process.Pid)
	if ev := eventsOf(t, c.tasks); !ev.frozen {
		t.Errorf("after Freeze: %+v", ev)
	}
	if err := c.Thaw(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); cpuTime(t, cmd.Process.Pid) == before; {
		if time.Now().After(deadline) {
			t.Fatal("the task does not run after Thaw")
		}
	}
	// A freeze without tasks has nothing to wait for.
	if err := errors.Join(c.Kill(shortly(t)), c.Freeze(shortly(t)), c.Thaw()); err != nil {
		t.Error(err)
	}
}

func eventsOf(t *testing.T, g *group) events {
	t.Helper()
	data, err := g.read("cgroup.events")
	if err != nil {
		t.Fatal(err)
	}
	ev, err := parseEvents(data)
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

// cpuTime is what the scheduler has given to the process so far.
func cpuTime(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')'):]))
	return strings.Join(fields[12:14], "+") // utime, stime
}

func TestRootEvictedHostSurvives(t *testing.T) {
	_, _, c := testStep(t)
	// The host's children, forked before it is moved, are the tasks.
	cmd := spawnIn(t, c, `sleep 1000 & ( sleep 1000 & ); echo ready; wait; exec sleep 1000`)
	host := cmd.Process.Pid
	if err := c.Freeze(shortly(t)); err != nil { // a frozen host is moved too
		t.Fatal(err)
	}
	if err := c.EvictHost(host); err != nil {
		t.Fatal(err)
	}
	if pids, err := c.PIDs(); len(pids) != 2 || err != nil || slices.Contains(pids, host) {
		t.Errorf("PIDs() = %v, %v; want the two tasks", pids, err)
	}
	if err := c.Kill(shortly(t)); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, c)
	if left, err := livingPIDs([]int{host}); len(left) != 1 || err != nil {
		t.Fatalf("the host died with the tasks (%v)", err)
	}
	if err := c.Destroy(shortly(t)); err != nil {
		t.Fatal(err)
	}
	if left, err := livingPIDs([]int{host}); len(left) != 0 || err != nil {
		t.Errorf("the host lives after Destroy (%v)", err)
	}
}

func TestRootEvictDeadHost(t *testing.T) {
	_, _, c := testStep(t)
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if err := c.EvictHost(cmd.Process.Pid); err != nil {
		t.Errorf("EvictHost of a process that ended = %v, want nil", err)
	}
	if err := c.Add(0, cmd.Process.Pid); !errors.Is(err, unix.ESRCH) {
		t.Errorf("Add of a process that ended = %v, want ESRCH", err)
	}
	for _, pid := range []int{0, -1} {
		if err := c.Add(0, pid); err == nil || errors.Is(err, unix.ESRCH) {
			t.Errorf("Add(%d) = %v, want a refusal: the kernel takes 0 for the caller", pid, err)
		}
	}
}

func TestRootAddAndSignal(t *testing.T) {
	_, _, c := testStep(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	// Two shells that answer, one of them in a group of its own below.
	cmds := make([]*exec.Cmd, 2)
	for i := range cmds {
		cmds[i] = exec.Command("/bin/sh", "-c", `trap 'echo usr1' USR1; echo ready; while :; do sleep 0.01; done`)
		cmds[i].Stdout = w
		if err := cmds[i].Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmds[i].Process.Kill(); _ = cmds[i].Wait() })
	}
	w.Close()
	out := bufio.NewReader(r)
	expect := func(want string, n int) {
		t.Helper()
		for range n {
			if line, err := out.ReadString('\n'); line != want+"\n" {
				t.Fatalf("the tasks said %q (%v), want %q", line, err, want)
			}
		}
	}
	expect("ready", 2)
	if err := c.Add(0, cmds[0].Process.Pid); err != nil {
		t.Fatal(err)
	}
	sub := filepath.Join(c.cfg.Tasks, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(sub, "cgroup.procs"), []byte(fmt.Sprint(cmds[1].Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	if pids, err := c.PIDs(); !slices.Contains(pids, cmds[1].Process.Pid) || err != nil {
		t.Errorf("PIDs() = %v, %v, without the task in a sub-cgroup", pids, err)
	}
	if err := c.Signal(syscall.SIGUSR1, 0); err != nil {
		t.Fatal(err)
	}
	expect("usr1", 2)
	if err := c.Signal(syscall.SIGKILL, 0); err != nil {
		t.Fatal(err)
	}
	err = c.tasks.await(shortly(t), func(ev events) (bool, error) { return !ev.populated, nil })
	if err != nil {
		t.Error(err)
	}
}

// TestRootSignalSparesHost: signals to the tasks, SIGKILL to processes that fork without end too, do
// not reach a host that is still among them.
func TestRootSignalSparesHost(t *testing.T) {
	const tasks = `sleep 1000 & (sleep 1000 &)`
	for _, scene := range []struct {
		name, script string
		sig          syscall.Signal
	}{
		{"SIGTERM", tasks, unix.SIGTERM},
		{"SIGKILL", tasks, unix.SIGKILL},
		{"SIGKILL of forks", `fork() { while :; do sleep 1000 & done; }; fork & fork & sleep 0.05`, unix.SIGKILL},
	} {
		t.Run(scene.name, func(t *testing.T) {
			_, _, c := testStep(t)
			cmd := spawnIn(t, c, scene.script+`; echo ready; wait; exec sleep 1000`)
			host, shortly := cmd.Process.Pid, shortly(t)
			if pids, err := c.PIDs(); len(pids) < 3 || err != nil {
				t.Fatalf("PIDs() = %v, %v; want the host and two tasks at least", pids, err)
			}
			err := c.Signal(scene.sig, host)
			if errors.As(err, new(*SurvivorsError)) { // more than end within hostPatience
				err = errors.Join(c.EvictHost(host), c.Signal(scene.sig, 0))
			}
			if err != nil {
				t.Fatal(err)
			}
			for left := []int{-1}; len(left) > 0; {
				pids, err := c.PIDs()
				if left = slices.DeleteFunc(pids, func(pid int) bool { return pid == host }); err != nil || shortly.Err() != nil {
					t.Fatalf("processes %v are left (%v)", left, err)
				}
			}
			if left, err := livingPIDs([]int{host}); len(left) != 1 || err != nil {
				t.Errorf("the host died with the tasks (%v)", err)
			}
		})
	}
}

func TestRootDestroyRemovesSubCgroups(t *testing.T) {
	_, _, c := testStep(t)
	// What a container engine in a task does: groups, deep and wide, and a
	// frozen one, with processes in them.
	spawnIn(t, c, `cd "$1" && mkdir -p a/b/c/d/e/f wide/1 wide/2 wide/3 frozen || exit 1
		for d in a/b/c/d/e/f wide/2 frozen; do sleep 1000 & echo $! > $d/cgroup.procs || exit 1; done
		echo 1 > frozen/cgroup.freeze || exit 1
		echo ready; exec sleep 1000`, c.cfg.Tasks)
	if pids, err := c.PIDs(); len(pids) != 4 || err != nil {
		t.Fatalf("PIDs() = %v, %v; want 4", pids, err)
	}
	if err := c.Destroy(shortly(t)); err != nil {
		t.Fatal(err)
	}
	if n := countDirs(t, c.cfg.Dir); n != 2 {
		t.Errorf("%d cgroups are left, want the step's and stepd's", n)
	}
	if err := c.Destroy(shortly(t)); err != nil {
		t.Errorf("a second Destroy = %v", err)
	}
	wantEmpty(t, c)
}

// TestRootThreadedSubCgroup: its processes are not listed there but in tasks.
func TestRootThreadedSubCgroup(t *testing.T) {
	_, _, c := testStep(t)
	sub := filepath.Join(c.cfg.Tasks, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	pid := spawnIn(t, c, `echo ready; exec sleep 1000`).Process.Pid
	for _, w := range [][2]string{{"cgroup.type", "threaded"}, {"cgroup.threads", fmt.Sprint(pid)}} {
		if err := os.WriteFile(filepath.Join(sub, w[0]), []byte(w[1]), 0); err != nil {
			t.Fatal(err)
		}
	}
	if pids := mustPIDs(t, c); len(pids) != 1 || pids[0] != pid {
		t.Errorf("PIDs() = %v, want %d", pids, pid)
	}
	if err := errors.Join(c.Freeze(shortly(t)), c.Destroy(shortly(t))); err != nil {
		t.Error(err)
	}
	wantEnded(t, pid)
}

// TestRootDestroyAgainstIntruder: processes that come in between the kill and
// the rmdir make it fail with EBUSY.
func TestRootDestroyAgainstIntruder(t *testing.T) {
	_, _, c := testStep(t)
	procs := filepath.Join(c.cfg.Tasks, "cgroup.procs")
	spawn(t, nil, `echo ready; exec 2>/dev/null; i=0
		while [ $((i+=1)) -le 200 ]; do sleep 100 & echo $! > "$1" || { kill $!; exit; }; done`, procs)
	for len(mustPIDs(t, c)) == 0 {
		continue // until the first one is in
	}
	parent, err := openGroup(filepath.Dir(c.cfg.Tasks))
	if err != nil {
		t.Fatal(err)
	}
	defer parent.close()
	if err := parent.rmdir(filepath.Base(c.cfg.Tasks)); !errors.Is(err, unix.EBUSY) {
		t.Errorf("rmdir of a busy group = %v, want EBUSY", err)
	}
	if err := c.Destroy(shortly(t)); err != nil {
		t.Error(err)
	}
}

// TestRootKillTakesNewcomers: a process that is moved in while Kill waits for
// another one to end.
func TestRootKillTakesNewcomers(t *testing.T) {
	_, _, c := testStep(t)
	thaw := v1Freeze(t, spawnIn(t, c, `echo ready; exec sleep 1000`).Process.Pid)
	late := spawn(t, nil, `echo ready; exec sleep 1000`).Process.Pid
	killed := make(chan error)
	go func() { killed <- c.Kill(shortly(t)) }()
	// The group is frozen only by a Kill that has struck already.
	for frozen := ""; frozen != "1\n"; {
		data, err := c.tasks.read("cgroup.freeze")
		if err != nil {
			t.Fatal(err)
		}
		frozen = string(data)
	}
	if err := c.Add(0, late); err != nil {
		t.Fatal(err)
	}
	thaw()
	if err := <-killed; err != nil {
		t.Error(err)
	}
	wantEnded(t, late)
	wantEmpty(t, c)
}

// TestRootNoBirthAfterKill: the kernel would kill what is cloned into a group
// that was killed before.
func TestRootNoBirthAfterKill(t *testing.T) {
	for name, kill := range map[string]func(*Cgroup) error{
		"Kill":   func(c *Cgroup) error { return c.Kill(shortly(t)) },
		"Signal": func(c *Cgroup) error { return c.Signal(unix.SIGKILL, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			_, _, c := testStep(t)
			if err := kill(c); err != nil {
				t.Fatal(err)
			}
			if _, ok := c.HostCgroup(); ok {
				t.Error("HostCgroup offers a group that was killed")
			}
			late := spawn(t, nil, `echo ready; exec sleep 1000`).Process.Pid
			if err := c.Add(0, late); err != nil {
				t.Fatal(err)
			}
			if pids := mustPIDs(t, c); len(pids) != 1 || pids[0] != late {
				t.Errorf("PIDs() = %v, want %d: Add must work", pids, late)
			}
		})
	}
}

func mustPIDs(t *testing.T, c *Cgroup) []int {
	t.Helper()
	pids, err := c.PIDs()
	if err != nil {
		t.Fatal(err)
	}
	return pids
}

func TestRootCreateTwice(t *testing.T) {
	_, _, c := testStep(t)
	if err := c.Create(); err == nil {
		t.Error("a tracker was created twice")
	}
	if err := NewCgroup(c.cfg).Create(); !errors.Is(err, os.ErrExist) {
		t.Errorf("Create over another tracker's groups = %v, want EEXIST", err)
	}
}

func TestRootKillEndsWithContext(t *testing.T) {
	_, _, c := testStep(t)
	cmd := spawnIn(t, c, `echo ready; exec sleep 1000`)
	thaw := v1Freeze(t, cmd.Process.Pid)
	stop := errors.New("given up")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(stop) })
	err := c.Kill(ctx)
	var left *SurvivorsError
	if !errors.As(err, &left) || !errors.Is(err, stop) {
		t.Fatalf("Kill = %v, want a SurvivorsError with the context's cause", err)
	}
	if left.Total != 1 || left.Survivors[0].PID != cmd.Process.Pid || left.Survivors[0].Comm == "?" || left.Survivors[0].State == "" {
		t.Errorf("the survivors are %+v, want process %d", left, cmd.Process.Pid)
	}
	if s := left.Survivors[0]; s.Grade != step.GradeFrozen || !strings.Contains(s.Freezer, "/freezer/") || s.Start == 0 {
		t.Errorf("the survivor is %+v, want it frozen by a v1 cgroup", s)
	}
	t.Log(err)
	if err := c.Destroy(ctx); !errors.Is(err, stop) {
		t.Errorf("Destroy = %v, want the context's cause", err)
	}
	thaw()
	if err := c.Destroy(shortly(t)); err != nil {
		t.Errorf("Destroy after the process could end: %v", err)
	}
}

// v1Freeze makes SIGKILL wait, by the v1 freezer.
func v1Freeze(t *testing.T, pid int) (thaw func()) {
	t.Helper()
	const mount = "/sys/fs/cgroup/freezer"
	if _, err := os.Stat(filepath.Join(mount, "tasks")); err != nil {
		t.Skip("no v1 freezer: nothing here makes a process that SIGKILL does not end")
	}
	dir, err := os.MkdirTemp(mount, "proctrack-test-")
	if err != nil {
		t.Fatal(err)
	}
	write := func(file, value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		write("freezer.state", "THAWED")
		// v1 sends no event when the group is empty.
		for deadline := time.Now().Add(30 * time.Second); os.Remove(dir) != nil; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("cannot remove %s", dir)
				return
			}
		}
	})
	write("cgroup.procs", fmt.Sprint(pid))
	write("freezer.state", "FROZEN")
	return func() { write("freezer.state", "THAWED") }
}

func TestRootHundredCyclesLeaveNothing(t *testing.T) {
	r, id, _ := testStep(t)
	cycle := func(job uint32) {
		id.Job = job
		place, err := r.MakeStep(id, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := NewCgroup(CgroupConfig{Dir: place.Dir, Tasks: place.Tasks})
		if err := c.Create(); err != nil {
			t.Fatal(err)
		}
		cmd := spawnIn(t, c, `( ( sleep 1000 & ) & ); echo ready; exec sleep 1000`)
		if err := errors.Join(c.EvictHost(cmd.Process.Pid), c.Kill(shortly(t)), c.Destroy(shortly(t)), r.KillStep(shortly(t), id), r.RemoveJob(job)); err != nil {
			t.Fatal(err)
		}
		_, _ = cmd.Process.Wait()
	}
	cycle(100) // what the runtime opens once is open now
	fds, dirs := countFDs(t), countDirs(t, r.Dir())
	for i := range testkit.Fewer(100) {
		cycle(uint32(101 + i))
	}
	// os/exec may hold a pidfd of the last process for a moment.
	if n := countFDs(t); n > fds+2 {
		t.Errorf("%d descriptors are open, %d were before", n, fds)
	}
	if n := countDirs(t, r.Dir()); n != dirs {
		t.Errorf("%d cgroups are there, %d were before", n, dirs)
	}
}
