package node

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"stepd/api"
	"stepd/node/store"
	"stepd/step"
)

// TestRestore: what is known of a job from its steps, in the order of their sockets.
func TestRestore(t *testing.T) {
	s := newStates(t, 1000).open()
	for job, tc := range map[uint32]struct {
		steps []uint32
		want  jobRecord
	}{
		4: {[]uint32{0}, jobRecord{Origin: step.OriginRun, Implicit: true, CPUs: "0", NextStep: 1}},
		5: {[]uint32{1, 2}, jobRecord{Origin: step.OriginRun, CPUs: "1-2", NextStep: 3}},
		6: {[]uint32{3, step.ExternStep}, jobRecord{Origin: step.OriginRun, CPUs: "0-3", NextStep: 4}},
		7: {[]uint32{0, 3, step.BatchStep}, jobRecord{Origin: step.OriginBatch, Implicit: true, CPUs: "0-3", NextStep: 4}},
		8: {[]uint32{step.BatchStep, 5}, jobRecord{Origin: step.OriginBatch, Implicit: true, CPUs: "0-3,5", NextStep: 6}},
	} {
		for _, id := range tc.steps {
			rec := &step.Record{ID: step.ID{Job: job, Step: id}, UID: 1000, CPUs: step.FormatCPUList([]int{int(id % 100)})}
			if id >= step.BatchStep {
				rec.CPUs = "0-3"
			}
			if err := s.restore(rec, 1001); err != nil {
				t.Fatal(err)
			}
		}
		jobs, err := s.jobs()
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			if j.ID == job && (j.Origin != tc.want.Origin || j.Implicit != tc.want.Implicit || j.CPUs != tc.want.CPUs || j.NextStep != tc.want.NextStep || j.GID != 1001) {
				t.Errorf("job %d: %+v, want %+v", job, j, tc.want)
			}
		}
		if !s.knows(job) {
			t.Errorf("the number %d is not spent", job)
		}
	}
}

// TestStateLost: the steps of an allocation go on, without a step that leads them, until
// the last one ends.
func TestStateLost(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	c := newClient(t, 1000)
	job, err := tn.alloc(c, func(r *step.Request) { r.NTasks = 3 })
	if err != nil {
		t.Fatal(err)
	}
	tn.wait(tn.stepOf(job, 1000, "exit", "0"))
	a, b := tn.stepOf(job, 1000, "wait"), tn.stepOf(job, 1000, "wait")
	tn.until(a, step.Running)
	tn.until(b, step.Running)
	tn.stop()
	if err := errors.Join(os.Remove(filepath.Join(tn.files.run, "volatile.journal")), os.Remove(filepath.Join(tn.files.spool, store.DurableName))); err != nil {
		t.Fatal(err)
	}
	tn = start(t, dir, nil)
	t.Cleanup(func() { tn.stop() })
	if _, err := tn.svc.Cancel(as(0), &api.CancelRequest{StepRef: ref(a)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(a)
	if rec := tn.until(b, step.Running); rec.StepdPID == 0 || tn.reg.job(job) == nil {
		t.Errorf("the other one: %+v", rec)
	}
	if _, err := tn.svc.Cancel(as(0), &api.CancelRequest{StepRef: ref(b)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(b)
	tn.idle()
}
