package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// mpiLibrary is one whose programs are started by stepctl and by its own
// launcher, in turns.
type mpiLibrary struct {
	name     string
	compiler string
	mpi      string // --mpi
	peer     string
	launch   []string // the peer's command line up to the count of ranks
	env      []string // for both: what makes more ranks than CPUs bearable
}

var mpiLibraries = []mpiLibrary{
	{"MPICH, ch4:ucx, PMI-1", "mpicc.mpich", "pmi2", "mpiexec.hydra", []string{"mpiexec.hydra", "-n"}, nil},
	{"MPICH, ch3:sock, PMI-2", "/var/cache/stepd-mpich/current/pmi2/bin/mpicc", "pmi2", "mpiexec.hydra", []string{"mpiexec.hydra", "-n"}, nil},
	{
		"OpenMPI, PMIx", "mpicc.openmpi", "pmix", "mpirun",
		[]string{"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n"},
		[]string{"OMPI_MCA_mpi_yield_when_idle=1"},
	},
}

// errNoLibrary is why a library's rows are not measured.
var errNoLibrary = errors.New("not built: make mpi-pmi2")

// mpiTable is what MPI programs cost to start, and what the key value space of
// PMI-2 costs and keeps.
func (b *bench) mpiTable() error {
	leave, err := ownShare()
	if err != nil {
		return err
	}
	defer leave()
	n, err := b.start("mpi", 1000, nil)
	if err != nil {
		return err
	}
	defer n.stop()
	w := b.table("MPI\ttasks\tN\tmedian\tp90\tpeer\tpeer's median\tratio")
	defer w.Flush()
	for _, l := range mpiLibraries {
		if err := l.rows(b, w, n); err != nil {
			return err
		}
		w.Flush()
	}
	program := filepath.Join(b.dir, "pmi2")
	if err := b.compileMPI("gcc", "pmi2", program, "-lpmi2"); err != nil {
		fmt.Fprintf(w, "PMI-2 fences and keys\t\t\tnot measured: %v\t\t\t\t\n", err)
		return nil
	}
	if err := b.pmi2Rows(w, n, program); err != nil {
		return err
	}
	w.Flush()
	if err := b.mpiMemory(w, n, program); err != nil {
		return err
	}
	return b.pmixMemory(w, n)
}

func (b *bench) compileMPI(compiler, name, program string, flags ...string) error {
	src := b.source("mpi", name+".c")
	argv := append([]string{"-O2", "-o", program, src}, flags...)
	if out, err := exec.Command(compiler, argv...).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot compile %q: %w: %s", src, err, bytes.TrimSpace(out))
	}
	return nil
}

// rows are the rows of the empty program: the whole command, and what rank 0 says.
func (l *mpiLibrary) rows(b *bench, w *tabwriter.Writer, n nodes) error {
	program := filepath.Join(b.dir, "empty-"+filepath.Base(l.peer)+l.mpi)
	reason := l.build(b, n, program)
	for _, s := range b.sizes([]size{{2, 20}, {16, 10}, {64, 12}}, []size{{2, 5}, {16, 3}, {64, 2}}, []size{{2, 20}, {16, 8}, {64, 4}}) {
		if reason != nil {
			fmt.Fprintf(w, "empty program: %s\t%d\t0\tnot measured: %v\t\t\t\t\n", l.name, s.n, reason)
			continue
		}
		of, peer := make([]mpiRuns, len(n)), mpiRuns{}
		for i := range s.runs + 1 {
			err := n.turns(i, func(k int, node *noded) error {
				return of[k].run(i, l.env, node.run("-n", fmt.Sprint(s.n), "--mpi="+l.mpi, program))
			})
			if err != nil {
				return err
			}
			if b.base != "" {
				continue
			}
			if err := peer.run(i, l.env, append(slices.Clone(l.launch), fmt.Sprint(s.n), program)); err != nil {
				return err
			}
		}
		for _, kind := range mpiKinds {
			what := kind.what + ": " + l.name
			if b.base != "" {
				b.beside(w, what, s.n, []series{kind.of(&of[0]), kind.of(&of[1])}, ms)
			} else {
				row(w, what, s.n, kind.of(&of[0]), l.peer, kind.of(&peer), nil)
			}
		}
		w.Flush()
	}
	return nil
}

