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
