package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"stepd/client/report"
	"stepd/client/terminal"
	"stepd/internal/printable"
	"stepd/step"
)

// topModel is what the screen shows: a pure function of looks and keys.
type topModel struct {
	look   *topLook
	sort   string
	all    bool             // the tasks of all steps
	open   map[step.ID]bool // whose tasks are shown
	chosen topRow
	first  int // the first row on the screen
	rows   []topRow
	// message is the last line: what a key has done, or asks.
	message string
	asking  bool   // for a signal
	answer  string // so far
	help    bool
}

// topRow is a step, or with task >= 0 its task at that place.
type topRow struct {
	id   step.ID
	task int
}

func newTopModel(o *topOptions) *topModel {
	return &topModel{sort: o.sort, all: o.tasks, open: map[step.ID]bool{}, chosen: topRow{task: -1}}
}

// set takes a new look; the chosen row stays chosen while it exists.
func (m *topModel) set(l *topLook) {
	m.look = l
	m.arrange()
}

func (m *topModel) arrange() {
	if m.look == nil {
		return
	}
	slices.SortStableFunc(m.look.Steps, func(a, b topStep) int {
		byID := cmp.Or(cmp.Compare(a.ID.Job, b.ID.Job), cmp.Compare(a.ID.Step, b.ID.Step))
		switch m.sort {
		case "cpu":
			return cmp.Or(more(a.CPUPercent, b.CPUPercent), byID)
		case "memory":
			return cmp.Or(more(memoryOf(a.Usage), memoryOf(b.Usage)), byID)
		case "io":
			return cmp.Or(more(sum(a.ReadRate, a.WriteRate), sum(b.ReadRate, b.WriteRate)), byID)
		case "time":
			ta, _ := a.Ran(m.look.Time)
			tb, _ := b.Ran(m.look.Time)
			return cmp.Or(cmp.Compare(tb, ta), byID)
		}
		return byID
	})
	m.rows = nil
	for i := range m.look.Steps {
		s := &m.look.Steps[i]
		m.rows = append(m.rows, topRow{s.ID, -1})
		if m.all || m.open[s.ID] {
			for t := range s.Tasks {
				m.rows = append(m.rows, topRow{s.ID, t})
			}
		}
	}
	if m.at() < 0 && len(m.rows) > 0 {
		if i := slices.Index(m.rows, topRow{m.chosen.id, -1}); i >= 0 {
			m.chosen = m.rows[i] // its task is gone, or shut
			return
		}
		m.chosen = m.rows[0]
	}
}

// at is the chosen row's place, -1 without one.
func (m *topModel) at() int { return slices.Index(m.rows, m.chosen) }

// more orders what is known, the larger first, before what is not.
func more(a, b *float64) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return cmp.Compare(*b, *a)
}

func sum(a, b *float64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	return new(*a + *b)
}

// memoryOf is the resident memory that a step has now.
func memoryOf(u *step.StepUsage) *float64 {
	if u == nil || u.RSSBytes == nil {
		return nil
	}
	return new(float64(*u.RSSBytes))
}

// table is the whole list, for what is no screen.
func (m *topModel) table(columns int) []string {
	out := m.head(columns)
	for _, r := range m.rows {
		out = append(out, m.row(r, columns))
	}
	if len(m.rows) == 0 {
		out = append(out, "no step runs here")
	}
	return out
}

// screen is the picture: as many lines as the terminal has, none wider than it. mark
// is the chosen row's line, -1 without one.
func (m *topModel) screen(columns, lines int) (out []string, mark int) {
	if m.look == nil {
		return nil, -1
	}
	out = m.head(columns)
	room := max(lines-len(out)-1, 1) // the last line is the message's
	at := max(m.at(), 0)
	m.first = min(m.first, at)
	m.first = max(m.first, at-room+1, 0)
	m.first = min(m.first, max(len(m.rows)-room, 0))
	mark = -1
	switch {
	case m.help:
		for _, line := range topKeys() {
			if len(out) < lines-1 {
				out = append(out, terminal.Fit(line, columns))
			}
		}
	case len(m.rows) == 0:
		out = append(out, terminal.Fit("no step runs here", columns))
	default:
		for i := m.first; i < min(m.first+room, len(m.rows)); i++ {
			if i == at {
				mark = len(out)
			}
			out = append(out, m.row(m.rows[i], columns))
		}
	}
	for len(out) < lines-1 {
		out = append(out, "")
	}
	if mark >= lines-1 {
		mark = -1 // there is no room for it
	}
	return append(out[:max(lines-1, 0)], terminal.Fit(m.foot(), columns)), mark
}

func (m *topModel) foot() string {
	switch {
	case m.asking:
		return "signal to " + m.name(m.chosen) + " (TERM): " + m.answer
	case m.message != "" || m.help:
		return m.message
	}
	return "enter tasks  s signal  z suspend  r resume  a attach  e explain  h keys  q end"
}

func topKeys() []string {
	return []string{
		"", "  up down k j PgUp PgDn   choose a step or a task",
		"  enter, t                the tasks of the chosen step, or not",
		"  T                       the tasks of all steps, or not",
		"  c m i w n               order by CPU, memory, I/O, time, number",
		"  s                       send a signal to the chosen step",
		"  z r                     suspend it, resume it",
		"  a                       attach to it",
		"  e                       explain it",
		"  space                   look again at once",
		"  q, Ctrl-C               end", "", "  any key goes back",
	}
}

