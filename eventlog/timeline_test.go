package eventlog

import (
	"cmp"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/internal/printable"
	"stepd/step"
)

var update = flag.Bool("update", false, "write the golden files anew")

var t0 = time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

// launched is the log of a step of n tasks under two plugins: times in microseconds.
func launched(n int) []Event {
	at := func(us int, e Event) Event {
		e.Time = t0.Add(time.Duration(us) * time.Microsecond)
		return e
	}
	var events []Event
	add := func(us int, e Event) { events = append(events, at(us, e)) }
	stage := func(from, to int, name string) {
		add(from, Event{Event: EventStageStart, Phase: name})
		add(to, Event{Event: EventStageEnd, Phase: name, DurUS: ptr(int64(to - from))})
	}
	hook := func(from, to int, plugin, name string, rank *int, rc int) {
		add(from, Event{Event: EventHookStart, Plugin: plugin, Hook: "slurm_spank_" + name, Rank: rank})
		add(to, Event{Event: EventHookEnd, Plugin: plugin, Hook: "slurm_spank_" + name, Rank: rank, DurUS: ptr(int64(to - from)), RC: &rc})
	}
	add(0, Event{Event: EventRequest})
	add(900, Event{Event: EventAccepted})
	stage(950, 1400, PhaseProlog)
	stage(1600, 1700, "proctrack")
	stage(1700, 3200, "spankhost")
	stage(3200, 4000, "load")
	stage(4000, 6000, "init")
	hook(4100, 4300, "renice.so", "init", nil, 0)
	hook(4300, 5900, "a_plugin_with_a_very_long_name_<&>.so", "init", nil, 0)
	stage(6000, 6500, "fork")
	stage(6500, 6600, "gate")
	for r := range n {
		hook(6700+10*r, 7700+10*r, "renice.so", "task_init", ptr(r), 0)
		add(8000+10*r, Event{Event: EventTaskExec, Rank: ptr(r)})
	}
	for r := range n {
		add(3_600_000+1000*r, Event{Event: EventTaskExit, Rank: ptr(r)})
		hook(3_600_000+1000*r, 3_600_400+1000*r, "renice.so", "task_exit", ptr(r), 0)
	}
	end := 3_600_000 + 1000*n
	add(end+900, Event{Event: EventStageEnd, Phase: "exit", DurUS: ptr(int64(700)), Text: "a plugin\x1b failed"})
	hook(end+300, end+800, "renice.so", "exit", nil, -1)
	add(end+2000, Event{Event: EventStageEnd, Phase: "undo proctrack", DurUS: ptr(int64(1000))})
	add(end+2100, Event{Event: EventEnd, State: step.Completed})
	return events
}

func build(events []Event) *Timeline {
	var b TimelineBuilder
	for i := range events {
		b.Add(&events[i])
	}
	t := b.Done(t0.Add(time.Second))
	t.Head = HeadOf(&step.Record{
		ID: step.ID{Job: 12}, User: "alice", State: step.Running, Command: []string{"./a.out", "--title", "a <b> & \x1b[31m 日本"},
	})
	if n := len(events); n > 0 && events[n-1].Event == EventEnd {
		t.State, t.Error = events[n-1].State, events[n-1].Text
	}
	return t
}

// crashed is the log of a step in whose launch a plugin has crashed: the hook's start stands behind
// its end in the log, as in stepd's.
func crashed() []Event {
	at := func(ms int, e Event) Event {
		e.Time = t0.Add(time.Duration(ms) * time.Millisecond)
		return e
	}
	const plugin, hook, why = "rude.so", "slurm_spank_user_init", "killed by SIGSEGV at rude.so+0x250f"
	return []Event{
		at(0, Event{Event: EventRequest}), at(2, Event{Event: EventAccepted}),
		at(10, Event{Event: EventStageStart, Phase: "user_init"}),
		at(60, Event{Event: EventStageEnd, Phase: "user_init", Text: "spankhost is gone"}),
		at(61, Event{Event: EventHookCrash, Plugin: plugin, Hook: hook, Text: why}),
		at(62, Event{Event: EventStageEnd, Phase: "kill", DurUS: ptr(int64(900))}),
		at(20, Event{Event: EventHookStart, Plugin: plugin, Hook: hook}),
		at(90, Event{Event: EventStageEnd, Phase: "undo spankhost", DurUS: ptr(int64(27000))}),
		at(91, Event{Event: EventEnd, State: step.Failed, Text: `plugin "rude.so": slurm_spank_user_init: ` + why}),
	}
}

