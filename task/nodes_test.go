package task

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"stepd/step"
)

// fakeNetwork notes what it is told.
type fakeNetwork struct {
	mu   sync.Mutex
	ends []step.NodeEnd
}

func (n *fakeNetwork) EndStep(e step.NodeEnd) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ends = append(n.ends, e)
}

// newNodeRig is a step's part on node 1 of 2.
func newNodeRig(t *testing.T) (*rig, *fakeNetwork) {
	r, n := newRig(t), &fakeNetwork{}
	r.network = n
	r.spec.NodeName, r.spec.NodeID = "n2", 1
	r.spec.NTasks = 4
	r.spec.Layout = &step.Layout{Nodes: []step.LayoutNode{{Name: "n1", Ranks: "0,2"}, {Name: "n2", Ranks: "1,3"}}}
	return r, n
}

func terminated(local int) step.TaskEnd {
	return step.TaskEnd{LocalID: local, Status: step.SignaledBy(syscall.SIGTERM)}
}

// A node's tasks are counted by local id; everybody else hears of ranks.
func TestNodeTellsRanks(t *testing.T) {
	r, _ := newNodeRig(t)
	r.spec.Stdout = step.Stream{Kind: step.StreamFile, Pattern: "o%t.%n"}
	r.hooks = []step.HookTime{{LocalID: 1, Hook: "slurm_spank_task_init", EndNS: 1}}
	r.ends = []step.TaskEnd{{LocalID: 1, Status: step.ExitedWith(4)}, {LocalID: 0, Status: step.ExitedWith(2)}}
	r.places[1] = step.HostPlace{Plugin: -1, Stage: "stdio"}
	r.during["wait"] = func() {
		r.sink(step.HostRecord{LocalID: 1, Fail: &step.LaunchError{Rank: 3, Stage: "chdir", Errno: syscall.ENOENT, Object: "/x"}})
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
	if rec.Reason != "task 3: Exited with exit code 4" {
		t.Errorf("reason %q", rec.Reason)
	}
	if want := `stepd-n2: error: task 3: chdir: cannot use "/x": No such file or directory`; !slices.Contains(r.said, want) {
		t.Errorf("said %q, want %q", r.said, want)
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
	for _, event := range []string{step.EventTaskFork, step.EventTaskSignal, step.EventTaskExit} {
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

// What a client attaches goes by rank; those of other nodes are refused here.
func TestNodeAttach(t *testing.T) {
	r, _ := newNodeRig(t)
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
		if st.Kind == step.StreamToHandle {
			got = append(got, fmt.Sprint(st.LocalID, ":", st.FD))
		}
	}
	if want := []string{"0:1", "1:1", "1:2"}; !slices.Equal(got, want) {
		t.Errorf("streams by local id are %q, want %q", got, want)
	}
}

// What ends the step here is told to the other nodes, once.
func TestTellNodes(t *testing.T) {
	rc := -1
	tests := []struct {
		name   string
		set    func(r *rig)
		why    step.EndCause
		code   int
		reason string
	}{
		{"cancel", func(r *rig) {
			r.during["wait"] = func() { r.st.Cancel("by user 7"); r.st.Cancel("again") }
			r.ends = []step.TaskEnd{terminated(0), terminated(1)}
		}, step.EndCancel, 0, "by user 7"},
		{"bad exit", func(r *rig) {
			r.spec.KillOnBadExit = true
			r.ends = []step.TaskEnd{{LocalID: 0, Status: step.ExitedWith(3)}, terminated(1)}
		}, step.EndBadExit, 0, "task 1: Exited with exit code 3, and --kill-on-bad-exit was given"},
		{"bad exit of the last one here", func(r *rig) {
			r.spec.KillOnBadExit = true
			r.ends = []step.TaskEnd{{LocalID: 0}, {LocalID: 1, Status: step.ExitedWith(3)}}
		}, step.EndBadExit, 0, "task 3: Exited with exit code 3"},
		{"abort", func(r *rig) {
			r.during["wait"] = func() { r.st.mpiAbort(3, 0x106, "enough") }
			r.ends = []step.TaskEnd{terminated(0), terminated(1)}
		}, step.EndAbort, 6, "task 3: MPI abort with code 262: enough"},
		{"memory", func(r *rig) {
			r.during["wait"] = func() { r.st.OverMemory("200M of 100M") }
			r.ends = []step.TaskEnd{terminated(0), terminated(1)}
		}, step.EndMemory, 0, "200M of 100M"},
		{"launch", func(r *rig) {
			r.fail["user_init"] = &step.HookError{Plugin: "x.so", Hook: "slurm_spank_user_init", Required: true, RC: &rc}
		}, step.EndFailure, 0, `plugin "x.so": slurm_spank_user_init: failed with rc=-1`},
		{"host", func(r *rig) {
			r.fail["wait"] = step.ErrHostGone
			r.during["wait"] = func() { r.die(step.SignaledBy(syscall.SIGSEGV)) }
			r.ends = nil
		}, step.EndFailure, 0, "spankhost (pid 4242): killed by SIGSEGV"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, n := newNodeRig(t)
			tt.set(r)
			rec := r.run(t)
			if len(n.ends) != 1 {
				t.Fatalf("told %+v, want one end", n.ends)
			}
			e := n.ends[0]
			if e.Why != tt.why || e.Code != tt.code || e.Node != 1 || e.Name != "n2" || !strings.Contains(e.Reason, tt.reason) {
				t.Errorf("told %+v, want %s, code %d, %q", e, tt.why, tt.code, tt.reason)
			}
			if rec.EndedBy != nil {
				t.Errorf("the record says that %+v ended the step", rec.EndedBy)
			}
		})
	}
}

// A step that ends well, and tasks that fail where nobody asked for more, are
// nobody else's business.
func TestTellNodesNothing(t *testing.T) {
	for _, status := range []step.ExitStatus{0, step.ExitedWith(3)} {
		r, n := newNodeRig(t)
		r.ends[1].Status = status
		if r.run(t); len(n.ends) > 0 {
			t.Errorf("status %v: told %+v", status, n.ends)
		}
	}
}

// What another node says ends the step here as a cancel does, and names it.
func TestEndedByOtherNode(t *testing.T) {
	three := 3
	other := func(why step.EndCause, code int) step.NodeEnd {
		return step.NodeEnd{Node: 0, Name: "n1", Why: why, Rank: &three, Code: code, Reason: "it went wrong"}
	}
	tests := []struct {
		name   string
		call   string
		e      step.NodeEnd
		ends   []step.TaskEnd
		state  step.State
		code   int
		reason string
	}{
		{"while it runs", "wait", other(step.EndBadExit, 0), []step.TaskEnd{terminated(0), terminated(1)},
			step.Cancelled, 143, `node "n1" has ended the step: it went wrong`},
		{"an abort", "wait", other(step.EndAbort, 0x106), []step.TaskEnd{terminated(0), terminated(1)},
			step.Cancelled, 6, `node "n1" has ended the step: it went wrong`},
		{"too late", "wait", other(step.EndBadExit, 0), []step.TaskEnd{{LocalID: 0}, {LocalID: 1}}, step.Completed, 0, ""},
		{"during the launch", "user_init", other(step.EndFailure, 0), nil,
			step.Cancelled, 1, `node "n1" has ended the step: it went wrong`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, n := newNodeRig(t)
			r.during[tt.call] = func() { r.st.EndedBy(tt.e); r.st.EndedBy(tt.e) }
			r.ends = tt.ends
			rec := r.run(t)
			if rec.State != tt.state || *rec.ExitCode != tt.code || rec.Reason != tt.reason {
				t.Errorf("%s, %d, %q; want %s, %d, %q", rec.State, *rec.ExitCode, rec.Reason, tt.state, tt.code, tt.reason)
			}
			if told := rec.EndedBy != nil; told != (tt.reason != "") || told && rec.EndedBy.Name != "n1" {
				t.Errorf("ended by %+v", rec.EndedBy)
			}
			if tt.call == "wait" && tt.reason != "" && !slices.Contains(r.calls, "signal SIGTERM") {
				t.Errorf("the tasks heard nothing: %v", r.calls)
			}
			if len(n.ends) > 0 {
				t.Errorf("told the others, who know: %+v", n.ends)
			}
		})
	}
}

// A node that is gone ends the step on the rest, who are told.
func TestNodeLost(t *testing.T) {
	r, n := newNodeRig(t)
	r.during["wait"] = func() { r.st.NodeLost(0, errors.New("connection reset by peer")) }
	r.ends = []step.TaskEnd{terminated(0), terminated(1)}
	rec := r.run(t)
	want := `node "n1" is lost: connection reset by peer`
	if rec.State != step.Cancelled || *rec.ExitCode != 143 || rec.Reason != want || rec.EndedBy == nil || rec.EndedBy.Why != step.EndLost {
		t.Errorf("%s, %d, %q, by %+v", rec.State, *rec.ExitCode, rec.Reason, rec.EndedBy)
	}
	if len(n.ends) != 1 || n.ends[0].Node != 0 || n.ends[0].Name != "n1" || n.ends[0].Why != step.EndLost {
		t.Errorf("told %+v", n.ends)
	}
	if !slices.Contains(r.said, "stepd-n2: error: "+want) {
		t.Errorf("the user was told %q", r.said)
	}
}

// With --no-kill a step that runs goes on without the node, and names it; one that is
// being launched ends.
func TestNodeLostNoKill(t *testing.T) {
	r, n := newNodeRig(t)
	r.spec.NoKill = true
	r.during["wait"] = func() { r.st.NodeLost(0, errors.New("connection reset by peer")) }
	r.ends = []step.TaskEnd{{LocalID: 0}, {LocalID: 1}}
	rec := r.run(t)
	if rec.State != step.Completed || *rec.ExitCode != 0 || len(rec.LostNodes) != 1 || rec.LostNodes[0].Node != "n1" {
		t.Errorf("%s, %d, lost %v", rec.State, *rec.ExitCode, rec.LostNodes)
	}
	if len(n.ends) > 0 {
		t.Errorf("told %+v", n.ends)
	}
	if !slices.ContainsFunc(r.events, func(e step.Event) bool {
		return e.Event == step.EventNodeLost && strings.Contains(e.Text, `node "n1" is lost`)
	}) {
		t.Error("the event log does not tell of it")
	}
	r, n = newNodeRig(t)
	r.spec.NoKill = true
	r.during["init"] = func() { r.st.NodeLost(0, errors.New("connection reset by peer")) }
	if rec := r.run(t); rec.State != step.Cancelled || len(n.ends) != 1 {
		t.Errorf("lost while it was launched: %s, told %+v", rec.State, n.ends)
	}
}
