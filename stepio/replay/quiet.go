package replay

import (
	"bytes"
	"slices"
	"strings"
)

// Quiet takes the questions out of a terminal's output: the sequences that a terminal
// answers as if it was typed. They were asked of the client that was there then; an
// answer of one that is shown them later would be typed into whatever runs now. The
// zero value is at the beginning of output.
type Quiet struct {
	m    Modes
	held []byte // a sequence whose end has not come
	loud bool   // it is too long to be held back
}

// heldMax bounds a sequence that is held back.
const heldMax = 4 << 10

// enquiry (ENQ) asks for the terminal's answerback.
const enquiry = 0x05

// Append puts what of b is no question behind out.
func (q *Quiet) Append(out, b []byte) []byte {
	for _, c := range b {
		was := q.m.state
		if c == 0x1b && was != ground && was != text && was != textEscape {
			out = q.flush(out) // the sequence before it has no end
		}
		q.m.Feed([]byte{c})
		switch {
		case was == ground && q.m.state == ground:
			if c != enquiry {
				out = append(out, c)
			}
			continue
		case q.loud:
			out = append(out, c)
		default:
			q.held = append(q.held, c)
		}
		switch {
		case q.m.state == ground && !isQuestion(q.held):
			out = q.flush(out)
			q.loud = false
		case q.m.state == ground:
			q.held, q.loud = q.held[:0], false
		case len(q.held) > heldMax:
			out = q.flush(out)
			q.loud = true
		}
	}
	return out
}

// Held is what is held back: the beginning of a sequence.
func (q *Quiet) Held() []byte { return q.held }

// Rest is what was held back at the end: the beginning of a sequence.
func (q *Quiet) Rest() []byte {
	rest := q.held
	q.held = nil
	return rest
}

func (q *Quiet) flush(out []byte) []byte {
	out = append(out, q.held...)
	q.held = q.held[:0]
	return out
}

// windowReports are the operations of CSI t that are answered (xterm's ctlseqs).
var windowReports = []string{"11", "13", "14", "15", "16", "18", "19", "20", "21"}

// isQuestion tells whether a terminal answers a whole sequence, as far as is known of
// any.
func isQuestion(seq []byte) bool {
	if len(seq) < 2 {
		return false
	}
	switch seq[1] {
	case 'Z': // DECID
		return true
	case ']': // a colour, the clipboard
		return bytes.Contains(seq, []byte(";?"))
	case 'P': // DECRQSS, XTGETTCAP
		return bytes.HasPrefix(seq[2:], []byte("$q")) || bytes.HasPrefix(seq[2:], []byte("+q"))
	case '_': // graphics
		return bytes.Contains(seq, []byte("a=q"))
	case '[':
		return isControlQuestion(string(seq[2:len(seq)-1]), seq[len(seq)-1])
	}
	return false
}

func isControlQuestion(params string, final byte) bool {
	switch final {
	case 'c', 'x': // DA, DECREQTPARM
		return true
	case 'n': // DSR; with > it sets a mode
		return !strings.HasPrefix(params, ">")
	case 'p': // DECRQM
		return strings.HasSuffix(params, "$")
	case 'q': // XTVERSION
		return strings.HasPrefix(params, ">")
	case 'm', 'u': // XTQMODKEYS, the keyboard's flags
		return strings.HasPrefix(params, "?")
	case 't':
		op, _, _ := strings.Cut(params, ";")
		return slices.Contains(windowReports, op)
	}
	return false
}
