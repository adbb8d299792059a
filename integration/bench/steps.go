package main

import (
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"text/tabwriter"
)

// span is a part of a step's life whose length is compared.
type span struct {
	what string
	of   func(launch) uint64
}

// series are the lengths of that part.
func (s span) series(launches []launch) (of series) {
	for _, l := range launches {
		of = append(of, float64(s.of(l)))
	}
	return of
}

var (
	toFirst = span{"stepd's exec to first task's exec", func(l launch) uint64 { return l.firstExec - l.daemon }}
	toLast  = span{"stepd's exec to last task's exec", func(l launch) uint64 { return l.lastExec - l.daemon }}
	asked   = span{"client's exec to last task's exec", func(l launch) uint64 { return l.lastExec - l.client }}
	toEnd   = span{"last exit to stepd's exit", func(l launch) uint64 { return l.daemonExit - l.lastExit }}
	// Of the bare loop.
	forks = span{"bare loop, first fork to last exec", func(l launch) uint64 { return l.lastExec - l.firstFork }}
	whole = span{"bare loop, fork to exit", func(l launch) uint64 { return l.lastExit - l.firstFork }}
)

// stepsTable is what a step costs without plugins.
func (b *bench) stepsTable() error {
	sizes := b.sizes([]size{{1, 40}, {64, 15}, {256, 9}, {1000, 5}}, []size{{1, 10}, {64, 5}, {256, 3}}, []size{{1, 150}, {64, 40}, {256, 15}, {1000, 7}})
	n, err := b.start("steps", sizes[len(sizes)-1].n, nil)
	if err != nil {
		return err
	}
	defer n.stop()
	bare, err := b.bareLoop()
	if err != nil {
		return err
	}
	w := b.table("what\ttasks\tN\tmedian\tp90\tpeer\tpeer's median\tratio")
	for _, s := range sizes {
		if err := b.launchRows(w, n, bare, s); err != nil {
			return err
		}
		w.Flush()
	}
	return nil
}

// bareLoop is the program of the bare loop.
func (b *bench) bareLoop() (string, error) {
	bare := filepath.Join(b.dir, "bare")
	src := b.source("bare", "bare.c")
	if out, err := exec.Command("gcc", "-O2", "-o", bare, src).CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot compile %q: %w: %s", src, err, out)
	}
	return bare, nil
}

// launches are the launches of one size: of each release, of the bare loop and of slurmstepd.
type launches struct {
	of              [][]launch
	loops, original []launch
	slurmErr        error // why there is nothing of slurmstepd
}

// launch measures the launches of one size.
func (b *bench) launch(n nodes, bare string, s size) (*launches, error) {
	rec, err := b.events()
	if err != nil {
		return nil, err
	}
	m := &launches{of: make([][]launch, len(n))}
	slurm, err := b.slurm()
	m.slurmErr = err
	for i := range s.runs + 1 {
		err := n.turns(i, func(k int, node *noded) error {
			l, err := measure(rec, node.pid(), s.n, node.run("-n", fmt.Sprint(s.n), "--overcommit", "/bin/true"))
			m.of[k] = append(m.of[k], l)
			return err
		})
		if err != nil {
			return nil, err
		}
		if b.base != "" {
			continue
		}
		l, err := measureBare(rec, s.n, bare, fmt.Sprint(s.n))
		if err != nil {
			return nil, err
		}
		m.loops = append(m.loops, l)
		if m.slurmErr == nil {
			l, m.slurmErr = measure(rec, slurm.pid(), s.n, slurm.run(s.n))
			m.original = append(m.original, l)
		}
	}
	for k := range m.of {
		m.of[k] = m.of[k][1:] // the first of each warms the caches
	}
	if m.slurmErr != nil {
		m.original = nil
	}
	return m, nil
}

// launchRows are the rows of one size.
func (b *bench) launchRows(w *tabwriter.Writer, n nodes, bare string, s size) error {
	m, err := b.launch(n, bare, s)
	if err != nil {
		return err
	}
	if b.base != "" {
		for _, sp := range []span{toFirst, toLast, asked, toEnd} {
			b.beside(w, sp.what, s.n, []series{sp.series(m.of[0]), sp.series(m.of[1])}, ms)
		}
		return nil
	}
	loop := forks
	if s.n == 1 {
		loop = whole
	}
	for _, r := range []struct {
		span, peer span
		name       string
		launches   []launch
		err        error
	}{
		{span: toFirst},
		{toLast, loop, loop.what, m.loops, nil},
		{toLast, toLast, "slurmstepd", m.original, m.slurmErr},
		{span: asked},
		{toEnd, toEnd, "slurmstepd", m.original, m.slurmErr},
	} {
		var peer series
		if len(r.launches) > 0 {
			peer = r.peer.series(r.launches[1:])
		}
		row(w, r.span.what, s.n, r.span.series(m.of[0]), r.name, peer, r.err)
	}
	return nil
}

// row writes a row with a peer, or with none.
func row(w io.Writer, what string, n int, s series, peerName string, peer series, peerErr error) {
	fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t", what, n, len(s), ms(s.at(0.5)), ms(s.at(0.9)))
	switch {
	case peerName == "":
		fmt.Fprintln(w, "\t\t")
	case len(peer) == 0:
		fmt.Fprintf(w, "%s\tnot measured: %v\t\n", peerName, peerErr)
	default:
		fmt.Fprintf(w, "%s\t%s\t%.2f\n", peerName, ms(peer.at(0.5)), s.at(0.5)/peer.at(0.5))
	}
}

// memoryTable is the proportional set size of stepd and spankhost together, while
// the tasks sleep.
func (b *bench) memoryTable() error {
	sizes := b.sizes([]size{{1, 1}, {64, 1}, {256, 1}, {1000, 1}}, []size{{1, 1}, {64, 1}, {256, 1}}, []size{{1, 5}, {64, 5}, {256, 3}, {1000, 3}})
	n, err := b.start("memory", sizes[len(sizes)-1].n, nil)
	if err != nil {
		return err
	}
	defer n.stop()
	w := b.table("what\ttasks\tN\tmedian\tp90")
	for _, s := range sizes {
		of := make([]series, len(n))
		for i := range s.runs {
			err := n.turns(i, func(k int, node *noded) error {
				kb, err := node.memoryOfStep(s.n)
				of[k] = append(of[k], kb)
				return err
			})
			if err != nil {
				return err
			}
		}
		b.row(w, "proportional memory of stepd and spankhost", s.n, of, mb)
		w.Flush()
	}
	return nil
}

// memoryOfStep runs a step of so many sleeping tasks, in kB.
func (n *noded) memoryOfStep(tasks int) (float64, error) {
	argv := n.run("-n", fmt.Sprint(tasks), "--overcommit", "-J", "bench-memory", "-i", "none", "sleep", "60")
	cmd := exec.Command(argv[0], argv[1:]...)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	kb, err := n.stepMemory(tasks)
	cmd.Process.Kill()
	cmd.Wait()
	n.cancelAll()
	return float64(kb), err
}
