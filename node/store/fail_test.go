package store

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDiskErrors: what a journal cannot take is refused with its path and what to do, leaves
// nothing behind, and the next is stored when it can be.
func TestDiskErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		fail func(op string, n int) (int, error)
		want string
	}{
		{"full", func(op string, n int) (int, error) {
			if op == "write" {
				return n / 2, unix.ENOSPC
			}
			return n, nil
		}, `cannot write "/spool/durable.journal": no space left on device: make room on its file system`},
		{"full, and not to be cut", func(op string, n int) (int, error) {
			if op == "write" || op == "truncate" {
				return n - 1, unix.ENOSPC
			}
			return n, nil
		}, `no space left on device`},
		{"read-only", func(op string, n int) (int, error) {
			if op != "read" && op != "close" {
				return 0, unix.EROFS
			}
			return n, nil
		}, `mounted read-only`},
		{"sync", func(op string, n int) (int, error) {
			if op == "sync" {
				return 0, unix.EIO
			}
			return n, nil
		}, `cannot write "/spool/durable.journal": input/output error: its disk or file system is failing`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig()
			s := r.mustOpen(t)
			put(t, s, "batch", "1", "before")
			r.spool.setFail(c.fail)
			err := s.Update(func(tx *Tx) error { return tx.Put("batch", "2", "refused") })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("the error is %v, not %q", err, c.want)
			}
			put(t, s, "step", "1.0", "runs on")
			if err := s.Check(); err == nil {
				t.Error("all is well")
			}
			err = s.Record(func(tx *Tx) error { return tx.Put("batch", "1", "ended") })
			if err == nil {
				t.Error("the end is stored")
			}
			want(t, s, "batch", "1", "ended")
			want(t, s, "batch", "2", nil)
			// The process may be killed now: the volatile journal has what has happened.
			killed := r.afterKill().mustOpen(t)
			want(t, killed, "batch", "1", "ended")
			want(t, killed, "batch", "2", nil)
			r.spool.setFail(nil)
			again := func() error { return s.Update(func(tx *Tx) error { return tx.Put("batch", "3", "after") }) }
			if err := again(); err != nil { // it was refused with a write that had begun before
				if err := again(); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Check(); err != nil {
				t.Errorf("after it: %v", err)
			}
			for _, s := range []*Store{s, r.afterKill().mustOpen(t), r.afterKill().rebooted().mustOpen(t)} {
				want(t, s, "batch", "1", "ended")
				want(t, s, "batch", "2", nil)
				want(t, s, "batch", "3", "after")
				noDamage(t, s)
			}
		})
	}
}

