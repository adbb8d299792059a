package eventlog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"stepd/step"
	"stepd/step/launch"
)

// Timeline is the document of `stepctl timeline --json`. Times are microseconds
// since the request.
type Timeline struct {
	Head
	Sections []Section `json:"sections"`
}

// Head says whose timeline it is.
type Head struct {
	step.ID
	IDName  string     `json:"id"`
	User    string     `json:"user"`
	State   step.State `json:"state"`
	Command []string   `json:"command"`
	// Error is the record's reason, "" of a step that has ended well.
	Error string `json:"error,omitempty"`
}

// HeadOf is the head of a step's timeline.
func HeadOf(rec *step.Record) Head {
	return Head{ID: rec.ID, IDName: rec.ID.Name(), User: rec.User, State: rec.State, Command: append([]string{}, rec.Command...), Error: rec.Reason}
}

// Section is a part of a step's life with a scale of its own: a launch takes
// milliseconds, and what is launched may take days.
type Section struct {
	Name    string `json:"name"`
	BeginUS int64  `json:"begin_us"`
	EndUS   int64  `json:"end_us"`
	Spans   []Span `json:"spans"`
}

// Span is one bar: a stage, the calls of a hook, a task.
type Span struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	// Plugin and Hook belong to a KindHook; Ranks are the ranks of the tasks that it was called for, that
	// a KindTask is about, or that the stage exec waits for.
	Plugin string `json:"plugin,omitempty"`
	Hook   string `json:"hook,omitempty"`
	Ranks  string `json:"ranks,omitempty"`
	// Count is how many calls or tasks the bar stands for, from the begin of the first
	// to the end of the last; LongestUS is the longest of them.
	Count     int   `json:"count"`
	LongestUS int64 `json:"longest_us"`
	BeginUS   int64 `json:"begin_us"`
	EndUS     int64 `json:"end_us"`
	// Open says that it has not ended: EndUS is the last event's.
	Open bool `json:"open,omitempty"`
	// Error is why it failed.
	Error string `json:"error,omitempty"`

	ranks  []int
	launch bool // it belongs to the launch, not to the end
}

// Kind says what a span is.
type Kind string

// The kinds of spans.
const (
	KindStage Kind = "stage"
	KindHook  Kind = "hook"
	KindTask  Kind = "task"
)

// TimelineBuilder makes bars of a step's event log: where the time of its launch, of its tasks
// and of its end went, stage by stage and hook by hook. Add takes the events in the order of the
// log, Done gives the bars. The zero value is ready.
type TimelineBuilder struct {
	begun bool
	base  time.Time
	last  int64
	spans []*Span // stages and hooks, in the order of their begins
	open  map[string]*Span
	hooks map[string]*Span
	// crashes are the ends of hooks that have ended their process, by the hook: its start may
	// stand behind them in the log.
	crashes map[string]*Span
	forked  []int // ranks
	execs   map[int]int64
	exits   map[int]int64
	ends    map[int]step.ExitStatus // by rank, where it has failed
	noded   *Span                   // noded's own part, before the prolog
	node    int64                   // when noded had done its part, -1 before it has accepted the step
	stepd   *Span                   // from there to the first stage of stepd
	gate    int64                   // when the last gate opened, -1 before
	lastEx  int64                   // the last exec, or end without one
	ended   bool
}

// Add takes one event.
func (b *TimelineBuilder) Add(e *Event) {
	if !b.begun {
		b.begun, b.base, b.gate, b.node = true, e.Time, -1, -1
		b.open, b.hooks, b.crashes = map[string]*Span{}, map[string]*Span{}, map[string]*Span{}
		b.execs, b.exits, b.ends = map[int]int64{}, map[int]int64{}, map[int]step.ExitStatus{}
	}
	at := e.Time.Sub(b.base).Microseconds()
	if e.Event != EventHookStart && e.Event != EventHookEnd {
		b.last = max(b.last, at)
	}
	switch e.Event {
	case EventAccepted:
		b.noded = &Span{Kind: KindStage, Name: "noded", Count: 1, EndUS: at, LongestUS: at, launch: true}
		b.spans = append(b.spans, b.noded)
		b.node = at
	case EventStageStart:
		b.startStage(e.Phase, at)
	case EventStageEnd:
		b.endStage(e, at)
	case EventHookStart, EventHookEnd:
		b.hook(e, at)
	case EventHookCrash:
		if key := hookKey(e); b.crashes[key] == nil {
			b.crashes[key] = &Span{EndUS: at, Error: e.Text}
		}
	case EventTaskFork:
		if e.Rank != nil {
			b.forked = append(b.forked, *e.Rank)
		}
	case EventTaskExec:
		if e.Rank != nil {
			b.execs[*e.Rank] = at
			b.lastEx = max(b.lastEx, at)
		}
	case EventEnd:
		b.ended = true
	case EventTaskExit:
		b.exit(e, at)
	}
}

