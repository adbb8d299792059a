package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

// slower is from which ratio on a row is named at the end.
const slower = 1.05

// bench is what the tables share.
type bench struct {
	bin, base string // folders of programs, base "" without another release's
	dir       string // for files of this run
	quick     bool
	runs      int
	only      string

	root     string // of the source
	baseName string // where base was

	rec  *recorder // process events: once a table has asked for them
	peer *slurm    // once a table has asked for it
	// peerErr is why there is no peer.
	peerErr error

	rows int      // that were compared with the other release's
	over []string // those above slower
}

// install copies the programs, as a site's are copied: what a linker has written lies page by
// page in the page cache, a copy in large folios, which is up to 0.9 ms of a client's run. The
// folders become what /proc/PID/exe shows.
func (b *bench) install() error {
	dir, err := filepath.EvalSymlinks(b.dir)
	if err != nil {
		return err
	}
	module, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("cannot find the source: %w", err)
	}
	b.root = filepath.Dir(string(module))
	b.baseName = b.base
	for name, bin := range map[string]*string{"ours": &b.bin, "base": &b.base} {
		if *bin == "" {
			continue
		}
		to := filepath.Join(dir, name)
		if err := os.CopyFS(to, os.DirFS(*bin)); err != nil {
			return fmt.Errorf("cannot copy the programs: %w", err)
		}
		*bin = to
	}
	return nil
}

// size is one row: n tasks, measured that many times.
type size struct{ n, runs int }

// sizes are the rows of a table: as is usual, for a look, and beside another
// release.
func (b *bench) sizes(usual, quick, beside []size) []size {
	list := slices.Clone(usual)
	switch {
	case b.quick:
		list = slices.Clone(quick)
	case b.base != "":
		list = slices.Clone(beside)
	}
	if b.runs == 0 {
		return list
	}
	first := list[0].runs
	for i := range list {
		list[i].runs = max(1, list[i].runs*b.runs/first)
	}
	return list
}

// runsOf is sizes of a table whose rows are measured equally often.
func (b *bench) runsOf(usual, quick, beside int) int {
	return b.sizes([]size{{runs: usual}}, []size{{runs: quick}}, []size{{runs: beside}})[0].runs
}

// events are the process events.
func (b *bench) events() (*recorder, error) {
	if b.rec != nil {
		return b.rec, nil
	}
	rec, err := newRecorder()
	b.rec = rec
	return rec, err
}

// slurm is the original, or why there is none.
func (b *bench) slurm() (*slurm, error) {
	if b.base != "" {
		return nil, fmt.Errorf("another release is measured")
	}
	if b.peer == nil && b.peerErr == nil {
		b.peer, b.peerErr = startSlurm(b.dir, "slurm", 2681, "")
	}
	return b.peer, b.peerErr
}

// source is a file of this folder.
func (b *bench) source(path ...string) string {
	return filepath.Join(append([]string{b.root, "integration", "bench"}, path...)...)
}

// nodes are nodeds that are compared: of the built programs and, if there is one, of
// the other release.
type nodes []*noded

// start runs one noded of each release, for so many tasks, with these lines of
// slurm.conf; prepare, if not nil, fills the folder of each before.
func (b *bench) start(name string, maxTasks int, prepare func(dir string) error, conf ...string) (nodes, error) {
	var list nodes
	for _, bin := range []string{b.bin, b.base} {
		if bin == "" {
			continue
		}
		dir := filepath.Join(b.dir, fmt.Sprintf("%s-%d", name, len(list)))
		var err error
		if prepare != nil {
			err = prepare(dir)
		}
		var n *noded
		if err == nil {
			n, err = startNoded(bin, dir, maxTasks, conf...)
		}
		if err != nil {
			list.stop()
			return nil, fmt.Errorf("programs in %q: %w", bin, err)
		}
		list = append(list, n)
	}
	return list, nil
}

func (n nodes) stop() {
	for _, node := range n {
		node.stop()
	}
}

// turns measures with each, of which another one goes first in the next round: what
// comes second finds warmer caches.
func (n nodes) turns(round int, measure func(k int, node *noded) error) error {
	for k := range n {
		k = (k + round) % len(n)
		if err := measure(k, n[k]); err != nil {
			return fmt.Errorf("programs in %q: %w", n[k].bin, err)
		}
	}
	return nil
}

// series are the figures of one kind. All are costs (nanoseconds, bytes): less is
// better.
type series []float64

// at is a quantile, 0 of an empty series.
func (s series) at(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(float64(len(sorted))*q), len(sorted)-1)]
}

// The ways to print a figure.
func ms(ns float64) string        { return fmt.Sprintf("%.2f ms", ns/1e6) }
func mb(kb float64) string        { return fmt.Sprintf("%.1f MB", kb/1024) }
func perSecond(ns float64) string { return fmt.Sprintf("%.0f /s", 1e9/ns) }

// table begins a table with that header, or with the one of a comparison of releases.
func (b *bench) table(header string) *tabwriter.Writer {
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	if b.base == "" {
		fmt.Fprintln(w, "\n"+header)
	} else {
		fmt.Fprintf(w, "\n"+besideFormat, "what", "tasks", "N", "median", "p90", "base's", "p90", "ours/base", "19 of 20 times")
	}
	return w
}

// besideFormat is a row of a comparison: of one width, so that each can be printed when
// it is measured.
const besideFormat = "%-84s %5v %4v %11s %11s %11s %11s %10s  %s\n"

// beside writes a row of the built programs and the other release's: the ratio of the
// medians, and where the median of the pairs' ratios is to be sought in 19 of 20 cases.
func (b *bench) beside(w io.Writer, what string, n int, of []series, show func(float64) string) {
	own, base := of[0], of[1]
	if len(own) == 0 || len(base) == 0 {
		fmt.Fprintf(w, "%-84s %5d %4d  not measured: there is no such figure here\n", what, n, len(own))
		return
	}
	ratio, span := 1.0, "-"
	if o, b := own.at(0.5), base.at(0.5); o != b {
		pairs := make([]float64, min(len(own), len(base)))
		for i := range pairs {
			pairs[i] = own[i] / base[i]
		}
		low, _, high := middle(pairs)
		ratio, span = o/b, fmt.Sprintf("%.2f to %.2f", low, high)
	}
	fmt.Fprintf(w, besideFormat, what, n, len(own), show(own.at(0.5)), show(own.at(0.9)), show(base.at(0.5)), show(base.at(0.9)), fmt.Sprintf("%.3f", ratio), span)
	if b.rows++; ratio > slower {
		b.over = append(b.over, fmt.Sprintf("%.3f  %s, %d tasks", ratio, what, n))
	}
}

// row writes a row without a peer, and with the other release if there is one.
func (b *bench) row(w io.Writer, what string, n int, of []series, show func(float64) string) {
	if b.base != "" {
		b.beside(w, what, n, of, show)
		return
	}
	fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", what, n, len(of[0]), show(of[0].at(0.5)), show(of[0].at(0.9)))
}

// verdict names the rows that cost more than in the other release.
func (b *bench) verdict() {
	if b.base == "" {
		return
	}
	fmt.Printf("\n%d of %d rows are above %.2f of %s\n", len(b.over), b.rows, slower, b.baseName)
	for _, line := range b.over {
		fmt.Println("  " + line)
	}
}
