package state

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stepd/node/store"
	"stepd/step"
)

// TestShownNumbers: numbers go on above the jobs of which there are files, and where the state
// does not know these it has lost them; a job that is taken back goes on above its steps.
func TestShownNumbers(t *testing.T) {
	at := newStates(t, 1000)
	st := at.open()
	for range 3 {
		if _, err := st.NewJobAs(step.ID{}, &Job{}, nil, &step.Record{State: step.Starting}); err != nil {
			t.Fatal(err)
		}
	}
	damage := func(st *State) (string, []string) {
		t.Helper()
		why, keys, err := st.Damage()
		if err != nil {
			t.Fatal(err)
		}
		return why, keys
	}
	at.cfg.Shown = map[uint32]uint32{3: 1, 2: 7}
	st = at.reopen(st, at.cfg.Boot)
	if why, _ := damage(st); why != "" {
		t.Errorf("nothing is lost, and the damage is %q", why)
	}
	at.cfg.Shown = map[uint32]uint32{3: 1, 41: 0, 40: 3}
	at.cfg.Boot = "another boot"
	if err := errors.Join(st.Close(), os.Remove(filepath.Join(at.cfg.Spool, store.DurableName)), os.Remove(filepath.Join(at.cfg.Run, "volatile.journal"))); err != nil {
		t.Fatal(err)
	}
	st = at.open()
	why, keys := damage(st)
	if !strings.Contains(why, "is gone, or a part of it: there are files of jobs that it does not know: 3, 40, 41") {
		t.Errorf("the damage is %q", why)
	}
	if err := st.SettleDamage(keys); err != nil {
		t.Fatal(err)
	}
	if err := st.Restore(&step.Record{ID: step.ID{Job: 40, Step: 1}, State: step.Running}, 0); err != nil {
		t.Fatal(err)
	}
	rec := step.Record{State: step.Starting}
	if err := st.NewStepAs(step.ID{}, 40, &rec); err != nil || rec.ID.Step != 3 {
		t.Errorf("the next step of job 40 is %s, %v", rec.ID, err)
	}
	job := Job{}
	if _, err := st.NewJobAs(step.ID{}, &job, nil, nil); err != nil || job.ID != 42 {
		t.Errorf("the next job is %d, %v", job.ID, err)
	}
	st = at.reopen(st, "another boot")
	if why, _ := damage(st); why != "" {
		t.Errorf("the damage is settled, and it is %q", why)
	}
}
