package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func put(t testing.TB, s *Store, kind, key string, value any) {
	t.Helper()
	if err := s.Update(func(tx *Tx) error { return tx.Put(kind, key, value) }); err != nil {
		t.Fatal(err)
	}
}

// want compares a value with what the store has; nil is none.
func want(t testing.TB, s *Store, kind, key string, value any) {
	t.Helper()
	var got any
	err := s.Get(kind, key, &got)
	if value == nil && errors.Is(err, ErrNotFound) {
		return
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(value) {
		t.Errorf("%s %s is %v (%v), not %v", kind, key, got, err, value)
	}
}

func noDamage(t testing.TB, s *Store) {
	t.Helper()
	if d, err := s.Damage(); err != nil || len(d) > 0 {
		t.Errorf("damage %v, %v", d, err)
	}
}

func TestStore(t *testing.T) {
	r := newRig()
	s := r.mustOpen(t)
	put(t, s, "step", "1.0", "running")
	put(t, s, "batch", "1", map[string]int{"uid": 7})
	put(t, s, "step", "1.0", "ended")
	put(t, s, "step", "2.0", "running")
	err := s.Update(func(tx *Tx) error {
		var was string
		if err := tx.Get("step", "2.0", &was); err != nil || was != "running" {
			t.Errorf("the batch reads %q, %v", was, err)
		}
		tx.Delete("step", "2.0")
		if err := tx.Get("step", "2.0", &was); !errors.Is(err, ErrNotFound) {
			t.Errorf("what the batch has deleted is %q, %v", was, err)
		}
		return tx.Put("batch", "2", 1)
	})
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	if err := s.Update(func(tx *Tx) error { tx.Delete("step", "1.0"); return refused }); err != refused {
		t.Errorf("a refused batch: %v", err)
	}
	check := func(s *Store) {
		t.Helper()
		want(t, s, "step", "1.0", "ended")
		want(t, s, "step", "2.0", nil)
		want(t, s, "batch", "1", map[string]int{"uid": 7})
		want(t, s, "batch", "2", 1)
		if keys := s.Keys("step", "1."); !slices.Equal(keys, []string{"1.0"}) {
			t.Errorf("keys that begin with 1.: %v", keys)
		}
		if keys := s.Keys("step", "2"); len(keys) > 0 {
			t.Errorf("keys of what is deleted: %v", keys)
		}
		keys := s.Keys("batch", "")
		slices.Sort(keys)
		if !slices.Equal(keys, []string{"1", "2"}) || !slices.Equal(s.Keys("step", ""), []string{"1.0"}) {
			t.Errorf("keys %v, %v", keys, s.Keys("step", ""))
		}
		noDamage(t, s)
	}
	check(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(func(tx *Tx) error { return tx.Put("a", "b", 1) }); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed store: %v", err)
	}
	s = r.mustOpen(t)
	check(s)
	s.Close()

	lost := *r // the spool was emptied while noded did not run
	lost.spool = newDisk()
	s = lost.mustOpen(t)
	check(s)
	s.Close()

	s = r.rebooted().mustOpen(t)
	want(t, s, "step", "1.0", nil)
	want(t, s, "batch", "1", map[string]int{"uid": 7})
	want(t, s, "batch", "2", 1)
}

// TestBadNames: what would break a line, or a replay, is refused.
func TestBadNames(t *testing.T) {
	s := newRig().mustOpen(t)
	for _, k := range []id{{"", "a"}, {"a", ""}, {"a b", "c"}, {"a", "b\nc"}, {"a", "b\tc"}, {"a", strings.Repeat("x", 300)}, {"ä", "b"}} {
		if err := s.Update(func(tx *Tx) error { return tx.Put(k.kind, k.key, 1) }); err == nil {
			t.Errorf("%q is stored", k)
		}
	}
	put(t, s, "step", "1.0", "tab\t newline\n null\x00  <>&")
	want(t, s, "step", "1.0", "tab\t newline\n null\x00  <>&")
}

// TestUnknownKinds: what a later release has stored is kept, also where it is durable.
func TestUnknownKinds(t *testing.T) {
	later := newRig()
	later.cfg.Durable = append(later.cfg.Durable, "novelty")
	s := later.mustOpen(t)
	put(t, s, "novelty", "1", "durable")
	put(t, s, "fashion", "1", "volatile")
	s.Close()
	ours := *later
	ours.cfg.Durable = []string{"batch"}
	s = ours.mustOpen(t)
	want(t, s, "fashion", "1", "volatile")
	s.Close()
	s = ours.rebooted().mustOpen(t)
	want(t, s, "novelty", "1", "durable")
}

func TestLaterFormat(t *testing.T) {
	r := newRig()
	r.spool.set(DurableName, appendLine(nil, 0, 0, []record{{id: headerID, value: []byte(`{"version":2}`)}}))
	if _, err := r.open(); err == nil || !strings.Contains(err.Error(), `"/spool/durable.journal": it is a later release's`) {
		t.Errorf("a later format: %v", err)
	}
}

// TestOnDisk has the real files: theirs alone, beneath their directories, in lines.
func TestOnDisk(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Spool: filepath.Join(dir, "spool"), Run: filepath.Join(dir, "run"), Durable: []string{"batch"}, Boot: "b"}
	for _, d := range []string{cfg.Spool, cfg.Run} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		s, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Update(func(tx *Tx) error {
			last, err := tx.Last("job")
			return errors.Join(err, tx.Spend("job", last+1), tx.Put("batch", fmt.Sprint(last+1), "x"))
		})
		if err != nil {
			t.Fatal(err)
		}
		want(t, s, "batch", "1", "x")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{filepath.Join(cfg.Spool, DurableName), filepath.Join(cfg.Run, volatileName)} {
		st, err := os.Stat(path)
		if err != nil || st.Mode() != 0o600 {
			t.Errorf("%v, %v", st, err)
		}
		text, _ := os.ReadFile(path)
		if !strings.Contains(string(text), `batch 3 "x"`) || strings.Count(string(text), "\n") < 5 {
			t.Errorf("%s has\n%s", path, text)
		}
	}
	path := filepath.Join(cfg.Run, volatileName)
	if err := errors.Join(os.Rename(path, dir+"/moved"), os.Symlink(dir+"/moved", path)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(cfg); !errors.Is(err, unix.ELOOP) || !strings.Contains(err.Error(), path) {
		t.Errorf("a link in its place: %v", err)
	}
}

// TestTogether: callers do not wait for one another's writes one by one.
func TestTogether(t *testing.T) {
	r := newRig()
	s := r.mustOpen(t)
	syncs := 0
	r.spool.setFail(func(op string, n int) (int, error) {
		if op == "sync" {
			syncs++
			time.Sleep(time.Millisecond) // the disk's time
		}
		return n, nil
	})
	const callers, each = 50, 20
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				put(t, s, "batch", fmt.Sprintf("%d.%d", c, i), i)
			}
		})
	}
	wg.Wait()
	s.Close()
	if syncs > callers*each/5 {
		t.Errorf("%d syncs for %d batches", syncs, callers*each)
	}
	s = r.rebooted().mustOpen(t)
	if n := len(s.Keys("batch", "")); n != callers*each {
		t.Errorf("%d of %d are there", n, callers*each)
	}
}

