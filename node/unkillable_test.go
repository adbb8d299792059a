package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"stepd/node/scripts"
	"stepd/step"
	"stepd/step/launch"
)

// stuckTracker has a process in each step's place that dies when die is closed.
type stuckTracker struct {
	*fakeTracker
	die <-chan struct{}
}

func (t stuckTracker) EndStep(ctx context.Context, rec *step.Record) error {
	if err := t.fakeTracker.EndStep(ctx, rec); err != nil {
		return err
	}
	if rec.ID.Step == scripts.PlaceID || rec.ID.Step == KeeperPlace {
		return nil // prolog and epilog leave nothing
	}
	select {
	case <-t.die:
		return nil
	case <-ctx.Done():
		return &launch.SurvivorsError{
			Where: "the step", Total: 1, Cause: context.Cause(ctx),
			Survivors: []step.Survivor{{PID: 99, Comm: "dd", State: "D", Grade: step.GradeDisk, Wchan: "nfs_wait"}},
		}
	}
}

// stuck starts a node with such a tracker.
func stuck(t testing.TB, dir, program string, die <-chan struct{}) *testNode {
	return start(t, dir, func(c *Config) {
		c.Tracker = stuckTracker{c.Tracker.(*fakeTracker), die}
		c.unkillable, c.UnkillableProgram = 30*time.Millisecond, program
	})
}

func (tn *testNode) eventually(what string, check func() bool) {
	tn.t.Helper()
	deadline := time.Now().Add(testTimeout)
	for !check() {
		if time.Now().After(deadline) {
			tn.t.Fatalf("not in time: %s; node %+v", what, tn.doc())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (tn *testNode) undrained() bool { return tn.doc().State == "IDLE" }

// TestUnkillable: what stepd could not kill drains the node, over a restart,
// until it is gone.
func TestUnkillable(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n{ id -u; env; } >>"+out+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	die := make(chan struct{})
	tn := stuck(t, dir, program, die)
	id := tn.run(1000, request("unkillable"))
	rec := tn.wait(id)
	if rec.State != step.Failed || rec.SurvivorsTotal != 1 {
		t.Errorf("record %+v", rec)
	}
	const reason = `Kill task failed: step 1.0: 1 left: pid 4242 "cp" (state D: uninterruptible sleep)`
	d := tn.doc()
	if !strings.HasPrefix(d.State, "DRAIN") || d.Reason != reason || len(d.Unkillable) != 1 || d.Unkillable[0].ID != id || d.Unkillable[0].Processes[0].PID != 4242 {
		t.Errorf("node %+v", d)
	}
	tn.eventually("the end of the job", func() bool { return len(tn.doc().Jobs) == 0 })
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"SLURM_JOB_ID=1\n", "SLURM_STEP_ID=0\n", "SLURM_JOB_UID=1000\n", "STEPD_UNKILLABLE_PIDS=4242\n", "PATH=" + step.SafePath} {
		if strings.Count(string(b), want) != 1 {
			t.Errorf("the program was not run once with %q:\n%s", want, b)
		}
	}
	tn.stop()
	tn = stuck(t, dir, program, die)
	t.Cleanup(func() { tn.stop() })
	if d := tn.doc(); d.State != "DRAINED" || d.Reason != reason || len(d.Unkillable) != 1 {
		t.Errorf("after the restart: %+v", d)
	}
	tn.containers.mu.Lock()
	tn.containers.jobs[id.Job] = true // as of one that could not be removed at the job's end
	tn.containers.mu.Unlock()
	close(die)
	tn.eventually("the end of the drain", tn.undrained)
	tn.eventually("the end of the container", func() bool { return !tn.containers.has(id.Job) })
	if d := tn.doc(); d.Reason != "" || len(d.Unkillable) != 0 {
		t.Errorf("node %+v", d)
	}
	if held, err := tn.store.Held(); err != nil || len(held) != 0 {
		t.Errorf("the store still has %v, %v", held, err)
	}
	tn.wait(tn.run(1000, request("exit", "0")))
}

// A stepd that is dead tells nothing: then noded finds out by itself.
func TestUnkillableWithoutStepd(t *testing.T) {
	die := make(chan struct{})
	tn := stuck(t, t.TempDir(), "", die)
	t.Cleanup(tn.stop)
	rec := tn.wait(tn.run(1000, request("die", "3")))
	if rec.State != step.Failed || rec.SurvivorsTotal != 1 || !strings.Contains(rec.Reason, `pid 99 "dd" (state D: uninterruptible sleep in nfs_wait)`) {
		t.Errorf("record %+v", rec)
	}
	if d := tn.doc(); !strings.HasPrefix(d.State, "DRAIN") || !strings.Contains(d.Reason, `pid 99 "dd"`) {
		t.Errorf("node %+v", d)
	}
	close(die)
	tn.eventually("the end of the drain", tn.undrained)
}
