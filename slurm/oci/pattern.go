package oci

import (
	"fmt"
	"strconv"
	"strings"
)

// place is what the characters of a pattern stand for.
type place struct {
	*Step
	rank                   int
	argv                   []string
	bundle, spool, envFile string
	root                   string
	pid                    int
}

// characters are those that may follow a % (oci.conf(5)).
const characters = "%@bejmnprstuUZ"

// checkPattern reports what is wrong with a pattern.
func checkPattern(pattern string) error {
	for rest := pattern; ; {
		_, after, found := strings.Cut(rest, "%")
		if !found {
			return nil
		}
		if after == "" || !strings.Contains(characters, after[:1]) {
			return fmt.Errorf("%q: %%%.1s stands for nothing; known are %s", pattern, after, characters)
		}
		rest = after[1:]
	}
}

// expand replaces what stands for something. The pattern has been checked.
func (p *place) expand(pattern string) string {
	var out strings.Builder
	for rest := pattern; ; {
		text, after, found := strings.Cut(rest, "%")
		out.WriteString(text)
		if !found || after == "" {
			return out.String()
		}
		out.WriteString(p.value(after[0]))
		rest = after[1:]
	}
}

func (p *place) value(c byte) string {
	switch c {
	case '@':
		return quoted(p.argv)
	case 'b':
		return p.bundle
	case 'e':
		return p.envFile
	case 'j':
		return strconv.FormatUint(uint64(p.Job), 10)
	case 'm':
		return p.spool
	case 'n':
		return p.Node
	case 'p':
		return strconv.Itoa(p.pid)
	case 'r':
		return p.root
	case 's':
		return strconv.FormatUint(uint64(p.StepID), 10)
	case 't':
		return strconv.Itoa(p.rank)
	case 'u':
		return p.User
	case 'U':
		return strconv.FormatUint(uint64(p.UID), 10)
	case 'Z':
		return p.Cwd
	}
	return "%"
}

// quoted are words as a shell reads them.
func quoted(words []string) string {
	list := make([]string, len(words))
	for i, w := range words {
		list[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(list, " ")
}