// TestCompaction: a journal that is changed for ever does not grow for ever, and is read
// meanwhile.
func TestCompaction(t *testing.T) {
	r := newRig()
	s := r.mustOpen(t)
	long := strings.Repeat("x", 2000)
	put(t, s, "step", "kept", "as it was")
	put(t, s, "batch", "kept", "as it was")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				want(t, s, "step", "kept", "as it was")
			}
		}
	}()
	for i := range 1200 {
		err := s.Update(func(tx *Tx) error {
			tx.Delete("step", fmt.Sprint(i-1))
			tx.Delete("batch", fmt.Sprint(i-1))
			return errors.Join(tx.Put("step", fmt.Sprint(i), long), tx.Put("batch", fmt.Sprint(i), long))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	<-stopped
	for _, file := range [][]byte{r.spool.get(DurableName), r.run.get(volatileName)} {
		if len(file) > 2*compactMin {
			t.Errorf("a journal has %d bytes", len(file))
		}
	}
	for _, s := range []*Store{s, r.afterKill().mustOpen(t), r.afterKill().rebooted().mustOpen(t)} {
		want(t, s, "batch", "kept", "as it was")
		want(t, s, "batch", "1199", long)
		if n := len(s.Keys("batch", "")); n != 2 {
			t.Errorf("%d batches are left", n)
		}
		noDamage(t, s)
	}
}

// afterKill is the rig as the next process finds it after this one was killed now.
func (r *rig) afterKill() *rig {
	next := *r
	next.spool, next.run = r.spool.copy(), r.run.copy()
	return &next
}

// spend gives out the next number of a series.
func spend(t testing.TB, s *Store) (n uint64) {
	t.Helper()
	err := s.Update(func(tx *Tx) (err error) {
		n, err = tx.Last("job")
		n++
		return errors.Join(err, tx.Spend("job", n))
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNumbers(t *testing.T) {
	r := newRig()
	s := r.mustOpen(t)
	for n := range uint64(2*numberBlock + 1) {
		if got := spend(t, s); got != n+1 {
			t.Fatalf("number %d is %d", n+1, got)
		}
	}
	const last = 2*numberBlock + 1
	if got := spend(t, r.afterKill().mustOpen(t)); got != last+1 {
		t.Errorf("the next process gives out %d", got)
	}
	if got := spend(t, r.afterKill().rebooted().mustOpen(t)); got != 3*numberBlock+1 {
		t.Errorf("the next boot gives out %d", got)
	}
	next := r.afterKill() // the run directory is on a disk
	next.cfg.Boot = "boot-2"
	if got := spend(t, next.mustOpen(t)); got != 3*numberBlock+1 {
		t.Errorf("the next boot with its run directory gives out %d", got)
	}
	// Others propose numbers.
	if err := s.Update(func(tx *Tx) error { return tx.Spend("job", 100_000) }); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(func(tx *Tx) error { return tx.Spend("job", 100_000) }); err == nil {
		t.Error("a number was given out twice")
	}
	if got := spend(t, s); got != 100_001 {
		t.Errorf("after 100000 comes %d", got)
	}
	if got, err := s.Last("job"); got != 100_001 || err != nil {
		t.Errorf("the last is %d, %v", got, err)
	}
	if got := spend(t, r.afterKill().rebooted().mustOpen(t)); got <= 100_001 {
		t.Errorf("the next boot gives out %d again", got)
	}
}

// numberWaits waits until a batch that gives out a number waits for the disk.
func numberWaits(s *Store) {
	for is := false; !is; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		is = len(s.pending[id{kindNumber, "job"}]) > 0
		s.mu.Unlock()
	}
}

// TestOvertaken: a batch that waits for the disk is not what the next one reads, where another
// has been stored since: a number would be given out twice.
func TestOvertaken(t *testing.T) {
	r := newRig()
	s := r.mustOpen(t)
	next := func(durable string) (number uint64) {
		t.Helper()
		err := s.Update(func(tx *Tx) error {
			last, err := tx.Last("job")
			if err != nil {
				return err
			}
			number = last + 1
			if durable != "" {
				err = tx.Put("batch", durable, number)
			}
			return errors.Join(err, tx.Spend("job", number))
		})
		if err != nil {
			t.Error(err)
		}
		return number
	}
	if n := next(""); n != 1 { // and with it a block
		t.Fatalf("the first number is %d", n)
	}
	end := r.spool.stop()
	batch := make(chan uint64, 1)
	go func() { batch <- next("x") }()
	numberWaits(s)
	for want := uint64(3); want < 6; want++ {
		if n := next(""); n != want {
			t.Errorf("number %d, want %d", n, want)
		}
	}
	end()
	if n := <-batch; n != 2 {
		t.Errorf("the batch job's number is %d", n)
	}
	if last, err := s.Last("job"); err != nil || last != 5 {
		t.Errorf("the last number is %d, %v", last, err)
	}
}

// TestBlockWaits: no number is given out before the end of its block is on the disk,
// whichever request has begun the block: after a power failure it would come again.
func TestBlockWaits(t *testing.T) {
	r := newRig()
	r.cfg.Deadline = 300 * time.Millisecond
	s := r.mustOpen(t)
	end := r.spool.stop()
	defer end()
	results := make(chan error, 2)
	for range 2 {
		go func() {
			results <- s.Update(func(tx *Tx) error {
				last, err := tx.Last("job")
				return errors.Join(err, tx.Spend("job", last+1))
			})
		}()
		numberWaits(s)
	}
	for range 2 {
		if err := <-results; !errors.Is(err, ErrSilent) {
			t.Errorf("a number: %v", err)
		}
	}
}
