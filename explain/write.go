package explain

import (
	"fmt"
	"io"
	"strings"

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
	name := "step " + x.ID.Name()
	head := "  " + printable.Line(x.headline(), textMax)
	if s.Width >= 40 {
		head = strings.TrimPrefix(printable.Wrap(head, name+"  ", "  ", s.Width), name)
	}
	b.WriteString(bold(name) + head + "\n")
	for i, f := range x.Findings {
		if i > 0 {
			b.WriteByte('\n')
		}
		head, text, rest := string(f.Kind)+":", " "+strings.TrimPrefix(f.Text, string(f.Kind)+" "), ""
		if i == 0 && f.Hint != "" {
			text, rest = printable.First(printable.Line(text, textMax), s.Width-len("  "+head))
		}
		line("  ", head, text)
		if f.Hint != "" {
			line("    ", "", f.Hint)
		}
		if rest != "" {
			line("    ", "", rest)
		}
		if f.Detail != "" {
			line("    ", "", f.Detail)
		}
	}
	if x.MPI != nil && len(x.MPI.Text) > 0 {
		fmt.Fprintf(&b, "\n  %s (%s):\n", bold("MPI"), printable.Line(x.MPI.Type, textMax))
		for _, text := range x.MPI.Text {
			line("    ", "", text)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// headline is the state and the summary.
func (x *Explanation) headline() string {
	if rest, ok := strings.CutPrefix(x.Summary, "the step ended as "); ok {
		return rest
	}
	return string(x.State) + ": " + x.Summary
}

// wrap breaks a text so that no line with its indent is wider than width; the indent of the first
// one is the caller's.
func wrap(text, indent string, width int) string {
	if width-len(indent) < 20 {
		return text
	}
	return strings.TrimPrefix(printable.Wrap(text, indent, indent, width), indent)
}

// textMax bounds one line.
const textMax = 2000
