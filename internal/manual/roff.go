package manual

import (
	"cmp"
	"fmt"
	"strings"
)

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
