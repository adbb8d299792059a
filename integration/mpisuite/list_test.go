package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestReadList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "testlist")
	text := "# a comment\n\n!dtpools:all\nspawn1 1\nallred 4 a/path arg=-count=10 arg=-x # tail\n" +
		"slow 8 timeLimit=600 env=A=b strict=false mpix=TRUE\nknown 2 xfail=ticket1\nlarge 2 mem=17.2\nfatal 1 resultTest=TestErrFatal\nplain\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readList(path, "d", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	want := []test{
		{dir: "d", program: "spawn1", np: 1, limit: time.Second},
		{dir: "d", program: "allred", np: 4, limit: time.Second, args: []string{"-count=10", "-x"}},
		{dir: "d", program: "slow", np: 8, limit: 10 * time.Minute, env: []string{"A=b"}},
		{dir: "d", program: "known", np: 2, limit: time.Second, skip: "xfail ticket1"},
		{dir: "d", program: "large", np: 2, limit: time.Second, skip: "needs 17.2 GB"},
		{dir: "d", program: "fatal", np: 1, limit: time.Second, want: "TestErrFatal"},
		{dir: "d", program: "plain", np: 2, limit: time.Second},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if s := got[1].String(); s != "d/allred 4 -count=10 -x" {
		t.Errorf("a test is called %q", s)
	}
}

func TestParseTestErrors(t *testing.T) {
	for _, line := range []string{"x 0", "x many", "x 2 timeLimit=soon", "x 2 colour=blue"} {
		if got, err := parseTest("d", strings.Fields(line), 0); err == nil {
			t.Errorf("%q: %+v", line, got)
		}
	}
}

func FuzzParseTest(f *testing.F) {
	f.Add("allred 4 arg=-count=10 timeLimit=3 resultTest=TestStatus")
	f.Fuzz(func(t *testing.T, line string) {
		words := strings.Fields(line)
		if len(words) == 0 {
			return
		}
		if got, err := parseTest("d", words, time.Second); err == nil && got.np < 1 {
			t.Errorf("%q: %d ranks", line, got.np)
		}
	})
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		rule   string
		code   int
		output string
		good   bool
	}{
		{"", 0, " No Errors\n", true},
		{"", 0, "\nNo errors\n", true},
		{"", 0, " No Errors\nstepctl: error: late\n", false},
		{"", 1, " No Errors\n", false},
		{"", 0, "", false},
		{"", 0, "3 Errors\n", false},
		{"TestStatus", 1, "=== whatever\n", true},
		{"TestStatus", 0, "", false},
		{"TestErrFatal", 9, "", true},
		{"TestErrFatal", 0, "", false},
		{"TestOfTomorrow", 0, " No Errors\n", false},
	} {
		if why := judge(c.rule, c.code, c.output); (why == "") != c.good {
			t.Errorf("%s of exit code %d and %q: %q", c.rule, c.code, c.output, why)
		}
	}
}

// A run with programs of the shell: what passes, fails, hangs and differs.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) {
		if err := os.MkdirAll(filepath.Join(dir, "d"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "d", name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	script("good", "echo ' No Errors'")
	script("bad", "echo ' No Errors'; exit 3")
	script("differs", `[ "$WHO" = a ] || exit 1; echo ' No Errors'`)
	by := func(who string) launcher {
		return launcher{name: who, command: here(func(int) []string { return []string{"env", "WHO=" + who} })}
	}
	r := newReport([]launcher{by("a"), by("b")})
	for _, name := range []string{"good", "bad", "differs"} {
		r.do(dir, test{dir: "d", program: name, np: 1, limit: time.Minute})
	}
	script("hangs", "exec sleep 60")
	for want, passes := range map[string]bool{"": false, "TestErrFatal": true} {
		o := by("a").run(dir, test{dir: "d", program: "hangs", np: 1, limit: 50 * time.Millisecond, want: want})
		if (o.why == "") != passes {
			t.Errorf("a hang under rule %q: %q", want, o.why)
		}
	}
	r.do(dir, test{dir: "d", program: "left", np: 1, skip: "xfail"})
	var out strings.Builder
	r.print(&out, []string{"d", "none"})
	for _, want := range []string{
		"d          4      1        2         1       0 s   1         2       0 s",
		"skipped: d/left 1: xfail",
		"different: d/differs 1: a passed; b failed: exit code 1 (at the 3. attempt)",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in:\n%s", want, out.String())
		}
	}
	if w := r.worse(); len(w) != 1 {
		t.Errorf("worse: %q", w)
	}
}