// mpiKinds are the rows of the runs of one size. All ranks end MPI_Finalize together. The
// first to start waits for the others' start as well; the last finds most of the work
// done where a launcher starts one after the other, and all of it before it where they
// start at once.
var mpiKinds = []struct {
	what string
	of   func(*mpiRuns) series
}{
	{"empty program, command's start to end", func(r *mpiRuns) series { return r.whole }},
	{"first MPI_Init to last MPI_Finalize", func(r *mpiRuns) series { return r.times.all }},
	{"MPI_Init to MPI_Finalize, longest of a rank", func(r *mpiRuns) series { return r.times.most }},
	{"MPI_Init to MPI_Finalize, shortest of a rank", func(r *mpiRuns) series { return r.times.least }},
}

// mpiRuns are runs of the empty program by one launcher.
type mpiRuns struct {
	whole series
	times initTimes
}

// run runs it once more; the first run warms the caches.
func (r *mpiRuns) run(round int, env, argv []string) error {
	took, said, err := timed(env, argv, 2)
	if err == nil && round > 0 {
		r.whole = append(r.whole, took)
		r.times.add(said)
	}
	return err
}

// initTimes are the times from MPI_Init to MPI_Finalize, a figure of each run: of the
// first rank's to the last one's, and of the ranks that took longest and shortest.
type initTimes struct{ all, most, least series }

// add takes what the ranks of one run have said: begin and end of each.
func (t *initTimes) add(said series) {
	first, last := said[0], said[1]
	most, least := 0.0, last-first
	for i := 0; i+1 < len(said); i += 2 {
		first, last = min(first, said[i]), max(last, said[i+1])
		most, least = max(most, said[i+1]-said[i]), min(least, said[i+1]-said[i])
	}
	t.all, t.most, t.least = append(t.all, last-first), append(t.most, most), append(t.least, least)
}

// known is an error where a stepctl does not know the library's plugin.
func (l *mpiLibrary) known(n nodes) error {
	for _, node := range n {
		argv := node.run("--mpi=list")
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil || !slices.Contains(strings.Fields(string(out)), l.mpi) {
			return fmt.Errorf("no --mpi=%s of %q", l.mpi, argv[0])
		}
	}
	return nil
}

// build compiles the empty program, and says what is missing.
func (l *mpiLibrary) build(b *bench, n nodes, program string) error {
	if err := l.known(n); err != nil {
		return err
	}
	needed := []string{l.compiler}
	if b.base == "" {
		needed = append(needed, l.launch[0])
	}
	for _, p := range needed {
		if _, err := exec.LookPath(p); err != nil {
			if filepath.IsAbs(p) {
				return errNoLibrary
			}
			return fmt.Errorf("%s is not installed", p)
		}
	}
	return b.compileMPI(l.compiler, "empty", program)
}

// timed runs a command, and returns how long it took and the nanoseconds that it
// printed, so many on each line.
func timed(env, argv []string, onLine int) (whole float64, said series, err error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	started := time.Now()
	out, err := cmd.Output()
	whole = float64(time.Since(started))
	if err != nil {
		return 0, nil, fmt.Errorf("%q: %w: %s", argv, err, bytes.TrimSpace(stderr.Bytes()))
	}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) != onLine {
			return 0, nil, fmt.Errorf("%q: said %q", argv, line)
		}
		for _, word := range words {
			ns, err := strconv.ParseUint(word, 10, 64)
			if err != nil {
				return 0, nil, fmt.Errorf("%q: said %q", argv, line)
			}
			said = append(said, float64(ns))
		}
	}
	if len(said) == 0 {
		return 0, nil, fmt.Errorf("%q: said nothing", argv)
	}
	return whole, said, nil
}

// pmi2Rows are the latency of a fence, and keys that are put, fenced and got.
func (b *bench) pmi2Rows(w *tabwriter.Writer, n nodes, program string) error {
	rounds := b.runsOf(7, 3, 7)
	const fences, keys, hydra = 200, 100, "mpiexec.hydra"
	_, peerErr := exec.LookPath(hydra)
	for _, ranks := range []int{2, 16, 64} {
		for _, m := range []struct {
			what, mode string
			count      int
		}{
			{"PMI-2 fence without keys", "fence", fences},
			{fmt.Sprintf("PMI-2, %d keys of each rank: put, fence, get", keys), "keys", keys},
		} {
			args := []string{program, m.mode, fmt.Sprint(m.count)}
			of, peer := make([]series, len(n)), series(nil)
			for i := range rounds {
				err := n.turns(i, func(k int, node *noded) error {
					_, said, err := timed(nil, append(node.run("-n", fmt.Sprint(ranks), "--mpi=pmi2"), args...), 1)
					of[k] = append(of[k], said...)
					return err
				})
				if err != nil {
					return err
				}
				if b.base != "" || peerErr != nil {
					continue
				}
				_, said, err := timed(nil, append([]string{hydra, "-n", fmt.Sprint(ranks)}, args...), 1)
				if err != nil {
					return err
				}
				peer = append(peer, said...)
			}
			if b.base != "" {
				b.beside(w, m.what, ranks, of, ms)
				continue
			}
			row(w, m.what, ranks, of[0], hydra, peer, peerErr)
			if m.mode == "keys" {
				fmt.Fprintf(w, "PMI-2 keys per second, put and got\t%d\t%d\t%s\t\t%s\n", ranks, len(of[0]), keyRate(ranks*keys, of[0]), peerRate(hydra, ranks*keys, peer, peerErr))
			}
		}
		w.Flush()
	}
	return nil
}

