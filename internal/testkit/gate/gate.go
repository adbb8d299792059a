package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// record is a line of test2json (`go doc test2json`).
type record struct {
	Action     string
	Package    string
	ImportPath string // of a build's records
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// suite is one package's run.
type suite struct {
	result  string // pass, fail, skip; empty while it runs
	passed  int
	skipped int
	failed  int
	output  map[string]*strings.Builder // of tests that run; "" is the package's own
	slow    []record                    // tests, not their subtests, that took longer than slowTest
}

// slowTest is how many seconds a test takes before it is named with its time, and
// slowest how many of a package are.
const (
	slowTest = 3
	slowest  = 25
)

type gate struct {
	skips    []skip
	where    string
	verbose  bool
	out      io.Writer
	suites   map[string]*suite
	order    []string
	builds   map[string]*strings.Builder
	problems []string
}

func newGate(skips []skip, where string, verbose bool, out io.Writer) *gate {
	return &gate{
		skips: skips, where: where, verbose: verbose, out: out,
		suites: map[string]*suite{}, builds: map[string]*strings.Builder{},
	}
}

// read takes records to the end of the stream. A line that is none is shown:
// a tool's or the guest's own words.
func (g *gate) read(from io.Reader) error {
	in := bufio.NewReader(from)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			var r record
			if line[0] != '{' || json.Unmarshal([]byte(line), &r) != nil || r.Action == "" {
				fmt.Fprintln(g.out, strings.TrimRight(line, "\r\n"))
			} else {
				g.take(r)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (g *gate) take(r record) {
	switch r.Action {
	case "build-output":
		g.build(r.ImportPath).WriteString(r.Output)
		return
	case "build-fail":
		fmt.Fprint(g.out, g.build(r.ImportPath))
		g.problems = append(g.problems, "cannot build "+r.ImportPath)
		return
	}
	s := g.suites[r.Package]
	if s == nil {
		s = &suite{output: map[string]*strings.Builder{}}
		g.suites[r.Package] = s
		g.order = append(g.order, r.Package)
	}
	switch r.Action {
	case "output":
		g.print(s, r)
	case "pass", "fail", "skip":
		if r.Test == "" {
			g.endSuite(s, r)
		} else {
			g.endTest(s, r)
		}
	}
}

func (g *gate) build(path string) *strings.Builder {
	if g.builds[path] == nil {
		g.builds[path] = &strings.Builder{}
	}
	return g.builds[path]
}

func (g *gate) print(s *suite, r record) {
	if g.verbose {
		fmt.Fprint(g.out, r.Output)
		return
	}
	if s.output[r.Test] == nil {
		s.output[r.Test] = &strings.Builder{}
	}
	s.output[r.Test].WriteString(r.Output)
}

func (g *gate) endTest(s *suite, r record) {
	if r.Elapsed > slowTest && !strings.Contains(r.Test, "/") {
		s.slow = append(s.slow, r)
	}
	switch r.Action {
	case "pass":
		s.passed++
	case "fail":
		s.failed++
		g.show(s, r.Test)
		g.problems = append(g.problems, fmt.Sprintf("%s: %s failed", r.Package, r.Test))
	case "skip":
		s.skipped++
		if !allowed(g.skips, g.where, r.Package, r.Test) {
			g.show(s, r.Test)
			g.problems = append(g.problems, fmt.Sprintf("%s: %s skipped; mend that, or give its reason in internal/testkit/gate/skips.tsv (%s)", r.Package, r.Test, g.where))
		}
	}
	delete(s.output, r.Test)
}

// endSuite ends a package. Tests without a result are the tests that a panic, a
// time limit or a kill has ended.
func (g *gate) endSuite(s *suite, r record) {
	s.result = r.Action
	if r.Action == "fail" {
		g.rest(s)
		if s.failed == 0 {
			g.problems = append(g.problems, r.Package+" failed")
		}
	}
	word := map[string]string{"pass": "ok", "fail": "FAIL", "skip": "none"}[r.Action]
	if s.passed+s.failed+s.skipped > 0 || r.Action == "fail" {
		fmt.Fprintf(g.out, "%-5s%-28s%8.1fs %5d passed%s%s\n", word, r.Package, r.Elapsed, s.passed, count(s.failed, "failed"), count(s.skipped, "skipped"))
	}
	slices.SortStableFunc(s.slow, func(a, b record) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	for _, t := range s.slow[:min(len(s.slow), slowest)] {
		fmt.Fprintf(g.out, "     %-32s%8.1fs\n", t.Test, t.Elapsed)
	}
}

func count(n int, word string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d %s", n, word)
}

// show prints what a test has said.
func (g *gate) show(s *suite, test string) {
	if b := s.output[test]; b != nil {
		fmt.Fprint(g.out, b)
	}
}

// rest prints what was said by tests that have no result, and by the package.
func (g *gate) rest(s *suite) {
	var names []string
	for name := range s.output {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		g.show(s, name)
	}
}

// end returns what is wrong with the run.
func (g *gate) end() []string {
	tests := 0
	for _, name := range g.order {
		s := g.suites[name]
		tests += s.passed + s.failed
		if s.result == "" {
			g.rest(s)
			g.problems = append(g.problems, name+": its tests ended without a result")
		}
	}
	if tests == 0 {
		g.problems = append(g.problems, "no test has run")
	}
	return g.problems
}