func (b *TimelineBuilder) exit(e *Event, at int64) {
	if e.Rank == nil {
		return
	}
	b.exits[*e.Rank] = at
	if e.Status != nil && *e.Status != 0 {
		b.ends[*e.Rank] = *e.Status
	}
	if _, ran := b.execs[*e.Rank]; !ran {
		b.lastEx = max(b.lastEx, at)
	}
}

// startStage begins a stage of the launch: the stages of the end are reported once, when they are over.
func (b *TimelineBuilder) startStage(name string, at int64) {
	switch {
	case name != PhaseProlog:
		b.startStepd(at)
	case b.noded != nil:
		b.noded.EndUS = at // it has made the job's places meanwhile
	}
	s := &Span{Kind: KindStage, Name: name, Count: 1, BeginUS: at, EndUS: at, Open: true, launch: true}
	b.spans = append(b.spans, s)
	b.open[name] = s
}

// startStepd makes the bar of stepd's own start, from noded's part to at, once.
func (b *TimelineBuilder) startStepd(at int64) {
	if b.node < 0 || b.stepd != nil || b.open[PhaseProlog] != nil {
		return
	}
	b.stepd = &Span{Kind: KindStage, Name: "stepd", Count: 1, BeginUS: b.node, EndUS: at, LongestUS: at - b.node, launch: true}
	b.spans = append(b.spans, b.stepd)
}

func (b *TimelineBuilder) endStage(e *Event, at int64) {
	key := e.Phase
	s := b.open[key]
	if s == nil {
		s = &Span{Kind: KindStage, Name: e.Phase, Count: 1, BeginUS: at}
		if e.DurUS != nil {
			s.BeginUS = at - *e.DurUS
		}
		b.spans = append(b.spans, s)
	}
	delete(b.open, key)
	s.EndUS, s.Open, s.Error = at, false, e.Text
	s.LongestUS = s.EndUS - s.BeginUS
	switch {
	case e.Phase == "gate":
		b.gate = max(b.gate, at)
	case e.Phase == PhaseProlog && b.node >= 0:
		b.node = at
	}
}

func hookKey(e *Event) string { return e.Plugin + "\x00" + e.Hook }

// ofEnd reports whether a hook belongs to the step's end.
func ofEnd(hook string) bool {
	switch hook {
	case "slurm_spank_task_exit", "slurm_spank_exit", launch.HookFini, launch.HookClose:
		return true
	}
	return false
}

// hook adds a call to the bar of its hook.
func (b *TimelineBuilder) hook(e *Event, at int64) {
	key := hookKey(e)
	s := b.hooks[key]
	if e.Event == EventHookStart {
		if s == nil {
			s = &Span{
				Kind: KindHook, Name: e.Plugin + ": " + strings.TrimPrefix(e.Hook, "slurm_spank_"), Plugin: e.Plugin, Hook: e.Hook,
				BeginUS: at, EndUS: at, launch: !ofEnd(e.Hook),
			}
			b.hooks[key] = s
			b.spans = append(b.spans, s)
		}
		s.Count++
		s.BeginUS = min(s.BeginUS, at)
		s.Open = true // until its end, which comes next
		if e.Rank != nil {
			s.ranks = append(s.ranks, *e.Rank)
		}
		return
	}
	if s == nil {
		return // its start was cut off
	}
	s.Open = false
	s.EndUS = max(s.EndUS, at)
	if e.DurUS != nil {
		s.LongestUS = max(s.LongestUS, *e.DurUS)
	}
	if e.RC != nil && *e.RC != 0 {
		s.Error = fmt.Sprintf("returned %d", *e.RC)
	}
}

// tasksMax is how many tasks, or times of epilogs, have a bar each; more share one.
const tasksMax = 16

// Done makes the sections. What of a step that goes on has no end yet lasts until now.
func (b *TimelineBuilder) Done(now time.Time) *Timeline {
	t := &Timeline{Sections: []Section{}}
	if !b.begun {
		return t
	}
	if !b.ended {
		b.last = max(b.last, now.Sub(b.base).Microseconds())
		b.startStepd(b.last)
	}
	b.starting()
	b.joinEpilogs()
	var first, end []*Span
	for _, s := range b.spans {
		if crash := b.crashes[s.Plugin+"\x00"+s.Hook]; s.Kind == KindHook && crash != nil {
			s.EndUS, s.Error, s.Open = max(s.EndUS, crash.EndUS), crash.Error, false
		} else if s.Open {
			s.EndUS = max(s.EndUS, b.last)
		}
		if s.Count == 1 {
			s.LongestUS = s.EndUS - s.BeginUS
		}
		slices.Sort(s.ranks)
		s.Ranks = step.FormatCPUList(s.ranks)
		if s.launch {
			first = append(first, s)
		} else {
			end = append(end, s)
		}
	}
	t.add("launch", first)
	t.add("tasks", b.tasks())
	t.add("end", end)
	return t
}

