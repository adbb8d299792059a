package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// difference is one intended difference from the original: its row of
// testdata/differences.tsv, or of another such file, lists traces, callbacks and fields, and holds for
// each combination of them. One that does not occur any more fails the test.
type difference struct {
	traces, callbacks, fields []string
	ours, reason              string
	line                      int
	used                      map[string]bool // trace, callback and field
}

// listSeparator is between the members of a list in differences.tsv: the names
// of fields hold commas.
const listSeparator = "|"

func readDifferences(t testing.TB, path string) []*difference {
	t.Helper()
	var rows []*difference
	for i, cells := range readTSV(t, path) {
		if len(cells) != 5 || cells[4] == "" {
			t.Fatalf(path+":%d: want trace, callback, field, ours, reason; got %q", i+1, cells)
		}
		if i == 0 {
			continue
		}
		d := &difference{ours: cells[3], reason: cells[4], line: i + 1, used: map[string]bool{}}
		for j, list := range []*[]string{&d.traces, &d.callbacks, &d.fields} {
			*list = strings.Split(cells[j], listSeparator)
			for _, member := range *list {
				if member == "" || member == "*" {
					t.Fatalf(path+":%d: %q: a list names facts, one by one", i+1, cells[j])
				}
			}
		}
		rows = append(rows, d)
	}
	return rows
}

func (d *difference) key(trace, callback, field string) string {
	return fmt.Sprintf("%s, %s, %s", trace, callback, field)
}

// covers reports whether the row is about the fact, and notes that it occurred.
// A row about a crash of the original is about nothing else.
func (d *difference) covers(trace, callback, field, theirs, ours string) bool {
	if d.ours != ours || !slices.Contains(d.traces, trace) || !slices.Contains(d.callbacks, callback) || !slices.Contains(d.fields, field) {
		return false
	}
	if strings.HasPrefix(d.reason, "crash: ") != (theirs == crashed) {
		return false
	}
	d.used[d.key(trace, callback, field)] = true
	return true
}

// unused lists the combinations of a trace that have not occurred.
func (d *difference) unused(trace string) []string {
	if !slices.Contains(d.traces, trace) {
		return nil
	}
	var left []string
	for _, callback := range d.callbacks {
		for _, field := range d.fields {
			if key := d.key(trace, callback, field); !d.used[key] {
				left = append(left, key)
			}
		}
	}
	return left
}

// report compares facts one by one and keeps a row for each.
type report struct {
	t           testing.TB
	trace       string
	path        string // of the differences
	differences []*difference
	rows        strings.Builder
	compared    int
	same        int
}

func newReport(t testing.TB, trace string) *report {
	t.Helper()
	return newReportWith(t, trace, "testdata/differences.tsv")
}

func newReportWith(t testing.TB, trace, path string) *report {
	t.Helper()
	return &report{t: t, trace: trace, path: path, differences: readDifferences(t, path)}
}

// fact compares one fact of a callback; column may name the task as well.
func (r *report) fact(column, callback, field, theirs, ours string) {
	r.t.Helper()
	r.compared++
	verdict := "same"
	if theirs == ours {
		r.same++
	} else if verdict = "intended"; !slices.ContainsFunc(r.differences, func(d *difference) bool {
		return d.covers(r.trace, callback, field, theirs, ours)
	}) {
		verdict = "DIFFERS"
		r.t.Errorf("%s\t%s\t%s\ttrace %q\tours %q", r.trace, column, field, theirs, ours)
	}
	fmt.Fprintf(&r.rows, "%s\t%s\t%s\t%s\t%s\n", verdict, column, field, theirs, ours)
}

// end prints the rows, and fails the test where an intended difference did not
// occur or where the record was not whole.
func (r *report) end(atLeast int) {
	r.t.Helper()
	for _, d := range r.differences {
		for _, key := range d.unused(r.trace) {
			r.t.Errorf("%s:%d: no such difference any more: %s: %q", r.path, d.line, key, d.ours)
		}
	}
	if testing.Verbose() {
		r.t.Logf("%s: %d facts, %d the same (verdict, callback, field, trace, ours):\n%s", r.trace, r.compared, r.same, r.rows.String())
	}
	if r.compared < atLeast {
		r.t.Errorf("%s: only %d facts compared, want %d: the record or the trace is not whole", r.trace, r.compared, atLeast)
	}
}

// compare compares two tables of facts whose columns are callbacks.
func compare(t testing.TB, trace string, theirs, ours *table, atLeast int) {
	t.Helper()
	compareTables(t, trace, callback, theirs, ours, atLeast)
}

func compareTables(t testing.TB, trace string, callback func(string) string, theirs, ours *table, atLeast int) {
	t.Helper()
	r := newReport(t, trace)
	r.tables("", callback, theirs, ours)
	r.end(atLeast)
}

// tables compares two tables; whose is printed before a column.
func (r *report) tables(whose string, callback func(string) string, theirs, ours *table) {
	r.t.Helper()
	fields := append(theirs.allFields(), ours.allFields()...)
	slices.Sort(fields)
	columns := slices.Clone(theirs.columns)
	for _, c := range ours.columns {
		if !slices.Contains(columns, c) {
			columns = append(columns, c)
		}
	}
	called := func(f *table, column string) string {
		return map[bool]string{true: "yes", false: "no"}[slices.Contains(f.columns, column)]
	}
	for _, column := range columns {
		want, got := called(theirs, column), called(ours, column)
		r.fact(whose+column, callback(column), "called", want, got)
		if want != got { // one difference, not one for each field
			theirs, ours = theirs.without(column), ours.without(column)
		}
	}
	for _, field := range slices.Compact(fields) {
		for _, column := range columns {
			if want, got := theirs.get(column, field), ours.get(column, field); want != absent || got != absent {
				r.fact(whose+column, callback(column), field, want, got)
			}
		}
	}
}
