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

// form is how a protocol's messages are called in errors.
type form struct{ word, want, whole string }

// add takes the next word of a message, which begins with its command. multi says that
// mcmd= may name it.
func (m *message) add(word, whole string, f form, multi bool, maxAttrs int) error {
	key, value, ok := strings.Cut(word, "=")
	switch {
	case !ok || key == "":
		return fmt.Errorf("cannot parse %s %s: want %s", f.word, quote(word), f.want)
	case m.cmd == "" && (key == "cmd" || multi && key == "mcmd") && value != "":
		m.cmd, m.multi = value, key == "mcmd"
	case m.cmd == "":
		return fmt.Errorf("cannot parse %s %s: does not begin with cmd=", f.whole, quote(whole))
	case len(m.pairs) == maxAttrs:
		return fmt.Errorf("cannot parse %s %s: more than %d attributes (PMI2Attributes)", f.whole, quote(whole), maxAttrs)
	default:
		m.pairs = append(m.pairs, pair{key, value})
	}
	return nil
}

// parseLine reads a PMI-1 line without its newline: words of the form
// key=value, parted by spaces, the first one cmd= or mcmd=. The value begins
// behind the first '=' and may hold every byte but space and newline. When the
// first word was good and a later one was not, the message names the command
// beside the error, so that the rank can be answered.
func parseLine(line string, maxAttrs int) (message, error) {
	var m message
	for word := range strings.SplitSeq(line, " ") {
		if word == "" {
			continue
		}
		if err := m.add(word, line, form{"PMI-1 word", "key=value", "PMI-1 line"}, true, maxAttrs); err != nil {
			return m, err
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

// answers1 are the answers whose names are not the command's with "_result": the protocol
// has no rule for them.
var answers1 = []pair{
	{"init", "response_to_init"}, {"get_maxes", "maxes"}, {"get_appnum", "appnum"}, {"get_my_kvsname", "my_kvsname"},
	{"get_universe_size", "universe_size"}, {"barrier_in", "barrier_out"}, {"finalize", "finalize_ack"},
	{"publish_name", "publish_result"}, {"unpublish_name", "unpublish_result"}, {"lookup_name", "lookup_result"},
	{"create_kvs", "newkvs"}, {"destroy_kvs", "kvs_destroyed"}, {"getbyidx", "getbyidx_results"},
}

// answer1 names the answer to a PMI-1 command.
func answer1(cmd string) string {
	if name, ok := (message{pairs: answers1}).get(cmd); ok {
		return name
	}
	if len(cmd) > quoteMax {
		cmd = "unknown"
	}
	return cmd + "_result"
}

// ok1 is the answer to a PMI-1 command that was carried out.
func ok1(cmd string, pairs ...pair) []byte {
	return line1(answer1(cmd), append([]pair{{"rc", "0"}}, pairs...)...)
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
		if err := m.add(body, frame, form{"PMI-2 pair", "key=value;", "PMI-2 frame"}, false, maxAttrs); err != nil {
			return m, err
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

// respond2 answers m.
func respond2(m message, pairs ...pair) []byte {
	return answer2(m, append([]pair{{"rc", "0"}}, pairs...))
}

// error2 is the answer to a refused command.
func error2(m message, why *refusal, pairs ...pair) []byte {
	return answer2(m, append([]pair{{"rc", itoa(why.code)}, {"errmsg", why.text}}, pairs...))
}

// answer2 sends the thread id of m back, so that a threaded client can tell answers apart.
func answer2(m message, pairs []pair) []byte {
	if id, ok := m.get("thrid"); ok && len(id) <= quoteMax {
		pairs = append([]pair{{"thrid", id}}, pairs...)
	}
	return frame2(response2(m.cmd), pairs...)
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
