package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

// runEvents measures what the event log costs a launch: the same stepd, and one that is
// built to write none, by turns, so many times; 0 is the usual.
func runEvents(bin string, quick bool, times int) error {
	dir, err := os.MkdirTemp("", "stepd-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	rec, err := newRecorder()
	if err != nil {
		return err
	}
	silent, err := withoutEvents(bin, filepath.Join(dir, "bin"))
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	defer w.Flush()
	if err != nil {
		fmt.Fprintf(w, "event log\tnot measured: %v\n", err)
		return nil
	}
	sizes := []size{{1, 600}, {64, 60}}
	if quick {
		sizes = []size{{1, 40}, {64, 8}}
	}
	if times > 0 {
		sizes = []size{{1, times}, {64, max(times/10, 1)}}
	}
	with, err := startNoded(bin, filepath.Join(dir, "with"), 64)
	if err != nil {
		return err
	}
	defer with.stop()
	without, err := startNoded(silent, filepath.Join(dir, "without"), 64)
	if err != nil {
		return err
	}
	defer without.stop()
	fmt.Fprintln(w, "event log\ttasks\tN\twith: median\tp90\twithout: median\tp90\tmedian pair's cost\t95 % of it")
	for _, s := range sizes {
		if err := eventRows(w, rec, with, without, s); err != nil {
			return err
		}
	}
	return nil
}

// withoutEvents copies the programs, but for a stepd that writes no event log.
func withoutEvents(bin, dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"noded", "stepctl", "spankhost"} {
		if out, err := exec.Command("cp", filepath.Join(bin, name), dir).CombinedOutput(); err != nil {
			return "", fmt.Errorf("cannot copy %s: %w: %s", name, err, out)
		}
	}
	for _, name := range []string{"stepd", "stepd-net"} {
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", "noevents", "-ldflags", "-s -w", "-o", filepath.Join(dir, name), "./cmd/"+name)
		build.Dir, build.Env = filepath.Dir(bin), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("cannot build %s without events: %w: %s", name, err, out)
		}
	}
	return dir, nil
}

// eventRows runs pairs of the two, of which each goes first every other time: whoever
// comes second finds warmer caches. The cost is that of the median pair.
func eventRows(w io.Writer, rec *recorder, with, without *noded, s size) error {
	var times [2]struct{ first, last series }
	nodes := [2]*noded{with, without}
	for i := range s.runs + 2 {
		for k := range nodes {
			k ^= i & 1
			l, err := measure(rec, nodes[k].pid(), s.n, nodes[k].run("-n", fmt.Sprint(s.n), "--overcommit", "/bin/true"))
			if err != nil {
				return err
			}
			if i < 2 {
				continue // the first ones warm up
			}
			times[k].first = append(times[k].first, l.firstExec-l.daemon)
			times[k].last = append(times[k].last, l.lastExec-l.daemon)
		}
	}
	row := func(what string, a, b series) {
		low, mid, high := costs(a, b)
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%+.1f %%\t%+.1f to %+.1f %%\n", what, s.n, len(a), ms(a.at(0.5)), ms(a.at(0.9)),
			ms(b.at(0.5)), ms(b.at(0.9)), mid, low, high)
	}
	row("stepd's exec to the first task's", times[0].first, times[1].first)
	if s.n > 1 {
		row("stepd's exec to the last task's", times[0].last, times[1].last)
	}
	return nil
}

// costs is by how much the pairs of a and b differ, in percent of b's median: the
// median of the differences, and where that of all runs is to be sought, in 19 of 20
// cases (from the order of the differences: their number above it is binomial).
func costs(a, b series) (low, mid, high float64) {
	n := len(a)
	if n == 0 {
		return 0, 0, 0
	}
	diffs := make([]float64, n)
	for i := range a {
		diffs[i] = 100 * (float64(a[i]) - float64(b[i])) / float64(b.at(0.5))
	}
	slices.Sort(diffs)
	off := int(math.Ceil(0.98 * math.Sqrt(float64(n))))
	return diffs[max(0, n/2-off)], diffs[n/2], diffs[min(n-1, n/2+off)]
}
