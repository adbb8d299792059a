// Package manual describes a command or a file once and writes it twice: as the
// help screen of a terminal (Text) and as a man page (Roff). So neither can say
// what the other does not.
//
// A Page of a command comes from its cobra.Command (Of), one of a configuration
// file from the tables of docs/configuration.md (Tables).
package manual

import (
	"embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/template"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"stepd/internal/printable"
)

// Page is one command, or one file.
type Page struct {
	// Name is "stepctl run", or "stepd.conf"; Section the manual's: 1, 5, 8.
	Name    string
	Section int
	// Short is one line, without a full stop.
	Short string
	// Usage are the ways to call it; none of a file.
	Usage []string
	// About are the paragraphs; one whose lines begin with blanks is set as it is.
	About []string
	// Commands are those below this one.
	Commands []Entry
	Groups   []Group
	// Topics are further sections: exit codes, environment, files, examples.
	Topics []Topic
	// See are other pages, "stepctl-ps(1)".
	See []string
}

// Group is a theme of options, or of keys of a file.
type Group struct {
	Title   string
	Options []Entry
	// Text stands before the options, in paragraphs as About.
	Text []string
}

// Entry is a word and what it means: a verb, an exit code, or an option, as it is written
// ("-n, --ntasks=N").
type Entry struct{ Name, Text string }

// Topic is a section of its own. Entries come behind the paragraphs of Text.
type Topic struct {
	Title   string
	Text    []string
	Entries []Entry
}

// File is the page's name in a folder of man pages: "stepctl-run".
func (p *Page) File() string { return strings.ReplaceAll(p.Name, " ", "-") }

// Paragraphs parts a text at its empty lines.
func Paragraphs(text string) (out []string) {
	for part := range strings.SplitSeq(strings.Trim(text, "\n"), "\n\n") {
		if part = strings.Trim(part, "\n"); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// verbatim reports whether a paragraph is to be set as it is.
func verbatim(paragraph string) bool {
	return strings.HasPrefix(paragraph, " ") || strings.HasPrefix(paragraph, "\t")
}

// Theme is a group of options by their names, in the order of the page. Args says
// how an option's argument is called, where its usage has no word in backquotes.
type Theme struct {
	Title   string
	Options []string
}

// Annotations that a flag may have.
const (
	// OwnGroup is the title of a group of its own: a plugin's.
	OwnGroup = "manual-group"
	// Written is how the option is written, with its argument.
	Written = "manual-written"
)

// other is the group of options that no theme has.
const other = "Other options"

// Of is the page of a command: its options by themes, then the options of no
// theme, and the ones with a group of their own last.
func Of(c *cobra.Command, section int, themes []Theme, args map[string]string) *Page {
	p := &Page{Name: c.CommandPath(), Section: section, Short: c.Short, About: Paragraphs(c.Long)}
	if !c.HasAvailableSubCommands() {
		p.Usage = append(p.Usage, useLine(c))
	}
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() && sub.Name() != "help" {
			continue
		}
		text := sub.Short
		if sub.Name() == "help" {
			text = "show the help of a verb, as its --help does"
		}
		p.Commands = append(p.Commands, Entry{sub.Name(), text})
	}
	if len(p.Commands) > 0 {
		p.Usage = append(p.Usage, c.CommandPath()+" COMMAND ...")
	}
	p.Groups = groupsOf(c, themes, args)
	return p
}

// useLine is how a command is called: where its own line names no options and it has
// some, they stand behind its name.
func useLine(c *cobra.Command) string {
	use := c.Use
	some := false
	c.LocalFlags().VisitAll(func(f *pflag.Flag) { some = some || !f.Hidden && f.Name != "help" })
	if name, rest, _ := strings.Cut(use, " "); some && !strings.Contains(use, "[") {
		use = strings.TrimSpace(name + " [options] " + rest)
	}
	if c.HasParent() {
		return c.Parent().CommandPath() + " " + use
	}
	return use
}

func groupsOf(c *cobra.Command, themes []Theme, args map[string]string) (groups []Group) {
	flags := map[string]*pflag.Flag{}
	var order []string
	note := func(f *pflag.Flag) {
		if f.Hidden || flags[f.Name] != nil {
			return
		}
		flags[f.Name] = f
		order = append(order, f.Name)
	}
	c.LocalFlags().VisitAll(note)
	c.InheritedFlags().VisitAll(note)
	done := map[string]bool{}
	add := func(title string, names []string) {
		g := Group{Title: title}
		for _, name := range names {
			f := flags[name]
			if f == nil || done[name] {
				continue
			}
			done[name] = true
			g.Options = append(g.Options, option(f, args))
		}
		if len(g.Options) > 0 {
			groups = append(groups, g)
		}
	}
	var plugins []string // titles of own groups
	own := map[string][]string{}
	var general Theme // its options stand at the end
	if len(themes) > 0 {
		themes, general = themes[:len(themes)-1], themes[len(themes)-1]
	}
	var rest []string // what no theme has, or an earlier one
	for _, name := range order {
		switch title := flags[name].Annotations[OwnGroup]; {
		case len(title) > 0:
			if own[title[0]] == nil {
				plugins = append(plugins, title[0])
			}
			own[title[0]] = append(own[title[0]], name)
		case !slices.Contains(general.Options, name):
			rest = append(rest, name)
		}
	}
	for _, t := range themes {
		add(t.Title, t.Options)
	}
	add(other, rest)
	for _, title := range plugins {
		add(title, own[title])
	}
	add(general.Title, general.Options)
	if len(groups) == 1 || len(groups) == 2 && groups[0].Title != general.Title && groups[1].Title == general.Title {
		groups[0].Title = "Options" // a single theme needs no name
	}
	return groups
}

// option is how a flag is written and what it means.
func option(f *pflag.Flag, args map[string]string) Entry {
	arg, usage := pflag.UnquoteUsage(f)
	if named, ok := args[f.Name]; ok {
		arg = named
	} else if arg != "" && !strings.Contains(f.Usage, "`") {
		arg = kindOf(arg)
	}
	name := "    --" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", --" + f.Name
	}
	switch word := f.Annotations[Written]; {
	case len(word) > 0:
		name = "    " + word[0]
	case arg == "" || f.Value.Type() == "bool" || f.Value.Type() == "count":
	case f.NoOptDefVal != "":
		name += "[=" + arg + "]"
	default:
		name += "=" + arg
	}
	return Entry{Name: name, Text: usage + defaultOf(f, usage)}
}

