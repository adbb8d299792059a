package replay

import (
	"slices"
	"strings"
)

// Quiet takes the questions out of a terminal's output: the sequences that a terminal
// answers as if it was typed. They were asked of the client that watched then; an
// answer of one that is shown them later would be typed into whatever runs now. What
// is not known to be no question goes, too. The zero value is at the beginning of
// output.
type Quiet struct {
	m    Modes
	held []byte // a sequence whose end has not come, or the first byte of a character
	lead bool   // that byte is held: a C1 control may come of it
	long bool   // a sequence is too long to be held back, and goes
}

// heldMax bounds a sequence that is held back.
const heldMax = 4 << 10

const (
	// enquiry (ENQ) asks for the terminal's answerback.
	enquiry = 0x05
	// leadC1 begins U+0080 to U+00BF in UTF-8, of which those below U+00A0 are
	// controls: U+009B is a CSI to some terminals.
	leadC1 = 0xc2
)

// Append puts what of b is no question behind out.
func (q *Quiet) Append(out, b []byte) []byte {
	for _, c := range b {
		if c == enquiry {
			continue // a terminal takes it in the middle of a sequence, too
		}
		if q.lead && c >= 0xa0 && c < 0xc0 {
			out = q.take(out, leadC1)
		} else if q.lead && c >= 0x80 && c < 0xa0 {
			q.lead = false
			continue
		}
		if q.lead = c == leadC1; !q.lead {
			out = q.take(out, c)
		}
	}
	return out
}

func (q *Quiet) take(out []byte, c byte) []byte {
	was := q.m.state
	q.m.Feed([]byte{c})
	if was == ground && q.m.state == ground {
		return append(out, c)
	}
	// An ESC that ends no text begins a sequence; the one before it has no end, and a
	// terminal forgets it.
	switch {
	case c == 0x1b && was != text:
		q.held, q.long = q.held[:0], false
	case was == textEscape && c != '\\':
		q.held, q.long = append(q.held[:0], 0x1b), false
	}
	if len(q.held) >= heldMax {
		q.held, q.long = q.held[:0], true
	}
	if !q.long {
		q.held = append(q.held, c)
	}
	if q.m.state != ground {
		return out
	}
	if !q.long && harmless(q.held) {
		out = append(out, q.held...)
	}
	q.held, q.long = q.held[:0], false
	return out
}

// Held is what is held back: the beginning of a sequence, or of a character.
func (q *Quiet) Held() []byte {
	if q.lead {
		return append(q.held[:len(q.held):len(q.held)], leadC1)
	}
	return q.held
}

// Rest is what was held back at the end: the beginning of a sequence.
func (q *Quiet) Rest() []byte {
	rest := q.Held()
	q.held, q.lead = nil, false
	return rest
}

// harmless reports whether a whole sequence is known to be answered by no terminal.
func harmless(seq []byte) bool {
	if len(seq) < 2 {
		return true
	}
	body := strings.Map(func(r rune) rune { // controls among it are carried out, and are no part of it
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, string(seq[1:]))
	switch {
	case body == "": // it was broken off
		return false
	case body[0] == '[':
		return len(body) > 1 && harmlessControl(body[1:len(body)-1], body[len(body)-1])
	case body[0] == ']':
		number, rest, _ := strings.Cut(body[1:], ";")
		return slices.Contains(settings, strings.TrimSuffix(number, "\\")) && !strings.Contains(rest, "?")
	case body[0] == 'P': // of device controls pictures alone
		return strings.HasPrefix(strings.TrimLeft(body[1:], "0123456789;"), "q")
	case body[0] == '_' || body[0] == '^' || body[0] == 'X' || body[0] == 'Z':
		return false
	}
	return true
}

// settings are the operating system commands that set something, where no "?" is in
// them: titles, colours, the folder, links, marks of a shell.
var settings = []string{
	"0", "1", "2", "4", "5", "7", "8", "10", "11", "12", "13", "14", "15", "16", "17", "18", "19", "22",
	"104", "105", "110", "111", "112", "113", "114", "115", "116", "117", "118", "119", "133",
}

// silent are the control sequences that no terminal answers (ECMA-48, DEC's manuals,
// xterm's ctlseqs): by what is private or intermediate in them, their last bytes.
var silent = map[string]string{
	"":   "@ABCDEFGHIJKLMPSTXZ`abdefghlmqrsu",
	"?":  "hlrsJK",
	">":  "mnptu",
	"<":  "u",
	"=":  "u",
	"!":  "p",
	" ":  "q@A",
	"\"": "pq",
	"$":  "rtvxz{}~|",
	"*":  "xz{|",
	"'":  "}~",
	"#":  "pqPQ{}",
}

// windowActions are the operations of CSI t that are not answered.
var windowActions = []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "22", "23"}

func harmlessControl(params string, final byte) bool {
	op, _, _ := strings.Cut(params, ";")
	if final == 't' && slices.Contains(windowActions, op) {
		return true
	}
	kind := strings.Trim(params, "0123456789;:")
	return strings.IndexByte(silent[kind], final) >= 0
}