// prologs is the log of a step whose TaskProlog has ended one of its tasks; a failed one has run.
func prologs() []Event {
	at := func(ms int, e Event) Event {
		e.Time = t0.Add(time.Duration(ms) * time.Millisecond)
		return e
	}
	return []Event{
		at(0, Event{Event: EventRequest}), at(2, Event{Event: EventAccepted}),
		at(10, Event{Event: EventStageStart, Phase: "gate"}), at(11, Event{Event: EventStageEnd, Phase: "gate"}),
		at(11, Event{Event: EventStageStart, Phase: PhaseTaskProlog}),
		at(200, Event{Event: EventTaskExec, Rank: ptr(0)}),
		at(300, Event{Event: EventTaskExit, Rank: ptr(1), Status: ptr(step.ExitedWith(1))}),
		at(300, Event{Event: EventStageEnd, Phase: PhaseTaskProlog, DurUS: ptr(int64(289000))}),
		at(900, Event{Event: EventTaskExit, Rank: ptr(0), Status: ptr(step.SignaledBy(11))}),
		at(900, Event{Event: EventStageEnd, Phase: PhaseTaskEpilog, DurUS: ptr(int64(40000))}),
		at(950, Event{Event: EventStageEnd, Phase: "kill", DurUS: ptr(int64(49000))}),
		at(951, Event{Event: EventEnd, State: step.Failed, Text: "task 0: Segmentation fault"}),
	}
}

// TestExec: the bar from the gate lasts while a rank has not come to its exec, though others run, and
// says of each rank that never ran its own end.
func TestExec(t *testing.T) {
	at := func(s int, e Event) Event {
		e.Time = t0.Add(time.Duration(s) * time.Second)
		return e
	}
	events := []Event{at(0, Event{Event: EventRequest})}
	for r := range 6 {
		events = append(events, at(1, Event{Event: EventTaskFork, Rank: ptr(r)}))
	}
	events = append(events,
		at(1, Event{Event: EventStageStart, Phase: "gate"}), at(2, Event{Event: EventStageEnd, Phase: "gate"}), at(3, Event{Event: EventTaskExec, Rank: ptr(0)}),
		at(600, Event{Event: EventTaskExit, Rank: ptr(1), Status: ptr(step.ExitedWith(2))}), at(600, Event{Event: EventTaskExit, Rank: ptr(4), Status: ptr(step.ExitedWith(2))}),
		at(700, Event{Event: EventTaskExit, Rank: ptr(3), Status: ptr(step.SignaledBy(9))}),
	)
	exec := func() Span {
		for _, s := range build(events).Sections[0].Spans {
			if s.Name == "exec" {
				return s
			}
		}
		t.Fatal("no bar of the execs")
		panic("unreachable")
	}
	const never = "ranks 1,4 never ran the command: Exited with exit code 2; rank 3 never ran the command: Killed"
	if s := exec(); !s.Open || s.Ranks != "2,5" || s.EndUS != 700e6 || s.Label() != "exec (rank 2,5)" || s.Error != never {
		t.Errorf("while two ranks hang: %+v, %q", s, s.Label())
	}
	events = append(events,
		at(750, Event{Event: EventTaskExec, Rank: ptr(2)}), at(800, Event{Event: EventTaskExec, Rank: ptr(5)}), at(900, Event{Event: EventTaskExit, Rank: ptr(5)}))
	if s := exec(); s.Open || s.Ranks != "" || s.EndUS != 800e6 || s.Error != never {
		t.Errorf("after the last exec: %+v", s)
	}
}

// TestEpilogs: each time in which epilogs of tasks run has its bar, up to tasksMax; more share one.
func TestEpilogs(t *testing.T) {
	for _, n := range []int{2, tasksMax + 1} {
		events := []Event{{Event: EventRequest, Time: t0}}
		for i := range n {
			events = append(events, Event{
				Event: EventStageEnd, Phase: PhaseTaskEpilog, Time: t0.Add(time.Duration(i+1) * time.Hour), DurUS: ptr(int64(5 + i)),
			})
		}
		tl := build(append(events, Event{Event: EventEnd, Time: t0.Add(100 * time.Hour)}))
		spans := tl.Sections[0].Spans
		if n == 2 && (len(spans) != 2 || spans[0].EndUS-spans[0].BeginUS != 5) {
			t.Errorf("two epilogs: %+v", spans)
		}
		if n > 2 && (len(spans) != 1 || spans[0].Count != n || spans[0].LongestUS != int64(4+n)) {
			t.Errorf("%d epilogs: %+v", n, spans)
		}
		if text := tl.Text(80, false); n > 2 && !strings.Contains(text, "task_epilog ×17") {
			t.Errorf("the bar does not say how many:\n%s", text)
		}
	}
}

