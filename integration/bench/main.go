// Command bench prints the benchmark table of the project: what a step costs,
// beside a bare fork+exec loop in the same run, and beside slurmstepd where
// Debian's slurmd is installed. The times are the kernel's own (process
// events), so that nothing is added to what is measured. No number is stored:
// what was not measured says why.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	bin := flag.String("bin", "bin", "the folder of the built programs")
	quick := flag.Bool("quick", false, "few runs, for a look")
	stacks := flag.Bool("stacks", false, "only the rows of the plugin stacks")
	acct := flag.Bool("acct", false, "only the rows of accounting")
	kill := flag.Bool("kill", false, "only the rows of kills")
	mpi := flag.Bool("mpi", false, "only the rows of MPI")
	streams := flag.Bool("streams", false, "only the rows of streams")
	events := flag.Bool("events", false, "only the rows of the event log")
	many := flag.Bool("many", false, "only the rows of many steps at once and of throughput")
	only := flag.String("only", "", "of the rows of streams those that have this `text`")
	runs := flag.Int("runs", 0, "how often each row of streams, or of the event log, is measured; 0: as is usual")
	end := flag.String("tls-end", "", "be an end of a pipe over TLS, for the rows of two nodes: read or write")
	flag.Parse()
	var err error
	switch {
	case *end != "":
		err = tlsEnd(*end)
	case *events:
		err = runEvents(*bin, *quick, *runs)
	case *many:
		err = onlyMany(*bin, *quick)
	case *streams:
		err = runStreams(*bin, *quick, *only, *runs)
	default:
		err = run(*bin, *quick, *stacks, *acct, *kill, *mpi)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// size is one row: n tasks, measured that many times.
type size struct{ n, runs int }

func run(bin string, quick, onlyStacks, onlyAcct, onlyKill, onlyMPI bool) error {
	dir, err := os.MkdirTemp("", "stepd-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if onlyAcct {
		return runAcct(bin, dir, quick)
	}
	if onlyMPI {
		return runMPI(bin, dir, quick)
	}
	rec, err := newRecorder()
	if err != nil {
		return err
	}
	if onlyKill {
		return runKill(bin, dir, rec, quick)
	}
	bare := filepath.Join(dir, "bare")
	src := filepath.Join(filepath.Dir(bin), "integration", "bench", "bare", "bare.c")
	if out, err := exec.Command("gcc", "-O2", "-o", bare, src).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot compile %q: %w: %s", src, err, out)
	}
	if !onlyStacks {
		if err := runSteps(bin, dir, bare, rec, quick); err != nil {
			return err
		}
	}
	if err := runStacks(bin, dir, bare, rec, quick); err != nil || onlyStacks {
		return err
	}
	if err := runMPI(bin, dir, quick); err != nil {
		return err
	}
	if err := runStreams(bin, quick, "", 0); err != nil {
		return err
	}
	if err := runEvents(bin, quick, 0); err != nil {
		return err
	}
	if err := runMany(bin, dir, quick); err != nil {
		return err
	}
	return runAcct(bin, dir, quick)
}

// runSteps is what a step costs without plugins, beside its peers.
func runSteps(bin, dir, bare string, rec *recorder, quick bool) error {
	sizes := []size{{1, 40}, {64, 15}, {256, 9}, {1000, 5}}
	if quick {
		sizes = []size{{1, 10}, {64, 5}, {256, 3}}
	}
	ours, err := startNoded(bin, filepath.Join(dir, "steps"), sizes[len(sizes)-1].n)
	if err != nil {
		return err
	}
	defer ours.stop()
	slurm, slurmErr := startSlurm(dir)
	if slurmErr == nil {
		defer slurm.stop()
	}
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintln(w, "what\ttasks\tN\tmedian\tp90\tpeer\tpeer's median\tratio")
	for _, s := range sizes {
		if err := launchRows(w, rec, ours, slurm, slurmErr, bare, s); err != nil {
			return err
		}
		w.Flush()
	}
	if err := throughput(w, ours, slurm, slurmErr, quick); err != nil {
		return err
	}
	w.Flush()
	// A table of its own: the tail is what counts here.
	if err := killRows(w, rec, ours, slurm, slurmErr, quick); err != nil {
		return err
	}
	w.Flush()
	return memory(w, ours, sizes)
}