// TestCompactionFull: a disk without room for a journal's copy takes further lines, and the
// copy when it has room.
func TestCompactionFull(t *testing.T) {
	r := newRig()
	s := r.mustOpen(t)
	long := strings.Repeat("x", 20_000)
	fill := func() {
		t.Helper()
		for i := range 2 * compactMin / len(long) {
			put(t, s, "batch", "1", fmt.Sprint(i, long))
			put(t, s, "batch", fmt.Sprint(i), long)
		}
		for i := range 2 * compactMin / len(long) {
			if err := s.Update(func(tx *Tx) error { tx.Delete("batch", fmt.Sprint(i)); return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(t, s, "batch", "kept", long)
	put(t, s, "batch", "kept-too", long)
	full := errors.New("as many bytes have no room")
	tried := false
	r.spool.setFail(func(op string, n int) (int, error) {
		if op == "write" && n > 2*len(long) {
			tried = true
			return n / 2, full
		}
		return n, nil
	})
	fill()
	if !tried || len(r.spool.get(DurableName+".new")) > 0 || len(r.spool.get(DurableName)) < 2*compactMin {
		t.Errorf("tried %v, the copy has %d bytes and the journal %d", tried, len(r.spool.get(DurableName+".new")), len(r.spool.get(DurableName)))
	}
	r.spool.setFail(nil)
	fill()
	fill()
	if n := len(r.spool.get(DurableName)); n > 2*compactMin {
		t.Errorf("the journal has %d bytes", n)
	}
	for _, s := range []*Store{s, r.afterKill().rebooted().mustOpen(t)} {
		want(t, s, "batch", "kept", long)
		noDamage(t, s)
	}
}

// TestEmptied: a directory that is emptied while the store is open gets its journal again
// with the next write, and at the latest when the store is closed.
func TestEmptied(t *testing.T) {
	for _, write := range []bool{true, false} {
		r := newRig()
		s := r.mustOpen(t)
		put(t, s, "batch", "1", "before")
		put(t, s, "step", "1.0", "before")
		for _, d := range []*fakeDisk{r.spool, r.run} {
			d.mu.Lock()
			d.change(func() { clear(d.names) })
			d.mu.Unlock()
		}
		next := r.afterKill
		if write {
			put(t, s, "batch", "2", "after")
		} else if err := s.Close(); err != nil {
			t.Error(err)
		}
		for _, s := range []*Store{next().mustOpen(t), next().rebooted().mustOpen(t)} {
			want(t, s, "batch", "1", "before")
			noDamage(t, s)
		}
		want(t, next().mustOpen(t), "step", "1.0", "before")
	}
}

// TestRunFull: what has happened is true though the run directory has no room, and stored
// when it has.
func TestRunFull(t *testing.T) {
	r := newRig()
	s := r.mustOpen(t)
	put(t, s, "step", "1.0", "running")
	r.run.setFail(func(op string, n int) (int, error) {
		if op == "write" {
			return 3, unix.ENOSPC
		}
		return n, nil
	})
	if err := s.Update(func(tx *Tx) error { return tx.Put("step", "2.0", "running") }); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), `"/run/volatile.journal"`) {
		t.Errorf("a request: %v", err)
	}
	if err := s.Record(func(tx *Tx) error { return tx.Put("step", "1.0", "ended") }); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("an end: %v", err)
	}
	put(t, s, "batch", "1", "durable")
	want(t, s, "step", "1.0", "ended")
	want(t, s, "step", "2.0", nil)
	want(t, s, "batch", "1", "durable")
	r.run.setFail(nil)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = r.mustOpen(t)
	want(t, s, "step", "1.0", "ended")
	want(t, s, "step", "2.0", nil)
	want(t, s, "batch", "1", "durable")
	noDamage(t, s)
}

// TestSilent: the spool does not answer.
func TestSilent(t *testing.T) {
	r := newRig()
	r.cfg.Deadline = 300 * time.Millisecond
	said := make(chan error, 10)
	r.cfg.Silent = func(err error) { said <- err }
	s := r.mustOpen(t)
	put(t, s, "batch", "1", "before")
	put(t, s, "batch", "2", "before")
	end := r.spool.stop()
	began := time.Now()
	results := make(chan error, 2)
	for _, key := range []string{"3", "4"} { // the one is being written, the other is in the queue
		go func() {
			results <- s.Update(func(tx *Tx) error {
				tx.Delete("batch", "2")
				return tx.Put("batch", key, "refused")
			})
		}()
	}
	for range 2 {
		if err := <-results; !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), `cannot write "/spool/durable.journal": its file system has not answered for`) {
			t.Errorf("a request: %v", err)
		}
	}
	if took := time.Since(began); took < r.cfg.Deadline {
		t.Errorf("it was waited for for %v", took)
	}
	if err := <-said; !errors.Is(err, ErrSilent) {
		t.Errorf("said is %v", err)
	}
	began = time.Now()
	if err := s.Update(func(tx *Tx) error { return tx.Put("batch", "5", "refused") }); !errors.Is(err, ErrSilent) {
		t.Errorf("a further request: %v", err)
	}
	if err := s.Record(func(tx *Tx) error { return tx.Put("batch", "1", "ended") }); !errors.Is(err, ErrSilent) {
		t.Errorf("an end: %v", err)
	}
	if took := time.Since(began); took > r.cfg.Deadline {
		t.Errorf("later ones took %v", took)
	}
	put(t, s, "step", "7.0", "goes on")
	if s.Silence() == nil || s.Check() == nil {
		t.Error("all is well")
	}
	check := func(s *Store) {
		t.Helper()
		want(t, s, "step", "7.0", "goes on")
		want(t, s, "batch", "1", "ended")
		want(t, s, "batch", "2", "before")
		for _, key := range []string{"3", "4", "5"} {
			want(t, s, "batch", key, nil)
		}
		noDamage(t, s)
	}
	check(s)
	// This process is killed, whether or not the spool has got the request.
	killed := r.afterKill()
	check(killed.mustOpen(t))
	end()
	for s.Silence() != nil {
		runtime.Gosched()
	}
	put(t, s, "batch", "6", "after")
	check(s)
	if err := s.Silence(); err != nil {
		t.Errorf("after it: %v", err)
	}
	if err := <-said; err != nil {
		t.Errorf("it was said again: %v", err)
	}
	got := r.afterKill() // the request was written after all
	check(got.mustOpen(t))
	rebooted := r.afterKill().rebooted().mustOpen(t)
	want(t, rebooted, "batch", "1", "ended")
	want(t, rebooted, "batch", "2", "before")
	want(t, rebooted, "batch", "3", nil)
	want(t, rebooted, "batch", "6", "after")
}

// TestTakenBack: the spool has stored a request that was refused, and noded is killed before
// it takes that back there.
func TestTakenBack(t *testing.T) {
	r := newRig()
	r.cfg.Deadline = 300 * time.Millisecond
	s := r.mustOpen(t)
	before := r.afterKill()
	put(t, s, "batch", "1", "accepted")
	stored := r.spool.copy() // with it
	s.Close()

	r = before
	s = r.mustOpen(t)
	end := r.spool.stop()
	if err := s.Update(func(tx *Tx) error { return tx.Put("batch", "1", "accepted") }); !errors.Is(err, ErrSilent) {
		t.Fatalf("it was not refused: %v", err)
	}
	next := *r
	next.spool, next.run = stored, r.run.copy()
	got := next.mustOpen(t)
	want(t, got, "batch", "1", nil)
	got.Close()
	want(t, next.rebooted().mustOpen(t), "batch", "1", nil)
	end()
}

