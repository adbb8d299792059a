package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// report counts outcomes by directory.
type report struct {
	launchers []launcher
	rows      map[string]*row
	different []string
	skipped   []string
}

// row is one directory; its slices are in the order of the launchers.
type row struct {
	tests, skipped int
	passed, failed []int
	took           []time.Duration
}

func newReport(launchers []launcher) *report {
	return &report{launchers: launchers, rows: map[string]*row{}}
}

// attempts is how often a test is run that fails under one launcher alone: what
// depends on who is first is no difference between launchers.
const attempts = 3

// do runs one test under all launchers, and returns a line for the log.
func (r *report) do(folder string, t test) string {
	d := r.rows[t.dir]
	if d == nil {
		n := len(r.launchers)
		d = &row{passed: make([]int, n), failed: make([]int, n), took: make([]time.Duration, n)}
		r.rows[t.dir] = d
	}
	d.tests++
	if t.skip != "" {
		d.skipped++
		r.skipped = append(r.skipped, fmt.Sprintf("%s: %s", t, t.skip))
		return fmt.Sprintf("%s\tskipped\t%s", t, t.skip)
	}
	line := []string{t.String()}
	outcomes := make([]outcome, len(r.launchers))
	tries := make([]int, len(r.launchers))
	for again := true; again; {
		failed := 0
		for i, l := range r.launchers {
			if tries[i] == 0 || outcomes[i].why != "" {
				outcomes[i] = l.run(folder, t)
				tries[i]++
			}
			if outcomes[i].why != "" {
				failed++
			}
		}
		again = failed > 0 && failed < len(r.launchers) && max(tries[0], tries[len(tries)-1]) < attempts
	}
	var ends []string
	for i, o := range outcomes {
		d.took[i] += o.took
		word := "passed"
		if o.why == "" {
			d.passed[i]++
		} else {
			d.failed[i]++
			word = "failed: " + o.why
		}
		if tries[i] > 1 {
			word += fmt.Sprintf(" (at the %d. attempt)", tries[i])
		}
		ends = append(ends, r.launchers[i].name+" "+word)
		line = append(line, r.launchers[i].name, word, fmt.Sprintf("%.2f s", o.took.Seconds()))
		if o.why != "" {
			line = append(line, fmt.Sprintf("%q", tail(o.output, 600)))
		}
	}
	if differ(outcomes) {
		r.different = append(r.different, fmt.Sprintf("%s: %s", t, strings.Join(ends, "; ")))
	}
	return strings.Join(line, "\t")
}

func differ(outcomes []outcome) bool {
	for _, o := range outcomes {
		if (o.why == "") != (outcomes[0].why == "") {
			return true
		}
	}
	return false
}

// worse are the tests that pass under the first launcher and not under the last.
func (r *report) worse() (out []string) {
	for _, d := range r.different {
		if strings.Contains(d, r.launchers[0].name+" passed") {
			out = append(out, d)
		}
	}
	return out
}

// print writes the table of docs/mpi.md, and what it does not tell.
func (r *report) print(w io.Writer, dirs []string) {
	tw := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	fmt.Fprint(tw, "directory\ttests\tskipped")
	for _, l := range r.launchers {
		fmt.Fprintf(tw, "\t%s passed\tfailed\ttime", l.name)
	}
	fmt.Fprintln(tw)
	all := row{passed: make([]int, len(r.launchers)), failed: make([]int, len(r.launchers)), took: make([]time.Duration, len(r.launchers))}
	for _, dir := range dirs {
		d := r.rows[dir]
		if d == nil {
			continue
		}
		d.print(tw, dir)
		all.add(d)
	}
	all.print(tw, "all")
	tw.Flush()
	for _, s := range r.skipped {
		fmt.Fprintln(w, "skipped:", s)
	}
	for _, d := range r.different {
		fmt.Fprintln(w, "different:", d)
	}
}

func (d *row) print(w io.Writer, name string) {
	fmt.Fprintf(w, "%s\t%d\t%d", name, d.tests, d.skipped)
	for i := range d.passed {
		fmt.Fprintf(w, "\t%d\t%d\t%.0f s", d.passed[i], d.failed[i], d.took[i].Seconds())
	}
	fmt.Fprintln(w)
}

func (d *row) add(o *row) {
	d.tests += o.tests
	d.skipped += o.skipped
	for i := range d.passed {
		d.passed[i] += o.passed[i]
		d.failed[i] += o.failed[i]
		d.took[i] += o.took[i]
	}
}

// tail is the end of a text.
func tail(s string, n int) string {
	return s[max(0, len(s)-n):]
}
