package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/eventlog"
	"stepd/step"
)

func fresh(t *testing.T) Archive { return In(t.TempDir()) }

// begin makes a step's log with these lines, and returns it open, as the daemon has it.
func begin(t *testing.T, a Archive, id step.ID, text ...string) *os.File {
	t.Helper()
	f, err := a.Create(id, uint32(os.Getuid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for _, l := range text {
		fmt.Fprintf(f, "%s\n", l)
	}
	return f
}

func note(t *testing.T, a Archive, rec *step.Record) {
	t.Helper()
	if err := a.Note(rec, uint32(os.Getuid())); err != nil {
		t.Fatal(err)
	}
}

func events(t *testing.T, a Archive, id step.ID) (all []string) {
	t.Helper()
	for line, err := range a.Events(id, false) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(line))
	}
	return all
}

func TestStep(t *testing.T) {
	a := fresh(t)
	id := step.ID{Job: 12, Step: step.BatchStep}
	h := eventlog.HookCalls{Base: time.Now().UnixNano(), Plugin: func(int) string { return "p.so" }}
	f := begin(t, a, id, `{"event":"request"}`)
	if _, err := f.Write(h.AppendTo(nil)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(f, `{"event":"cut`)
	if got := events(t, a, id); !slices.Equal(got, []string{`{"event":"request"}`}) {
		t.Errorf("%q", got)
	}
	st, err := f.Stat()
	if err != nil || st.Mode() != 0o600 || filepath.Base(f.Name()) != "12.4294967291.events" {
		t.Errorf("%q %v %v", f.Name(), st.Mode(), err)
	}
	note(t, a, &step.Record{ID: id, State: step.Failed, Reason: "it says why"})
	note(t, a, &step.Record{ID: step.ID{Job: 12, Step: 0}, State: step.Running})
	recs, err := a.Records(12, &id.Step)
	if err != nil || len(recs) != 1 || recs[0].Reason != "it says why" || recs[0].IDName != "12.batch" { // which was not written
		t.Errorf("%+v %v", recs, err)
	}
	begin(t, a, step.ID{Job: 12, Step: 0})
	begin(t, a, step.ID{Job: 12, Step: 1}) // it has no record yet
	begin(t, a, step.ID{Job: 121, Step: 0})
	if recs, err = a.Records(12, nil); err != nil || len(recs) != 2 || recs[0].Step != 0 || recs[1].Step != step.BatchStep {
		t.Errorf("%+v %v", recs, err)
	}
	for _, number := range []*uint32{nil, new(uint32)} {
		if _, err := a.Records(13, number); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a job that is not known: %v", err)
		}
	}
	for _, err := range a.Events(step.ID{Job: 13}, false) {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a step that is not known: %v", err)
		}
	}
}

// A requeued job's step has the number of the run before.
func TestCreateAgain(t *testing.T) {
	a := fresh(t)
	id := step.ID{Job: 1, Step: 0}
	begin(t, a, id, `{"event":"old"}`).Close()
	note(t, a, &step.Record{ID: id, State: step.Failed})
	begin(t, a, id, `{"event":"new"}`)
	if got := events(t, a, id); !slices.Equal(got, []string{`{"event":"new"}`}) {
		t.Errorf("%q", got)
	}
	if _, err := a.Records(1, &id.Step); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old run's record: %v", err)
	}
}

// A daemon that has died leaves a log whose last line has no end, and a record or none.
func TestLose(t *testing.T) {
	for name, written := range map[string]*step.Record{
		"no record": nil, "running": {ID: step.ID{Job: 1}, State: step.Running, Name: "prog", NTasks: 3},
	} {
		t.Run(name, func(t *testing.T) {
			a := fresh(t)
			id := step.ID{Job: 1, Step: 0}
			f := begin(t, a, id, `{"event":"one"}`)
			fmt.Fprint(f, `{"event":"cut`)
			f.Close()
			if written != nil {
				note(t, a, written)
			}
			if err := a.Lose(&step.Record{ID: id, Name: "known"}, "it was lost"); err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, line := range events(t, a, id) {
				var e eventlog.Event
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Fatal(err)
				}
				names = append(names, e.Event)
			}
			if want := []string{"one", "kill", "state", "end"}; !slices.Equal(names, want) {
				t.Errorf("events %q, want %q", names, want)
			}
			recs, err := a.Records(1, &id.Step)
			if err != nil {
				t.Fatal(err)
			}
			want := "known"
			if written != nil {
				want = "prog"
			}
			if r := recs[0]; r.State != step.Failed || r.Reason != "it was lost" || r.Ended == nil || !r.StepdLost || r.Name != want {
				t.Errorf("%+v", r)
			}
		})
	}
	a, now := fresh(t), time.Now()
	id := step.ID{Job: 1, Step: 0}
	begin(t, a, id).Close()
	note(t, a, &step.Record{ID: id, State: step.Completed, Ended: &now})
	if err := a.Lose(&step.Record{ID: id}, "it was lost"); err != nil {
		t.Fatal(err)
	}
	if recs, err := a.Records(1, &id.Step); err != nil || recs[0].State != step.Completed || len(events(t, a, id)) != 0 {
		t.Errorf("a step that had ended: %+v, %v", recs, err)
	}
	if err := fresh(t).Lose(&step.Record{ID: step.ID{Job: 2}}, "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a step without a log: %v", err)
	}
}