// TestSilentOpen: neither opening nor closing waits longer than the deadline.
func TestSilentOpen(t *testing.T) {
	r := newRig()
	r.cfg.Deadline = 300 * time.Millisecond
	s := r.mustOpen(t)
	for path, disk := range map[string]func(*rig) *fakeDisk{
		"/spool/durable.journal": func(r *rig) *fakeDisk { return r.spool },
		"/run/volatile.journal":  func(r *rig) *fakeDisk { return r.run },
	} {
		next := r.afterKill()
		end := disk(next).stop()
		if _, err := next.open(); !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), fmt.Sprintf("cannot open state %q", path)) {
			t.Errorf("opening: %v", err)
		}
		end()
	}
	end := r.spool.stop()
	err := s.Record(func(tx *Tx) error { return tx.Put("batch", "1", "ended") })
	if !errors.Is(err, ErrSilent) {
		t.Errorf("an end: %v", err)
	}
	if err := s.Close(); !errors.Is(err, ErrSilent) {
		t.Errorf("closing: %v", err)
	}
	next := *r
	next.spool, next.run = newDisk(), r.run.copy() // the one that was hung does not answer a copy either
	got := next.mustOpen(t)
	want(t, got, "batch", "1", "ended")
	end()
}

// TestRunSilent: a run directory that lies on a disk does not answer. That is waited for once.
func TestRunSilent(t *testing.T) {
	r := newRig()
	r.cfg.Deadline = 300 * time.Millisecond
	s := r.mustOpen(t)
	end := r.run.stop()
	ended := func(tx *Tx) error { return tx.Put("step", "1.0", "ended") }
	if err := s.Record(ended); !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), `"/run/volatile.journal"`) {
		t.Errorf("an end: %v", err)
	}
	began := time.Now()
	for _, kind := range []string{"step", "batch"} {
		if err := s.Update(func(tx *Tx) error { return tx.Put(kind, "2.0", "refused") }); !errors.Is(err, ErrSilent) {
			t.Errorf("a request: %v", err)
		}
	}
	if err := s.Record(ended); !errors.Is(err, ErrSilent) || s.Silence() == nil {
		t.Errorf("another end: %v", err)
	}
	if took := time.Since(began); took > r.cfg.Deadline {
		t.Errorf("later ones took %v", took)
	}
	end()
	s.Close()
	s = r.mustOpen(t)
	want(t, s, "step", "1.0", "ended")
	want(t, s, "batch", "2.0", nil)
}

// TestOpenFull: a store is opened on a full disk, where it has a durable journal and where it has
// none; it has all that it had, through copies of the volatile journal too, and stores what has
// happened as soon as there is room.
func TestOpenFull(t *testing.T) {
	for name, before := range map[string]bool{"with a journal": true, "without one": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig()
			if before {
				s := r.mustOpen(t)
				put(t, s, "batch", "1", "before")
				put(t, s, "batch", "2", "before")
				r = r.afterKill().rebooted()
			}
			r.spool.setFail(func(op string, n int) (int, error) {
				if op == "write" {
					return 0, unix.ENOSPC
				}
				return n, nil
			})
			s := r.mustOpen(t)
			if err := s.Check(); err == nil || !strings.Contains(err.Error(), "no space left on device: make room") {
				t.Errorf("a full disk: %v", err)
			}
			if err := s.Update(func(tx *Tx) error { return tx.Put("batch", "3", "refused") }); err == nil {
				t.Error("a request is stored")
			}
			if err := s.Record(func(tx *Tx) error { return tx.Put("batch", "1", "ended") }); err == nil {
				t.Error("an end is stored")
			}
			long := strings.Repeat("x", 20_000)
			for range 4 * compactMin / len(long) { // the volatile journal is written anew meanwhile
				put(t, s, "step", "1.0", long)
			}
			r.spool.setFail(nil)
			deadline := time.Now().Add(10 * time.Second)
			for s.Check() != nil && time.Now().Before(deadline) {
				time.Sleep(10 * time.Millisecond)
			}
			for _, s := range []*Store{s, r.afterKill().mustOpen(t), r.afterKill().rebooted().mustOpen(t)} {
				if err := s.Check(); err != nil {
					t.Error(err)
				}
				want(t, s, "batch", "1", "ended")
				if before {
					want(t, s, "batch", "2", "before")
				}
				want(t, s, "batch", "3", nil)
				noDamage(t, s)
			}
		})
	}
}
