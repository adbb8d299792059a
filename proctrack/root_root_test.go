package proctrack

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"stepd/step"
)

func TestRootKillStepKillsAllOfIt(t *testing.T) {
	r, id, c := testStep(t)
	leaf, err := r.OpenStepLeaf(id)
	if err != nil {
		t.Fatal(err)
	}
	defer leaf.Close()
	stepd := spawn(t, &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(leaf.Fd())}, `echo ready; exec sleep 1000`).Process.Pid
	host := spawnIn(t, c, `sleep 1000 & echo ready; wait; exec sleep 1000`).Process.Pid
	if err := c.EvictHost(host); err != nil {
		t.Fatal(err)
	}
	if err := c.Freeze(shortly(t)); err != nil { // a suspended step is killed too
		t.Fatal(err)
	}
	tasks := mustPIDs(t, c)
	all := append([]int{stepd, host}, tasks...)
	if len(tasks) != 1 {
		t.Fatalf("PIDs() = %v, want one task", tasks)
	}
	for _, pid := range all {
		if !inStep(t, r, pid, id) {
			t.Errorf("process %d is not in the cgroups of step %s", pid, id)
		}
	}
	if err := r.KillStep(shortly(t), id); err != nil {
		t.Fatal(err)
	}
	wantEnded(t, all...)
	if ids, err := r.Steps(); len(ids) != 0 || err != nil {
		t.Errorf("Steps() = %v, %v; want none", ids, err)
	}
	if err := r.KillStep(shortly(t), id); err != nil {
		t.Errorf("KillStep of a step that is gone = %v", err)
	}
	// stepd's own undo may come after noded's kill.
	if err := c.Destroy(shortly(t)); err != nil {
		t.Errorf("Destroy of a step that is gone = %v", err)
	}
}

func TestRootSteps(t *testing.T) {
	r := testRoot(t)
	if ids, err := r.Steps(); len(ids) != 0 || err != nil {
		t.Errorf("Steps() = %v, %v in a new root", ids, err)
	}
	want := []step.ID{{Job: 1}, {Job: 1, Step: 7}, {Job: 2, Step: step.BatchStep}}
	for _, id := range want {
		if _, err := r.MakeStep(id, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.MakeStep(want[0], nil); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second MakeStep = %v, want EEXIST", err)
	}
	foreign := filepath.Join(r.Dir(), "job_1", "not-a-step")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := r.Steps()
	if err != nil {
		t.Fatal(err)
	}
	byID := map[step.ID]bool{}
	for _, id := range got {
		byID[id] = true
	}
	wantSet := map[step.ID]bool{}
	for _, id := range want {
		wantSet[id] = true
	}
	if diff := cmp.Diff(wantSet, byID); diff != "" {
		t.Errorf("Steps() (-want +got):\n%s", diff)
	}

	if err := r.RemoveJob(2); !errors.Is(err, unix.EBUSY) {
		t.Errorf("RemoveJob with a step left = %v, want EBUSY", err)
	}
	if err := r.Remove(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("Remove with steps left = %v, want EBUSY", err)
	}
	for _, id := range want {
		if err := r.KillStep(shortly(t), id); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(r.RemoveJob(2), r.RemoveJob(2), os.Remove(foreign)); err != nil {
		t.Error(err)
	}
	if err := errors.Join(r.Remove(), r.Remove()); err != nil { // job_1 is left, and empty
		t.Error(err)
	}
	if ids, err := r.Steps(); len(ids) != 0 || err != nil {
		t.Errorf("Steps() = %v, %v without a root", ids, err)
	}
}

func TestRootMakeStepNamesTheLimit(t *testing.T) {
	r := testRoot(t)
	set := func(value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.Dir(), "cgroup.max.descendants"), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	set("2")
	_, err := r.MakeStep(step.ID{Job: 1}, nil)
	if !errors.Is(err, unix.EAGAIN) || !strings.Contains(err.Error(), "cgroup.max.descendants=2 in \""+r.Dir()+"\"") {
		t.Errorf("MakeStep = %v, want EAGAIN and the limit's name", err)
	}
	if ids, err := r.Steps(); len(ids) != 0 || err != nil {
		t.Errorf("Steps() = %v, %v; want nothing left of the step", ids, err)
	}
	set("max")
	id := step.ID{Job: 1}
	if _, err := r.MakeStep(id, nil); err != nil {
		t.Error(err)
	}
	if err := r.KillStep(shortly(t), id); err != nil {
		t.Error(err)
	}
}

func TestRootEnsureOutsideCgroups(t *testing.T) {
	testMount(t)
	r, err := NewRoot(RootConfig{Parent: t.TempDir(), Spool: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Ensure(); err == nil || !strings.Contains(err.Error(), "not on a cgroup file system") {
		t.Errorf("Ensure = %v, want a refusal", err)
	}
}

func TestRootCanBeBornInside(t *testing.T) {
	r, id, c := testStep(t)
	ok, why, err := r.CanBeBornInside()
	if !ok || why != "" || err != nil {
		t.Fatalf("CanBeBornInside = %v, %q, %v", ok, why, err)
	}
	// A parent and a target with different numbers of kills: whatever this
	// kernel does, the probe reports what happens to a real child.
	if err := c.Signal(unix.SIGKILL, 0); err != nil {
		t.Fatal(err)
	}
	why, err = probeBirth(c.tasks)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: c.tasks.fd}
	if err := cmd.Run(); (err != nil) != (why != "") {
		t.Errorf("a child ended with %v, and the probe says %q", err, why)
	}
	t.Logf("after a kill: %q", why)

	pid := spawn(t, nil, `echo ready; exec sleep 1000`).Process.Pid
	if err := r.AddStepd(id, pid); err != nil {
		t.Fatal(err)
	}
	if !inStep(t, r, pid, id) {
		t.Errorf("process %d is not in the cgroups of step %s", pid, id)
	}
	if err := r.AddStepd(id, 0); err == nil {
		t.Error("AddStepd(0) was accepted: the kernel takes it for the caller")
	}
	// A group that must not hold processes stands for old kernels: it has a
	// threaded sibling.
	other := step.ID{Job: id.Job, Step: id.Step + 1}
	place, err := r.MakeStep(other, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(place.Dir, leafStepd, "cgroup.type"), []byte("threaded"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(place.Dir, leafHost), 0o755); err != nil {
		t.Fatal(err)
	}
	leaf, err := openGroup(filepath.Join(place.Dir, leafHost))
	if err != nil {
		t.Fatal(err)
	}
	defer leaf.close()
	if why, err := probeBirth(leaf); why == "" || err != nil {
		t.Errorf("probeBirth in an invalid group = %q, %v; want a reason", why, err)
	}
	if err := r.KillStep(shortly(t), other); err != nil {
		t.Error(err)
	}
}

// inStep reports whether a process is in the cgroups of a step, in any hierarchy
// (cgroups(7), /proc/PID/cgroup).
func inStep(t *testing.T, r *Root, pid int, id step.ID) bool {
	t.Helper()
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/cgroup", pid))) {
		_, below, _ := strings.Cut(line, "/"+filepath.Base(r.Dir())+"/")
		parts := strings.Split(strings.TrimSpace(below), "/")
		if parts[0] == jobName(id.Job) && slices.Contains(parts[1:], stepName(id.Step)) {
			return true
		}
	}
	return false
}
