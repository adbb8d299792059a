package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// eventsTable measures what the event log costs a launch: the same stepd, and one that
// is built to write none, by turns. Beside another release it has no rows: that one's
// log is in the rows of steps.
func (b *bench) eventsTable() error {
	if b.base != "" {
		return nil
	}
	rec, err := b.events()
	if err != nil {
		return err
	}
	w := b.table("event log\ttasks\tN\twith: median\tp90\twithout: median\tp90\tmedian pair's cost\t95 % of it")
	defer w.Flush()
	silent, err := b.withoutEvents(filepath.Join(b.dir, "silent"))
	if err != nil {
		fmt.Fprintf(w, "event log\tnot measured: %v\n", err)
		return nil
	}
	with, err := startNoded(b.bin, filepath.Join(b.dir, "with"), 64)
	if err != nil {
		return err
	}
	defer with.stop()
	without, err := startNoded(silent, filepath.Join(b.dir, "without"), 64)
	if err != nil {
		return err
	}
	defer without.stop()
	for _, s := range b.sizes([]size{{1, 600}, {64, 60}}, []size{{1, 40}, {64, 8}}, nil) {
		if err := eventRows(w, rec, nodes{with, without}, s); err != nil {
			return err
		}
	}
	return nil
}

// withoutEvents copies the programs, but for a stepd that writes no event log. It is a copy too:
// see install.
func (b *bench) withoutEvents(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	stepd := filepath.Join(b.dir, "built", "stepd")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", "noevents", "-ldflags", "-s -w", "-o", stepd, "./cmd/stepd")
	build.Dir, build.Env = b.root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build stepd without events: %w: %s", err, out)
	}
	for _, from := range []string{filepath.Join(b.bin, "noded"), filepath.Join(b.bin, "stepctl"), filepath.Join(b.bin, "spankhost"), stepd} {
		if out, err := exec.Command("cp", from, dir).CombinedOutput(); err != nil {
			return "", fmt.Errorf("cannot copy %q: %w: %s", from, err, out)
		}
	}
	return dir, nil
}

// eventRows runs pairs of the two. The cost is the median pair's.
func eventRows(w io.Writer, rec *recorder, n nodes, s size) error {
	of := make([][]launch, len(n))
	for i := range s.runs + 2 {
		err := n.turns(i, func(k int, node *noded) error {
			l, err := measure(rec, node.pid(), s.n, node.run("-n", fmt.Sprint(s.n), "--overcommit", "/bin/true"))
			if i >= 2 { // the first ones warm up
				of[k] = append(of[k], l)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	row := func(what string, a, b series) {
		low, mid, high := costs(a, b)
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%+.1f %%\t%+.1f to %+.1f %%\n", what, s.n, len(a), ms(a.at(0.5)), ms(a.at(0.9)),
			ms(b.at(0.5)), ms(b.at(0.9)), mid, low, high)
	}
	row("stepd's exec to the first task's", toFirst.series(of[0]), toFirst.series(of[1]))
	if s.n > 1 {
		row("stepd's exec to the last task's", toLast.series(of[0]), toLast.series(of[1]))
	}
	return nil
}

// costs is by how much the pairs of a and b differ, in percent of b's median: the middle
// of the differences.
func costs(a, b series) (low, mid, high float64) {
	diffs := make([]float64, len(a))
	for i := range a {
		diffs[i] = 100 * (a[i] - b[i]) / b.at(0.5)
	}
	return middle(diffs)
}

// middle is the median of some runs, and the interval that contains the median of all
// runs in 19 of 20 cases (from the order of the values: their number above it is
// binomial). It sorts them.
func middle(values []float64) (low, mid, high float64) {
	n := len(values)
	if n == 0 {
		return 0, 0, 0
	}
	slices.Sort(values)
	off := int(math.Ceil(0.98 * math.Sqrt(float64(n))))
	return values[max(0, n/2-off)], values[n/2], values[min(n-1, n/2+off)]
}
