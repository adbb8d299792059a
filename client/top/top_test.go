package top

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"stepd/api"
	"stepd/step"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares a text with testdata/NAME.golden.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || string(want) != text {
		t.Errorf("%s: %v (-update writes it)\nwant\n%s\ngot\n%s", path, err, want, text)
	}
}

func to[T any](v T) *T { return &v }

// topRecord is a step that runs since a minute, at its second look.
func topRecord(job uint32, name string, cpu float64, rss, read int64, ntasks int) *step.Record {
	start := topTime.Add(-time.Minute)
	rec := &step.Record{
		ID: step.ID{Job: job}, Name: name, User: "someone", State: step.Running, NTasks: ntasks, Started: &start,
		Command: []string{"./" + name, "input.dat"},
		Usage: &step.StepUsage{
			Used:     step.Used{CPUSeconds: &cpu, RSSBytes: &rss, ReadBytes: &read, WrittenBytes: to(read / 2)},
			Pressure: &step.Pressure{CPU: &step.Stalls{Some: step.Stall{Avg10: 12.4}}, Memory: &step.Stalls{}, IO: &step.Stalls{Some: step.Stall{Avg10: 100}}},
		},
	}
	for i := range ntasks {
		rec.Tasks = append(rec.Tasks, step.Task{
			Rank: i, PID: to(1000*int(job) + i), State: step.TaskRunning,
			Usage: &step.Used{CPUSeconds: to(cpu / float64(ntasks)), RSSBytes: to(rss / int64(ntasks))},
		})
	}
	return rec
}

var topTime = time.Date(2026, 11, 22, 10, 0, 0, 0, time.Local)

// topOf is a model of n steps, two seconds after their first look.
func topOf(n int) *topModel {
	l := &topLook{Time: topTime, Interval: to(2.0)}
	l.node = api.Node{Name: "vm", State: "ALLOCATED", CPUs: 64, MemoryBytes: 256 << 30, UsedMB: 12 << 10}
	for i := range n {
		name := "solver"
		if i == 1 {
			name = "a very long name\x1b[2J that does not fit"
		}
		before := topRecord(uint32(i+1), name, 10, 1<<20, 1<<20, i%4+1)
		now := topRecord(uint32(i+1), name, 10+float64(i), int64(3*i+1)<<26, int64(i)<<24, i%4+1)
		if i == 2 {
			now.Suspended = &topTime
		}
		if i == 3 { // of another user
			now.Usage, before.Usage = nil, nil
		}
		if i == 4 {
			now.State = step.Starting
			now.Started = nil
		}
		l.Steps = append(l.Steps, ratesOf(now, before, 2*time.Second))
	}
	m := newTopModel(&topOptions{sort: "cpu"})
	m.set(l)
	return m
}

// TestTopScreen: golden screens of both sizes, in which no line is wider than the
// terminal and no user's word moves the cursor.
func TestTopScreen(t *testing.T) {
	for name, c := range map[string]struct {
		steps int
		keys  []string
	}{
		"five": {5, nil}, "none": {0, nil}, "many": {100, []string{"\x1b[F"}}, "tasks": {5, []string{"j", "\r", "j", "j"}}, "help": {2, []string{"h"}},
		"asks": {2, []string{"s", "U", "x", "\x7f", "S", "R"}},
	} {
		for _, size := range []struct {
			name           string
			columns, lines int
		}{{"80x24", 80, 24}, {"200x50", 200, 50}, {"20x3", 20, 3}} {
			m := topOf(c.steps)
			u := &topUI{m: m}
			for _, k := range c.keys {
				m.screen(size.columns, size.lines)
				if err := u.key(k); err != nil {
					t.Fatal(err)
				}
			}
			lines, mark := m.screen(size.columns, size.lines)
			if len(lines) != size.lines || mark >= len(lines) {
				t.Errorf("%s at %s: %d lines, the chosen one is %d", name, size.name, len(lines), mark)
			}
			for _, l := range lines {
				if utf8.RuneCountInString(l) > size.columns || strings.ContainsRune(l, '\x1b') {
					t.Errorf("%s at %s: %q", name, size.name, l)
				}
			}
			if size.columns >= 80 {
				if mark >= 0 {
					lines[mark] += "  <<"
				}
				golden(t, "top-"+name+"-"+size.name, strings.Join(lines, "\n")+"\n")
			}
		}
	}
}

// TestTopKeys: the chosen row stays chosen in any order, while it exists.
func TestTopKeys(t *testing.T) {
	m := topOf(20)
	u := &topUI{m: m}
	press := func(keys ...string) {
		t.Helper()
		for _, k := range keys {
			if err := u.key(k); err != nil {
				t.Fatalf("%q: %v", k, err)
			}
		}
	}
	press("n", "g", "j", "j")
	if m.chosen.id.Job != 3 || m.at() != 2 {
		t.Errorf("chosen %v at %d", m.chosen, m.at())
	}
	press("c")
	if m.chosen.id.Job != 3 || m.at() == 2 {
		t.Errorf("by CPU: chosen %v at %d", m.chosen, m.at())
	}
	press("\r", "j")
	if m.chosen.id.Job != 3 || m.chosen.task != 0 {
		t.Errorf("its first task: %v", m.chosen)
	}
	press("t")
	if m.chosen != (topRow{step.ID{Job: 3}, -1}) {
		t.Errorf("its tasks are shut: %v", m.chosen)
	}
	m.look.Steps = slices.DeleteFunc(m.look.Steps, func(s topStep) bool { return s.ID.Job == 3 })
	m.arrange()
	if m.at() != 0 {
		t.Errorf("it is gone, and %v at %d is chosen", m.chosen, m.at())
	}
	for _, quit := range []string{"q", "\x03"} {
		if err := u.key(quit); err != errQuit {
			t.Errorf("%q: %v", quit, err)
		}
	}
}

// TestSplitKeys: an escape sequence is one key, and bytes that come together are
// several.
func TestSplitKeys(t *testing.T) {
	for in, want := range map[string][]string{
		"q": {"q"}, "\x1b[A": {"\x1b[A"}, "jk\x1b[5~q": {"j", "k", "\x1b[5~", "q"}, "\x1b": {"\x1b"}, "\x1bOB": {"\x1bOB"}, "\x1b[": {"\x1b", "["}, "\x1b[1;5": {"\x1b[1;5"},
	} {
		if got := splitKeys([]byte(in)); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// FuzzTopKeys: no keys and no size break the screen.
func FuzzTopKeys(f *testing.F) {
	f.Add("jjtTcmiwng\x1b[5~\x1b[F?xsUSR1\x1bq", 80, 24)
	f.Add("s\x7f\x7f\x7fTT", 1, 1)
	f.Fuzz(func(t *testing.T, keys string, columns, lines int) {
		if columns < 1 || columns > 500 || lines < 1 || lines > 200 || len(keys) > 200 {
			return
		}
		m := topOf(7)
		u := &topUI{m: m}
		for _, k := range splitKeys([]byte(keys)) {
			if strings.Contains(" zrae\x1a\r\n", k) && (k != "\r" && k != "\n" || m.asking) {
				continue // these ask noded
			}
			_ = u.key(k)
			if got, _ := m.screen(columns, lines); len(got) != lines {
				t.Fatalf("%d lines of %d", len(got), lines)
			}
		}
	})
}
