package slurmconf

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"stepd/internal/nearest"
)

// Severity says how much a Problem matters.
type Severity string

// The severities.
const (
	// SeverityIgnored: a key that is not read here. Nothing is wrong.
	SeverityIgnored Severity = "ignored"
	// SeverityWarning: probably not what was meant, but it has a meaning.
	SeverityWarning Severity = "warning"
	// SeverityError: a mistake. The default holds in place of what was written.
	SeverityError Severity = "error"
)

// Problem is one finding about one line of the configuration.
type Problem struct {
	Severity Severity
	File     string
	Line     int // the first line of the statement; 0 is the file as a whole
	Text     string
	Remedy   string // what to write instead; may be empty
}

// String is one line: "FILE:LINE: TEXT; REMEDY".
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if p.File != "" {
		b.WriteString(": ")
	}
	b.WriteString(p.Text)
	if p.Remedy != "" {
		b.WriteString("; " + p.Remedy)
	}
	return b.String()
}

// problemsMax bounds the list: a binary file would fill it without end.
const problemsMax = 1000

// problems collects findings up to problemsMax.
type problems struct {
	list    []Problem
	dropped int
}

func (ps *problems) add(p Problem) {
	if len(ps.list) == problemsMax {
		ps.dropped++
		return
	}
	ps.list = append(ps.list, p)
}

// at adds a finding about a statement without naming a key.
func (ps *problems) at(s statement, sev Severity, remedy, format string, args ...any) {
	ps.add(Problem{Severity: sev, File: s.file, Line: s.line, Text: fmt.Sprintf(format, args...), Remedy: remedy})
}

// value adds a mistake in the value of a key.
func (ps *problems) value(s statement, p pair, f *flaw) {
	text := fmt.Sprintf("cannot use %s=%.200q: %s", p.key, p.value, f.why)
	if f.severity != SeverityError {
		text = fmt.Sprintf("%s=%.200q: %s", p.key, p.value, f.why)
	}
	ps.add(Problem{Severity: f.severity, File: s.file, Line: s.line, Text: text, Remedy: f.remedy})
}

// valueOf adds a mistake in the value that a statement gives to a key.
func (ps *problems) valueOf(s statement, key string, f *flaw) {
	for _, p := range s.pairs {
		if p.is(key) {
			ps.value(s, p, f)
			return
		}
	}
	ps.value(s, s.pairs[0], f)
}

// all returns the findings file by file and line by line; the last one says how
// many are missing.
func (ps *problems) all() []Problem {
	order := map[string]int{}
	for _, p := range ps.list {
		if _, known := order[p.File]; !known {
			order[p.File] = len(order)
		}
	}
	slices.SortStableFunc(ps.list, func(a, b Problem) int {
		return cmp.Or(order[a.File]-order[b.File], a.Line-b.Line)
	})
	if ps.dropped == 0 {
		return ps.list
	}
	return append(ps.list, Problem{Severity: SeverityError, Text: fmt.Sprintf("%d further problems are not listed", ps.dropped)})
}

// meantKey returns the key of the set that was probably meant: at most two
// letters away, and of at least six letters. "" if there is none. The answer
// is in lower case, as keys have no case.
func meantKey(key string, keys keySet) string {
	key = strings.ToLower(key)
	best, distance := "", 3
	for _, known := range slices.Sorted(maps.Keys(keys)) {
		if len(known) < 6 || len(known)-len(key) > 2 || len(key)-len(known) > 2 {
			continue
		}
		if d := nearest.Distance(key, known); d < distance {
			best, distance = known, d
		}
	}
	return best
}