// Another's link in the place of a file leads nowhere.
func TestLinks(t *testing.T) {
	a := fresh(t)
	if err := os.Mkdir(string(a), 0o755); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"1.0.events", "1.0.json"} {
		if err := os.Symlink(secret, filepath.Join(string(a), name)); err != nil {
			t.Fatal(err)
		}
	}
	number := uint32(0)
	if _, err := a.Records(1, &number); err == nil {
		t.Error("a record was read by a link")
	}
	for _, err := range a.Events(step.ID{Job: 1}, false) {
		if err == nil {
			t.Error("a log was read by a link")
		}
	}
	begin(t, a, step.ID{Job: 1}, "new").Close()
	if b, err := os.ReadFile(secret); err != nil || string(b) != "{}\n" {
		t.Errorf("%q %v", b, err)
	}
}

func TestBadRecords(t *testing.T) {
	a := fresh(t)
	id := step.ID{Job: 1, Step: 0}
	begin(t, a, id)
	for text, want := range map[string]string{
		"":                          "cannot parse",
		`{"job_id":1`:               "cannot parse",
		`{"job_id":2,"step_id":0}`:  "it is the record of step 2.0",
		strings.Repeat("[", 1<<20):  "cannot parse",
		`{"job_id":1,"step_id":-1}`: "cannot parse",
	} {
		if err := os.WriteFile(a.path(id, recordEnd), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Records(1, &id.Step); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
}

// The oldest go, running ones and strangers' files excepted.
// A user who holds the locks of ended steps does not fill the spool.
func TestPruneLocked(t *testing.T) {
	a := fresh(t)
	for i := range uint32(slack + 3) {
		f := begin(t, a, step.ID{Job: 1, Step: i}) // locked
		defer f.Close()
		when := time.Unix(int64(1_000_000+i), 0)
		if err := os.Chtimes(f.Name(), when, when); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.prune(2, 10); err != nil {
		t.Fatal(err)
	}
	left, err := a.steps()
	if err != nil || len(left) != 12 || slices.ContainsFunc(left, func(id step.ID) bool { return id.Step < slack+3-12 }) {
		t.Errorf("left are %v, %v", left, err)
	}
}

func TestPrune(t *testing.T) {
	a := fresh(t)
	const keep = 5
	var running *os.File
	for i := range uint32(keep + slack + 1) {
		id := step.ID{Job: 1, Step: i}
		f := begin(t, a, id)
		if i == 0 {
			running = f
		} else {
			f.Close()
		}
		note(t, a, &step.Record{ID: id})
		when := time.Unix(int64(1_000_000+i), 0)
		if err := os.Chtimes(f.Name(), when, when); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(string(a), "cgroup"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := a.Prune(keep); err != nil {
			t.Fatal(err)
		}
	}
	left, err := a.steps()
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(left, func(x, y step.ID) int { return int(x.Step) - int(y.Step) })
	want := []uint32{0}
	for i := range uint32(keep) {
		want = append(want, slack+1+i)
	}
	var got []uint32
	for _, id := range left {
		got = append(got, id.Step)
	}
	if !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	entries, err := os.ReadDir(string(a))
	if err != nil || len(entries) != 2*len(want)+1 {
		t.Errorf("%d files, %v", len(entries), err)
	}
	running.Close()
	if err := a.Prune(keep + len(want)); err != nil { // few: nothing is looked at
		t.Fatal(err)
	}
	if left, _ := a.steps(); len(left) != len(want) {
		t.Errorf("left are %v", left)
	}
}

// A follower has each line as soon as it is written, and ends with the daemon, whichever way
// that ends.
func TestFollow(t *testing.T) {
	a := fresh(t)
	id := step.ID{Job: 1, Step: 0}
	f := begin(t, a, id, `{"event":"one"}`)
	got := make(chan string)
	go func() {
		defer close(got)
		for line, err := range a.Events(id, true) {
			if err != nil {
				got <- err.Error()
				return
			}
			got <- string(line)
		}
	}()
	want := func(text string) {
		t.Helper()
		select {
		case line, ok := <-got:
			if line != text || ok != (text != "") {
				t.Fatalf("%q %v, want %q", line, ok, text)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no %q", text)
		}
	}
	want(`{"event":"one"}`)
	fmt.Fprint(f, `{"event":`)
	fmt.Fprintln(f, `"two"}`)
	want(`{"event":"two"}`)
	fmt.Fprintln(f, `{"event":"end"}`)
	f.Close()
	want(`{"event":"end"}`)
	want("")
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"event\":\"a\"}\n{\"event\":\"hooks\"}\nx"))
	f.Fuzz(func(t *testing.T, log []byte) {
		n := 0
		err := lines(bytes.NewReader(log), func(line []byte, err error) bool {
			if bytes.Contains(line, []byte("\n")) || err != nil {
				t.Fatalf("%q %v", line, err)
			}
			n++
			return n < 1000
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
