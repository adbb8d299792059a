package proctrack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
	"stepd/step"
	"stepd/step/launch"
)

// v1Mounts finds the v1 hierarchies that can limit something, as noded would.
func v1Mounts(t testing.TB) map[string]string {
	t.Helper()
	testkit.RequireRoot(t)
	found := make(map[string]string)
	for _, c := range []string{"memory", "cpuset", "devices", "cpuacct", "pids"} {
		dir := "/sys/fs/cgroup/" + c
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.CGROUP_SUPER_MAGIC {
			found[c] = dir
		}
	}
	return found
}

func read(t testing.TB, parts ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func write(t testing.TB, value string, parts ...string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(parts...), []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// rootAt is as testRoot, elsewhere.
func rootAt(t testing.TB, cfg RootConfig) *Root {
	t.Helper()
	cfg.Spool = t.TempDir()
	r, err := NewRoot(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Ensure(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ids, err := r.Steps()
		for _, id := range ids {
			t.Errorf("the test left step %s", id)
			err = errors.Join(err, r.KillStep(shortly(t), id))
		}
		if err := errors.Join(err, r.Remove()); err != nil {
			t.Error(err)
		}
		for _, dir := range append(slices.Clone(r.hierarchies), r.Dir()) {
			if exists(dir) {
				t.Errorf("%s is still there", dir)
			}
		}
	})
	return r
}

// TestRootV1Places: the cgroups of a job and a step in the v1 hierarchies are
// fit for processes, found, swept and removed.
func TestRootV1Places(t *testing.T) {
	mounts := v1Mounts(t)
	if len(mounts) == 0 {
		t.Skip("no v1 controllers here")
	}
	r := rootAt(t, RootConfig{Parent: testMount(t), V1: mounts})
	id := step.ID{Job: 9, Step: 1}
	if err := r.MakeJob(id.Job, r.V1()); err != nil {
		t.Fatal(err)
	}
	for _, c := range r.V1() {
		if !exists(r.V1JobDir(c, id.Job)) {
			t.Errorf("the job has no cgroup of %s", c)
		}
	}
	if !exists(r.JobTasksDir(id.Job)) {
		t.Error("the job has no cgroup of its tasks")
	}
	// The job's own CPUs are the step's, too, though no setting says so.
	write(t, "0", r.V1JobDir("cpuset", id.Job), "cpuset.cpus")
	place, err := r.MakeStep(id, []string{"cpuset", "memory"})
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, place.V1["cpuset"], "cpuset.cpus") + read(t, place.V1["cpuset"], "cpuset.mems"); !strings.HasPrefix(got, "0") || len(got) < 2 {
		t.Errorf("the step's CPUs and memory nodes are %q", got)
	}
	if len(place.V1) != 2 || place.V1["memory"] != r.V1JobDir("memory", id.Job)+"/step_1" {
		t.Errorf("MakeStep = %+v", place)
	}
	if _, err := r.MakeStep(step.ID{Job: 9, Step: 2}, []string{"net_cls"}); err == nil || !strings.Contains(err.Error(), `"net_cls"`) {
		t.Errorf("a controller that there is not: %v", err)
	}
	if exists(r.StepDir(step.ID{Job: 9, Step: 2})) || exists(r.TasksDir(step.ID{Job: 9, Step: 2})) {
		t.Error("a step that could not be made was left")
	}

	// A process that was moved out of v2 is found by the others, and killed.
	task := filepath.Join(place.V1["memory"], "task_0")
	if err := os.Mkdir(task, 0o755); err != nil {
		t.Fatal(err)
	}
	pid := spawn(t, nil, `echo ready; exec sleep 1000`).Process.Pid
	write(t, fmt.Sprint(pid), task, "cgroup.procs")
	write(t, fmt.Sprint(pid), place.V1["cpuset"], "cgroup.procs")
	if !inStep(t, r, pid, id) {
		t.Errorf("process %d is not in the cgroups of step %s", pid, id)
	}
	if err := r.KillStep(shortly(t), id); err != nil {
		t.Error(err)
	}
	wantEnded(t, pid)
	// What a crash leaves in one hierarchy alone is found.
	if _, err := r.makeV1([]string{"devices"}, jobName(12), stepName(4)); err != nil {
		t.Fatal(err)
	}
	lost := step.ID{Job: 12, Step: 4}
	if ids, err := r.Steps(); err != nil || len(ids) != 1 || ids[0] != lost {
		t.Errorf("Steps = %v, %v; want %v", ids, err, lost)
	}
	if err := errors.Join(r.KillStep(shortly(t), lost), r.RemoveJob(9)); err != nil {
		t.Error(err)
	}
}

// TestRootPerTask: each rank has a leaf of its own, and what acts on the tasks
// acts on all of them.
func TestRootPerTask(t *testing.T) {
	r, id := testRoot(t), step.ID{Job: 7, Step: 3}
	place, err := r.MakeStep(id, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.KillStep(shortly(t), id); err != nil {
			t.Error(err)
		}
	})
	c := NewCgroup(CgroupConfig{Dir: place.Dir, Tasks: place.Tasks, PerTask: true})
	if err := c.Create(); err != nil {
		t.Fatal(err)
	}
	fd, inside := c.HostCgroup()
	if fd < 0 || inside {
		t.Fatalf("HostCgroup = %d, %v; want the host's own", fd, inside)
	}
	host := spawn(t, &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}, `echo ready; exec sleep 1000`).Process.Pid
	var pids []int
	for rank := range 3 {
		pid := spawn(t, nil, `echo ready; exec sleep 1000`).Process.Pid
		if err := c.Add(rank, pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
		leaf := filepath.Join(place.Tasks, launch.TaskName(rank))
		if got := read(t, leaf, "cgroup.procs"); got != fmt.Sprint(pid) {
			t.Errorf("rank %d: %q in its leaf, want %d", rank, got, pid)
		}
		// In the guest, all of them; here there are none.
		controllers, err := r.Controllers()
		if got := read(t, leaf, "cgroup.controllers"); err != nil || (len(controllers) > 0 && got != strings.Join(controllers, " ")) {
			t.Errorf("rank %d has the controllers %q (%v), the root %q", rank, got, err, controllers)
		}
		if !inStep(t, r, pid, id) {
			t.Errorf("process %d is not in the cgroups of step %s", pid, id)
		}
	}
	got := mustPIDs(t, c)
	slices.Sort(got)
	slices.Sort(pids)
	if !slices.Equal(got, pids) {
		t.Errorf("PIDs = %v, want %v without the host %d", got, pids, host)
	}
	if err := errors.Join(c.Freeze(shortly(t)), c.Kill(shortly(t))); err != nil {
		t.Error(err)
	}
	wantEnded(t, pids...)
	if left, err := livingPIDs([]int{host}); len(left) != 1 || err != nil {
		t.Errorf("the host has ended with the tasks (%v)", err)
	}
	if err := c.Destroy(shortly(t)); err != nil {
		t.Error(err)
	}
	wantEnded(t, host)
	if exists(place.Tasks) {
		t.Error("the tasks' cgroup is left")
	}
}

