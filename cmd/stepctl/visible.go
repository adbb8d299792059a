package main

import (
	"fmt"
	"os"
	"unicode/utf8"

	"stepd/internal/printable"
)

// visible shows text that somebody else wrote: what would control the terminal is
// shown as words, as cat -v does. The zero value is at the beginning of text.
type visible struct {
	held []byte // the beginning of what is one character
}

// append puts b behind out as it is to be shown. New lines and tabs stay as they are.
func (v *visible) append(out, b []byte) []byte {
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

// rest puts what was held back at the end of the text behind out.
func (v *visible) rest(out []byte) []byte {
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

// shown is a line as it is to be shown.
func shown(line string) string {
	var v visible
	return string(v.rest(v.append(nil, []byte(line))))
}

// guard keeps what another user's tasks have written from controlling the caller's
// terminal: it could set what is typed there next.
type guard struct {
	on [3]bool // by stream: it is shown on a terminal
	of map[[2]int]*visible
}

// newGuard is that of a step of user uid; with raw it lets all pass.
func newGuard(uid uint32, raw bool) *guard {
	g := &guard{of: make(map[[2]int]*visible)}
	if !raw && uint32(os.Geteuid()) != uid {
		g.on[1], g.on[2] = isTerminal(os.Stdout), isTerminal(os.Stderr)
	}
	return g
}

// pass returns what is to be shown of what rank wrote on fd.
func (g *guard) pass(fd, rank int, b []byte) []byte {
	if !g.on[fd] {
		return b
	}
	v := g.of[[2]int{fd, rank}]
	if v == nil {
		v = &visible{}
		g.of[[2]int{fd, rank}] = v
	}
	return v.append(nil, b)
}

// endOf gives f what was held back of one stream.
func (g *guard) endOf(fd, rank int, f func(b []byte)) {
	at := [2]int{fd, rank}
	if v := g.of[at]; v != nil {
		delete(g.of, at)
		if rest := v.rest(nil); len(rest) > 0 {
			f(rest)
		}
	}
}

// end gives f what was held back of any.
func (g *guard) end(f func(fd, rank int, b []byte)) {
	for at := range g.of {
		g.endOf(at[0], at[1], func(b []byte) { f(at[0], at[1], b) })
	}
}
