// Package printable makes text that others have chosen, names, commands and reasons, fit to
// be shown as a part of one line, on a terminal, in a log or in a drawing: nothing in it
// moves the cursor, turns the direction of writing or is unseen. It knows no more of
// terminals than that. JoinErrors is errors.Join for such a line. Begin with Line.
package printable

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Control reports whether a character does something to what shows it rather than being
// seen: C0 and C1 controls (Cc), directions of writing and what has no width (Cf), and
// the ends of lines and paragraphs that are no controls (Zl, Zp).
func Control(r rune) bool {
	if r < utf8.RuneSelf {
		return r < ' ' || r == 0x7f
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// Line is s with a "?" for each Control, and for what is no character: bytes that are no
// UTF-8 and the two that no XML may hold. It is cut to room columns, the last of
// which is then "…"; room 0 cuts nothing.
func Line(s string, room int) string {
	s = strings.Map(func(r rune) rune {
		if Control(r) || r == utf8.RuneError || r == 0xfffe || r == 0xffff {
			return '?'
		}
		return r
	}, s)
	if room > 0 {
		return Fit(s, room)
	}
	return s
}

// Fit is s cut to room columns, the last of which is then "…".
func Fit(s string, room int) string {
	if len(s) <= room || Width(s) <= room {
		return s
	}
	columns := 0
	for at, r := range s {
		if columns += runeWidth(r); columns > room-1 {
			return s[:at] + "…"
		}
	}
	return s
}

// Pad is s cut or filled to a width.
func Pad(s string, width int) string {
	s = Fit(s, width)
	return s + strings.Repeat(" ", max(width-Width(s), 0))
}

// failures are several errors on one line.
type failures []error

func (f failures) Error() string {
	texts := make([]string, len(f))
	for i, err := range f {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (f failures) Unwrap() []error { return f }

// JoinErrors is errors.Join on one line, with "; " between the texts, for a reason or a
// line of a log. It returns nil where all errors are nil, and a single error unchanged.
func JoinErrors(errs ...error) error {
	var f failures
	for _, err := range errs {
		if err != nil {
			f = append(f, err)
		}
	}
	switch len(f) {
	case 0:
		return nil
	case 1:
		return f[0]
	}
	return f
}

// Wrap breaks a text at its blanks into lines of at most width columns: the first begins with
// first, the others with rest. A word that fits no line has one of its own.
func Wrap(text, first, rest string, width int) string {
	var done strings.Builder
	line, empty := first, true
	for _, word := range strings.Fields(text) {
		switch {
		case empty:
			line += word
		case Width(line)+1+Width(word) > width:
			done.WriteString(line + "\n")
			line = rest + word
		default:
			line += " " + word
		}
		empty = false
	}
	return done.String() + strings.TrimRight(line, " ")
}

// First is the part of a text that one line of width columns has room for, and the rest of it, "" where
// that is all. Both end and begin with "…" then. A width below 20 cuts nothing.
func First(text string, width int) (first, rest string) {
	if width < 20 || Width(text) <= width {
		return text, ""
	}
	first = strings.TrimSuffix(Fit(text, width-1), "…")
	if i := strings.LastIndexByte(first, ' '); i > 0 {
		first = first[:i]
	}
	return first + " …", "… " + strings.TrimSpace(strings.TrimPrefix(text, first))
}
