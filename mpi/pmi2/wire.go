package pmi2

import (
	"fmt"
	"strconv"
	"strings"
)

// message is one command of a rank, in either protocol.
type message struct {
	cmd   string
	multi bool // PMI-1 mcmd=: the attributes follow, one a line, up to endcmd
	pairs []pair
}

type pair struct{ key, value string }

// get returns the first attribute named key: clients never repeat one.
func (m message) get(key string) (value string, ok bool) {
	for _, p := range m.pairs {
		if p.key == key {
			return p.value, true
		}
	}
	return "", false
}

// stub is what a late answer needs of a request: command and thread id. It
// shares no bytes with the frame, which may be large.
func (m message) stub() message {
	short := message{cmd: strings.Clone(m.cmd)}
	if id, ok := m.get("thrid"); ok && len(id) <= quoteMax {
		short.pairs = []pair{{"thrid", strings.Clone(id)}}
	}
	return short
}

// number reads a decimal attribute.
func (m message) number(key string) (n int, ok bool) {
	text, ok := m.get(key)
	if !ok {
		return 0, false
	}
	value, err := strconv.ParseInt(text, 10, 32)
	return int(value), err == nil
}

// The error codes of PMI-2 (pmi2.h). PMI-1 knows rc=-1 alone.
const (
	codeInit        = 1
	codeNoMemory    = 2
	codeArgument    = 3
	codeKey         = 4
	codeKeyLength   = 5
	codeValueLength = 7
	codeOther       = 14
)

// refusal is the answer to a request that is understood and not granted. The
// rank may go on.
type refusal struct {
	code int
	text string
}

func refuse(code int, format string, args ...any) *refusal {
	return &refusal{code: code, text: fmt.Sprintf(format, args...)}
}

// quoteMax bounds a rank's bytes in a log line or an answer.
const quoteMax = 64

// quote makes a rank's bytes fit for a log line: printable and short.
func quote(s string) string { return quoteUpTo(s, quoteMax) }

func quoteUpTo(s string, most int) string {
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + fmt.Sprintf("... (%d bytes)", len(s))
	}
	return strconv.QuoteToASCII(s)
}

// parseLine reads a PMI-1 line without its newline: words of the form
// key=value, parted by spaces, the first one cmd= or mcmd=. The value begins
// behind the first '=' and may hold every byte but space and newline. When the
// first word was good and a later one was not, the message names the command
// beside the error, so that the rank can be answered.
func parseLine(line string, maxAttrs int) (message, error) {
	var m message
	for rest := line; ; {
		rest = strings.TrimLeft(rest, " ")
		if rest == "" {
			break
		}
		var word string
		word, rest, _ = strings.Cut(rest, " ")
		key, value, ok := strings.Cut(word, "=")
		switch {
		case !ok || key == "":
			return m, fmt.Errorf("cannot parse PMI-1 word %s: want key=value", quote(word))
		case m.cmd == "" && (key == "cmd" || key == "mcmd") && value != "":
			m.cmd, m.multi = value, key == "mcmd"
		case m.cmd == "":
			return m, fmt.Errorf("cannot parse PMI-1 line %s: does not begin with cmd=", quote(line))
		case len(m.pairs) == maxAttrs:
			return m, fmt.Errorf("cannot parse PMI-1 line %s: more than %d attributes (PMI2Attributes)", quote(line), maxAttrs)
		default:
			m.pairs = append(m.pairs, pair{key, value})
		}
	}
	if m.cmd == "" {
		return m, fmt.Errorf("cannot parse PMI-1 line %s: no command", quote(line))
	}
	return m, nil
}

// parseBlockLine reads one line of a multi-line command: the value is the rest
// of the line, since arguments of a spawned program hold spaces.
func parseBlockLine(line string) (pair, error) {
	key, value, ok := strings.Cut(line, "=")
	if !ok || key == "" {
		return pair{}, fmt.Errorf("cannot parse PMI-1 spawn line %s: want key=value", quote(line))
	}
	return pair{key, value}, nil
}

// line1 writes a PMI-1 answer. Values come last in the caller's order, since
// old clients read 1023 bytes of a line and no more.
func line1(cmd string, pairs ...pair) []byte {
	b := append(make([]byte, 0, 64), "cmd="...)
	b = append(b, cmd...)
	for _, p := range pairs {
		b = append(b, ' ')
		b = append(b, p.key...)
		b = append(b, '=')
		b = append(b, p.value...)
	}
	return append(b, '\n')
}

