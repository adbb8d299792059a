package proctrack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
	"stepd/step"
)

func needFreezer(t testing.TB) (mount string) {
	t.Helper()
	testkit.RequireRoot(t)
	mount = "/sys/fs/cgroup/freezer"
	var fs unix.Statfs_t
	if unix.Statfs(mount, &fs) != nil || fs.Type != unix.CGROUP_SUPER_MAGIC {
		t.Skip("no v1 freezer here")
	}
	return mount
}

// v1Step is as testStep, by v1's freezer.
func v1Step(t testing.TB, perTask bool) (*Root, step.ID, *Cgroup) {
	t.Helper()
	mount := needFreezer(t)
	r, id := rootAt(t, RootConfig{Parent: mount, Freezer: true}), step.ID{Job: 7, Step: 3}
	place, err := r.MakeStep(id, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.KillStep(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
	c := NewCgroup(CgroupConfig{Dir: place.Dir, Tasks: place.Tasks, PerTask: perTask})
	if err := c.Create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Destroy(shortly(t)); err != nil {
			t.Error(err)
		}
	})
	return r, id, c
}

// spawnAdded starts a script that runs when it was added to the tasks: v1 has
// no births.
func spawnAdded(t testing.TB, c *Cgroup, rank int, script string) int {
	t.Helper()
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	// It says ready twice: before the gate, and by itself.
	out := filepath.Join(t.TempDir(), "out")
	cmd := spawn(t, nil, `echo ready; read x < "$1"; exec sh -c "$2" > "$3"`, gate, script, out)
	if err := c.Add(rank, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	write(t, "go\n", gate)
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(time.Millisecond) {
		if data, err := os.ReadFile(out); err == nil && len(data) > 0 {
			return cmd.Process.Pid
		}
		if time.Now().After(deadline) {
			t.Fatal("the script does not say ready")
		}
	}
}

func TestRootV1KillsWhatTasksStart(t *testing.T) {
	needFreezer(t)
	kills := map[string]func(*Cgroup, context.Context) error{
		"Kill":    (*Cgroup).Kill,
		"Destroy": (*Cgroup).Destroy,
		"frozen":  func(c *Cgroup, ctx context.Context) error { return errors.Join(c.Freeze(ctx), c.Kill(ctx)) },
	}
	for name, kill := range kills {
		for _, w := range wild {
			t.Run(name+"/"+w.name, func(t *testing.T) {
				_, _, c := v1Step(t, false)
				spawnAdded(t, c, 0, w.script)
				if pids := mustPIDs(t, c); len(pids) < w.min {
					t.Fatalf("PIDs() = %d processes; want at least %d", len(pids), w.min)
				}
				if err := kill(c, shortly(t)); err != nil {
					t.Fatal(err)
				}
				wantEmpty(t, c)
			})
		}
	}
}

func TestRootV1FreezeAndThaw(t *testing.T) {
	_, _, c := v1Step(t, true)
	pid := spawnAdded(t, c, 4, `echo ready; while :; do :; done`)
	if _, inside := c.HostCgroup(); inside {
		t.Error("v1 offers births")
	}
	if !exists(filepath.Join(c.cfg.Tasks, "task_4")) {
		t.Error("the task has no leaf of its own")
	}
	if err := c.Freeze(shortly(t)); err != nil {
		t.Fatal(err)
	}
	before := cpuTime(t, pid)
	if state := read(t, c.cfg.Tasks, v1State); state != v1Frozen {
		t.Errorf("after Freeze: %s", state)
	}
	if err := c.Thaw(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); cpuTime(t, pid) == before; {
		if time.Now().After(deadline) {
			t.Fatal("the task does not run after Thaw")
		}
	}
	// A group that a task has frozen by itself.
	sub := filepath.Join(c.cfg.Tasks, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	other := spawn(t, nil, `echo ready; exec sleep 1000`).Process.Pid
	write(t, fmt.Sprint(other), sub, "cgroup.procs")
	write(t, v1Frozen, sub, v1State)
	if err := errors.Join(c.Kill(shortly(t)), c.Freeze(shortly(t)), c.Thaw()); err != nil {
		t.Error(err)
	}
	wantEnded(t, pid, other)
}

// TestRootV1HostAndStepd: the host is moved, and all of the step ends with it.
func TestRootV1HostAndStepd(t *testing.T) {
	r, id, c := v1Step(t, false)
	if ok, why, err := r.CanBeBornInside(); ok || why == "" || err != nil {
		t.Errorf("CanBeBornInside = %v, %q, %v", ok, why, err)
	}
	stepd := spawn(t, nil, `echo ready; exec sleep 1000`).Process.Pid
	host := spawn(t, nil, `echo ready; exec sleep 1000`).Process.Pid
	if err := errors.Join(r.AddStepd(id, stepd), c.EvictHost(host)); err != nil {
		t.Fatal(err)
	}
	task := spawnAdded(t, c, 0, `echo ready; exec sleep 1000`)
	for _, pid := range []int{stepd, host, task} {
		if !inStep(t, r, pid, id) {
			t.Errorf("process %d is not in the cgroups of step %s", pid, id)
		}
	}
	if err := c.Kill(shortly(t)); err != nil {
		t.Fatal(err)
	}
	if left, err := livingPIDs([]int{stepd, host}); len(left) != 2 || err != nil {
		t.Errorf("of stepd and host live %v (%v)", left, err)
	}
	if err := r.KillStep(shortly(t), id); err != nil {
		t.Error(err)
	}
	wantEnded(t, stepd, host, task)
}

// TestRootV1ThousandsOfOrphans: daemons in groups of their own, whose parents
// are gone.
func TestRootV1ThousandsOfOrphans(t *testing.T) {
	n := testkit.Fewer(5_000)
	_, _, c := v1Step(t, false)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	// Nothing is exec'd: that would take longer than all the rest.
	spawnAdded(t, c, 0, fmt.Sprintf(`i=0; while [ $i -lt %d ]; do ( ( read x < %s ) & ); i=$((i+1)); done; echo ready; exec sleep 300`, n, fifo))
	if pids := mustPIDs(t, c); len(pids) < n {
		t.Errorf("%d processes, want %d", len(pids), n)
	}
	begin := time.Now()
	if err := c.Kill(shortly(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d processes killed in %v", n, time.Since(begin))
	wantEmpty(t, c)
}