// name is how a row is called in messages: a signal goes to all tasks of the step.
func (m *topModel) name(r topRow) string { return "step " + r.id.Name() }

// head are the lines above the rows.
func (m *topModel) head(columns int) []string {
	l := m.look
	tasks, running := 0, 0
	cpu, used := 0.0, "-"
	for i := range l.Steps {
		tasks += len(l.Steps[i].Tasks)
		if l.Steps[i].State == step.Running {
			running++
		}
		if c := l.Steps[i].CPUPercent; c != nil {
			cpu += *c
			used = fmt.Sprintf("%.1f", cpu/100)
		}
	}
	first := fmt.Sprintf("%s  %s  %s  %d of %s run, %s", l.Time.Format("15:04:05"), printable.Line(l.node.Name, 30), l.node.State, running,
		report.Plural(len(l.Steps), "step"), report.Plural(tasks, "task"))
	second := fmt.Sprintf("CPUs %s of %d used   memory %s of %s given   order: %s", used, l.node.CPUs, megabyteWords(l.node.UsedMB),
		megabyteWords(l.node.MemoryBytes>>20), m.sort)
	return []string{terminal.Fit(first, columns), terminal.Fit(second, columns), "", m.columns("STEP", "NAME", "COMMAND", "USER", "ST", "TIME", "CPU%", "MEMORY", "READ/s", "WRITE/s", "WAIT c m i", columns)}
}

func megabyteWords(mb uint64) string { return report.Size(new(int64(mb << 20))) }

// columns is one line. Of the columns beyond 80 the name has some, and what is left
// is the command's.
func (m *topModel) columns(id, name, command, user, state, time, cpu, memory, read, write, wait string, columns int) string {
	extra := max(columns-80, 0)
	nameWidth, userWidth := 9+min(extra, 15), 7+min(max(extra-15, 0), 9)
	if left := extra - 25; left > 10 {
		name = terminal.Pad(name, nameWidth) + " " + terminal.Pad(command, left-1)
		nameWidth += left
	}
	return terminal.Fit(fmt.Sprintf("%s %s %s %s %8s %6s %7s %7s %7s %9s", terminal.Pad(id, 7), terminal.Pad(name, nameWidth), terminal.Pad(user, userWidth), terminal.Pad(state, 3), time, cpu, memory, read, write, wait), columns)
}

// row is one line.
func (m *topModel) row(r topRow, columns int) string {
	i := slices.IndexFunc(m.look.Steps, func(s topStep) bool { return s.ID == r.id })
	s := &m.look.Steps[i]
	if r.task >= 0 {
		return m.taskRow(s, r.task, columns)
	}
	memory, wait := "-", "-"
	if s.Usage != nil {
		memory, wait = report.Size(s.Usage.RSSBytes), pressureWords(s.Usage.Pressure)
	}
	return m.columns(s.ID.Name(), printable.Line(s.Name, 200), printable.Line(strings.Join(s.Command, " "), 400), printable.Line(s.User, 40), shortState(s.Record), report.ElapsedAt(s.Record, m.look.Time), percent(s.CPUPercent), memory,
		rate(s.ReadRate), rate(s.WriteRate), wait, columns)
}

func (m *topModel) taskRow(s *topStep, i, columns int) string {
	t := &s.Tasks[i]
	var used step.Used
	if t.Usage != nil {
		used = *t.Usage
	}
	r := s.TaskRates[i]
	name := "pid " + report.Number(t.PID)
	state := string(t.State)
	if t.Status != nil {
		state = t.Status.Describe()
	}
	return m.columns("  "+strconv.Itoa(t.Rank), name, "", "", shortTask(t.State), report.Seconds(used.CPUSeconds), percent(r.CPUPercent), report.Size(used.RSSBytes),
		rate(r.ReadRate), rate(r.WriteRate), strings.ToLower(state), columns)
}

// shortState is the state in squeue's letters, and "S" for a suspended one.
func shortState(rec *step.Record) string {
	if rec.Suspended != nil && !rec.State.Final() {
		return "S"
	}
	return cmp.Or(map[step.State]string{
		step.Pending: "PD", step.Starting: "CF", step.Running: "R", step.Completing: "CG", step.Completed: "CD",
		step.Cancelled: "CA", step.Timeout: "TO", step.OutOfMemory: "OOM", step.NodeFail: "NF",
	}[rec.State], "F")
}

func shortTask(s step.TaskState) string {
	return cmp.Or(map[step.TaskState]string{step.TaskRunning: "R", step.TaskExited: "X", step.TaskFailed: "F"}[s], "CF")
}

func percent(v *float64) string {
	switch {
	case v == nil:
		return "-"
	case *v >= 1000:
		return fmt.Sprintf("%.0f", *v)
	}
	return fmt.Sprintf("%.1f", *v)
}

// rate is bytes a second.
func rate(v *float64) string {
	if v == nil {
		return "-"
	}
	return report.Size(new(int64(*v)))
}

// pressureWords are CPU, memory and I/O: percent of the last 10 s in which some task
// has waited.
func pressureWords(p *step.Pressure) string {
	if p == nil {
		return "-"
	}
	var words []string
	for _, s := range []*step.Stalls{p.CPU, p.Memory, p.IO} {
		word := "-"
		if s != nil {
			word = fmt.Sprintf("%.0f", s.Some.Avg10)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}
