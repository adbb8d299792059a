package task

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/step"
	"stepd/step/launch"
)

// newNodeRig is a step's part on node 1 of 2.
func newNodeRig(t *testing.T) *rig {
	r := newRig(t)
	r.spec.NodeName, r.spec.NodeID = "n2", 1
	r.spec.NTasks = 4
	r.spec.Layout = &step.Layout{Nodes: []step.LayoutNode{{Name: "n1", Ranks: "0,2"}, {Name: "n2", Ranks: "1,3"}}}
	return r
}

func terminated(local int) launch.TaskEnd {
	return launch.TaskEnd{LocalID: local, Status: step.SignaledBy(syscall.SIGTERM)}
}

// A node's tasks are counted by local id; all others get ranks.
func TestNodeTellsRanks(t *testing.T) {
	r := newNodeRig(t)
	r.spec.Stdout = step.Stream{Kind: step.StreamFile, Pattern: "o%t.%n"}
	r.hooks = []launch.HookTime{{LocalID: 1, Hook: "slurm_spank_task_init", EndNS: 1}}
	r.ends = []launch.TaskEnd{{LocalID: 1, Status: step.ExitedWith(4)}, {LocalID: 0, Status: step.ExitedWith(2)}}
	r.places[1] = launch.HostPlace{Plugin: -1, Stage: "stdio"}
	r.during["wait"] = func() {
		r.sink(launch.HostRecord{LocalID: 1, Fail: &launch.LaunchError{Rank: 3, Stage: "chdir", Errno: syscall.ENOENT, Object: "/x"}})
		if err := r.st.Signal(int(syscall.SIGUSR1), ""); err != nil {
			t.Error(err)
		}
	}
	rec := r.run(t)
	if rec.NTasks != 4 || len(rec.Tasks) != 2 {
		t.Fatalf("the record has %d of %d tasks", len(rec.Tasks), rec.NTasks)
	}
	for id, want := range []struct{ rank, code int }{{1, 2}, {3, 4}} {
		task := rec.Tasks[id]
		if task.Rank != want.rank || task.LocalID != id || task.ExitCode == nil || *task.ExitCode != want.code || *task.PID != 5000+id {
			t.Errorf("task %d of the record is %+v", id, task)
		}
	}
	if rec.Tasks[0].State != step.TaskExited || rec.Tasks[1].State != step.TaskFailed || rec.Tasks[1].Stage != "chdir" {
		t.Errorf("tasks are %+v", rec.Tasks)
	}
	if rec.Reason != `task 3 never ran: no such file or directory: "/x"` {
		t.Errorf("reason %q", rec.Reason)
	}
	if want := `stepd-n2: error: task 3: chdir: cannot use "/x": No such file or directory`; !slices.Contains(r.said, want) {
		t.Errorf("said %q, want %q", r.said, want)
	}
	if !slices.Equal(r.saidOf, []int{3}) {
		t.Errorf("it was said of tasks %v, want 3", r.saidOf)
	}
	for name, got := range map[string][]int{"tracked": r.tracked, "hooks'": r.hooked} {
		if !slices.Equal(got, []int{1, 3}) {
			t.Errorf("%s ranks are %v", name, got)
		}
	}
	for name, got := range map[string][]int{"told": r.told, "MPI's": r.exited} {
		if !slices.Equal(got, []int{3, 1}) {
			t.Errorf("%s ranks are %v", name, got)
		}
	}
	pids := map[int]int{1: 5000, 3: 5001}
	seen := map[string]int{}
	for _, e := range r.events {
		if e.Rank == nil {
			continue
		}
		seen[e.Event]++
		if pid, ok := pids[*e.Rank]; !ok || e.PID != 0 && e.PID != pid {
			t.Errorf("event %+v of rank %d", e, *e.Rank)
		}
	}
	for _, event := range []string{eventlog.EventTaskFork, eventlog.EventTaskSignal, eventlog.EventTaskExit} {
		if seen[event] != 2 {
			t.Errorf("%d events %s, want 2", seen[event], event)
		}
	}
	var paths []string
	for _, st := range r.launch.Streams {
		if st.FD == 1 {
			paths = append(paths, fmt.Sprint(st.LocalID, " ", st.Path))
		}
	}
	if !slices.Equal(paths, []string{"0 o1.1", "1 o3.1"}) {
		t.Errorf("files are %q", paths)
	}
	if d := cmp.Diff([][]string{{"SLURM_PROCID=1", "SLURM_LOCALID=0"}, {"SLURM_PROCID=3", "SLURM_LOCALID=1"}}, r.launch.TaskEnv); d != "" {
		t.Errorf("environments (-want +got):\n%s", d)
	}
}

// Streams that a client attaches go by rank; other nodes' ranks are refused here.
func TestNodeAttach(t *testing.T) {
	r := newNodeRig(t)
	r.spec.Stdout = step.Stream{Kind: step.StreamClient}
	other, ours := 2, 3
	r.spec.Stdin = step.Stream{Kind: step.StreamClient, Rank: &other}
	r.spec.Stderr = step.Stream{Kind: step.StreamClient, Rank: &ours}
	r.during["init"] = func() {
		for _, c := range []struct {
			fd, rank int
			want     string
		}{
			{1, 1, ""}, {1, 3, ""}, {2, 3, ""},
			{1, 0, "the ranks here are 1,3"}, {1, 4, "the ranks here are 1,3"}, {0, 2, "the ranks here are 1,3"},
			{0, 1, "does not go to the client"},
		} {
			f, err := os.Open("/dev/null")
			if err != nil {
				t.Fatal(err)
			}
			fd, err := unix.Dup(int(f.Fd()))
			f.Close()
			if err != nil {
				t.Fatal(err)
			}
			err = r.st.Attach(c.fd, c.rank, fd)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("stream %d of rank %d: %v, want %q", c.fd, c.rank, err, c.want)
			}
		}
	}
	r.run(t)
	var got []string
	for _, st := range r.launch.Streams {
		if st.Kind == launch.StreamToHandle {
			got = append(got, fmt.Sprint(st.LocalID, ":", st.FD))
		}
	}
	if want := []string{"0:1", "1:1", "1:2"}; !slices.Equal(got, want) {
		t.Errorf("streams by local id are %q, want %q", got, want)
	}
}

func TestCountList(t *testing.T) {
	for _, c := range []struct {
		counts []int
		want   string
	}{{nil, ""}, {[]int{3}, "3"}, {[]int{4, 4, 3}, "4(x2),3"}, {[]int{1, 2, 1, 1}, "1,2,1(x2)"}} {
		if got := countList(c.counts); got != c.want {
			t.Errorf("%v is %q, want %q", c.counts, got, c.want)
		}
	}
}
