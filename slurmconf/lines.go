package slurmconf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Limits on what a configuration may hold.
const (
	fileMax    = 8 << 20 // bytes in one file
	includeMax = 16      // includes within includes
	filesMax   = 256     // files in all
)

// Severity says how bad a Problem is.
type Severity string

const (
	// Mistake is a value or a line that is wrong: `noded --check` fails.
	Mistake Severity = "error"
	// Ignored is a key that does not concern a node daemon.
	Ignored Severity = "ignored"
)

// Problem is one finding in a configuration file.
type Problem struct {
	Severity Severity
	File     string
	Line     int
	Key      string
	Value    string
	Text     string // what is wrong, and the remedy
}

// String is "FILE:LINE: KEY=VALUE: TEXT".
func (p Problem) String() string {
	where := fmt.Sprintf("%s:%d: ", p.File, p.Line)
	switch {
	case p.Key == "":
		return where + p.Text
	case p.Value == "":
		return where + p.Key + ": " + p.Text
	}
	return fmt.Sprintf("%s%s=%s: %s", where, p.Key, p.Value, p.Text)
}

// pair is one KEY=VALUE of a line, with its place.
type pair struct {
	key, value string
}

// line is one logical line: its pairs in order.
type line struct {
	file  string
	num   int
	pairs []pair
}

// lineReader collects the lines of a file and of what it includes.
type lineReader struct {
	base     string // relative includes are relative to it
	cluster  string // for %c; known once ClusterName was read
	open     []string
	files    int
	lines    []line
	problems []Problem
}

// read reads one file; missing is not an error where optional is meant by the
// caller, who asks errors.Is(err, fs.ErrNotExist).
func (r *lineReader) read(path string) error {
	b, err := readFile(path)
	if err != nil {
		return err
	}
	if r.files++; r.files > filesMax {
		return fmt.Errorf("cannot read %q: more than %d files are included", path, filesMax)
	}
	r.open = append(r.open, path)
	defer func() { r.open = r.open[:len(r.open)-1] }()
	var text strings.Builder
	first := 0
	for i, raw := range bytes.Split(b, []byte{'\n'}) {
		part, more := joinable(string(raw))
		if text.Len() == 0 {
			first = i + 1
		}
		text.WriteString(part)
		if more {
			continue
		}
		if err := r.logical(path, first, text.String()); err != nil {
			return err
		}
		text.Reset()
	}
	if text.Len() > 0 {
		return r.logical(path, first, text.String())
	}
	return nil
}

// joinable strips the comment and tells whether a backslash ends the line, so
// that the next one continues it (slurm.conf(5)).
func joinable(s string) (text string, more bool) {
	s = strings.TrimRight(s, " \t\r")
	quoted := false
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			if i+1 < len(s) && s[i+1] == '#' {
				s = s[:i] + s[i+1:] // an escaped # is a letter
			}
		case '"':
			quoted = !quoted
		case '#':
			if !quoted {
				return s[:i], false
			}
		}
	}
	if t, ok := strings.CutSuffix(s, `\`); ok {
		return t + " ", true
	}
	return s, false
}

// logical takes one logical line.
func (r *lineReader) logical(file string, num int, text string) error {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil
	}
	if word, rest, ok := strings.Cut(text, " "); ok && strings.EqualFold(word, "include") && !strings.HasPrefix(strings.TrimSpace(rest), "=") {
		return r.include(file, num, strings.TrimSpace(rest))
	}
	pairs, bad := splitPairs(text)
	for _, b := range bad {
		r.problems = append(r.problems, Problem{Mistake, file, num, "", "", fmt.Sprintf("%q is not KEY=VALUE", b)})
	}
	if len(pairs) > 0 {
		if strings.EqualFold(pairs[0].key, "ClusterName") {
			r.cluster = pairs[0].value
		}
		r.lines = append(r.lines, line{file, num, pairs})
	}
	return nil
}

// include reads another file in place.
func (r *lineReader) include(file string, num int, name string) error {
	name = strings.ReplaceAll(strings.Trim(name, `"`), "%c", r.cluster)
	if !filepath.IsAbs(name) {
		name = filepath.Join(r.base, name)
	}
	for _, o := range r.open {
		if o == name {
			r.problems = append(r.problems, Problem{Mistake, file, num, "Include", name,
				"include loop: " + strings.Join(append(r.open, name), " > ")})
			return nil
		}
	}
	if len(r.open) == includeMax {
		return fmt.Errorf("cannot read %q: line %d includes deeper than %d files", file, num, includeMax)
	}
	err := r.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		r.problems = append(r.problems, Problem{Mistake, file, num, "Include", name, "no such file"})
		return nil
	}
	return err
}

// splitPairs splits a line into KEY=VALUE words; a value may be quoted, and
// blanks may stand around the sign.
func splitPairs(s string) (pairs []pair, bad []string) {
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		end := strings.IndexAny(s, "= \t")
		if end < 0 {
			return pairs, append(bad, s)
		}
		key, rest := s[:end], strings.TrimLeft(s[end:], " \t")
		after, ok := strings.CutPrefix(rest, "=")
		if !ok || key == "" {
			word, tail, _ := strings.Cut(s, " ")
			bad, s = append(bad, word), tail
			continue
		}
		var value string
		value, s = takeValue(strings.TrimLeft(after, " \t"))
		pairs = append(pairs, pair{key, value})
	}
	return pairs, bad
}

// takeValue takes a value off s, up to a blank outside of quotes.
func takeValue(s string) (value, rest string) {
	quoted := false
	i := 0
	for ; i < len(s); i++ {
		if s[i] == '"' {
			quoted = !quoted
		}
		if !quoted && (s[i] == ' ' || s[i] == '\t') {
			break
		}
	}
	return strings.ReplaceAll(s[:i], `"`, ""), s[i:]
}

// readFile reads a whole file of at most fileMax bytes.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read configuration: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, fileMax+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read configuration %q: %w", path, err)
	}
	if len(b) > fileMax {
		return nil, fmt.Errorf("cannot read configuration %q: it is longer than %d bytes", path, fileMax)
	}
	return b, nil
}
