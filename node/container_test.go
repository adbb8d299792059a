package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/step"
	"stepd/step/launch"
)

// dirTracker is a fakeTracker that has a directory for every step.
type dirTracker struct {
	*fakeTracker
	dir string
}

func (t dirTracker) MakeStep(step.ID, []string) (StepPlace, error) { return StepPlace{Dir: t.dir}, nil }

// TestContainerCalls: the job container plugin is called as its interface says (seeds: job
// container plugin API), over a reload too, and for processes that no step has started.
func TestContainerCalls(t *testing.T) {
	place := t.TempDir()
	s := newScripted(t, "", "", func(c *Config) {
		c.ContainerType, c.Tracker = "recording", dirTracker{&fakeTracker{ended: map[step.ID]int{}}, place}
	})
	uid := uint32(os.Getuid())
	id := s.run(uid, request("wait"))
	stepd := s.until(id, step.Running).StepdPID
	c := newClient(t, uid)
	adopted, err := launcher{s.Node}.Adopt(as(0), api.Peer{PID: int32(os.Getpid())}, &api.AdoptRequest{PID: c.cmd.Process.Pid, JobID: id.Job})
	if err != nil {
		t.Fatal(err)
	}
	extern := s.until(step.ID{Job: id.Job, Step: adopted.StepID}, step.Running).StepdPID
	var st unix.Stat_t
	if err := unix.Stat(place, &st); err != nil {
		t.Fatal(err)
	}
	before := s.containers
	s.restart()
	s.until(id, step.Running)
	if _, err := s.svc.Cancel(as(uid), &api.CancelRequest{StepRef: ref(id)}); err != nil {
		t.Fatal(err)
	}
	s.idle()
	after := s.containers
	s.stop()
	pid := func(pid int, uid uint32) string { return fmt.Sprintf("add_pid 1: %d of %d", pid, uid) }
	cont := fmt.Sprintf("add_cont 1: %d", st.Ino)
	const plugins, script = "add_pid 1: stepd spank", "add_pid 1: prolog or epilog"
	program := regexp.MustCompile(`^add_pid 1: \d+ of 0$`)
	for _, tc := range []struct {
		c    *fakeContainers
		want []string
	}{
		{before, []string{
			"restore []", fmt.Sprintf("create 1 for %d", uid), plugins, script, pid(stepd, uid), cont,
			fmt.Sprintf("create 1 for %d", uid), pid(extern, uid), cont, pid(c.cmd.Process.Pid, uid), "fini",
		}},
		{after, []string{"restore [1]", pid(stepd, uid), cont, pid(extern, uid), cont, plugins, script, "delete 1", "fini"}},
	} {
		tc.c.mu.Lock()
		calls := slices.Clone(tc.c.calls)
		tc.c.mu.Unlock()
		for i := range min(len(calls), len(tc.want)) {
			if (tc.want[i] == plugins || tc.want[i] == script) && program.MatchString(calls[i]) {
				calls[i] = tc.want[i]
			}
		}
		if tc.c == after && len(calls) > 5 { // of two steps, in any order
			slices.Sort(calls[1:5])
			slices.Sort(tc.want[1:5])
		}
		if !slices.Equal(calls, tc.want) {
			t.Errorf("calls %q\nwant  %q", calls, tc.want)
		}
	}
}

