package main_test

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"stepd/eventlog"
	"stepd/internal/testkit"
	"stepd/step"
)

// nodeSpec is the part of a step of four tasks that node 1 of 2 has: ranks 1
// and 3, which are its tasks 0 and 1.
func nodeSpec(t *testing.T, argv ...string) *step.Spec {
	spec := rootSpec(t, argv...)
	spec.NTasks, spec.NNodes = 4, 2
	spec.NodeName, spec.NodeList, spec.NodeID = "n2", "n[1-2]", 1
	spec.Layout = &step.Layout{Nodes: []step.LayoutNode{{Name: "n1", Ranks: "0,2"}, {Name: "n2", Ranks: "1,3"}}}
	return spec
}

// everybodys is a directory into which the tasks' user can write.
func everybodys(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "stepd-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// idsPlugin builds the plugin that prints which tasks it is called for, and the
// plugstack.conf that names it.
func idsPlugin(t *testing.T, args string) (plugstack string) {
	t.Helper()
	dir := t.TempDir()
	so := filepath.Join(dir, "ids.so")
	out, err := exec.Command("cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-I../../spank/host/include", "testdata/ids.c", "-o", so).CombinedOutput()
	if err != nil {
		t.Fatalf("cc: %v: %s", err, out)
	}
	plugstack = filepath.Join(dir, "plugstack.conf")
	if err := os.WriteFile(plugstack, []byte("required "+so+" "+args+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return plugstack
}

// The part of a step on one of several nodes: what there is one of for each task
// is counted by local id, and all others get ranks.
func TestRootNode(t *testing.T) {
	testkit.RequireRoot(t)
	spec := nodeSpec(t, "sh", "-c", `echo "$SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURM_GTIDS $SLURM_TASKS_PER_NODE $SLURM_STEP_NUM_NODES $SLURMD_NODENAME"
		sed 's/.*\///' /proc/self/cgroup | sort -u | grep task_
		exit $SLURM_PROCID`)
	dir := everybodys(t)
	spec.Stdout = step.Stream{Kind: step.StreamFile, Pattern: dir + "/o.%t.%n.%N"}
	spec.Confine.PerTask = true
	spec.Spank.Plugstack = idsPlugin(t, "fail=3")
	d := start(t, spec)
	rec, said := d.result(t)
	if rec.NTasks != 4 || len(rec.Tasks) != 2 || rec.ExitCode == nil || *rec.ExitCode != 3 || rec.Reason != "task 3: Exited with exit code 3" {
		t.Fatalf("the record is %+v; said %q", rec, said)
	}
	for id, rank := range []int{1, 3} {
		task := rec.Tasks[id]
		if task.Rank != rank || task.LocalID != id || task.ExitCode == nil || *task.ExitCode != rank || task.MaxRSSBytes == nil || *task.MaxRSSBytes == 0 {
			t.Errorf("task %d is %+v", id, task)
		}
	}
	for rank, want := range map[string]string{"1": "1 0 1 1,3 2(x2) 2 n2\ntask_1\n", "3": "3 1 1 1,3 2(x2) 2 n2\ntask_3\n"} {
		if b, err := os.ReadFile(dir + "/o." + rank + ".1.n2"); err != nil || string(b) != want {
			t.Errorf("rank %s wrote %q, %v; want %q", rank, b, err, want)
		}
	}
	for _, want := range []string{
		"task_init: task 0 is rank 1, 2 of 4 here, node 1 of 2", "task_init: task 1 is rank 3, 2 of 4 here, node 1 of 2",
		"task_post_fork: task 0 is rank 1, 2 of 4 here, node 1 of 2", "task_post_fork: task 1 is rank 3, 2 of 4 here, node 1 of 2",
		"task_exit: task 0 is rank 1, 2 of 4 here, node 1 of 2", "task_exit: task 1 is rank 3, 2 of 4 here, node 1 of 2",
		"by pid: task 0 is rank 1", "by pid: task 1 is rank 3",
		"0: local 99 rc=3007, global 1 rc=0", "1: local 0 rc=0, global 3 rc=0", "2: local 99 rc=3007, global 99 rc=3007", "3: local 1 rc=0, global 99 rc=3007",
		"stepd-n2: error: Unable to spank task 3 at exit",
	} {
		if !slices.Contains(said, want) {
			t.Errorf("nobody said %q", want)
		}
	}
	if t.Failed() {
		t.Logf("said:\n%s", strings.Join(said, "\n"))
	}
	checkEventRanks(t, d.events)
}

// checkEventRanks: every event of a task names rank 1 or 3, hooks included.
func checkEventRanks(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seen := make(map[string]int)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		err := eventlog.ExpandEvent(lines.Bytes(), func(b []byte) error {
			var e eventlog.Event
			if err := json.Unmarshal(b, &e); err != nil {
				return err
			}
			if e.Rank != nil && *e.Rank != 1 && *e.Rank != 3 {
				t.Errorf("event of rank %d: %s", *e.Rank, b)
			}
			if e.Rank != nil {
				seen[e.Event+" "+e.Hook]++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, event := range []string{"task_fork ", "task_exec ", "task_exit ", "hook_end slurm_spank_task_init", "hook_end slurm_spank_task_post_fork", "hook_end slurm_spank_task_exit"} {
		if seen[event] != 2 {
			t.Errorf("%d events %q, want 2: %v", seen[event], event, seen)
		}
	}
}

// A task that cannot be exec'd is reported by its rank.
func TestRootNodeLaunchFails(t *testing.T) {
	testkit.RequireRoot(t)
	spec := nodeSpec(t, "true")
	dir := everybodys(t)
	if err := os.Mkdir(dir+"/o3", 0o755); err != nil { // no file
		t.Fatal(err)
	}
	spec.Stdout = step.Stream{Kind: step.StreamFile, Pattern: dir + "/o%t"}
	d := start(t, spec)
	rec, said := d.result(t)
	if rec.Tasks[0].State != step.TaskExited || rec.Tasks[1].State != step.TaskFailed || rec.Tasks[1].Stage != "stdio" || *rec.ExitCode == 0 {
		t.Errorf("the record is %+v", rec)
	}
	if want := `stepd-n2: error: Could not open stdout file "` + dir + `/o3": Is a directory`; !slices.Contains(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
}
