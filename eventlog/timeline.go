package eventlog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"stepd/step"
)

// Timeline is the document of `stepctl timeline --json`. Times are microseconds
// since the request.
type Timeline struct {
	Sections []Section `json:"sections"`
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
	// Plugin and Hook belong to a KindHook; Ranks are the ranks of the tasks that
	// it was called for, or that a KindTask is about.
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

	ranks []int
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
	begun  bool
	base   time.Time
	last   int64
	spans  []*Span // stages and hooks, in the order of their begins
	open   map[string]*Span
	hooks  map[string]*Span
	execs  map[int]int64
	exits  map[int]int64
	gate   int64 // when the last gate opened, -1 before
	lastEx int64 // the last exec
	ended  bool
}

// Add takes one event.
func (b *TimelineBuilder) Add(e *Event) {
	if !b.begun {
		b.begun, b.base, b.gate = true, e.Time, -1
		b.open, b.hooks = map[string]*Span{}, map[string]*Span{}
		b.execs, b.exits = map[int]int64{}, map[int]int64{}
	}
	at := e.Time.Sub(b.base).Microseconds()
	if e.Event != EventHookStart && e.Event != EventHookEnd {
		b.last = max(b.last, at)
	}
	switch e.Event {
	case EventAccepted:
		b.spans = append(b.spans, &Span{Kind: KindStage, Name: "noded", Count: 1, EndUS: at, LongestUS: at})
	case EventStageStart:
		s := &Span{Kind: KindStage, Name: e.Phase, Count: 1, BeginUS: at, EndUS: at, Open: true}
		b.spans = append(b.spans, s)
		b.open[e.Phase] = s
	case EventStageEnd:
		b.endStage(e, at)
	case EventHookStart, EventHookEnd:
		b.hook(e, at)
	case EventTaskExec:
		if e.Rank != nil {
			b.execs[*e.Rank] = at
			b.lastEx = max(b.lastEx, at)
		}
	case EventEnd:
		b.ended = true
	case EventTaskExit:
		if e.Rank != nil {
			b.exits[*e.Rank] = at
		}
	}
}

func (b *TimelineBuilder) endStage(e *Event, at int64) {
	key := e.Phase
	s := b.open[key]
	if s == nil { // the stages of the end are reported once, when they are over
		s = &Span{Kind: KindStage, Name: e.Phase, Count: 1, BeginUS: at}
		if e.DurUS != nil {
			s.BeginUS = at - *e.DurUS
		}
		b.spans = append(b.spans, s)
	}
	delete(b.open, key)
	s.EndUS, s.Open, s.Error = at, false, e.Text
	s.LongestUS = s.EndUS - s.BeginUS
	if e.Phase == "gate" {
		b.gate = max(b.gate, at)
	}
}

// hook adds a call to the bar of its hook.
func (b *TimelineBuilder) hook(e *Event, at int64) {
	key := e.Plugin + "\x00" + e.Hook
	s := b.hooks[key]
	if e.Event == EventHookStart {
		if s == nil {
			s = &Span{
				Kind: KindHook, Name: e.Plugin + ": " + strings.TrimPrefix(e.Hook, "slurm_spank_"), Plugin: e.Plugin, Hook: e.Hook,
				BeginUS: at, EndUS: at,
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
	if e.RC != nil && *e.RC < 0 {
		s.Error = fmt.Sprintf("returned %d", *e.RC)
	}
}

// tasksMax is how many tasks have a bar each; more share one.
const tasksMax = 16

// Done makes the sections. What of a step that goes on has no end yet lasts until now.
func (b *TimelineBuilder) Done(now time.Time) *Timeline {
	t := &Timeline{Sections: []Section{}}
	if !b.begun {
		return t
	}
	if !b.ended {
		b.last = max(b.last, now.Sub(b.base).Microseconds())
	}
	launched := max(b.gate, b.lastEx)
	if b.gate < 0 {
		launched = b.last
	}
	var launch, end []*Span
	for _, s := range b.spans {
		if s.Open {
			s.EndUS = max(s.EndUS, b.last)
			s.LongestUS = max(s.LongestUS, s.EndUS-s.BeginUS)
		}
		slices.Sort(s.ranks)
		s.Ranks = step.FormatCPUList(s.ranks)
		if b.gate < 0 && !strings.HasPrefix(s.Name, "undo ") || s.BeginUS < b.gate || s.BeginUS <= launched && s.Kind == KindHook && s.Hook != "slurm_spank_task_exit" {
			launch = append(launch, s)
		} else {
			end = append(end, s)
		}
	}
	t.add("launch", launch)
	t.add("tasks", b.tasks())
	t.add("end", end)
	return t
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
		s.LongestUS = s.EndUS - s.BeginUS
		out = append(out, s)
	}
	if len(out) <= tasksMax {
		return out
	}
	one := *out[0]
	one.Name, one.Ranks, one.Count = fmt.Sprintf("%d tasks", len(out)), step.FormatCPUList(all), len(out)
	for _, s := range out {
		one.BeginUS, one.EndUS = min(one.BeginUS, s.BeginUS), max(one.EndUS, s.EndUS)
		one.LongestUS = max(one.LongestUS, s.LongestUS)
		one.Open = one.Open || s.Open
	}
	return []*Span{&one}
}