// TestContainerFault: a failure that would be every job's drains the node, at its start and
// with the job that finds it, until containers can be made; another one does not. The job that finds
// it is refused, and nothing of it is kept, unless it is a batch job, which was accepted.
func TestContainerFault(t *testing.T) {
	fault := &launch.FaultError{Err: errors.New("no BasePath")}
	t.Run("of every job", func(t *testing.T) {
		tn := start(t, t.TempDir(), func(c *Config) { c.Containers.(*fakeContainers).fail = fmt.Errorf("create: %w", fault) })
		if _, err := tn.svc.Run(as(1000), runRequest(request("exit"))); api.CodeOf(err) != api.Internal {
			t.Errorf("Run: %v", err)
		}
		if d := tn.gate.DrainNow(); !d.Drained || d.Reason != "no BasePath" {
			t.Errorf("the drain is %+v", d)
		}
		if _, err := tn.svc.Run(as(1000), runRequest(request("exit"))); api.CodeOf(err) != api.FailedPrecondition {
			t.Errorf("Run on the drained node: %v", err)
		}
		keeps(t, tn)
		mended(t, tn)
	})
	t.Run("before a prolog", func(t *testing.T) {
		s := newScripted(t, "", "", func(c *Config) { c.Containers.(*fakeContainers).fail = fmt.Errorf("create: %w", fault) })
		if _, err := s.svc.Run(as(1000), runRequest(request("exit"))); api.CodeOf(err) != api.Internal || !strings.Contains(err.Error(), "no BasePath") {
			t.Errorf("Run: %v", err)
		}
		s.idle()
		keeps(t, s.testNode)
	})
	t.Run("of a reservation", func(t *testing.T) {
		tn := start(t, t.TempDir(), func(c *Config) { c.Containers.(*fakeContainers).fail = fmt.Errorf("create: %w", fault) })
		defer tn.stop()
		c := newClient(t, 1000)
		if err := tn.launch(c.ctx, tn.reserve(c, request("exit")), step.LaunchChange{}); api.CodeOf(err) != api.Internal {
			t.Errorf("Launch: %v", err)
		}
		keeps(t, tn)
	})
	t.Run("of a job without room", func(t *testing.T) {
		tn := start(t, t.TempDir(), func(c *Config) { c.Containers.(*fakeContainers).fail = fmt.Errorf("create: %w", unix.ENOSPC) })
		defer tn.stop()
		if _, err := tn.svc.Run(as(1000), runRequest(request("exit"))); err == nil || tn.gate.DrainNow().Drained {
			t.Errorf("Run: %v, the drain is %+v", err, tn.gate.DrainNow())
		}
		keeps(t, tn)
	})
	t.Run("of a batch job", func(t *testing.T) {
		tn := start(t, t.TempDir(), func(c *Config) { c.Containers.(*fakeContainers).fail = fmt.Errorf("create: %w", fault) })
		defer tn.stop()
		if rec := tn.wait(tn.batch("script")); rec.State != step.Failed || rec.Reason != "create: no BasePath" {
			t.Errorf("the record is %s, %q", rec.State, rec.Reason)
		}
	})
	t.Run("of one job", func(t *testing.T) {
		tn := start(t, t.TempDir(), func(c *Config) { c.Containers.(*fakeContainers).fail = errors.New("its script fails") })
		defer tn.stop()
		if _, err := tn.svc.Run(as(1000), runRequest(request("exit"))); err == nil || tn.gate.DrainNow().Drained {
			t.Errorf("Run: %v, the drain is %+v", err, tn.gate.DrainNow())
		}
		keeps(t, tn, "its script fails")
	})
	t.Run("at the start", func(t *testing.T) {
		dir := t.TempDir()
		for range 2 { // the second time it is drained already
			tn := start(t, dir, func(c *Config) { c.Containers.(*fakeContainers).init = fault })
			if d := tn.gate.DrainNow(); !d.Drained || d.Reason != "no BasePath" {
				t.Errorf("the drain is %+v", d)
			}
			tn.stop()
		}
		mended(t, start(t, dir, func(c *Config) { c.Containers.(*fakeContainers).init = fault }))
	})
}

// keeps fails the test where the node has other records, or event logs, than of steps that have FAILED
// for these reasons.
func keeps(t *testing.T, tn *testNode, reasons ...string) {
	t.Helper()
	recs, err := tn.lists(as(0), true)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, rec := range recs {
		got = append(got, rec.Reason)
		if rec.State != step.Failed {
			t.Errorf("step %s is %s", rec.ID, rec.State)
		}
	}
	logs, err := os.ReadDir(filepath.Join(tn.dir, "spool", "events"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, reasons) || len(logs) != len(reasons) {
		t.Errorf("kept are %q and %d event logs, want %q", got, len(logs), reasons)
	}
}

// mended waits until the node takes jobs by itself, since containers can be made again, and stops it.
func mended(t *testing.T, tn *testNode) {
	t.Helper()
	defer tn.stop()
	tn.containers.mend()
	for deadline := time.Now().Add(testTimeout); tn.gate.DrainNow().Drained; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the drain is %+v", tn.gate.DrainNow())
		}
	}
	if _, err := tn.svc.Run(as(1000), runRequest(request("exit"))); err != nil {
		t.Errorf("Run on the mended node: %v", err)
	}
}
