package explain

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"stepd/internal/printable"
)

// Style says how an explanation is written.
type Style struct {
	Width int  // of lines; 0 breaks none
	Bold  bool // what each finding is about
}

// Write prints the explanation for people. What users have chosen, in names and
// reasons, is cleaned of what would move a terminal.
func (x *Explanation) Write(w io.Writer, s Style) error {
	var b strings.Builder
	bold := func(text string) string {
		if s.Bold {
			return "\x1b[1m" + text + "\x1b[0m"
		}
		return text
	}
	line := func(indent, head, text string) {
		whole := wrap(head+printable.Line(text, textMax), indent, s.Width)
		b.WriteString(indent + bold(whole[:len(head)]) + whole[len(head):] + "\n")
	}
	fmt.Fprintf(&b, "%s  %s\n", bold("step "+x.ID.Name()), x.State)
	line("  ", "", x.Summary)
	for _, f := range x.Findings {
		b.WriteByte('\n')
		line("  ", string(f.Kind)+":", " "+f.Text)
		if f.Hint != "" {
			line("    ", "", f.Hint)
		}
	}
	if x.MPI != nil {
		fmt.Fprintf(&b, "\n  %s (%s):\n", bold("MPI"), printable.Line(x.MPI.Type, textMax))
		for _, text := range x.MPI.Text {
			line("    ", "", text)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// wrap breaks a text at blanks, so that no line with its indent is wider than width;
// the indent of the first one is the caller's.
func wrap(text, indent string, width int) string {
	room := width - len(indent)
	if width <= 0 || room < 20 {
		return text
	}
	var lines []string
	line := ""
	for i, word := range strings.Split(text, " ") {
		if i > 0 && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > room {
			lines = append(lines, line)
			line = word
			continue
		}
		if i > 0 {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n"+indent)
}

// textMax bounds one line.
const textMax = 2000
