package eventlog

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"stepd/internal/printable"
)

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
