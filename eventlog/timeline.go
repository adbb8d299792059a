package eventlog

import (
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"stepd/internal/printable"
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
	ends   map[int]step.ExitStatus // by rank, where it has failed
	gate   int64                   // when the last gate opened, -1 before
	lastEx int64                   // the last exec
	ended  bool
}

// Add takes one event.
func (b *TimelineBuilder) Add(e *Event) {
	if !b.begun {
		b.begun, b.base, b.gate = true, e.Time, -1
		b.open, b.hooks = map[string]*Span{}, map[string]*Span{}
		b.execs, b.exits, b.ends = map[int]int64{}, map[int]int64{}, map[int]step.ExitStatus{}
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
			if e.Status != nil && *e.Status != 0 {
				b.ends[*e.Rank] = *e.Status
			}
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

// Text draws the bars in so many columns, at least 60. With colour the hooks' bars
// have one of their own, and what failed another.
func (t *Timeline) Text(title string, columns int, colour bool) string {
	columns = max(columns, 60)
	d := &drawing{columns: columns, colour: colour, name: min(max(columns*2/5, 24), 56)}
	d.bars = columns - d.name - 2*numberWidth - 3
	for i, s := range t.Sections {
		if i > 0 {
			d.b.WriteByte('\n')
		}
		head := s.Name
		if title != "" {
			head += " of " + title
		}
		d.section(head, &t.Sections[i])
	}
	return d.b.String()
}

// numberWidth is the width of a number of milliseconds: "1234567.890".
const numberWidth = 11

type drawing struct {
	b             strings.Builder
	columns, name int
	bars          int
	colour        bool
}

const (
	bold   = "1"
	cyan   = "36"
	red    = "31"
	yellow = "33"
)

func (d *drawing) paint(code, text string) string {
	if !d.colour || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (d *drawing) section(head string, s *Section) {
	length := duration(s.EndUS - s.BeginUS)
	scale := "0" + strings.Repeat(" ", max(0, d.bars-1-utf8.RuneCountInString(length))) + length
	fmt.Fprintf(&d.b, "%s %*s %*s %s\n", d.paint(bold, printable.Pad(head, d.name)), numberWidth, "at ms", numberWidth, "ms", scale)
	for i := range s.Spans {
		span := &s.Spans[i]
		name, code := "  "+span.Label(), ""
		switch {
		case span.Error != "":
			code = red
		case span.Open:
			code = yellow
		case span.Kind == KindHook:
			code = cyan
		}
		if span.Kind == KindHook {
			name = "  " + name
		}
		fmt.Fprintf(&d.b, "%s %*.3f %*.3f %s\n", printable.Pad(name, d.name), numberWidth, ms(span.BeginUS), numberWidth, ms(span.EndUS-span.BeginUS),
			d.paint(code, d.bar(s, span)))
		if span.Error != "" {
			d.b.WriteString(d.paint(red, printable.Fit("    failed: "+printable.Line(span.Error, 0), d.columns)) + "\n")
		}
	}
}

// Label is the span's name, with what it stands for where that is more than one.
func (s *Span) Label() string {
	label := printable.Line(s.Name, 0)
	switch {
	case s.Kind == KindHook && s.Count > 1:
		label += fmt.Sprintf(" ×%d", s.Count)
	case s.Kind == KindHook && s.Ranks != "":
		label += " (rank " + s.Ranks + ")"
	}
	return label
}

// eighths are the parts of a column that a bar may end in.
var eighths = []string{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"}

// bar is the span on the section's scale; what is too short to be seen is a thin
// mark.
func (d *drawing) bar(sec *Section, s *Span) string {
	whole := sec.EndUS - sec.BeginUS
	if whole <= 0 {
		return "▏"
	}
	cells := int64(d.bars) * 8
	from := min((s.BeginUS-sec.BeginUS)*cells/whole, cells-1)
	to := min((s.EndUS-sec.BeginUS)*cells/whole, cells)
	from -= from % 8 // no letter begins in the middle of a column
	n := max(to-from, 1)
	return strings.Repeat(" ", int(from/8)) + strings.Repeat("█", int(n/8)) + eighths[n%8]
}

func ms(us int64) float64 { return float64(us) / 1000 }

// duration writes microseconds as people read them: "12.3 ms", "4.2 s", "1:02:03".
func duration(us int64) string {
	switch s := us / 1e6; {
	case us < 1000:
		return fmt.Sprintf("%d µs", us)
	case us < 1e6:
		return fmt.Sprintf("%.1f ms", ms(us))
	case s < 60:
		return fmt.Sprintf("%.1f s", float64(us)/1e6)
	default:
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
}

// The picture's measures, in pixels.
const (
	svgWidth  = 1100
	svgNames  = 330 // where the bars begin
	svgNumber = 90  // the durations' column, right of the bars
	svgRow    = 18
	svgHead   = 40
)

// SVG is the picture of the bars, in one file of its own: no script, no font and no
// style from elsewhere. Each bar tells its figures to who points at it.
func (t *Timeline) SVG(title string) string {
	d := &picture{y: svgHead}
	for i := range t.Sections {
		d.section(&t.Sections[i])
	}
	height := d.y + 10
	return fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="monospace" font-size="12">
<title>%s</title>
<rect width="100%%" height="100%%" fill="#ffffff"/>
<text x="10" y="22" font-size="15" fill="#222222">%s</text>
%s</svg>
`, svgWidth, height, svgWidth, height, text(title), text(title), d.b.String())
}

type picture struct {
	b strings.Builder
	y int
}

func (d *picture) section(s *Section) {
	const left, right = svgNames, svgWidth - svgNumber
	d.y += svgRow
	top := d.y + 4
	fmt.Fprintf(&d.b, "<text x=\"10\" y=\"%d\" font-weight=\"bold\" fill=\"#222222\">%s, %s</text>\n", d.y, text(s.Name), text(duration(s.EndUS-s.BeginUS)))
	bottom := top + svgRow*len(s.Spans)
	whole := max(s.EndUS-s.BeginUS, 1)
	for _, at := range ticks(whole) {
		x := left + int(at*int64(right-left)/whole)
		fmt.Fprintf(&d.b, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#dddddd\"/>\n", x, top, x, bottom)
		fmt.Fprintf(&d.b, "<text x=\"%d\" y=\"%d\" fill=\"#777777\" font-size=\"10\" text-anchor=\"middle\">%s</text>\n", x, d.y, text(duration(at)))
	}
	d.y = top
	for i := range s.Spans {
		d.bar(s, &s.Spans[i], left, right)
	}
	d.y += svgRow / 2
}

func (d *picture) bar(sec *Section, s *Span, left, right int) {
	whole := float64(max(sec.EndUS-sec.BeginUS, 1))
	x := float64(left) + float64(s.BeginUS-sec.BeginUS)/whole*float64(right-left)
	width := max(float64(s.EndUS-s.BeginUS)/whole*float64(right-left), 1)
	indent := 10
	if s.Kind == KindHook {
		indent = 26
	}
	told := fmt.Sprintf("%s: at %s, for %s", s.Label(), duration(s.BeginUS), duration(s.EndUS-s.BeginUS))
	if s.Count > 1 {
		told += fmt.Sprintf(", the longest of %d %s", s.Count, duration(s.LongestUS))
	}
	if s.Error != "" {
		told += ", failed: " + s.Error
	}
	fmt.Fprintf(&d.b, "<g><title>%s</title>\n", text(told))
	fmt.Fprintf(&d.b, "<text x=\"%d\" y=\"%d\" fill=\"#222222\">%s</text>\n", indent, d.y+13, text(printable.Fit(s.Label(), (left-indent-8)*10/73)))
	fmt.Fprintf(&d.b, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" rx=\"2\" fill=\"%s\"/>\n", x, d.y+3, width, svgRow-6, colourOf(s))
	fmt.Fprintf(&d.b, "<text x=\"%d\" y=\"%d\" fill=\"#555555\" text-anchor=\"end\">%s</text></g>\n", svgWidth-10, d.y+13, text(duration(s.EndUS-s.BeginUS)))
	d.y += svgRow
}

func colourOf(s *Span) string {
	switch {
	case s.Error != "":
		return "#c62828"
	case s.Open:
		return "#f9a825"
	case s.Kind == KindHook:
		return "#00838f"
	case s.Kind == KindTask:
		return "#2e7d32"
	}
	return "#455a8a"
}

// ticks are the places of the lines: at most six, at 1, 2 or 5 times a power of ten.
func ticks(whole int64) (at []int64) {
	unit := int64(1)
	for i := 0; whole/unit > 5; i++ {
		if i%3 == 1 {
			unit = unit / 2 * 5
		} else {
			unit *= 2
		}
	}
	for t := int64(0); t <= whole; t += unit {
		at = append(at, t)
	}
	return at
}

// text is a text of XML: printable text has no control characters, so that HTML's escapes are XML's.
func text(s string) string { return html.EscapeString(printable.Line(s, 0)) }