// starting names the time from the gate to the last exec, unless prologs of tasks do, and says
// there which ranks have not come to theirs, or never did.
func (b *TimelineBuilder) starting() {
	if b.gate < 0 {
		return
	}
	never := make(map[step.ExitStatus][]int)
	var ends []step.ExitStatus // in the order of their first ranks
	for _, rank := range slices.Sorted(maps.Keys(b.exits)) {
		if _, ran := b.execs[rank]; !ran {
			status := b.ends[rank]
			if never[status] == nil {
				ends = append(ends, status)
			}
			never[status] = append(never[status], rank)
		}
	}
	i := slices.IndexFunc(b.spans, func(s *Span) bool { return s.Kind == KindStage && s.Name == PhaseTaskProlog })
	if i < 0 {
		s := &Span{Kind: KindStage, Name: "exec", Count: 1, BeginUS: b.gate, EndUS: max(b.gate, b.lastEx), launch: true}
		if !b.ended {
			s.ranks = slices.DeleteFunc(slices.Clone(b.forked), func(rank int) bool {
				_, ran := b.execs[rank]
				_, over := b.exits[rank]
				return ran || over
			})
			s.Open = len(s.ranks) > 0 || len(b.execs)+len(b.exits) == 0
		}
		i, b.spans = len(b.spans), append(b.spans, s)
	}
	if s := b.spans[i]; s.Error == "" {
		var texts []string
		for _, status := range ends {
			word := "ranks"
			if len(never[status]) == 1 {
				word = "rank"
			}
			texts = append(texts, fmt.Sprintf("%s %s never ran the command: %s", word, step.FormatCPUList(never[status]), status.Describe()))
		}
		s.Error = strings.Join(texts, "; ")
	}
}

// joinEpilogs makes one bar of the epilogs' where there are many: tasks may end one by one.
func (b *TimelineBuilder) joinEpilogs() {
	other := func(s *Span) bool { return s.Kind != KindStage || s.Name != PhaseTaskEpilog }
	all := slices.DeleteFunc(slices.Clone(b.spans), other)
	if len(all) <= tasksMax {
		return
	}
	one := *all[0]
	for _, s := range all[1:] {
		one.Count++
		one.EndUS, one.LongestUS = max(one.EndUS, s.EndUS), max(one.LongestUS, s.LongestUS)
	}
	b.spans = append(slices.DeleteFunc(b.spans, func(s *Span) bool { return !other(s) }), &one)
}

// add makes a section of its spans, the stages before what happens in them.
func (t *Timeline) add(name string, spans []*Span) {
	if len(spans) == 0 {
		return
	}
	slices.SortStableFunc(spans, func(a, b *Span) int {
		if a.Kind == KindStage && b.Kind == KindStage { // one after the other, however short the first one is
			return cmp.Or(cmp.Compare(a.BeginUS, b.BeginUS), cmp.Compare(a.EndUS, b.EndUS))
		}
		return cmp.Or(cmp.Compare(a.BeginUS, b.BeginUS), cmp.Compare(rank(a), rank(b)), cmp.Compare(b.EndUS, a.EndUS))
	})
	s := Section{Name: name, BeginUS: spans[0].BeginUS}
	for _, span := range spans {
		s.EndUS = max(s.EndUS, span.EndUS)
		s.Spans = append(s.Spans, *span)
	}
	t.Sections = append(t.Sections, s)
}

func rank(s *Span) int {
	if s.Kind == KindStage {
		return 0
	}
	return 1
}

// tasks are the bars of the tasks, from exec to exit.
func (b *TimelineBuilder) tasks() (out []*Span) {
	var all []int
	for r := range b.execs {
		all = append(all, r)
	}
	slices.Sort(all)
	for _, r := range all {
		s := &Span{Kind: KindTask, Name: fmt.Sprintf("task %d", r), Ranks: fmt.Sprint(r), Count: 1, BeginUS: b.execs[r], EndUS: b.last, Open: true}
		if exit, ended := b.exits[r]; ended {
			s.EndUS, s.Open = max(exit, s.BeginUS), false
		}
		if status := b.ends[r]; status != 0 {
			s.Error = status.Describe()
		}
		s.LongestUS = s.EndUS - s.BeginUS
		out = append(out, s)
	}
	if len(out) <= tasksMax {
		return out
	}
	one := *out[0]
	one.Error, one.Name, one.Ranks, one.Count = "", fmt.Sprintf("%d tasks", len(out)), step.FormatCPUList(all), len(out)
	for _, s := range out {
		one.BeginUS, one.EndUS = min(one.BeginUS, s.BeginUS), max(one.EndUS, s.EndUS)
		one.LongestUS = max(one.LongestUS, s.LongestUS)
		one.Open = one.Open || s.Open
		if one.Error == "" && s.Error != "" {
			one.Error = s.Name + ": " + s.Error
		}
	}
	return []*Span{&one}
}
