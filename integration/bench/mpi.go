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

// runMPI is what MPI programs cost to start, and what the key value space of
// PMI-2 costs and keeps.
func runMPI(bin, dir string, quick bool) error {
	leave, err := ownShare()
	if err != nil {
		return err
	}
	defer leave()
	node, err := startNoded(bin, filepath.Join(dir, "mpi"), 1000)
	if err != nil {
		return err
	}
	defer node.stop()
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintln(w, "\nMPI\ttasks\tN\tmedian\tp90\tpeer\tpeer's median\tratio")
	for _, l := range mpiLibraries {
		if err := l.rows(w, node, bin, dir, quick); err != nil {
			return err
		}
		w.Flush()
	}
	program := filepath.Join(dir, "pmi2")
	if err := compileMPI(bin, "gcc", "pmi2", program, "-lpmi2"); err != nil {
		fmt.Fprintf(w, "PMI-2 fences and keys\t\t\tnot measured: %v\t\t\t\t\n", err)
		return nil
	}
	if err := pmi2Rows(w, node, program, quick); err != nil {
		return err
	}
	w.Flush()
	if err := mpiMemory(w, node, program); err != nil {
		return err
	}
	return pmixMemory(w, node, bin, dir, quick)
}

func compileMPI(bin, compiler, name, program string, flags ...string) error {
	src := filepath.Join(filepath.Dir(bin), "integration", "bench", "mpi", name+".c")
	argv := append([]string{"-O2", "-o", program, src}, flags...)
	if out, err := exec.Command(compiler, argv...).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot compile %q: %w: %s", src, err, bytes.TrimSpace(out))
	}
	return nil
}

// rows are those of the empty program: the whole command, and what rank 0 says.
func (l *mpiLibrary) rows(w *tabwriter.Writer, node *noded, bin, dir string, quick bool) error {
	program := filepath.Join(dir, "empty-"+filepath.Base(l.peer)+l.mpi)
	reason := l.build(node, bin, program)
	sizes := []size{{2, 20}, {16, 10}, {64, 12}}
	if quick {
		sizes = []size{{2, 5}, {16, 3}, {64, 2}}
	}
	for _, s := range sizes {
		var whole, peerWhole series
		var times, peerTimes initTimes
		for i := range s.runs + 1 {
			if reason != nil {
				break
			}
			n := fmt.Sprint(s.n)
			own, said, err := timed(l.env, node.run("-n", n, "--mpi="+l.mpi, program), 2)
			if err != nil {
				return err
			}
			peer, peerSaid, err := timed(l.env, append(slices.Clone(l.launch), n, program), 2)
			if err != nil {
				return err
			}
			if i == 0 {
				continue // the first of each warms the caches
			}
			whole, peerWhole = append(whole, own), append(peerWhole, peer)
			times.add(said)
			peerTimes.add(peerSaid)
		}
		l.row(w, "empty program, command's start to end: ", s.n, whole, peerWhole, reason)
		l.row(w, "first MPI_Init to last MPI_Finalize: ", s.n, times.all, peerTimes.all, reason)
		// All ranks end MPI_Finalize together. The first to start waits for the others'
		// start as well; the last finds most of the work done where a launcher starts one
		// after the other, and all of it before it where they start at once.
		l.row(w, "MPI_Init to MPI_Finalize, longest of a rank: ", s.n, times.most, peerTimes.most, reason)
		l.row(w, "MPI_Init to MPI_Finalize, shortest of a rank: ", s.n, times.least, peerTimes.least, reason)
		w.Flush()
	}
	return nil
}

// initTimes are the times from MPI_Init to MPI_Finalize, a figure of each run: of the
// first rank's to the last one's, and of the ranks that took longest and shortest.
type initTimes struct{ all, most, least series }

// add takes what the ranks of one run have said: begin and end of each.
func (t *initTimes) add(said series) {
	first, last := said[0], said[1]
	most, least := uint64(0), last-first
	for i := 0; i+1 < len(said); i += 2 {
		first, last = min(first, said[i]), max(last, said[i+1])
		most, least = max(most, said[i+1]-said[i]), min(least, said[i+1]-said[i])
	}
	t.all, t.most, t.least = append(t.all, last-first), append(t.most, most), append(t.least, least)
}

func (l *mpiLibrary) row(w io.Writer, what string, n int, own, peer series, reason error) {
	if reason != nil {
		fmt.Fprintf(w, "%s\t%d\t0\tnot measured: %v\t\t\t\t\n", what+l.name, n, reason)
		return
	}
	row(w, what+l.name, n, own, l.peer, peer, nil)
}

// known says whether stepctl knows the library's plugin.
func (l *mpiLibrary) known(node *noded) error {
	argv := node.run("--mpi=list")
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil || !slices.Contains(strings.Fields(string(out)), l.mpi) {
		return fmt.Errorf("no --mpi=%s", l.mpi)
	}
	return nil
}

// build compiles the empty program, and says what is not there.
func (l *mpiLibrary) build(node *noded, bin, program string) error {
	if err := l.known(node); err != nil {
		return err
	}
	for _, p := range []string{l.compiler, l.launch[0]} {
		if _, err := exec.LookPath(p); err != nil {
			if filepath.IsAbs(p) {
				return errNoLibrary
			}
			return fmt.Errorf("%s is not installed", p)
		}
	}
	return compileMPI(bin, l.compiler, "empty", program)
}

