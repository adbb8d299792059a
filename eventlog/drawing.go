package eventlog

import (
	"fmt"
	"html"
	"strings"
	"unicode/utf8"

	"stepd/internal/printable"
	"stepd/step"
	"stepd/step/launch"
)

// Text draws the bars in so many columns, at least 40, below what happened to the step, why, and
// where its time went. Below 60 there is no room for the bars' begins. With colour the hooks' bars have one of their own, and what failed another.
func (t *Timeline) Text(columns int, colour bool) string {
	columns = max(columns, 40)
	d := &drawing{columns: columns, colour: colour, name: min(max(columns*2/5, 24), 56)}
	d.bars = columns - d.name - 2*numberWidth - 3
	if d.narrow = columns < 60; d.narrow {
		d.name = columns * 2 / 5
		d.bars = columns - d.name - numberWidth - 2
	}
	d.head(t)
	for i := range t.Sections {
		d.b.WriteByte('\n')
		d.section(&t.Sections[i])
	}
	return d.b.String()
}

// title is the step, its state, its user and its command.
func (h *Head) title() (name, rest string) {
	return "step " + h.IDName, fmt.Sprintf("  %s  %s: %s", h.State, h.User, strings.Join(h.Command, " "))
}

// end says how the step has ended, and why.
func (h *Head) end() string {
	switch {
	case h.Error != "":
		first, _ := launch.CauseFirst(h.Error, "")
		return first
	case h.State == step.Completed:
		return "it ended well"
	case h.State.Final():
		return "no reason is known"
	}
	return "it goes on: what has no end yet lasts until now"
}

// spent is the time of each section, and what took the most of its launch.
func (t *Timeline) spent() string {
	var parts []string
	for _, s := range t.Sections {
		part := s.Name + " " + duration(s.EndUS-s.BeginUS)
		var most Span
		for _, span := range s.Spans {
			if span.Kind == KindStage && span.EndUS-span.BeginUS > most.EndUS-most.BeginUS {
				most = span
			}
		}
		if most.Name != "" && s.Name == "launch" {
			part += fmt.Sprintf(" (%s %s)", most.Label(), duration(most.EndUS-most.BeginUS))
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "its log has no event"
	}
	return strings.Join(parts, ", ")
}

// head writes three lines: what happened, why, and what to do now, with where the time went.
func (d *drawing) head(t *Timeline) {
	name, rest := t.title()
	d.b.WriteString(d.paint(bold, name) + printable.Fit(printable.Line(rest, 0), d.columns-utf8.RuneCountInString(name)) + "\n")
	hint, code := "", ""
	if t.Error != "" || !t.State.Final() {
		hint = "stepctl explain " + t.IDName + "; "
	}
	if t.Error != "" {
		code = red
	}
	d.b.WriteString("  " + d.paint(code, printable.Fit(printable.Line(t.end(), 0), d.columns-2)) + "\n")
	d.b.WriteString("  " + printable.Fit(hint+t.spent(), d.columns-2) + "\n")
}

// numberWidth is the width of a number of milliseconds: "1234567.890".
const numberWidth = 11

type drawing struct {
	b             strings.Builder
	columns, name int
	bars          int
	colour        bool
	narrow        bool // no column says when a bar begins
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

func (d *drawing) section(s *Section) {
	length := duration(s.EndUS - s.BeginUS)
	scale := "0" + strings.Repeat(" ", max(0, d.bars-1-utf8.RuneCountInString(length))) + length
	line := func(name, at, length, bar string) {
		if !d.narrow {
			name += fmt.Sprintf(" %*s", numberWidth, at)
		}
		fmt.Fprintf(&d.b, "%s %*s %s\n", name, numberWidth, length, bar)
	}
	line(d.paint(bold, printable.Pad(s.Name, d.name)), "at ms", "ms", scale)
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
		line(printable.Pad(name, d.name), fmt.Sprintf("%.3f", ms(span.BeginUS)), fmt.Sprintf("%.3f", ms(span.EndUS-span.BeginUS)), d.paint(code, d.bar(s, span)))
		if span.Error != "" {
			d.b.WriteString(d.paint(red, printable.Fit("    failed: "+printable.Line(span.Error, 0), d.columns)) + "\n")
		}
	}
}

// Label is the span's name, with what it stands for where that is more than one.
func (s *Span) Label() string {
	label := printable.Line(s.Name, 0)
	switch {
	case s.Kind != KindTask && s.Count > 1:
		label += fmt.Sprintf(" ×%d", s.Count)
	case s.Kind != KindTask && s.Ranks != "":
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
	svgHead   = 60
)

// SVG is the picture of the bars, in one file of its own: no script, no font and no
// style from elsewhere. Each bar tells its figures to who points at it.
func (t *Timeline) SVG() string {
	name, rest := t.title()
	d := &picture{y: svgHead}
	for i := range t.Sections {
		d.section(&t.Sections[i])
	}
	height := d.y + 10
	colour := "#555555"
	if t.Error != "" {
		colour = failedColour
	}
	return fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="monospace" font-size="12">
<title>%s</title>
<rect width="100%%" height="100%%" fill="#ffffff"/>
<text x="10" y="22" font-size="15" fill="#222222">%s</text>
<text x="10" y="40" fill="%s">%s</text>
<text x="10" y="56" fill="#555555">%s</text>
%s</svg>
`, svgWidth, height, svgWidth, height, text(name+rest), text(printable.Fit(name+rest, 115)), colour, text(printable.Fit(t.end(), 145)), text(t.spent()), d.b.String())
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

// failedColour is red.
const failedColour = "#c62828"

func colourOf(s *Span) string {
	switch {
	case s.Error != "":
		return failedColour
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
