package slurmconf

import (
	"cmp"
	"fmt"
	"strings"
)

// statement is one line after continuations were joined: its KEY=VALUE pairs.
type statement struct {
	file  string
	line  int
	pairs []pair
}

// pair is one KEY=VALUE as written.
type pair struct {
	key, value string
}

// is reports whether the key is name; keys have no case.
func (p pair) is(name string) bool { return strings.EqualFold(p.key, name) }

// logicalLine is a line without comment, its continuations joined and its
// escapes resolved.
type logicalLine struct {
	text   string
	number int // of its first line, from 1
}

// logicalLines splits a file. A comment ends before a continuation is looked
// for, so that a comment cannot swallow the next line.
func logicalLines(data string) []logicalLine {
	var out []logicalLine
	var joined strings.Builder
	start, number := 0, 0
	for physical := range strings.Lines(data) {
		number++
		start = cmp.Or(start, number)
		text, more := cutContinuation(cutComment(physical))
		joined.WriteString(text)
		if more {
			continue
		}
		out = appendLine(out, joined.String(), start)
		joined.Reset()
		start = 0
	}
	return appendLine(out, joined.String(), start)
}

func appendLine(out []logicalLine, text string, number int) []logicalLine {
	text = strings.Trim(unescape(text), blanks)
	if text == "" {
		return out
	}
	return append(out, logicalLine{text, number})
}

// blanks are isspace(3)'s in the C locale.
const blanks = " \t\r\n\v\f"

// cutComment removes a comment. A backslash takes the meaning of what follows
// it, so "\#" is a number sign. Quotes do not protect it, as in Slurm.
func cutComment(s string) string {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '#':
			return s[:i]
		}
	}
	return s
}

// cutContinuation removes the backslash that continues the line, and what
// blanks follow it. Backslashes in pairs are escaped ones.
func cutContinuation(s string) (text string, more bool) {
	trimmed := strings.TrimRight(s, blanks)
	n := len(trimmed) - len(strings.TrimRight(trimmed, `\`))
	if n%2 == 0 {
		return s, false
	}
	return trimmed[:len(trimmed)-1], true
}

// unescape resolves backslashes: each stands for the character behind it.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// parsePairs reads KEY=VALUE pairs up to the end of the text or to the first
// fault; the pairs before it are returned in any case. Blanks may surround the
// equals sign; a value with blanks in it is quoted.
func parsePairs(text string) ([]pair, error) {
	var out []pair
	for rest := text; ; {
		rest = strings.TrimLeft(rest, blanks)
		if rest == "" {
			return out, nil
		}
		n := 0
		for n < len(rest) && isKeyByte(rest[n]) {
			n++
		}
		key, after := rest[:n], strings.TrimLeft(rest[n:], blanks)
		if key != "" && (strings.HasPrefix(after, "+=") || strings.HasPrefix(after, "-=")) {
			return out, fmt.Errorf("cannot use %q after key %q", after[:2], key)
		}
		if key == "" || !strings.HasPrefix(after, "=") {
			return out, fmt.Errorf("cannot read %.80q", rest)
		}
		value, left, err := cutValue(strings.TrimLeft(after[1:], blanks))
		if err != nil {
			return out, fmt.Errorf("cannot read the value of %q: %w", key, err)
		}
		out = append(out, pair{key, value})
		rest = left
	}
}

func isKeyByte(c byte) bool {
	return c == '_' || c == '.' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func cutValue(s string) (value, rest string, err error) {
	if s == "" {
		return "", "", fmt.Errorf("there is none")
	}
	if s[0] != '"' {
		n := strings.IndexAny(s, blanks)
		if n < 0 {
			n = len(s)
		}
		return s[:n], s[n:], nil
	}
	n := strings.IndexByte(s[1:], '"')
	if n < 0 {
		return "", "", fmt.Errorf("no closing quote in %.80q", s)
	}
	value, rest = s[1:1+n], s[n+2:]
	if rest != "" && !strings.ContainsRune(blanks, rune(rest[0])) {
		return "", "", fmt.Errorf("no blank behind the closing quote in %.80q", s)
	}
	return value, rest, nil
}
