package slurm

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// A difference is a row of testdata/differences.tsv: a line of a check's outcome that only
// one of the two daemons has.
type difference struct {
	id      string
	release string // or * for all
	what    string // "-" and a line of Slurm's step daemon, "+" and a line of ours; "order" if only that differs
	line    int    // of the file
}

// parseDifferences reads check, release, line and reason, parted by tabs.
func parseDifferences(text string) (rows []difference, err error) {
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 4 || f[0] == "" || f[1] == "" || f[3] == "" || f[2] != "order" && strings.IndexAny(f[2], "+-") != 0 {
			return nil, fmt.Errorf("differences.tsv:%d: want check, release, a line with + or -, reason; parted by tabs: %q", i+1, line)
		}
		rows = append(rows, difference{id: f[0], release: f[1], what: f[2], line: i + 1})
	}
	return rows, nil
}

func readDifferences(t testing.TB) []difference {
	t.Helper()
	text, err := os.ReadFile("testdata/differences.tsv")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := parseDifferences(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// compare returns what two outcomes differ in, as a difference has it.
func compare(theirs, ours []string) (what []string) {
	if slices.Equal(theirs, ours) {
		return nil
	}
	rest := slices.Clone(ours)
	for _, line := range theirs {
		if i := slices.Index(rest, line); i >= 0 {
			rest = slices.Delete(rest, i, i+1)
		} else {
			what = append(what, "-"+line)
		}
	}
	for _, line := range rest {
		what = append(what, "+"+line)
	}
	if what == nil {
		return []string{"order"}
	}
	return what
}

// unintended returns the differences of a check under a release that no row has, and the
// rows that have no difference.
func unintended(rows []difference, release, id string, what []string) (left []string, unused []difference) {
	left = slices.Clone(what)
	for _, row := range rows {
		if row.id != id || row.release != "*" && row.release != release {
			continue
		}
		if i := slices.Index(left, row.what); i >= 0 {
			left = slices.Delete(left, i, i+1)
		} else {
			unused = append(unused, row)
		}
	}
	return left, unused
}

func TestCompare(t *testing.T) {
	theirs := []string{"out: a", "err: twice", "err: twice", "rc=0"}
	for _, c := range []struct{ ours, want []string }{
		{theirs, nil},
		{[]string{"out: a", "err: twice", "rc=0"}, []string{"-err: twice"}},
		{[]string{"out: b", "err: twice", "err: twice", "rc=0"}, []string{"-out: a", "+out: b"}},
		{[]string{"err: twice", "out: a", "err: twice", "rc=0"}, []string{"order"}},
	} {
		if got := compare(theirs, c.ours); !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.ours, got, c.want)
		}
	}
}

func TestUnintended(t *testing.T) {
	rows, err := parseDifferences("# head\n01\t*\t-out: a\twhy\n01\t22.05\t+out: b\twhy\n02\t*\torder\twhy\n")
	if err != nil {
		t.Fatal(err)
	}
	left, unused := unintended(rows, "22.05", "01", []string{"-out: a", "+out: c"})
	if !slices.Equal(left, []string{"+out: c"}) || len(unused) != 1 || unused[0].line != 3 {
		t.Errorf("left %q, unused %+v", left, unused)
	}
	if left, unused := unintended(rows, "24.11", "01", []string{"-out: a"}); len(left)+len(unused) > 0 {
		t.Errorf("left %q, unused %+v", left, unused)
	}
	for _, bad := range []string{"01\t*\tout: a\twhy", "01\t*\t-out: a\t", "01\t*\t-out: a", "\t*\torder\twhy"} {
		if got, err := parseDifferences(bad); err == nil {
			t.Errorf("%q: got %+v", bad, got)
		}
	}
}
