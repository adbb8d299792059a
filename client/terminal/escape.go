package terminal

import (
	"fmt"
	"os"
	"unicode/utf8"

	"stepd/internal/printable"
)

// Escaper shows text that another user wrote: what would control the terminal is
// shown as words, as cat -v does. The zero value is at the beginning of text.
type Escaper struct {
	held []byte // the beginning of what is one character
}

// Append puts b behind out as it is to be shown. New lines and tabs stay as they are.
func (v *Escaper) Append(out, b []byte) []byte {
	b = append(v.held, b...)
	v.held = nil
	for i := 0; i < len(b); {
		switch c := b[i]; {
		case c == '\r' && i+1 == len(b), c >= utf8.RuneSelf && !utf8.FullRune(b[i:]):
			v.held = append(v.held, b[i:]...)
			return out
		case c == '\n' || c == '\t' || c == '\r' && b[i+1] == '\n':
			out = append(out, c)
		case c < ' ' || c == 0x7f:
			out = append(out, '^', c^0x40)
		case c < utf8.RuneSelf:
			out = append(out, c)
		default:
			r, size := utf8.DecodeRune(b[i:])
			out = appendRune(out, b[i:i+size], r)
			i += size
			continue
		}
		i++
	}
	return out
}

// appendRune puts a character of several bytes, or a byte that is none, behind out.
func appendRune(out, b []byte, r rune) []byte {
	switch {
	case r == utf8.RuneError && len(b) == 1:
		return fmt.Appendf(out, `\x%02x`, b[0])
	case printable.Control(r):
		return fmt.Appendf(out, "<%U>", r) // C1 controls, other directions of writing, what is not seen
	}
	return append(out, b...)
}

// Rest puts what was held back at the end of the text behind out.
func (v *Escaper) Rest(out []byte) []byte {
	for _, c := range v.held {
		if c == '\r' {
			out = append(out, "^M"...)
		} else {
			out = fmt.Appendf(out, `\x%02x`, c)
		}
	}
	v.held = nil
	return out
}

// Escape is a line as it is to be shown.
func Escape(line string) string {
	var v Escaper
	return string(v.Rest(v.Append(nil, []byte(line))))
}

// Guard keeps what another user's tasks have written from controlling the caller's
// terminal: it could set what is typed there next.
type Guard struct {
	On [3]bool // by stream: it is shown on a terminal
	of map[[2]int]*Escaper
}

// NewGuard returns the guard for a step of user uid; with raw it lets all pass.
func NewGuard(uid uint32, raw bool) *Guard {
	g := &Guard{of: make(map[[2]int]*Escaper)}
	if !raw && uint32(os.Geteuid()) != uid {
		g.On[1], g.On[2] = IsTerminal(os.Stdout), IsTerminal(os.Stderr)
	}
	return g
}

// Pass returns what is to be shown of what rank wrote on fd.
func (g *Guard) Pass(fd, rank int, b []byte) []byte {
	if !g.On[fd] {
		return b
	}
	v := g.of[[2]int{fd, rank}]
	if v == nil {
		v = &Escaper{}
		g.of[[2]int{fd, rank}] = v
	}
	return v.Append(nil, b)
}

// EndOf gives f what was held back of one stream.
func (g *Guard) EndOf(fd, rank int, f func(b []byte)) {
	at := [2]int{fd, rank}
	if v := g.of[at]; v != nil {
		delete(g.of, at)
		if rest := v.Rest(nil); len(rest) > 0 {
			f(rest)
		}
	}
}

// End gives f what was held back of any.
func (g *Guard) End(f func(fd, rank int, b []byte)) {
	for at := range g.of {
		g.EndOf(at[0], at[1], func(b []byte) { f(at[0], at[1], b) })
	}
}
