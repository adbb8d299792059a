package manual

import (
	"embed"
	"fmt"
	"strings"
	"text/template"
	"unicode/utf8"

	"stepd/internal/printable"
)

// widthMax is where lines end however wide the terminal is: longer ones are not
// read with ease.
const widthMax = 110

// Style says how a help screen looks.
type Style struct {
	Width int  // of the terminal, in columns; 0 is 80
	Bold  bool // headings in bold
}

// layouts say in which order the parts of a page come, and what marks them: screen.tmpl of a help
// screen, man.tmpl of a man page.
//
//go:embed *.tmpl
var layouts embed.FS

// laidOut fills a layout with the page.
func (p *Page) laidOut(layout string, words template.FuncMap) string {
	t := template.New(layout).Funcs(template.FuncMap{
		"upper": strings.ToUpper, "trim": strings.TrimSpace, "join": strings.Join, "verbatim": verbatim,
		"lines": func(text string) []string { return strings.Split(text, "\n") },
	}).Funcs(words)
	var b strings.Builder
	if err := template.Must(t.ParseFS(layouts, layout)).Execute(&b, p); err != nil {
		panic(err) // the layouts are parts of the program
	}
	return b.String()
}

// Text is the page as a help screen.
func (p *Page) Text(s Style) string {
	if s.Width <= 0 {
		s.Width = 80
	}
	w := screen(min(max(s.Width, 40), widthMax))
	return p.laidOut("screen.tmpl", template.FuncMap{
		"wrap": w.wrap, "paragraph": w.paragraph, "table": w.table,
		"bold":  func() bool { return s.Bold },
		"first": func(text string) string { return strings.ToUpper(text[:min(1, len(text))]) + text[min(1, len(text)):] },
	})
}

// AllOptions are the ones of all groups: on a screen their meanings begin in one column.
func (p *Page) AllOptions() (all []Entry) {
	for _, g := range p.Groups {
		all = append(all, g.Options...)
	}
	return all
}

// screen is the width of one.
type screen int

// wrap writes words in lines: the first one begins with first, the others with rest.
func (w screen) wrap(first, rest, text string) string {
	return printable.Wrap(text, first, rest, int(w)) + "\n"
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

// paragraph writes one, wrapped or as it is.
func (w screen) paragraph(indent, text string) string {
	if !verbatim(text) {
		return w.wrap(indent, indent, text)
	}
	var b strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		b.WriteString(indent + strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// table writes rows; their meanings begin in the column of all.
func (w screen) table(all, rows []Entry) string {
	var b strings.Builder
	column := columnOf(all)
	rest := strings.Repeat(" ", column)
	for _, r := range rows {
		name := "  " + r.Name
		if n := utf8.RuneCountInString(name); n+2 <= column {
			b.WriteString(w.wrap(name+strings.Repeat(" ", column-n), rest, r.Text))
			continue
		}
		fmt.Fprintln(&b, name)
		if r.Text != "" {
			b.WriteString(w.wrap(rest, rest, r.Text))
		}
	}
	return b.String()
}

// Roff is the page in the macros of man(7).
func (p *Page) Roff() string {
	return p.laidOut("man.tmpl", template.FuncMap{
		"escape": escape, "inline": inline, "quoted": quoted, "cut": func(text, at string) []string { return strings.SplitN(text, at, 2) },
		"oneLine": func(text string) string { return strings.Join(strings.Fields(text), " ") },
		"cutName": func(text string) (rest []string) {
			if after, ours := strings.CutPrefix(text, p.Name); ours {
				rest = append(rest, after)
			}
			return rest
		},
	})
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