// error1 is the answer to a refused command: PMI-1 texts hold no spaces.
func error1(cmd string, why *refusal, pairs ...pair) []byte {
	text := strings.Map(func(r rune) rune {
		if r <= ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, why.text)
	return line1(cmd, append([]pair{{"rc", "-1"}, {"msg", text}}, pairs...)...)
}

// answer1 names the answer to a PMI-1 command: the protocol has no rule for it.
func answer1(cmd string) string {
	switch cmd {
	case "init":
		return "response_to_init"
	case "get_maxes":
		return "maxes"
	case "get_appnum":
		return "appnum"
	case "get_my_kvsname":
		return "my_kvsname"
	case "get_universe_size":
		return "universe_size"
	case "barrier_in":
		return "barrier_out"
	case "finalize":
		return "finalize_ack"
	case "publish_name":
		return "publish_result"
	case "unpublish_name":
		return "unpublish_result"
	case "lookup_name":
		return "lookup_result"
	case "create_kvs":
		return "newkvs"
	case "destroy_kvs":
		return "kvs_destroyed"
	case "getbyidx":
		return "getbyidx_results"
	}
	if len(cmd) > quoteMax {
		cmd = "unknown"
	}
	return cmd + "_result"
}

func itoa(n int) string { return strconv.Itoa(n) }

// headerBytes is the length field of a PMI-2 frame: six decimal digits,
// padded with spaces on either side (PMII_COMMANDLEN_SIZE).
const headerBytes = 6

// parseHeader reads the length field.
func parseHeader(header string, max int) (int, error) {
	text := strings.Trim(header, " ")
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || text[0] == '+' {
		return 0, fmt.Errorf("cannot parse PMI-2 frame length %s: want %d decimal digits", quote(header), headerBytes)
	}
	if n == 0 || int(n) > max {
		return 0, fmt.Errorf("cannot read PMI-2 frame of %d bytes: want 1 to %d (PMI2FrameBytes)", n, max)
	}
	return int(n), nil
}

// parseFrame reads a PMI-2 frame without its length: key=value; pairs, the
// first one cmd=. A ';' within a value is doubled. Bytes behind the last ';'
// are ignored: Slurm's client counts a terminating zero in. As in parseLine,
// the message may name the command beside an error.
func parseFrame(frame string, maxAttrs int) (message, error) {
	var m message
	for rest := frame; ; {
		body, tail, ok := cutPair(rest)
		if !ok {
			break
		}
		rest = tail
		key, value, ok := strings.Cut(body, "=")
		switch {
		case !ok || key == "":
			return m, fmt.Errorf("cannot parse PMI-2 pair %s: want key=value;", quote(body))
		case m.cmd == "" && key == "cmd" && value != "":
			m.cmd = value
		case m.cmd == "":
			return m, fmt.Errorf("cannot parse PMI-2 frame %s: does not begin with cmd=", quote(frame))
		case len(m.pairs) == maxAttrs:
			return m, fmt.Errorf("cannot parse PMI-2 frame %s: more than %d attributes (PMI2Attributes)", quote(frame), maxAttrs)
		default:
			m.pairs = append(m.pairs, pair{key, value})
		}
	}
	if m.cmd == "" {
		return m, fmt.Errorf("cannot parse PMI-2 frame %s: no command that ends in ';'", quote(frame))
	}
	return m, nil
}

// slackOf counts the bytes behind the end of a client's fullinit. MPICH up to 4.0
// counts the six of the length field in, and so sends six bytes too many of every
// frame, whatever was on its stack: a ';' may be among them.
func slackOf(fullinit string) int {
	for _, end := range []string{"threaded=TRUE;", "threaded=FALSE;"} { // both clients' last pair
		if i := strings.LastIndex(fullinit, end); i >= 0 && len(fullinit)-i-len(end) <= headerBytes {
			return len(fullinit) - i - len(end)
		}
	}
	return 0
}

// trimSlack takes them off a frame, where it then ends as frames do.
func trimSlack(frame string, slack int) string {
	if n := len(frame) - slack; slack > 0 && n > 0 && frame[n-1] == ';' {
		return frame[:n]
	}
	return frame
}

// cutPair cuts s behind the first single ';', and undoes the doubling.
func cutPair(s string) (body, rest string, ok bool) {
	doubled := false
	for i := 0; i < len(s); i++ {
		if s[i] != ';' {
			continue
		}
		if i+1 < len(s) && s[i+1] == ';' {
			doubled = true
			i++
			continue
		}
		body = s[:i]
		if doubled {
			body = strings.ReplaceAll(body, ";;", ";")
		}
		return body, s[i+1:], true
	}
	return "", "", false
}

// frame2 writes a PMI-2 frame.
func frame2(cmd string, pairs ...pair) []byte {
	b := append(make([]byte, 0, 128), "      cmd="...)
	b = appendEscaped(b, cmd)
	b = append(b, ';')
	for _, p := range pairs {
		b = append(b, p.key...)
		b = append(b, '=')
		b = appendEscaped(b, p.value)
		b = append(b, ';')
	}
	length := strconv.Itoa(len(b) - headerBytes)
	copy(b[headerBytes-len(length):], length)
	return b
}

func appendEscaped(b []byte, value string) []byte {
	for i := 0; i < len(value); i++ {
		if value[i] == ';' {
			b = append(b, ';')
		}
		b = append(b, value[i])
	}
	return b
}

// respond2 answers m: its thread id comes back, so that a threaded client can
// tell answers apart, then rc, then the rest.
func respond2(m message, pairs ...pair) []byte {
	all := make([]pair, 0, len(pairs)+2)
	if id, ok := m.get("thrid"); ok && len(id) <= quoteMax {
		all = append(all, pair{"thrid", id})
	}
	all = append(all, pair{"rc", "0"})
	return frame2(response2(m.cmd), append(all, pairs...)...)
}

// error2 is the answer to a refused command.
func error2(m message, why *refusal, pairs ...pair) []byte {
	all := make([]pair, 0, 3)
	if id, ok := m.get("thrid"); ok && len(id) <= quoteMax {
		all = append(all, pair{"thrid", id})
	}
	return frame2(response2(m.cmd), append(append(all, pair{"rc", itoa(why.code)}, pair{"errmsg", why.text}), pairs...)...)
}

func response2(cmd string) string {
	if len(cmd) > quoteMax {
		cmd = "unknown"
	}
	return cmd + "-response"
}

// bool2 is how PMI-2 writes a truth value.
func bool2(b bool) string {
	if b {
		return "TRUE"
	}
	return "FALSE"
}