// TestText: golden texts of two widths, in which no line is wider than the terminal.
func TestText(t *testing.T) {
	running := launched(2)
	cut := 0
	for running[cut].Event != EventTaskExit {
		cut++
	}
	for name, events := range map[string][]Event{
		"two": launched(2), "many": launched(64), "running": running[:cut], "launching": launched(2)[:11], "none": nil,
		"crash": crashed(), "prolog": prologs(), "prolog-runs": prologs()[:6], "accepted": launched(2)[:2],
	} {
		for _, size := range []struct {
			name    string
			columns int
			colour  bool
		}{{"80", 80, false}, {"200", 200, false}, {"40", 40, false}, {"60-colour", 60, true}} {
			text := build(events).Text(size.columns, size.colour)
			path := filepath.Join("testdata", name+"-"+size.name+".golden")
			if *update {
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil || string(want) != text {
				t.Errorf("%s: %v: want\n%s\ngot\n%s", path, err, want, text)
			}
			for line := range strings.SplitSeq(text, "\n") {
				if n := printable.Width(line); n > size.columns && !size.colour {
					t.Errorf("%s: a line of %d columns: %q", path, n, line)
				}
			}
			if !size.colour && strings.Contains(text, "\x1b") {
				t.Errorf("%s: there are escapes", path)
			}
		}
	}
}

// TestSVG: it is XML, has a bar for each span, and nothing from elsewhere.
func TestSVG(t *testing.T) {
	tl := build(launched(3))
	spans := 0
	for _, s := range tl.Sections {
		spans += len(s.Spans)
	}
	tl.Error, tl.State = "task 0: Exited with exit code 3", step.Failed
	picture := tl.SVG()
	for _, want := range []string{
		"<title>step 12.0  FAILED  alice: ./a.out --title a &lt;b&gt; &amp; ?[31m 日本</title>", `fill="#c62828">task 0: Exited with exit code 3</text>`,
	} {
		if !strings.Contains(picture, want) {
			t.Errorf("the picture has no %q:\n%s", want, picture)
		}
	}
	d := xml.NewDecoder(strings.NewReader(picture))
	bars := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("it is no XML: %v\n%s", err, picture)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		if start.Name.Local == "g" {
			bars++
		}
		for _, a := range start.Attr {
			if strings.Contains(a.Value, "://") && a.Name.Local != "xmlns" || a.Name.Local == "href" {
				t.Errorf("%s: it is not self-contained: %q", a.Name.Local, a.Value)
			}
		}
	}
	if bars != spans || bars < 10 {
		t.Errorf("%d bars for %d spans", bars, spans)
	}
}

// TestSections: what belongs to the launch is not among the end, and calls of a hook
// for many tasks are one bar.
func TestSections(t *testing.T) {
	tl := build(launched(64))
	if len(tl.Sections) != 3 {
		t.Fatalf("%d sections", len(tl.Sections))
	}
	find := func(section int, name string) *Span {
		for i := range tl.Sections[section].Spans {
			if s := &tl.Sections[section].Spans[i]; s.Name == name {
				return s
			}
		}
		t.Fatalf("section %d has no %q", section, name)
		return nil
	}
	if s := find(0, "renice.so: task_init"); s.Count != 64 || s.Ranks != "0-63" || s.BeginUS != 6700 || s.EndUS != 7700+630 || s.LongestUS != 1000 {
		t.Errorf("%+v", s)
	}
	if s := find(1, "64 tasks"); s.BeginUS != 8000 || s.EndUS != 3_663_000 || s.Open {
		t.Errorf("%+v", s)
	}
	if s := find(2, "renice.so: exit"); s.Error != "returned -1" {
		t.Errorf("%+v", s)
	}
	find(2, "renice.so: task_exit")
	find(2, "undo proctrack")
	if s := find(0, "stepd"); s.BeginUS != 1400 || s.EndUS != 1600 {
		t.Errorf("%+v", s)
	}
	if s := find(0, "exec"); s.BeginUS != 6600 || s.EndUS != 8630 || s.Open {
		t.Errorf("%+v", s)
	}
	if s := build(launched(64)[:2]).Sections[0].Spans; len(s) != 2 || s[1].Name != "stepd" || s[1].EndUS != 1_000_000 {
		t.Errorf("of a stepd that has not begun: %+v", s)
	}
}

// TestSectionsAccountForAllTime: between the first and the last event of a step there is no moment of
// which no bar says what took it, but for what the daemons take between two parts.
func TestSectionsAccountForAllTime(t *testing.T) {
	const between = 5000 // microseconds
	for name, events := range map[string][]Event{"launched": launched(2), "crashed": crashed(), "prologs": prologs()} {
		var spans []Span
		for _, s := range build(events).Sections {
			spans = append(spans, s.Spans...)
		}
		slices.SortFunc(spans, func(a, b Span) int { return cmp.Compare(a.BeginUS, b.BeginUS) })
		covered := int64(0)
		for _, s := range spans {
			if s.BeginUS > covered+between {
				t.Errorf("%s: from %d to %d µs nothing is named", name, covered, s.BeginUS)
			}
			covered = max(covered, s.EndUS)
		}
	}
}