// series are the figures of one kind, in nanoseconds.
type series []uint64

func (s series) at(q float64) uint64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Clone(s)
	slices.Sort(sorted)
	return sorted[min(int(float64(len(sorted))*q), len(sorted)-1)]
}

func ms(ns uint64) string { return fmt.Sprintf("%.2f ms", float64(ns)/1e6) }

// launchRows interleaves the three, so that a machine that slows down slows
// all of them.
func launchRows(w *tabwriter.Writer, rec *recorder, ours *noded, slurm *slurm, slurmErr error, bare string, s size) error {
	var ownFirst, ownLast, ownClient, ownEnd, bareExec, bareWhole, slurmLast, slurmEnd series
	for i := range s.runs + 1 {
		l, err := measure(rec, ours.pid(), s.n, ours.run("-n", fmt.Sprint(s.n), "--overcommit", "/bin/true"))
		if err != nil {
			return err
		}
		b, err := measureBare(rec, s.n, bare, fmt.Sprint(s.n))
		if err != nil {
			return err
		}
		if i == 0 {
			continue // the first of each warms the caches
		}
		ownFirst = append(ownFirst, l.firstExec-l.daemon)
		ownLast = append(ownLast, l.lastExec-l.daemon)
		ownClient = append(ownClient, l.lastExec-l.client)
		ownEnd = append(ownEnd, l.daemonExit-l.lastExit)
		bareExec = append(bareExec, b.lastExec-b.firstFork)
		bareWhole = append(bareWhole, b.lastExit-b.firstFork)
		if slurmErr != nil {
			continue
		}
		if l, err := measure(rec, slurm.pid(), s.n, slurm.run(s.n)); err != nil {
			slurmErr = err
		} else {
			slurmLast = append(slurmLast, l.lastExec-l.daemon)
			slurmEnd = append(slurmEnd, l.daemonExit-l.lastExit)
		}
	}
	peer, peerName := bareExec, "bare loop, first fork to last exec"
	if s.n == 1 {
		peer, peerName = bareWhole, "bare loop, fork to exit"
	}
	row(w, "stepd's exec to first task's exec", s.n, ownFirst, "", nil, nil)
	row(w, "stepd's exec to last task's exec", s.n, ownLast, peerName, peer, nil)
	row(w, "stepd's exec to last task's exec", s.n, ownLast, "slurmstepd", slurmLast, slurmErr)
	row(w, "client's exec to last task's exec", s.n, ownClient, "", nil, nil)
	row(w, "last exit to stepd's exit", s.n, ownEnd, "slurmstepd", slurmEnd, slurmErr)
	return nil
}

func row(w io.Writer, what string, n int, s series, peerName string, peer series, peerErr error) {
	fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t", what, n, len(s), ms(s.at(0.5)), ms(s.at(0.9)))
	switch {
	case peerName == "":
		fmt.Fprintln(w, "\t\t")
	case len(peer) == 0:
		fmt.Fprintf(w, "%s\tnot measured: %v\t\n", peerName, peerErr)
	default:
		fmt.Fprintf(w, "%s\t%s\t%.2f\n", peerName, ms(peer.at(0.5)), float64(s.at(0.5))/float64(peer.at(0.5)))
	}
}

// memory is the proportional set size of stepd and spankhost together, while
// the tasks sleep.
func memory(w *tabwriter.Writer, ours *noded, sizes []size) error {
	for _, s := range sizes {
		argv := ours.run("-n", fmt.Sprint(s.n), "--overcommit", "-J", "bench-memory", "-i", "none", "sleep", "60")
		cmd := exec.Command(argv[0], argv[1:]...)
		if err := cmd.Start(); err != nil {
			return err
		}
		kb, err := ours.stepMemory(s.n)
		cmd.Process.Kill()
		cmd.Wait()
		ours.cancelAll()
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "proportional memory of stepd and spankhost\t%d\t1\t%.1f MB\t\t\t\t\n", s.n, float64(kb)/1024)
	}
	return nil
}

// lines is the text of a file as lines, none when it cannot be read.
func lines(path string) []string {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}
