package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// journalOf makes a journal of n batches on one disk: batch i puts "batch i.0" and, each
// third one, "batch i.1".
func journalOf(t testing.TB, r *rig, n int) {
	t.Helper()
	s := r.mustOpen(t)
	for i := range n {
		err := s.Update(func(tx *Tx) error {
			if i%3 == 0 {
				if err := tx.Put("batch", fmt.Sprintf("%d.1", i), i); err != nil {
					return err
				}
			}
			return tx.Put("batch", fmt.Sprintf("%d.0", i), map[string]any{"name": strings.Repeat("y", i%50), "n": i})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// missing returns which batches of journalOf a store has not; one that it has in part is
// an error.
func missing(t testing.TB, s *Store, n int) (lost []int) {
	t.Helper()
	have := make(map[string]bool)
	for _, key := range s.Keys("batch", "") {
		have[key] = true
	}
	for i := range n {
		first := have[fmt.Sprintf("%d.0", i)]
		if i%3 == 0 && have[fmt.Sprintf("%d.1", i)] != first {
			t.Errorf("batch %d is there in part", i)
		}
		if !first {
			lost = append(lost, i)
			continue
		}
		var v struct{ N int }
		if err := s.Get("batch", fmt.Sprintf("%d.0", i), &v); err != nil || v.N != i {
			t.Errorf("batch %d is %d, %v", i, v.N, err)
		}
	}
	return lost
}

// corrupt opens a journal of which one byte is another one.
func corrupt(t *testing.T, r *rig, disk *fakeDisk, name string, n, at int, b byte) {
	t.Helper()
	was := disk.get(name)
	text := slices.Clone(was)
	text[at] = b
	disk.set(name, text)
	s, err := r.open()
	if err != nil {
		t.Fatalf("byte %d as %q: %v", at, b, err)
	}
	lost := missing(t, s, n)
	damage, err := s.Damage()
	if err != nil {
		t.Fatal(err)
	}
	if len(lost) > 1 {
		t.Errorf("byte %d as %q costs batches %v", at, b, lost)
	}
	if len(lost) > 0 && len(damage) != 1 {
		t.Errorf("byte %d as %q costs batch %v, and the damage is %v", at, b, lost, damage)
	}
	for _, d := range damage {
		kept := disk.get(d.Kept[strings.LastIndex(d.Kept, "/")+1:])
		if d.Pieces != 1 || len(kept) == 0 || !bytes.Contains(text, bytes.TrimSuffix(kept, []byte("\n"))) {
			t.Errorf("byte %d as %q: %+v keeps %q", at, b, d, kept)
		}
		line := bytes.Count(was[:at], []byte("\n"))
		first := bytes.Split(was, []byte("\n"))[line]
		if value := bytes.LastIndexByte(first, ' '); at > bytes.LastIndexByte(was[:at], '\n')+1+value && len(lost) > 0 && !bytes.Contains(first, []byte("\t")) {
			if want := fmt.Sprintf("batch %d.0", lost[0]); !slices.Contains(d.Records, want) {
				t.Errorf("byte %d as %q: %q is lost, and %q named", at, b, want, d.Records)
			}
		}
	}
	if len(damage) == 0 && disk.get(name) == nil {
		t.Error("there is no journal")
	}
	s.Close()
	disk.mu.Lock()
	disk.names = map[string]*fakeFile{}
	disk.mu.Unlock()
	disk.set(name, was)
}

// TestEveryByte: no byte of a journal costs more than the batch that it is of.
func TestEveryByte(t *testing.T) {
	for _, c := range []struct {
		name string
		rig  func(r *rig) (*rig, *fakeDisk)
	}{
		{DurableName, func(r *rig) (*rig, *fakeDisk) { next := r.rebooted(); return next, next.spool }},
		{volatileName, func(r *rig) (*rig, *fakeDisk) { r.spool = newDisk(); return r, r.run }},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n = 7
			made := newRig()
			journalOf(t, made, n)
			r, disk := c.rig(made.afterKill())
			text := disk.get(c.name)
			t.Logf("%d bytes\n%s", len(text), text)
			for at := range text {
				for _, b := range []byte{text[at] ^ 1, text[at] ^ 0x80, '\n', ' ', '\t', 0, '0', '9', '"'} {
					if b == text[at] {
						continue
					}
					// What the other disk gets is not the next round's.
					round := *r
					if disk == r.spool {
						round.run = newDisk()
					} else {
						round.spool = newDisk()
					}
					corrupt(t, &round, disk, c.name, n, at, b)
				}
			}
		})
	}
}

// TestRandomBytes is the same for a large journal.
func TestRandomBytes(t *testing.T) {
	const n = 1500
	made := newRig()
	journalOf(t, made, n)
	r := made.afterKill().rebooted()
	rng := rand.New(rand.NewPCG(14, 1))
	size := len(r.spool.get(DurableName))
	for range 40 { // FuzzReplay does more
		round := *r
		round.run = newDisk()
		corrupt(t, &round, r.spool, DurableName, n, rng.IntN(size), byte(rng.IntN(256)))
	}
}

// TestBothJournals: what one journal has lost, the other one has.
func TestBothJournals(t *testing.T) {
	made := newRig()
	journalOf(t, made, 5)
	for _, name := range []string{DurableName, volatileName} {
		r := made.afterKill()
		disk := map[string]*fakeDisk{DurableName: r.spool, volatileName: r.run}[name]
		text := disk.get(name)
		at := bytes.Index(text, []byte("batch 2.0"))
		text[at+12] ^= 1
		disk.set(name, text)
		s := r.mustOpen(t)
		if lost := missing(t, s, 5); len(lost) > 0 {
			t.Errorf("%s: batches %v are lost", name, lost)
		}
		damage, _ := s.Damage()
		if len(damage) != 1 {
			t.Errorf("%s: damage %v", name, damage)
		}
		// It is reported until an administrator has settled it.
		again := r.afterKill().mustOpen(t)
		for key := range damage {
			if err := again.Record(func(tx *Tx) error { tx.Delete(KindDamage, key); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		noDamage(t, again)
	}
}

// TestOverwritten: a journal that has nothing of its own left is damaged, in which boot it
// was begun or not.
func TestOverwritten(t *testing.T) {
	for _, name := range []string{DurableName, volatileName} {
		r := newRig()
		put(t, r.mustOpen(t), "step", "1.0", 1)
		r = r.afterKill()
		disk := map[string]*fakeDisk{DurableName: r.spool, volatileName: r.run}[name]
		disk.set(name, bytes.Repeat([]byte("no journal\n"), 1000))
		if damage, err := r.mustOpen(t).Damage(); err != nil || len(damage) != 1 {
			t.Errorf("%s: %v, %v", name, damage, err)
		}
	}
}

// TestOldValue: where the record is damaged that deletes or replaces another, the older
// one is what is read, and the damage names it.
func TestOldValue(t *testing.T) {
	r := newRig()
	s := r.mustOpen(t)
	put(t, s, "step", "1.0", "running")
	put(t, s, "step", "1.0", "ended")
	put(t, s, "job", "1", "runs")
	if err := s.Update(func(tx *Tx) error { tx.Delete("job", "1"); return nil }); err != nil {
		t.Fatal(err)
	}
	put(t, s, "job", "2", "runs")
	next := r.afterKill()
	text := string(next.run.get(volatileName))
	text = strings.Replace(text, `"ended"`, `"enjed"`, 1)
	text = strings.Replace(text, "job 1 null", "job 1 nill", 1)
	next.run.set(volatileName, []byte(text))
	s = next.mustOpen(t)
	want(t, s, "step", "1.0", "running")
	want(t, s, "job", "1", "runs")
	want(t, s, "job", "2", "runs")
	damage, err := s.Damage()
	if err != nil || len(damage) != 1 {
		t.Fatalf("damage %v, %v", damage, err)
	}
	for _, d := range damage {
		if !slices.Equal(d.Records, []string{"step 1.0", "job 1"}) || d.Pieces != 2 {
			t.Errorf("damage %+v", d)
		}
	}
}

// TestForgedLine: what a user has chosen is no record, wherever damage puts a newline.
func TestForgedLine(t *testing.T) {
	forged := appendLine(nil, 0, 1<<40, []record{{id: id{"drain", "node"}, value: []byte("5")}})
	name, _ := json.Marshal("x" + string(bytes.TrimSuffix(forged, []byte("\n"))))
	text := appendLine(nil, 0, 1, []record{{id: id{"job", "1"}, value: name}})
	at := bytes.IndexByte(text, 'x')
	text[at] = '\n'
	disk := newDisk()
	disk.set("j", text)
	f, _ := disk.open("j", 0)
	got, err := replay(f, true)
	if err != nil || len(got.index) > 0 || len(got.bad) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzReplay(f *testing.F) {
	f.Add([]byte("deadbeef 10 0 1 a b 1\n"))
	good := appendLine(nil, 0, 7, []record{{id: id{"step", "1.0"}, value: []byte(`{"a":1}`)}, {id: id{"job", "1"}, value: deleted}})
	f.Add(good)
	f.Add(append(slices.Clone(good), good[:20]...))
	f.Add(append(make([]byte, 600), good...))
	f.Fuzz(func(t *testing.T, text []byte) {
		disk := newDisk()
		// Whatever is in front of a line of ours, the line is found.
		disk.set("j", append(append(slices.Clone(text), '\n'), appendLine(nil, int64(len(text)+1), 1<<40, []record{{id: id{"ours", "1"}, value: []byte("1")}})...))
		file, _ := disk.open("j", 0)
		got, err := replay(file, true)
		if err != nil {
			return // a header that cannot be used
		}
		if got.index["ours"]["1"].seq != 1<<40 {
			t.Errorf("the line behind %q is lost: %+v", text, got)
		}
		named(text)
	})
}

func FuzzLine(f *testing.F) {
	f.Add("step", "1.0", "value", uint64(1), int64(0))
	f.Fuzz(func(t *testing.T, kind, key, value string, seq uint64, synced int64) {
		k := id{kind, key}
		if k.check() != nil || synced < 0 {
			return
		}
		doc, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		text := appendLine(nil, synced, seq, []record{{id: k, value: doc}, {id: k, value: doc}})
		l, err := parseLine(text)
		if err != nil || l.seq != seq || l.synced != synced || l.size != len(text) || !l.strict() || len(l.records) != 2 {
			t.Fatalf("%q is read as %+v, %v", text, l, err)
		}
		for _, r := range l.records {
			if r.id != k || !bytes.Equal(r.value, doc) || !bytes.Equal(text[r.at:][:len(doc)], doc) {
				t.Errorf("%q has %+v", text, r)
			}
		}
	})
}

// TestEmptyJournal: a power failure may leave a journal's name without content.
func TestEmptyJournal(t *testing.T) {
	r := newRig()
	journalOf(t, r, 9)
	next := r.rebooted()
	next.run.set(volatileName, nil)
	s := next.mustOpen(t)
	if lost := missing(t, s, 9); len(lost) != 0 {
		t.Errorf("batches %v are missing", lost)
	}
	noDamage(t, s)
}
