package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestListNamesTests(t *testing.T) {
	rows, err := parseList(testsFile, func(dir string) ([]string, error) { return testNames("../../" + dir) })
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) == 0 {
		t.Error("tests.tsv has no row")
	}
}

func TestListRefuses(t *testing.T) {
	names := func(string) ([]string, error) { return []string{"TestA"}, nil }
	for _, line := range []string{"p\tTestA", "p\tTestA/sub\twhy", "p\tTestA\t", "p\tTest(\twhy", "p\tTestB\twhy"} {
		if _, err := parseList("# x\n"+line+"\n", names); err == nil || !strings.Contains(err.Error(), "tests.tsv:2:") {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestMerge(t *testing.T) {
	got := merge([]row{{"a", "^TestX$"}, {"b", "TestB"}, {"a", "^TestY"}})
	if len(got) != 2 || got[0] != (row{"a", "^TestX$|^TestY"}) || got[1] != (row{"b", "TestB"}) {
		t.Errorf("%v", got)
	}
}

func TestChoose(t *testing.T) {
	rows, err := choose("../..", "^TestListNamesTests$/x", nil)
	if err != nil || len(rows) != 1 || rows[0] != (row{"integration/vm", "^TestListNamesTests$/x"}) {
		t.Errorf("%v, %v", rows, err)
	}
	if rows, err := choose("../..", "TestListNamesTests", []string{"./proctrack"}); err == nil {
		t.Errorf("a test of another package: %v", rows)
	}
}

func TestFollow(t *testing.T) {
	for _, c := range []struct {
		in, out string
		status  int
		seen    bool
	}{
		{"VM-START up=7\n{\"Action\":\"pass\"}\nVM-EXIT rc=3 up=9\n", "{\"Action\":\"pass\"}\n", 3, true},
		{"VM-START up=7\nhalf a line", "half a line", 0, false},
		{"", "", 0, false},
	} {
		var out bytes.Buffer
		status, seen, err := follow(strings.NewReader(c.in), &out, func() {})
		if status != c.status || seen != c.seen || err != nil || out.String() != c.out {
			t.Errorf("%q: %d, %v, %v, %q", c.in, status, seen, err, out.String())
		}
	}
}
