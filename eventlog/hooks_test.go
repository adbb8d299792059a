package eventlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stepd/step/launch"
)

func expand(t *testing.T, line string) (events []string) {
	t.Helper()
	err := ExpandEvent([]byte(strings.TrimSuffix(line, "\n")), func(b []byte) error {
		events = append(events, string(b))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// What a reader of the log sees is what two events for each call would be.
func TestHookCalls(t *testing.T) {
	h := HookCalls{
		Base:   time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC).UnixNano(),
		Plugin: func(i int) string { return fmt.Sprintf("p\"%d.so", i) },
		Ranks:  []int{0, 12},
		Calls: []launch.HookTime{
			{Plugin: 3, Hook: "slurm_spank_init", LocalID: -1, StartNS: 5_000, EndNS: 9_500},
			{Plugin: 3, Hook: "slurm_spank_task_init", LocalID: 0, StartNS: 4_000, EndNS: 4_000, RC: -7},
			{Plugin: 0, Hook: "slurm_spank_task_init", LocalID: 1, StartNS: 1_000_000_000},
		},
	}
	line := string(h.AppendTo([]byte("before\n")))
	if before, rest, _ := strings.Cut(line, "\n"); before != "before" || strings.Count(rest, "\n") != 1 || !strings.HasSuffix(rest, "\n") {
		t.Fatalf("%q is not one line behind the other", line)
	}
	got := expand(t, strings.TrimPrefix(line, "before\n"))
	want := []string{
		`{"time":"2026-11-21T10:00:00.000005Z","event":"hook_start","plugin":"p\"3.so","hook":"slurm_spank_init"}`,
		`{"time":"2026-11-21T10:00:00.0000095Z","event":"hook_end","dur_us":4,"plugin":"p\"3.so","hook":"slurm_spank_init","rc":0}`,
		`{"time":"2026-11-21T10:00:00.000004Z","event":"hook_start","plugin":"p\"3.so","hook":"slurm_spank_task_init","rank":0}`,
		`{"time":"2026-11-21T10:00:00.000004Z","event":"hook_end","dur_us":0,"plugin":"p\"3.so","hook":"slurm_spank_task_init","rc":-7,"rank":0}`,
		`{"time":"2026-11-21T10:00:01Z","event":"hook_start","plugin":"p\"0.so","hook":"slurm_spank_task_init","rank":12}`,
	}
	if diff := cmp.Diff(want, utc(t, got)); diff != "" {
		t.Error(diff)
	}
	if b := (HookCalls{}).AppendTo(nil); b != nil {
		t.Errorf("no calls make %q", b)
	}
}

// utc brings the events' times to one zone.
func utc(t *testing.T, lines []string) []string {
	t.Helper()
	for i, l := range lines {
		var e Event
		if err := json.Unmarshal([]byte(l), &e); err != nil {
			t.Fatal(err)
		}
		e.Time = e.Time.UTC()
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		lines[i] = string(b)
	}
	return lines
}

func TestExpandEvent(t *testing.T) {
	const at = `{"time":"2026-11-21T10:00:00Z","event":"hooks",`
	for _, c := range []struct {
		name, line string
		n          int
	}{
		{"another event", `{"time":"2026-11-21T10:00:00Z","event":"state","text":"\"event\":\"hooks\""}`, 1},
		{"no JSON", "nonsense", 1},
		{"cut", at + `"names":["a"],"calls":[0,0`, 0},
		{"a cut call", at + `"names":["a"],"calls":[0,0,0,0,1,0,0,0]}`, 2},
		{"a name that is not there", at + `"names":["a"],"calls":[0,1,0,0,1,0,-1,0,0,0,1,0,0,0,0,0,1,0]}`, 2},
		{"no time can hold it", `{"time":"9999-12-31T23:59:59Z","event":"hooks","names":["a"],"calls":[0,0,0,9000000000,1,0]}`, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := expand(t, c.line); len(got) != c.n {
				t.Errorf("%d events %q, want %d", len(got), got, c.n)
			}
		})
	}
	stop := errors.New("stop")
	if err := ExpandEvent([]byte(at+`"names":["a"],"calls":[0,0,0,0,1,0]}`), func([]byte) error { return stop }); err != stop {
		t.Errorf("got %v", err)
	}
}

func FuzzExpandEvent(f *testing.F) {
	f.Add([]byte(`{"time":"2026-11-21T10:00:00Z","event":"hooks","names":["a","b"],"calls":[0,1,-1,0,1,0]}`))
	f.Add([]byte(`{"time":"2026-11-21T10:00:00Z","event":"hooks","names":[],"calls":[0,0,0,0,0,0]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		n := 0
		err := ExpandEvent(line, func(e []byte) error {
			if n++; string(e) != string(line) && !json.Valid(e) {
				t.Fatalf("%q is no JSON", e)
			}
			return nil
		})
		// A call has at least two bytes for each of its numbers.
		if err != nil || n > 1+len(line)/callWords {
			t.Fatalf("%d events, %v", n, err)
		}
	})
}

// BenchmarkHookCalls is what stepd pays for a call of a hook.
func BenchmarkHookCalls(b *testing.B) {
	h := HookCalls{Base: time.Now().UnixNano(), Plugin: func(int) string { return "plugin.so" }}
	for i := range HookCallsMax {
		h.Calls = append(h.Calls, launch.HookTime{Plugin: i % 20, Hook: "slurm_spank_task_init", LocalID: i / 20, StartNS: uint64(i) * 1000, EndNS: uint64(i)*1000 + 300})
	}
	buf := make([]byte, 0, 1<<20)
	for b.Loop() {
		buf = h.AppendTo(buf[:0])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/HookCallsMax, "ns/call")
}
