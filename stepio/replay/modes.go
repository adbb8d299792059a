package replay

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Modes follows what a program's output makes of the terminal that it goes to, as far
// as that outlasts the program: the alternate screen, a hidden cursor, mouse reports.
// With it a replay can begin in the middle (Set), and a client can leave a terminal as
// it was (Undo). The zero value is a terminal after its reset. It follows no colours
// and no text.
type Modes struct {
	state   state
	more    int    // bytes of a UTF-8 character that are to come
	params  []byte // of the control sequence that is being read
	esc     byte   // of one with an intermediate byte
	private map[int]bool
	keypad  bool // application keypad
	drawing bool // line drawing characters as G0
	region  bool // a scrolling region was set
	cursor  bool // the cursor has a shape of its own
	keys    bool // xterm's modifyOtherKeys
}

type state uint8

const (
	ground state = iota
	escape
	intermediate // ESC and a byte of 0x20 to 0x2f
	control      // CSI
	text         // OSC, DCS, SOS, PM, APC: to BEL or ST
	textEscape   // an ESC in there
)

// paramsMax bounds what is kept of a control sequence; a longer one says nothing.
const paramsMax = 64

// defaultModes are the private modes (DECSET) that are followed, with what they are in
// a terminal after its reset. In the order in which they are set.
var defaultModes = []struct {
	mode int
	on   bool
}{
	{47, false}, {1047, false}, {1049, false}, // alternate screens
	{1, false}, {5, false}, {6, false}, {7, true}, {25, true},
	{9, false}, {1000, false}, {1001, false}, {1002, false}, {1003, false}, // mouse
	{1004, false}, {1005, false}, {1006, false}, {1015, false}, {1016, false},
	{1007, false}, {2004, false}, {2026, false}, {2031, false},
}

func defaultMode(mode int) (on, known bool) {
	for _, d := range defaultModes {
		if d.mode == mode {
			return d.on, true
		}
	}
	return false, false
}

// Clone is an independent copy.
func (m *Modes) Clone() *Modes {
	c := *m
	c.params = slices.Clone(m.params)
	c.private = maps.Clone(m.private)
	return &c
}

// Between reports whether no character and no sequence is under way.
func (m *Modes) Between() bool { return m.state == ground && m.more == 0 }

// Feed takes the next bytes of output.
func (m *Modes) Feed(b []byte) {
	for i := 0; i < len(b); i++ {
		if c := b[i]; m.state != ground || c == 0x1b || c >= 0x80 {
			m.step(c)
		} else {
			m.more = 0
		}
	}
}

func (m *Modes) step(c byte) {
	switch m.state {
	case ground:
		m.plain(c)
	case escape:
		m.escaped(c)
	case intermediate:
		switch {
		case c == 0x1b:
			m.state = escape
		case c == 0x18 || c == 0x1a:
			m.state = ground
		case c >= 0x30 && c != 0x7f:
			if m.esc == '(' {
				m.drawing = c == '0'
			}
			m.state = ground
		}
	case control:
		m.inControl(c)
	case text:
		switch c {
		case 0x07, 0x18, 0x1a:
			m.state = ground
		case 0x1b:
			m.state = textEscape
		}
	case textEscape:
		if c == '\\' {
			m.state = ground
			return
		}
		m.state = escape
		m.escaped(c)
	}
}

// plain takes a byte outside of sequences.
func (m *Modes) plain(c byte) {
	switch {
	case c == 0x1b:
		m.state, m.more = escape, 0
	case c < 0x80:
		m.more = 0
	case c < 0xc0:
		m.more = max(0, m.more-1)
	case c < 0xe0:
		m.more = 1
	case c < 0xf0:
		m.more = 2
	case c < 0xf8:
		m.more = 3
	}
}

func (m *Modes) escaped(c byte) {
	m.state = ground
	switch {
	case c == 0x18 || c == 0x1a: // it is broken off
	case c < 0x20 || c == 0x7f: // carried out in the middle of the sequence
		m.state = escape
	case c == '[':
		m.state, m.params = control, m.params[:0]
	case c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_':
		m.state = text
	case c >= 0x20 && c < 0x30:
		m.state, m.esc = intermediate, c
	case c == 'c':
		m.private, m.keypad, m.drawing, m.region, m.cursor, m.keys = nil, false, false, false, false, false
	case c == '=':
		m.keypad = true
	case c == '>':
		m.keypad = false
	}
}

func (m *Modes) inControl(c byte) {
	switch {
	case c == 0x1b:
		m.state = escape
	case c == 0x18 || c == 0x1a:
		m.state = ground
	case c < 0x20 || c == 0x7f: // as in escaped
	case c < 0x40:
		if len(m.params) <= paramsMax {
			m.params = append(m.params, c)
		}
	default:
		m.state = ground
		if len(m.params) <= paramsMax {
			m.carryOut(string(m.params), c)
		}
	}
}

// carryOut takes a whole control sequence.
func (m *Modes) carryOut(params string, final byte) {
	list, private := strings.CutPrefix(params, "?")
	switch {
	case private && (final == 'h' || final == 'l'):
		for p := range strings.SplitSeq(list, ";") {
			m.setPrivate(p, final == 'h')
		}
	case final == 'r' && !private:
		m.region = params != ""
	case params == "!" && final == 'p': // soft reset
		m.setPrivate("1", false)
		m.setPrivate("6", false)
		m.setPrivate("25", true)
		m.keypad, m.drawing, m.region = false, false, false
	case final == 'q' && strings.HasSuffix(params, " "):
		m.cursor = params != " " && params != "0 "
	case final == 'm' && strings.HasPrefix(params, ">4"):
		level := strings.TrimPrefix(strings.TrimPrefix(params, ">4"), ";")
		m.keys = level != "" && level != "0"
	}
}

func (m *Modes) setPrivate(param string, on bool) {
	mode, err := strconv.Atoi(param)
	if err != nil {
		return
	}
	usual, known := defaultMode(mode)
	switch {
	case !known:
	case on == usual:
		delete(m.private, mode)
	default:
		if m.private == nil {
			m.private = make(map[int]bool)
		}
		m.private[mode] = on
	}
}

// Set is what brings a terminal after its reset into this state.
func (m *Modes) Set() string { return m.sequence(true) }

// Undo is what brings a terminal out of this state, without clearing its screen. "" is
// nothing to do.
func (m *Modes) Undo() string { return m.sequence(false) }

func (m *Modes) sequence(set bool) string {
	var b strings.Builder
	if m.state == text || m.state == textEscape {
		if !set {
			b.WriteString("\x1b\\") // or the terminal takes what follows as part of it
		}
	}
	for _, d := range defaultModes {
		on, differs := m.private[d.mode]
		if !differs {
			continue
		}
		letter := 'l'
		if on == set {
			letter = 'h'
		}
		fmt.Fprintf(&b, "\x1b[?%d%c", d.mode, letter)
	}
	for _, s := range []struct {
		is        bool
		set, undo string
	}{
		{m.keypad, "\x1b=", "\x1b>"},
		{m.drawing, "\x1b(0", "\x1b(B"},
		{m.cursor, "", "\x1b[0 q"},
		{m.keys, "\x1b[>4;2m", "\x1b[>4m"},
		{m.region, "", "\x1b7\x1b[r\x1b8"},
	} {
		switch {
		case s.is && set:
			b.WriteString(s.set)
		case s.is:
			b.WriteString(s.undo)
		}
	}
	return b.String()
}

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
