package manual

import (
	"cmp"
	"fmt"
	"stepd/internal/printable"
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

// wrap writes words in lines: the first one begins with first, the others with rest.
func (w *screen) wrap(text, first, rest string) {
	fmt.Fprintln(&w.b, printable.Wrap(text, first, rest, w.width))
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

// Roff is the page in the macros of man(7).
func (p *Page) Roff() string {
	r := &roff{}
	r.raw(`.\" SPDX-License-Identifier: Apache-2.0`)
	r.raw(`.\" Made from the program itself: change that, not this.`)
	r.raw(fmt.Sprintf(`.TH "%s" %d "" stepd stepd`, strings.ToUpper(escape(p.File())), p.Section))
	r.raw(".nh\n.ad l")
	r.section("NAME")
	r.raw(escape(p.File()) + ` \- ` + escape(p.Short))
	if len(p.Usage) > 0 {
		r.section("SYNOPSIS")
		for i, u := range p.Usage {
			if i > 0 {
				r.raw(".br")
			}
			r.usage(p.Name, u)
		}
	}
	if len(p.About) > 0 {
		r.section("DESCRIPTION")
		r.paragraphs(p.About)
	}
	if len(p.Commands) > 0 {
		r.section("COMMANDS")
		r.entries(p.Commands)
	}
	if len(p.Groups) > 0 {
		if p.Section != 5 {
			r.section("OPTIONS")
		}
		for _, g := range p.Groups {
			r.group(g, p.Section)
		}
	}
	for _, t := range p.Topics {
		r.section(strings.ToUpper(t.Title))
		r.paragraphs(t.Text)
		r.entries(t.Entries)
	}
	if len(p.See) > 0 {
		r.section("SEE ALSO")
		var all []string
		for _, s := range p.See {
			name, rest, _ := strings.Cut(s, "(")
			all = append(all, `\fB`+escape(name)+`\fR(`+rest)
		}
		r.raw(strings.Join(all, ",\n"))
	}
	return r.b.String()
}

type roff struct{ b strings.Builder }

func (r *roff) raw(line string) { r.b.WriteString(line + "\n") }

func (r *roff) section(title string) { r.raw(".SH " + quoted(title)) }

func (r *roff) usage(name, text string) {
	rest, ours := strings.CutPrefix(text, name)
	if !ours {
		r.raw(escape(text))
		return
	}
	r.raw(`\fB` + escape(name) + `\fR` + escape(rest))
}

func (r *roff) group(g Group, section int) {
	if section == 5 {
		r.section(strings.ToUpper(g.Title))
	} else {
		r.raw(".SS " + quoted(g.Title))
	}
	r.paragraphs(g.Text)
	r.entries(g.Options)
}

func (r *roff) entries(all []Entry) {
	for _, e := range all {
		r.raw(".TP\n\\fB" + escape(strings.TrimSpace(e.Name)) + `\fR`)
		r.raw(cmp.Or(inline(e.Text), `\&`))
	}
}

func (r *roff) paragraphs(all []string) {
	for i, par := range all {
		if i > 0 {
			r.raw(".PP")
		}
		if !verbatim(par) {
			r.raw(inline(strings.Join(strings.Fields(par), " ")))
			continue
		}
		r.raw(".nf\n.RS 2")
		for line := range strings.SplitSeq(par, "\n") {
			r.raw(escape(line))
		}
		r.raw(".RE\n.fi")
	}
}

// inline sets what stands between backquotes in bold.
func inline(text string) string {
	parts := strings.Split(text, "`")
	if len(parts)%2 == 0 {
		return escape(text)
	}
	var b strings.Builder
	for i, part := range parts {
		if i%2 == 1 {
			b.WriteString(`\fB` + escapeIn(part) + `\fR`)
			continue
		}
		b.WriteString(escapeIn(part))
	}
	return guard(b.String())
}

func quoted(title string) string { return `"` + strings.ReplaceAll(escapeIn(title), `"`, `\(dq`) + `"` }

// escape makes text of a line, whatever it begins with.
func escape(text string) string { return guard(escapeIn(text)) }

// guard keeps a line that begins like a request from being one.
func guard(text string) string {
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		return `\&` + text
	}
	return text
}

var marks = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`,
	"…", "...", "—", `\(em`, "→", `\(->`, "†", `\(dg`)

func escapeIn(text string) string { return marks.Replace(text) }
