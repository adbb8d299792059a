package pmi2

import (
	"fmt"
	"strconv"
	"strings"
)

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
