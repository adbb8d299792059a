package store

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// lost opens a store and returns its one damage.
func lost(t *testing.T, r *rig) (*Store, Damage) {
	t.Helper()
	s := r.mustOpen(t)
	all, err := s.Damage()
	if err != nil || len(all) != 1 {
		t.Fatalf("the damage is %v, %v", all, err)
	}
	for _, d := range all {
		return s, d
	}
	panic("unreachable")
}

// TestJournalGone: a volatile journal that is missing, empty or cut in the boot in which it was
// written is damage, and after a reboot it is none; a durable one costs nothing.
func TestJournalGone(t *testing.T) {
	made := newRig()
	s := made.mustOpen(t)
	put(t, s, "batch", "1", "kept")
	put(t, s, "step", "1.0", "lost")
	text := made.run.get(volatileName)
	header := strings.Index(string(text), "journal header")
	for name, left := range map[string][]byte{"missing": nil, "empty": {}, "cut": text[:header]} {
		t.Run(name, func(t *testing.T) {
			r := *made.afterKill()
			r.run = newDisk()
			if left != nil {
				r.run.set(volatileName, left)
			}
			s, d := lost(t, &r)
			if d.Kept != "" || d.Journal != "/run/"+volatileName || len(d.Records) > 0 {
				t.Errorf("the damage is %+v", d)
			}
			want(t, s, "batch", "1", "kept")
			s.Close()
			again, _ := lost(t, &r) // until it is settled
			again.Close()
			reboot := made.afterKill().rebooted()
			if left != nil {
				reboot.run.set(volatileName, left)
			}
			noDamage(t, reboot.mustOpen(t))
			spool := *made.afterKill()
			spool.spool = newDisk()
			if left != nil {
				spool.spool.set(DurableName, left)
			}
			s = spool.mustOpen(t)
			noDamage(t, s)
			want(t, s, "step", "1.0", "lost")
			want(t, s, "batch", "1", "kept")
		})
	}
}

// TestJournalUnreadable: a journal of which the disk gives back an error is kept under another
// name, and a new one is begun.
func TestJournalUnreadable(t *testing.T) {
	made := newRig()
	s := made.mustOpen(t)
	put(t, s, "batch", "1", "kept")
	r := made.afterKill()
	was := string(r.spool.get(DurableName))
	r.spool.setFail(func(op string, n int) (int, error) {
		if op == "read" {
			return 0, unix.EIO
		}
		return n, nil
	})
	s, d := lost(t, r)
	r.spool.setFail(nil)
	want(t, s, "batch", "1", "kept") // the volatile one has it
	if kept := string(r.spool.get(strings.TrimPrefix(d.Kept, "/spool/"))); kept != was || d.Journal != "/spool/"+DurableName {
		t.Errorf("%+v keeps %q", d, kept)
	}
}

// TestZeroesInRun: blocks of zeroes at the end of a volatile journal are no write that did not
// end: its file system was not cut off.
func TestZeroesInRun(t *testing.T) {
	made := newRig()
	s := made.mustOpen(t)
	put(t, s, "step", "1.0", "kept")
	put(t, s, "step", "2.0", strings.Repeat("x", 3*blockSize))
	r := made.afterKill()
	text := r.run.get(volatileName)
	for i := len(text) - 2*blockSize; i < len(text); i++ {
		text[i] = 0
	}
	r.run.set(volatileName, text)
	s, d := lost(t, r)
	want(t, s, "step", "1.0", "kept")
	if d.Pieces != 1 || len(d.Records) != 1 || d.Records[0] != "step 2.0" {
		t.Errorf("the damage is %+v", d)
	}
}
