package explain

import (
	"fmt"
	"io"
	"strings"
)

// Write prints the explanation for people. What users have chosen, in names and
// reasons, is cleaned of what would move a terminal.
func (x *Explanation) Write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "step %s  %s\n", x.ID.Name(), x.State)
	fmt.Fprintf(&b, "  %s\n", clean(x.Summary))
	for _, f := range x.Findings {
		fmt.Fprintf(&b, "\n  %s: %s\n", f.Kind, clean(f.Text))
		if f.Hint != "" {
			fmt.Fprintf(&b, "    %s\n", clean(f.Hint))
		}
	}
	if x.MPI != nil {
		fmt.Fprintf(&b, "\n  MPI (%s):\n", clean(x.MPI.Type))
		for _, line := range x.MPI.Text {
			fmt.Fprintf(&b, "    %s\n", clean(line))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// textMax bounds one line.
const textMax = 2000

func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return '?'
		}
		return r
	}, s)
	if r := []rune(s); len(r) > textMax {
		return string(r[:textMax-1]) + "…"
	}
	return s
}
