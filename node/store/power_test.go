package store

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// roleVar makes a process of this test binary one that stores until it is killed.
const roleVar = "STORE_TEST_DIR"

func TestMain(m *testing.M) {
	dir, ok := os.LookupEnv(roleVar)
	if !ok {
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, storeForEver(dir))
	os.Exit(1)
}

func diskConfig(dir, boot string) Config {
	return Config{Spool: filepath.Join(dir, "spool"), Run: filepath.Join(dir, "run"), Durable: []string{"batch"}, Boot: boot}
}

// storeForEver prints what it has stored.
func storeForEver(dir string) error {
	s, err := Open(diskConfig(dir, "boot"))
	if err != nil {
		return err
	}
	errs := make(chan error)
	for _, kind := range []string{"batch", "step"} {
		go func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("%d.%d", os.Getpid(), i)
				err := s.Update(func(tx *Tx) error {
					last, err := tx.Last(kind)
					return errors.Join(err, tx.Spend(kind, last+1), tx.Put(kind, key, strings.Repeat("v", i%3000)), tx.Put(kind, key+"b", last+1))
				})
				if err != nil {
					errs <- err
				}
				fmt.Println(kind, key) // one write(2)
			}
		}()
	}
	return <-errs
}

// TestKilled: what a process has acknowledged is kept when it is killed, in both classes,
// and no number comes twice.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	cfg := diskConfig(dir, "boot")
	if err := errors.Join(os.Mkdir(cfg.Spool, 0o700), os.Mkdir(cfg.Run, 0o700)); err != nil {
		t.Fatal(err)
	}
	told := map[string][]string{}
	for round := range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), roleVar+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			kind, key, _ := strings.Cut(lines.Text(), " ")
			told[kind] = append(told[kind], key)
			if n == 300+100*round {
				cmd.Process.Signal(syscall.SIGKILL)
			}
		}
		cmd.Wait() // it was killed
		s, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		numbers := make(map[string]bool)
		for kind, keys := range told {
			for _, key := range keys {
				var n uint64
				if err := s.Get(kind, key+"b", &n); err != nil || s.Get(kind, key, new(string)) != nil {
					t.Errorf("round %d: %s %s was acknowledged: %v", round, kind, key, err)
				}
				if id := fmt.Sprint(kind, n); numbers[id] {
					t.Errorf("number %s came twice", id)
				} else {
					numbers[id] = true
				}
			}
			if last, err := s.Last(kind); err != nil || int(last) < len(keys) || int(last) > len(keys)+5 {
				t.Errorf("%d numbers were given out, and the last is %d, %v", len(keys), last, err)
			}
		}
		noDamage(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(told["batch"]) == 0 || len(told["step"]) == 0 {
		t.Errorf("%d batches, %d steps", len(told["batch"]), len(told["step"]))
	}
}

// TestCutAnywhere: a journal that ends in the middle of its last write has all that came
// before it, and is not damaged.
func TestCutAnywhere(t *testing.T) {
	for _, name := range []string{DurableName, volatileName} {
		made := newRig()
		s := made.mustOpen(t)
		disk := map[string]*fakeDisk{DurableName: made.spool, volatileName: made.run}[name]
		acked := len(disk.get(name))
		for i := range 6 {
			put(t, s, "batch", fmt.Sprint(i), i)
			s.mu.Lock() // the volatile journal has it too
			text := disk.get(name)
			s.mu.Unlock()
			for at := acked; at < len(text); at++ {
				r := newRig()
				own := map[string]*fakeDisk{DurableName: r.spool, volatileName: r.run}[name]
				own.set(name, text[:at])
				if name == DurableName { // else the volatile journal is missing
					r.cfg.Boot = "boot-2"
				}
				s := r.mustOpen(t)
				if n := len(s.Keys("batch", "")); n != i && !(n == i+1 && at == len(text)-1) {
					t.Errorf("%s cut to %d of %d bytes has %d batches, not %d", name, at, len(text), n, i)
				}
				noDamage(t, s)
				s.Close()
			}
			acked = len(text)
		}
	}
}