func keyRate(count int, s series) string { return perSecond(s.at(0.5) / float64(count)) }

func peerRate(name string, count int, s series, err error) string {
	if err != nil {
		return fmt.Sprintf("%s\tnot measured: %v\t", name, err)
	}
	return name + "\t" + keyRate(count, s) + "\t"
}

// mpiMemory is what stepd keeps for 1,000 ranks that have all connected, put and
// fenced, beside tasks without MPI.
func (b *bench) mpiMemory(w io.Writer, n nodes, program string) error {
	const ranks = 1000
	without, err := b.memoryOf(n, ranks, []string{"stepd"}, "none", program, "idle", "0")
	if err != nil {
		return err
	}
	for _, keys := range []int{1, 10, 100} {
		with, err := b.memoryOf(n, ranks, []string{"stepd"}, "pmi2", program, "stay", fmt.Sprint(keys))
		if err != nil {
			return err
		}
		what := fmt.Sprintf("proportional memory of stepd, PMI-2, %d keys of each rank", keys)
		if b.base != "" {
			b.beside(w, what, ranks, with[0], mb)
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t1\t%s\t\twithout MPI\t%s\t\n", what, ranks, mb(with[0][0][0]), mb(without[0][0][0]))
	}
	return nil
}

// pmixMemory is the same of stepd and pmixhost. The clients are libpmix's
// own, a process each.
func (b *bench) pmixMemory(w io.Writer, n nodes) error {
	ranks := 1000
	if b.quick || b.base != "" {
		ranks = 100
	}
	for _, l := range mpiLibraries {
		if l.mpi != "pmix" {
			continue
		}
		if err := l.known(n); err != nil {
			fmt.Fprintf(w, "proportional memory of stepd and pmixhost\t%d\t0\tnot measured: %v\t\t\t\t\n", ranks, err)
			return nil
		}
	}
	flags, err := exec.Command("pkg-config", "--cflags", "--libs", "pmix").Output()
	if err != nil {
		return fmt.Errorf("cannot ask pkg-config of pmix: %w", err)
	}
	program := filepath.Join(b.dir, "pmix")
	if err := b.compileMPI("gcc", "pmix", program, strings.Fields(string(flags))...); err != nil {
		return err
	}
	names := []string{"stepd", "pmixhost"}
	for _, keys := range []int{1, 10} {
		with, err := b.memoryOf(n, ranks, names, "pmix", program, "stay", fmt.Sprint(keys))
		if err != nil {
			return err
		}
		for i, name := range names {
			b.row(w, fmt.Sprintf("proportional memory of %s, PMIx, %d keys of each rank", name, keys), ranks, with[i], mb)
		}
	}
	return nil
}

// memoryOf is the Pss in kB of the daemons with these names, one by one, in a step of
// each release whose rank 0 has printed a line.
func (b *bench) memoryOf(n nodes, ranks int, names []string, mpi string, args ...string) ([][]series, error) {
	of := make([][]series, len(names))
	for i := range of {
		of[i] = make([]series, len(n))
	}
	err := n.turns(0, func(k int, node *noded) error {
		kb, err := daemonsWith(node, ranks, names, mpi, args...)
		for i := range kb {
			of[i][k] = series{kb[i]}
		}
		return err
	})
	return of, err
}

// daemonsWith is the Pss in kB of the daemons with these names of a step whose rank 0 has
// printed a line.
func daemonsWith(node *noded, ranks int, names []string, mpi string, args ...string) ([]float64, error) {
	argv := append(node.run("-n", fmt.Sprint(ranks), "--overcommit", "-i", "none", "--mpi="+mpi), args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	_, err = bufio.NewReader(out).ReadString('\n')
	kb := make([]float64, len(names))
	for id := range node.running() {
		for i, name := range names {
			kb[i] += float64(node.pssOf(name, id))
		}
	}
	node.cancelAll()
	_ = cmd.Wait() // cancelled
	if err != nil {
		return nil, fmt.Errorf("%q: said nothing: %w", argv, err)
	}
	return kb, nil
}
