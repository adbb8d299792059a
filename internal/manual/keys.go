package manual

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
)

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