// TestPowerFailure: of what is not on the disk a power failure may leave anything. What was
// acknowledged is kept, batches are kept whole or not at all, and nothing seems damaged.
func TestPowerFailure(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(14, seed))
		r := newRig()
		acked := make(map[string]string)
		last := uint64(0)
		for boot := range 3 {
			s := r.mustOpen(t)
			var mu sync.Mutex
			var wg sync.WaitGroup
			limit := 1 + rng.IntN(40)
			who, at := rng.IntN(4), rng.IntN(limit)
			cut := make(chan *rig, 1)
			for c := range 4 {
				own := rand.New(rand.NewPCG(seed, uint64(c)))
				wg.Go(func() {
					for i := range limit {
						key := fmt.Sprintf("%d.%d.%d", boot, c, i)
						value := strings.Repeat("v", own.IntN(1500))
						var number uint64
						err := s.Update(func(tx *Tx) (err error) {
							if number, err = tx.Last("job"); err != nil {
								return err
							}
							number++
							if c%2 == 1 { // most numbers need no write to the spool
								return tx.Spend("job", number)
							}
							return errors.Join(tx.Spend("job", number), tx.Put("batch", key, value), tx.Put("batch", key+"b", value))
						})
						mu.Lock()
						if err == nil && len(cut) == 0 {
							if last = max(last, number); c%2 == 0 {
								acked[key] = value
							}
						}
						if c == who && i == at { // in the middle of it
							cut <- &rig{spool: r.spool.crash(own), run: newDisk(), cfg: r.cfg}
						}
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			s.Close()
			next := <-cut
			if rng.IntN(3) == 0 { // a run directory that is on a disk
				next.run = r.run.crash(rng)
			}
			next.cfg.Boot += "'"
			r = next
			s = r.mustOpen(t)
			for key, value := range acked {
				want(t, s, "batch", key, value)
			}
			for _, key := range s.Keys("batch", "") {
				base := strings.TrimSuffix(key, "b")
				if s.Get("batch", base, new(string)) != nil || s.Get("batch", base+"b", new(string)) != nil {
					t.Errorf("%s is there in part", key)
				}
			}
			if n, err := s.Last("job"); n < last || err != nil {
				t.Errorf("number %d was given out, and the last is %d, %v", last, n, err)
			}
			noDamage(t, s)
			s.Close()
			if t.Failed() {
				t.Fatalf("seed %d, boot %d", seed, boot)
			}
		}
	}
}

// TestPowerFailureAtOpen: a store that is opened and loses power while it writes its journals
// anew, at any operation, has what it had.
func TestPowerFailureAtOpen(t *testing.T) {
	made := newRig()
	journalOf(t, made, 20)
	s := made.mustOpen(t)
	if err := s.Update(func(tx *Tx) error { tx.Delete("batch", "1.0"); return nil }); err != nil {
		t.Fatal(err)
	}
	died := errors.New("the power fails")
	for fatal := range 40 {
		for seed := range uint64(5) {
			r := made.afterKill()
			ops := 0
			for _, d := range []*fakeDisk{r.spool, r.run} {
				d.setFail(func(op string, n int) (int, error) {
					if ops++; ops > fatal {
						return 0, died
					}
					return n, nil
				})
			}
			if s, err := r.open(); err == nil {
				s.Close()
			}
			rng := rand.New(rand.NewPCG(14, seed))
			next := *r
			next.spool = r.spool.crash(rng)
			if next.run = newDisk(); seed%2 == 0 {
				next.run = r.run.crash(rng)
			}
			next.cfg.Boot = "boot-2"
			s := next.mustOpen(t)
			if lost := missing(t, s, 20); len(lost) != 1 || lost[0] != 1 {
				t.Errorf("after %d operations batches %v are missing", fatal, lost)
			}
			noDamage(t, s)
			s.Close()
		}
	}
}
