package state

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"stepd/node/store"
	"stepd/step"
)

// endOf numbers a job of a user with a record of some size, and ends it.
func endOf(t *testing.T, s *State, uid uint32, size int) (id step.ID, gone []step.ID) {
	t.Helper()
	rec := &step.Record{UID: uid, State: step.Starting, Command: []string{strings.Repeat("x", size)}}
	if _, err := s.NewJobAs(step.ID{}, &Job{UID: uid}, nil, rec); err != nil {
		t.Fatal(err)
	}
	rec.State = step.Cancelled
	gone, err := s.Finish(rec)
	if err = errors.Join(err, s.EndJob(rec.ID.Job)); err != nil {
		t.Fatal(err)
	}
	return rec.ID, gone
}

// TestStateEndedBytes: one user ends young steps of more bytes than are kept. The records that
// are kept, the file and the memory are bounded, and another user's few and older steps stay, also
// over a restart.
func TestStateEndedBytes(t *testing.T) {
	at := newStates(t, 1000)
	const size, steps, most = 16 << 10, 300, 1 << 20
	s := at.open()
	s.ended.most = most
	var kept []step.ID
	for range 3 {
		id, _ := endOf(t, s, 7002, 100)
		kept = append(kept, id)
	}
	before := heap(t)
	forgotten := 0
	for range steps {
		_, gone := endOf(t, s, 7001, size)
		forgotten += len(gone)
	}
	if least := steps - most/size; forgotten < least || forgotten > least+10 {
		t.Errorf("%d of %d steps are forgotten, want %d or a few more", forgotten, steps, least)
	}
	for range 2 {
		for _, id := range kept {
			if _, err := s.Step(id); err != nil {
				t.Errorf("another user's step: %v", err)
			}
		}
		if n := len(s.IDs(0)); n != len(kept)+steps-forgotten {
			t.Errorf("%d steps are kept, want %d", n, len(kept)+steps-forgotten)
		}
		s = at.reopen(s, "boot")
	}
	if now := heap(t); now > before+(1<<20) {
		t.Errorf("the heap has grown from %d to %d bytes", before, now)
	}
	if info, err := os.Stat(filepath.Join(at.cfg.Run, "volatile.journal")); err != nil || info.Size() > 3*most {
		t.Errorf("the journal has %d bytes, %v", info.Size(), err)
	}
}

// TestStateEndedShare: beyond KeepSteps the oldest steps of the user with the most go.
func TestStateEndedShare(t *testing.T) {
	at := newStates(t, 10)
	at.cfg.KeepAge = time.Nanosecond
	s := at.open()
	few, _ := endOf(t, s, 7002, 100)
	for range 30 {
		if _, gone := endOf(t, s, 7001, 100); len(gone) > 1 || len(gone) == 1 && gone[0] == few {
			t.Errorf("forgot %v", gone)
		}
	}
	if n := len(s.IDs(0)); n != 10 {
		t.Errorf("%d steps are kept, want 10", n)
	}
}

// TestForgetBehindHeaviest: where the step of the user with the most bytes is too young to go, the
// others' old steps go, and then the young ones of a user with more than an equal share.
func TestForgetBehindHeaviest(t *testing.T) {
	const now, age = 100 * time.Hour, time.Hour
	e := ended{most: 1000}
	add := func(uid uint32, n int, up time.Duration, bytes int64) {
		for i := range n {
			e.add(uid, endedStep{step.ID{Job: uid, Step: uint32(i)}, up, bytes})
		}
	}
	add(1, 1, now, 400)
	add(2, 5, 0, 10)
	add(3, 4, now, 10)
	if gone := e.forget(now, age, 5); len(gone) != 5 || gone[0].Job != 2 || e.byUser[3] == nil {
		t.Errorf("beyond the number of steps %v are forgotten, want user 2's", gone)
	}
	add(1, 1, now, 900)
	add(2, 12, now, 50)
	if gone := e.forget(now, age, 100); len(gone) != 7 || gone[0].Job != 1 || gone[6].Job != 2 || len(e.byUser[3].steps) != 4 {
		t.Errorf("beyond the bytes %v are forgotten, want the first of user 1 and six of user 2", gone)
	}
}

// TestStateEndedLogs: event logs count, also over a restart: a user whose steps have huge ones keeps
// few steps, and takes none from others.
func TestStateEndedLogs(t *testing.T) {
	at := newStates(t, 1000)
	const logs = 16 << 20
	few := step.ID{}
	at.cfg.LogSize = func(id step.ID) int64 {
		if id == few {
			return 1 << 10
		}
		return logs
	}
	s := at.open()
	few, _ = endOf(t, s, 7002, 100)
	s.Weigh(few, 7002, 1<<10)
	kept := make(map[step.ID]bool)
	end := func() {
		id, gone := endOf(t, s, 7001, 100)
		s.Weigh(id, 7001, logs)
		kept[id] = true
		for _, id := range gone {
			if !kept[id] {
				t.Errorf("step %s is forgotten", id)
			}
			delete(kept, id)
		}
	}
	for range 40 {
		end()
	}
	if most := keepBytes * logShare / logs; len(kept) > most+1 || len(kept) < most-1 {
		t.Errorf("%d steps are kept, want about %d", len(kept), most)
	}
	s = at.reopen(s, "boot")
	was := len(kept)
	for range 5 {
		end()
	}
	if len(kept) > was || len(kept) < was-1 {
		t.Errorf("%d steps are kept after a restart, and %d before", len(kept), was)
	}
}

// TestStateEndedOlder: the record of an end that an older noded has written names no user.
func TestStateEndedOlder(t *testing.T) {
	at := newStates(t, 1)
	at.cfg.KeepAge = time.Nanosecond
	s := at.open()
	first, _ := endOf(t, s, 7002, 1000)
	older := func(tx *store.Tx) error { return tx.Put(kindEnded, stepKey(first), Uptime{"boot", 1}) }
	if err := s.all.Record(older); err != nil {
		t.Fatal(err)
	}
	s = at.reopen(s, "boot")
	if of := s.ended.byUser[7002]; of == nil || of.steps[0].id != first {
		t.Errorf("the ended steps are %+v", s.ended.byUser)
	}
	if recs, err := s.Unended(); err != nil || len(recs) != 0 {
		t.Errorf("%v have not ended, %v", recs, err)
	}
	if _, gone := endOf(t, s, 7001, 100); len(gone) != 1 {
		t.Errorf("forgot %v, want one", gone)
	}
}

// heap is what is live of it, in bytes.
func heap(t *testing.T) uint64 {
	t.Helper()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