// timed runs a command, and returns how long it took and the nanoseconds that it
// printed, so many on each line.
func timed(env, argv []string, onLine int) (whole uint64, said series, err error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	started := time.Now()
	out, err := cmd.Output()
	whole = uint64(time.Since(started))
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
			said = append(said, ns)
		}
	}
	if len(said) == 0 {
		return 0, nil, fmt.Errorf("%q: said nothing", argv)
	}
	return whole, said, nil
}

// pmi2Rows are the latency of a fence, and keys that are put, fenced and got.
func pmi2Rows(w *tabwriter.Writer, node *noded, program string, quick bool) error {
	rounds := 7
	if quick {
		rounds = 3
	}
	const fences, keys = 200, 100
	_, err := exec.LookPath("mpiexec.hydra")
	if err != nil {
		err = errors.New("mpiexec.hydra is not installed")
	}
	for _, n := range []int{2, 16, 64} {
		var fence, peerFence, put, peerPut series
		for range rounds {
			for _, m := range []struct {
				mode      string
				count     int
				own, peer *series
			}{{"fence", fences, &fence, &peerFence}, {"keys", keys, &put, &peerPut}} {
				args := []string{program, m.mode, fmt.Sprint(m.count)}
				_, said, e := timed(nil, append(node.run("-n", fmt.Sprint(n), "--mpi=pmi2"), args...), 1)
				if e != nil {
					return e
				}
				*m.own = append(*m.own, said...)
				if err != nil {
					continue
				}
				if _, said, e = timed(nil, append([]string{"mpiexec.hydra", "-n", fmt.Sprint(n)}, args...), 1); e != nil {
					return e
				}
				*m.peer = append(*m.peer, said...)
			}
		}
		row(w, "PMI-2 fence without keys", n, fence, "mpiexec.hydra", peerFence, err)
		row(w, fmt.Sprintf("PMI-2, %d keys of each rank: put, fence, get", keys), n, put, "mpiexec.hydra", peerPut, err)
		fmt.Fprintf(w, "PMI-2 keys per second, put and got\t%d\t%d\t%s\t\t%s\n", n, len(put), perSecond(n*keys, put), peerRate(n*keys, peerPut, err))
		w.Flush()
	}
	return nil
}

func perSecond(count int, s series) string {
	return fmt.Sprintf("%.0f /s", float64(count)/(float64(s.at(0.5))/1e9))
}

func peerRate(count int, s series, err error) string {
	if err != nil {
		return fmt.Sprintf("mpiexec.hydra\tnot measured: %v\t", err)
	}
	return "mpiexec.hydra\t" + perSecond(count, s) + "\t"
}

// mpiMemory is what stepd keeps for 1,000 ranks that have all connected, put and
// fenced, beside tasks without MPI.
func mpiMemory(w io.Writer, node *noded, program string) error {
	const ranks = 1000
	without, err := daemonsWith(node, ranks, "none", program, "idle", "0")
	if err != nil {
		return err
	}
	for _, keys := range []int{1, 10, 100} {
		with, err := daemonsWith(node, ranks, "pmi2", program, "stay", fmt.Sprint(keys))
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "proportional memory of stepd, PMI-2, %d keys of each rank\t%d\t1\t%.1f MB\t\twithout MPI\t%.1f MB\t\n",
			keys, ranks, with["stepd"], without["stepd"])
	}
	return nil
}

// pmixMemory is the same of stepd and pmixhost. The clients are libpmix's
// own, a process each.
func pmixMemory(w io.Writer, node *noded, bin, dir string, quick bool) error {
	ranks := 1000
	if quick {
		ranks = 100
	}
	for _, l := range mpiLibraries {
		if l.mpi != "pmix" {
			continue
		}
		if err := l.known(node); err != nil {
			fmt.Fprintf(w, "proportional memory of stepd and pmixhost\t%d\t0\tnot measured: %v\t\t\t\t\n", ranks, err)
			return nil
		}
	}
	flags, err := exec.Command("pkg-config", "--cflags", "--libs", "pmix").Output()
	if err != nil {
		return fmt.Errorf("cannot ask pkg-config of pmix: %w", err)
	}
	program := filepath.Join(dir, "pmix")
	if err := compileMPI(bin, "gcc", "pmix", program, strings.Fields(string(flags))...); err != nil {
		return err
	}
	for _, keys := range []int{1, 10} {
		with, err := daemonsWith(node, ranks, "pmix", program, "stay", fmt.Sprint(keys))
		if err != nil {
			return err
		}
		for _, name := range []string{"stepd", "pmixhost"} {
			fmt.Fprintf(w, "proportional memory of %s, PMIx, %d keys of each rank\t%d\t1\t%.1f MB\t\t\t\t\n", name, keys, ranks, with[name])
		}
	}
	return nil
}

// daemonsWith is the Pss in MB of the daemons of a step whose rank 0 has printed a
// line.
func daemonsWith(node *noded, ranks int, mpi string, args ...string) (map[string]float64, error) {
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
	mb := make(map[string]float64)
	for id := range node.running() {
		for _, name := range []string{"stepd", "pmixhost"} {
			mb[name] += float64(pssOf(name+": ["+id+"]")) / 1024
		}
	}
	node.cancelAll()
	_ = cmd.Wait() // cancelled
	if err != nil {
		return nil, fmt.Errorf("%q: said nothing: %w", argv, err)
	}
	return mb, nil
}
