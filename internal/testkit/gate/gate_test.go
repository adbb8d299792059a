package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var testSkips = []skip{{"p", "TestMay", "guest", "x"}, {"p", "TestSub/one", "any", "x"}}

func judge(t *testing.T, where, text string) (problems []string, out string) {
	t.Helper()
	var b strings.Builder
	g := newGate(testSkips, where, false, &b)
	if err := g.read(strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	return g.end(), b.String()
}

const (
	passA  = `{"Action":"output","Package":"stepd/p","Test":"TestA","Output":"quiet\n"}` + "\n" + `{"Action":"pass","Package":"stepd/p","Test":"TestA"}` + "\n"
	failB  = `{"Action":"output","Package":"stepd/p","Test":"TestB","Output":"b_test.go:1: wrong\n"}` + "\n" + `{"Action":"fail","Package":"stepd/p","Test":"TestB"}` + "\n"
	endOK  = `{"Action":"pass","Package":"stepd/p","Elapsed":1.5}` + "\n"
	endBad = `{"Action":"fail","Package":"stepd/p","Elapsed":1.5}` + "\n"
)

func skipOf(test string) string {
	return `{"Action":"output","Package":"stepd/p","Test":"` + test + `","Output":"no such thing\n"}` + "\n" +
		`{"Action":"skip","Package":"stepd/p","Test":"` + test + `"}` + "\n"
}

func TestGate(t *testing.T) {
	for _, c := range []struct {
		name, where, in string
		problems        []string
		shown, hidden   string
	}{
		{"all pass", "host", passA + endOK, nil, "ok   stepd/p", "quiet"},
		{"one fails", "host", passA + failB + endBad, []string{"stepd/p: TestB failed"}, "wrong", "quiet"},
		{"skip where it may", "guest", passA + skipOf("TestMay") + endOK, nil, "1 passed, 1 skipped", "no such thing"},
		{"skip elsewhere", "host", passA + skipOf("TestMay") + endOK, []string{"TestMay skipped"}, "no such thing", ""},
		{"skip of a listed subtest", "host", passA + skipOf("TestSub/one") + endOK, nil, "", "no such thing"},
		{"skip of another subtest", "host", passA + skipOf("TestSub/two") + endOK, []string{"TestSub/two skipped"}, "", ""},
		{"skips alone", "guest", skipOf("TestMay") + endOK, []string{"no test has run"}, "", ""},
		{"nothing", "host", "", []string{"no test has run"}, "", ""},
		{"cut off", "host", passA, []string{"stepd/p: its tests ended without a result"}, "", ""},
		{"ended by a panic", "host", passA + `{"Action":"output","Package":"stepd/p","Test":"TestC","Output":"panic: oh\n"}` + "\n" + endBad, []string{"stepd/p failed"}, "panic: oh", ""},
		{"cannot build", "host", passA + endOK + `{"ImportPath":"stepd/q","Action":"build-output","Output":"q.go:1: no\n"}` + "\n" + `{"ImportPath":"stepd/q","Action":"build-fail"}` + "\n", []string{"cannot build stepd/q"}, "q.go:1: no", ""},
		{"slow", "host", `{"Action":"pass","Package":"stepd/p","Test":"TestLong","Elapsed":7.1}` + "\n" + `{"Action":"pass","Package":"stepd/p","Test":"TestLong/part","Elapsed":7}` + "\n" + passA + endOK, nil, "TestLong                             7.1s\n", "TestLong/part"},
		{"other words", "host", "cp: cannot stat\n{not json\n" + passA + endOK, nil, "cp: cannot stat", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			problems, out := judge(t, c.where, c.in)
			if len(problems) != len(c.problems) {
				t.Fatalf("problems %q, want %q", problems, c.problems)
			}
			for i, want := range c.problems {
				if !strings.Contains(problems[i], want) {
					t.Errorf("problem %q, want %q", problems[i], want)
				}
			}
			if !strings.Contains(out, c.shown) || c.hidden != "" && strings.Contains(out, c.hidden) {
				t.Errorf("printed %q; want %q and not %q", out, c.shown, c.hidden)
			}
		})
	}
}

// TestSkipsFile: every row names a test that there is.
func TestSkipsFile(t *testing.T) {
	skips, err := parseSkips(skipsFile)
	if err != nil || len(skips) == 0 {
		t.Fatalf("%d rows, %v", len(skips), err)
	}
	for _, s := range skips {
		files, err := filepath.Glob(filepath.Join("../../..", s.pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(s.test, "/")
		re := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(head) + `\(`)
		if !slices.ContainsFunc(files, func(file string) bool {
			data, err := os.ReadFile(file)
			return err == nil && re.Match(data)
		}) {
			t.Errorf("skips.tsv names %s in %s, which is no test any more", s.test, s.pkg)
		}
	}
}

func TestParseSkipsRefuses(t *testing.T) {
	for _, line := range []string{"p\tTestA\tany", "p\tTestA\tthere\twhy", "p\t\tany\twhy", "p\tTestA\tany\t"} {
		if _, err := parseSkips("# x\n\n" + line + "\n"); err == nil || !strings.Contains(err.Error(), "skips.tsv:3:") {
			t.Errorf("%q: %v", line, err)
		}
	}
}
