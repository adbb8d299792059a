package manual

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// widthMax is where lines end however wide the terminal is: longer ones are not
// read with ease.
const widthMax = 110

// Style says how a help screen looks.
type Style struct {
	Width int  // of the terminal, in columns; 0 is 80
	Bold  bool // headings in bold
}

// Text is the page as a help screen.
func (p *Page) Text(s Style) string {
	if s.Width <= 0 {
		s.Width = 80
	}
	w := &screen{width: min(max(s.Width, 40), widthMax), bold: s.Bold}
	w.line(strings.ToUpper(p.Short[:min(1, len(p.Short))]) + p.Short[min(1, len(p.Short)):])
	for i, u := range p.Usage {
		if i == 0 {
			w.gap()
		}
		w.wrap(u, "  ", "      ")
	}
	for _, par := range p.About {
		w.gap()
		w.paragraph(par, "")
	}
	if len(p.Commands) > 0 {
		w.heading("Commands")
		w.table(p.Commands, columnOf(p.Commands))
	}
	w.groups(p.Groups)
	for _, t := range p.Topics {
		w.heading(t.Title)
		for i, par := range t.Text {
			if i > 0 {
				w.gap()
			}
			w.paragraph(par, "  ")
		}
		w.table(t.Entries, columnOf(t.Entries))
	}
	if len(p.See) > 0 {
		w.heading("See also")
		w.wrap(strings.Join(p.See, ", "), "  ", "  ")
	}
	return w.b.String()
}

// screen collects lines of a bounded width.
type screen struct {
	b     strings.Builder
	width int
	bold  bool
}

func (w *screen) line(text string) { w.wrap(text, "", "") }

func (w *screen) gap() { w.b.WriteByte('\n') }

func (w *screen) heading(title string) {
	w.gap()
	if w.bold {
		fmt.Fprintf(&w.b, "\x1b[1m%s:\x1b[0m\n", title)
		return
	}
	fmt.Fprintf(&w.b, "%s:\n", title)
}

func (w *screen) paragraph(text, indent string) {
	if verbatim(text) {
		for line := range strings.SplitSeq(text, "\n") {
			fmt.Fprintf(&w.b, "%s%s\n", indent, strings.TrimRight(line, " "))
		}
		return
	}
	w.wrap(text, indent, indent)
}

// wrap writes words in lines: the first one begins with first, the others with
// rest. A word that fits no line has one of its own.
func (w *screen) wrap(text, first, rest string) {
	line, empty := first, true
	for _, word := range strings.Fields(text) {
		switch {
		case empty:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > w.width:
			fmt.Fprintln(&w.b, line)
			line = rest + word
		default:
			line += " " + word
		}
		empty = false
	}
	fmt.Fprintln(&w.b, strings.TrimRight(line, " "))
}

func (w *screen) groups(groups []Group) {
	var all []Entry
	for _, g := range groups {
		all = append(all, g.Options...)
	}
	column := columnOf(all) // one for all of the page
	for _, g := range groups {
		w.heading(g.Title)
		for _, par := range g.Text {
			w.paragraph(par, "  ")
		}
		w.table(g.Options, column)
	}
}

// columnMax is the widest first column: a longer name has a line of its own.
const columnMax = 30

// columnOf is where the meanings begin.
func columnOf(rows []Entry) (column int) {
	for _, r := range rows {
		if n := utf8.RuneCountInString(r.Name) + 4; n <= columnMax {
			column = max(column, n)
		}
	}
	return max(column, 8)
}

func (w *screen) table(rows []Entry, column int) {
	rest := strings.Repeat(" ", column)
	for _, r := range rows {
		name := "  " + r.Name
		if n := utf8.RuneCountInString(name); n+2 <= column {
			w.wrap(r.Text, name+strings.Repeat(" ", column-n), rest)
			continue
		}
		fmt.Fprintln(&w.b, name)
		if r.Text != "" {
			w.wrap(r.Text, rest, rest)
		}
	}
}
