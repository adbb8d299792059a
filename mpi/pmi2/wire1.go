package pmi2

import (
	"fmt"
	"strconv"
	"strings"
)

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