// TestRootOldLayout: a step of a noded that had the tasks below the daemons.
func TestRootOldLayout(t *testing.T) {
	r, id := testRoot(t), step.ID{Job: 7, Step: 3}
	root, err := openGroup(r.Dir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.close()
	for _, dir := range []string{"job_7", "job_7/step_3", "job_7/step_3/stepd", "job_7/step_3/tasks", "job_7/step_3/tasks/a"} {
		if err := root.mkdir(dir); err != nil {
			t.Fatal(err)
		}
	}
	var pids []int
	for _, leaf := range []string{"stepd", "tasks", "tasks/a"} {
		pid := spawn(t, nil, `echo ready; exec sleep 1000`).Process.Pid
		write(t, fmt.Sprint(pid), r.StepDir(id), leaf, "cgroup.procs")
		if !inStep(t, r, pid, id) {
			t.Errorf("process %d is not in the cgroups of step %s", pid, id)
		}
		pids = append(pids, pid)
	}
	if ids, err := r.Steps(); err != nil || len(ids) != 1 || ids[0] != id {
		t.Errorf("Steps = %v, %v", ids, err)
	}
	if err := errors.Join(r.KillStep(shortly(t), id), r.RemoveJob(7)); err != nil {
		t.Error(err)
	}
	wantEnded(t, pids...)
	if exists(filepath.Join(r.Dir(), "job_7")) {
		t.Error("the job's cgroup is left")
	}
}

// TestRootManyCgroups: ten thousand groups, and a chain that is deeper than a
// path can be long, are gone through and removed with two descriptors.
func TestRootManyCgroups(t *testing.T) {
	_, _, c := testStep(t)
	wide, deep := testkit.Fewer(10_000), testkit.Fewer(1_500)
	if err := os.Mkdir(filepath.Join(c.cfg.Tasks, "wide"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range wide {
		if err := os.Mkdir(filepath.Join(c.cfg.Tasks, "wide", fmt.Sprint(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	at, err := openGroup(c.cfg.Tasks)
	if err != nil {
		t.Fatal(err)
	}
	for range deep {
		child, err := at.ensure("below")
		at.close()
		if err != nil {
			t.Fatal(err)
		}
		at = child
	}
	pid := spawn(t, nil, `echo ready; exec sleep 1000`).Process.Pid
	err = at.take(pid)
	at.close()
	if err != nil {
		t.Fatal(err)
	}
	fds := countFDs(t)
	if pids := mustPIDs(t, c); len(pids) != 1 || pids[0] != pid {
		t.Errorf("PIDs = %v, want %d", pids, pid)
	}
	if n := countFDs(t); n > fds {
		t.Errorf("%d descriptors are open, %d were before", n, fds)
	}
	if err := c.Destroy(shortly(t)); err != nil {
		t.Fatal(err)
	}
	wantEnded(t, pid)
}

// TestRootDelegateSaysWhy: a parent that has processes of its own gives its
// controllers to no child.
func TestRootDelegateSaysWhy(t *testing.T) {
	r, id, c := testStep(t)
	root, err := openGroup(r.Dir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.close()
	has, err := controllers{root}.delegated()
	if err != nil {
		t.Fatal(err)
	}
	if len(has) == 0 {
		t.Skip("no v2 controllers here")
	}
	spawnIn(t, c, `echo ready; exec sleep 1000`)
	missing, err := (controllers{c.tasks}).delegate()
	if err != nil || !strings.Contains(missing["memory"], "1 processes are in cgroup") || len(missing) != len(has) {
		t.Errorf("delegate of step %s = %v, %v; want a reason for each of %q", id, missing, err, has)
	}
	if kind := read(t, c.cfg.Tasks, "cgroup.type"); kind != "domain" {
		t.Errorf("the cgroup has become %q", kind)
	}
	if err := c.Kill(shortly(t)); err != nil {
		t.Fatal(err)
	}
	if missing, err = (controllers{c.tasks}).delegate(); err != nil || len(missing) > 0 {
		t.Errorf("delegate of an empty group = %v, %v", missing, err)
	}
	if got, err := (controllers{c.tasks}).delegated(); err != nil || len(got) != len(has) {
		t.Errorf("the children have %q (%v), want %q", got, err, has)
	}
}

// TestRootEscaped: who was moved away is told, whether a task or what it left.
func TestRootEscaped(t *testing.T) {
	r, _, c := testStep(t)
	root, err := openGroup(r.Dir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.close()
	other, err := root.ensure("session-3.scope")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		other.close()
		if err := destroyIn(shortly(t), r.Dir(), "session-3.scope"); err != nil {
			t.Error(err)
		}
	})
	stays := spawnIn(t, c, `echo ready; exec sleep 1000`).Process.Pid
	goes := spawnIn(t, c, `echo ready; exec sleep 1000`).Process.Pid
	got, err := c.Escaped([]int{stays, goes})
	if err != nil || len(got) != 0 {
		t.Errorf("Escaped = %v, %v before anybody has gone", got, err)
	}
	if err := other.take(goes); err != nil {
		t.Fatal(err)
	}
	for _, tasks := range [][]int{{stays, goes}, nil} { // it is a descendant as well
		got, err = c.Escaped(tasks)
		if err != nil || len(got) != 1 || got[0].PID != goes || !strings.HasSuffix(got[0].Cgroup, filepath.Join("/", filepath.Base(r.Dir()), "session-3.scope")) {
			t.Errorf("Escaped(%v) = %v, %v; want %d", tasks, got, err, goes)
		}
	}
	c.Spare(goes)
	if got, err = c.Escaped([]int{stays}); err != nil || len(got) != 0 {
		t.Errorf("Escaped = %v, %v with %d spared", got, err, goes)
	}
	if err := c.Kill(shortly(t)); err != nil {
		t.Fatal(err)
	}
	if left, err := livingPIDs([]int{stays, goes}); err != nil || len(left) != 1 || left[0] != goes {
		t.Errorf("after Kill live %v (%v), want %d", left, err, goes)
	}
}