// kindOf is the word for an argument of a Go type.
func kindOf(kind string) string {
	switch {
	case kind == "duration":
		return "TIME"
	case strings.HasPrefix(strings.TrimPrefix(kind, "u"), "int"):
		return "N"
	}
	return strings.ToUpper(kind)
}

func defaultOf(f *pflag.Flag, usage string) string {
	if slices.Contains([]string{"", "0", "false", "[]", "0s"}, f.DefValue) || strings.Contains(usage, "default") || f.Value.Type() == "count" {
		return ""
	}
	return fmt.Sprintf(" (default %s)", f.DefValue)
}

// Keys is the page of a configuration file: the sections of a Markdown document with these
// titles. An item of a list that begins with names in bold is a key, as is a row of a table.
func Keys(p *Page, document string, titles ...string) (*Page, error) {
	for _, title := range titles {
		_, rest, found := strings.Cut(document, "\n## "+title+"\n")
		if !found {
			return nil, fmt.Errorf("cannot make the page of %s: there is no section %q", p.Name, title)
		}
		body, _, _ := strings.Cut(rest, "\n## ")
		p.Groups = append(p.Groups, keyGroup(title, body))
	}
	return p, nil
}

// keyGroup reads one section. Text that stands behind its keys comes before them, too: as
// entries without a key it would not be read.
func keyGroup(title, body string) Group {
	g := Group{Title: title}
	for _, block := range Paragraphs(body) {
		switch {
		case strings.HasPrefix(block, "| "):
			g.Options = append(g.Options, tableRows(block)...)
		case strings.HasPrefix(block, "- "):
			for item := range strings.SplitSeq("\n"+block, "\n- ") {
				if item = strings.TrimSpace(item); item == "" {
					continue
				}
				if strings.HasPrefix(item, "**`") {
					g.Options = append(g.Options, keyItem(item))
				} else {
					g.Text = append(g.Text, "* "+plainText(item))
				}
			}
		default:
			if !verbatim(block) {
				block = plainText(block)
			}
			g.Text = append(g.Text, block)
		}
	}
	return g
}

// keyItem reads "**`Key`**, **`Key`** †: text".
func keyItem(item string) Entry {
	name, text, _ := strings.Cut(plainText(item), ":")
	return Entry{Name: strings.ReplaceAll(name, "`", ""), Text: strings.TrimSpace(text)}
}

// tableRows reads rows of a key, its value and its meaning; the table's head says which
// cell is the "value".
func tableRows(block string) (out []Entry) {
	lines := strings.Split(block, "\n")
	head := cells(lines[0])
	for _, line := range lines[1:] {
		row := cells(line)
		if len(row) < 2 || strings.HasPrefix(row[0], "---") {
			continue
		}
		var value, rest []string
		for i, cell := range row[1:] {
			if i+1 >= len(head) || cell == "" {
				continue
			}
			switch name := head[i+1]; {
			case name == "value":
				value = append(value, plainText(cell))
			default:
				text := plainText(cell)
				rest = append([]string{strings.ToUpper(text[:1]) + text[1:] + stop(text)}, rest...)
			}
		}
		text := strings.Join(rest, " ")
		if len(value) > 0 {
			text = "Value: " + strings.Join(value, " ") + ". " + text
		}
		out = append(out, Entry{Name: strings.ReplaceAll(plainText(row[0]), "`", ""), Text: strings.TrimSpace(text)})
	}
	return out
}

func stop(text string) string {
	if strings.HasSuffix(text, ".") {
		return ""
	}
	return "."
}

// cells parts a row; \| is a bar in a cell.
func cells(line string) (out []string) {
	line = strings.ReplaceAll(strings.Trim(strings.TrimSpace(line), "|"), `\|`, "\x00")
	for cell := range strings.SplitSeq(line, "|") {
		out = append(out, strings.ReplaceAll(strings.TrimSpace(cell), "\x00", "|"))
	}
	return out
}

var link = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)`) })

// plainText takes Markdown's links and stars away; what is in backquotes stays so.
func plainText(s string) string {
	s = link().ReplaceAllString(s, "$1")
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "**", "")
}

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
