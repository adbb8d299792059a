package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
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
		in, out       string
		reboots       bool
		status        int
		seen, unasked bool
	}{
		{in: "VM-START up=7\n{\"Action\":\"pass\"}\nVM-EXIT rc=3 up=9\n", out: "{\"Action\":\"pass\"}\n", status: 3, seen: true},
		{in: "VM-START up=7\nhalf a line", out: "half a line"},
		{},
		{in: "VM-START up=7\na\nVM-REBOOT\nVM-START up=8\nb\nVM-EXIT rc=0 up=9\n", out: "a\nb\n", reboots: true, seen: true},
		{in: "VM-START up=7\nVM-START up=7\nVM-EXIT rc=0 up=9\n", reboots: true, unasked: true},
		{in: "VM-START up=7\nVM-REBOOT\nVM-START up=7\nVM-START up=7\n", reboots: true, unasked: true},
	} {
		var out bytes.Buffer
		status, seen, err := follow(strings.NewReader(c.in), &out, c.reboots, func() {})
		if status != c.status || seen != c.seen || (err != nil) != c.unasked || out.String() != c.out {
			t.Errorf("%q: %d, %v, %v, %q", c.in, status, seen, err, out.String())
		}
	}
}

// TestJobs: a reboot's tests are in lists of their own, whatever pattern has
// chosen them.
func TestJobs(t *testing.T) {
	var lists jobs
	lists.add(row{"a", "^Test"}, "0-a.test", []string{"TestX", "TestBeforeRebootY", "TestAfterRebootY"}, time.Minute)
	lists.add(row{"b", "Y"}, "1-b.test", []string{"TestAfterRebootZ"}, time.Minute)
	for _, c := range []struct{ got, want string }{
		{lists.now.String(), "stepd/a\ta\t0-a.test\t^Test\t1m0s\t^(TestBeforeReboot|TestAfterReboot)\n"},
		{lists.before.String(), "stepd/a-last\ta\t0-a.test\t^(TestBeforeRebootY)$\t1m0s\t-\n"},
		{lists.after.String(), "stepd/a-rebooted\ta\t0-a.test\t^(TestAfterRebootY)$\t1m0s\t-\n" +
			"stepd/b-rebooted\tb\t1-b.test\t^(TestAfterRebootZ)$\t1m0s\t-\n"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