// TestCrashedHook: the bar of a hook that has ended its process ends there, and a failed launch has
// its end under "end".
func TestCrashedHook(t *testing.T) {
	tl := build(crashed())
	if len(tl.Sections) != 2 || tl.Sections[0].Name != "launch" || tl.Sections[1].Name != "end" {
		t.Fatalf("sections: %+v", tl.Sections)
	}
	for _, s := range tl.Sections[0].Spans {
		if s.Kind == KindHook && (s.EndUS != 61_000 || s.Open || s.Error != "killed by SIGSEGV at rude.so+0x250f") {
			t.Errorf("%+v", s)
		}
	}
	if end := tl.Sections[1].Spans; len(end) != 2 || end[0].Name != "kill" || end[1].Name != "undo spankhost" {
		t.Errorf("end: %+v", end)
	}
}

// TestTicks: there are a few, within the section.
func TestTicks(t *testing.T) {
	for _, whole := range []int64{1, 7, 99, 12_345, 3_600_000_000, 1 << 50} {
		at := ticks(whole)
		if len(at) < 2 || len(at) > 7 || at[len(at)-1] > whole {
			t.Errorf("%d: %v", whole, at)
		}
	}
}

// FuzzBuild: no log makes a section that ends before it begins, or a picture that is
// no XML.
func FuzzBuild(f *testing.F) {
	f.Add("gate", "x.so", int64(5), int64(9), 3)
	f.Add("\xff", "\x00", int64(-5), int64(1)<<62, -1)
	f.Fuzz(func(t *testing.T, phase, plugin string, a, b int64, rank int) {
		var builder TimelineBuilder
		for _, e := range []Event{
			{Event: EventRequest}, {Event: EventStageStart, Phase: phase}, {Event: EventHookStart, Plugin: plugin, Rank: &rank},
			{Event: EventHookEnd, Plugin: plugin, DurUS: &b}, {Event: EventStageEnd, Phase: phase, DurUS: &a, Text: plugin},
			{Event: EventTaskExec, Rank: &rank}, {Event: EventTaskExit, Rank: &rank},
		} {
			e.Time = time.Unix(0, a%1e15)
			builder.Add(&e)
			a += b % 1e9
		}
		tl := builder.Done(t0)
		tl.Head = Head{IDName: phase, Command: []string{plugin}, Error: phase}
		tl.Text(80, false)
		d := xml.NewDecoder(strings.NewReader(tl.SVG()))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestShortStage: a stage that began and ended within one microsecond comes before the
// one that began after it in the same.
func TestShortStage(t *testing.T) {
	var events []Event
	for _, s := range []struct {
		name     string
		from, to int
	}{{"streams", 5, 7}, {"load", 7, 7}, {"user_init", 7, 9}, {"gate", 9, 9}} {
		events = append(events,
			Event{Time: t0.Add(time.Duration(s.from) * time.Microsecond), Event: EventStageStart, Phase: s.name},
			Event{Time: t0.Add(time.Duration(s.to) * time.Microsecond), Event: EventStageEnd, Phase: s.name, DurUS: ptr(int64(s.to - s.from))})
	}
	var got []string
	for _, section := range build(events).Sections {
		for _, s := range section.Spans {
			got = append(got, s.Name)
		}
	}
	if want := "streams load user_init gate exec"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// TestTimelineFailedTasks: a task that has failed says so, alone and among many.
func TestTimelineFailedTasks(t *testing.T) {
	for _, n := range []int{2, tasksMax + 1} {
		var b TimelineBuilder
		at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
		b.Add(&Event{Time: at, Event: EventAccepted})
		for rank := range n {
			b.Add(&Event{Time: at.Add(time.Millisecond), Event: EventTaskExec, Rank: &rank})
		}
		for rank := range n {
			status := step.ExitedWith(uint8(3 * (rank % 2)))
			b.Add(&Event{Time: at.Add(2 * time.Millisecond), Event: EventTaskExit, Rank: &rank, Status: &status})
		}
		var text string
		for _, line := range strings.Split(b.Done(at.Add(time.Second)).Text(80, true), "\n") {
			if strings.Contains(line, "failed: ") {
				text += line
			}
		}
		want := "\x1b[31m    failed: Exited with exit code 3\x1b[0m"
		if n > tasksMax {
			want = "\x1b[31m    failed: task 1: Exited with exit code 3\x1b[0m"
		}
		if text != want {
			t.Errorf("%d tasks: %q, want %q", n, text, want)
		}
	}
}
