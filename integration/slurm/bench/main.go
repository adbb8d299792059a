// Command bench measures srun and sbatch below the real slurmd, with our step daemon and
// with Slurm's own, in turns in one run.
//
//	go run ./integration/slurm/bench -bin $PWD/bin [-release 24.11] [-runs 9] [-only -n4]
//
// Each row has both medians, the ratio ours/slurmstepd (below 1 is faster) and where the
// median of the pairs' ratios is to be sought in 19 of 20 cases. A row of a stream has a second line:
// the processor time of srun itself, which copies in small pieces in one thread, beside
// the whole time with slurmstepd. No step daemon can take less. A fence's row has what rank 0 of
// the program has measured.
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"stepd/integration/slurm/cluster"
)

// A row is what is measured, so often where -runs says nothing.
type row struct {
	what  string
	runs  int
	stdin int64 // bytes
	bulk  bool  // srun's own processor time is a second line
	args  []string
	batch bool // a job of its own: from its allocation to its end, by slurmctld's log
	nodes bool // in clusters of three nodes
	// mpi is a program of ../testdata/mpi whose last line is the time, in microseconds, and its
	// arguments.
	mpi string
}

var rows = []row{
	{what: "srun -n1 in an allocation", runs: 60, args: []string{"-n1", "/bin/true"}},
	{what: "srun -n4", runs: 30, args: []string{"-n4", "/bin/true"}},
	{what: "srun -n64 -O", runs: 15, args: []string{"-n64", "/bin/true"}},
	{what: "srun -n256 -O", runs: 9, args: []string{"-n256", "/bin/true"}},
	{what: "100 MB of stdout", runs: 7, bulk: true, args: []string{"-n1", "/bin/head", "-c", "100000000", "/dev/zero"}},
	{what: "50 MB of stdin", runs: 7, bulk: true, stdin: 50e6, args: []string{"-n1", "/bin/sh", "-c", "exec cat >/dev/null"}},
	{what: "sbatch's turnaround", runs: 25, batch: true},
	{what: "srun -N3 -n6, three slurmds", runs: 30, args: []string{"-N3", "-n6", "/bin/true"}, nodes: true},
	{what: "PMI-2 fence, -N3 -n64", runs: 9, args: []string{"-N3", "-n64", "-m", "cyclic", "--mpi=pmi2"}, mpi: "fences 50", nodes: true},
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == inside {
		os.Exit(serve(os.Stdin, os.Stdout))
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	release := flag.String("release", "22.05", "the release of Slurm: "+strings.Join(cluster.Releases(), ", "))
	cache := flag.String("cache", "/var/cache/stepd-slurm", "where the releases lie")
	bin := flag.String("bin", "bin", "the folder of the built programs")
	runs := flag.Int("runs", 0, "measure the first row so often, and the others in proportion")
	only := flag.String("only", "", "measure the rows that have this in their name")
	flag.Parse()
	ctx := context.Background()
	dir, err := os.MkdirTemp("/var/tmp", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// A copy, as at a site: a file that a linker has written lies page by page in the cache.
	programs := filepath.Join(dir, "bin")
	if err := os.CopyFS(programs, os.DirFS(*bin)); err != nil {
		return fmt.Errorf("cannot copy the programs: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	fmt.Printf("Slurm %s\n"+format, *release, "what", "N", "ours", "p90", "slurmstepd", "p90", "ratio", "19 of 20 times")
	for _, nodes := range []int{0, 3} {
		var chosen []row
		for _, r := range rows {
			if r.nodes != (nodes > 0) || !strings.Contains(r.what, *only) {
				continue
			}
			if *runs > 0 {
				r.runs = max(3, r.runs**runs/rows[0].runs)
			}
			chosen = append(chosen, r)
		}
		if len(chosen) == 0 {
			continue
		}
		site := cluster.Site{Release: *release, Cache: *cache, Nodes: nodes}
		if err := compare(ctx, site, programs, chosen); err != nil {
			return err
		}
	}
	return nil
}

// compare measures rows in two clusters of a site.
func compare(ctx context.Context, site cluster.Site, programs string, chosen []row) (err error) {
	site.Users = []string{"alice"}
	// Without backfill: 26.05 does not log what that allocates.
	site.Conf = "MaxTasksPerNode=2000\nSlurmctldDebug=info\nSchedulerType=sched/builtin\n"
	var sides [2]*side
	for i := range sides {
		if i == 0 {
			site.Programs, site.StepDaemon = programs, cluster.Programs+"/slurmstepd"
		} else {
			site.Programs, site.StepDaemon = "", ""
		}
		if sides[i], err = begin(ctx, site); err != nil {
			return err
		}
		defer sides[i].end()
	}
	for _, r := range chosen {
		if err := measure(ctx, sides, r); err != nil {
			return fmt.Errorf("%s: %w", r.what, err)
		}
	}
	return nil
}

const format = "%-28s %4v %11s %11s %11s %11s %7s  %s\n"

// measure takes turns, of which the other side goes first in the next round, and prints
// the row. A first round warms up.
func measure(ctx context.Context, sides [2]*side, r row) error {
	var times, cpu [2][]float64
	for round := range r.runs + 1 {
		for k := range sides {
			k = (k + round) % 2
			t, err := sides[k].time(ctx, r)
			if err != nil {
				return err
			}
			if round > 0 {
				times[k], cpu[k] = append(times[k], t.ms), append(cpu[k], t.cpu)
			}
		}
	}
	printRow(r.what, times)
	if r.bulk {
		printRow("  srun's own CPU, ours", [2][]float64{cpu[0], times[1]})
	}
	return nil
}

func printRow(what string, times [2][]float64) {
	runs := len(times[0])
	pairs := make([]float64, runs)
	for i := range pairs {
		pairs[i] = times[0][i] / times[1][i]
	}
	slices.Sort(pairs)
	n := len(pairs)
	off := int(math.Ceil(0.98 * math.Sqrt(float64(n)))) // of a median, in 19 of 20 cases
	ms := func(k int, q float64) string { return fmt.Sprintf("%.1f ms", quantile(times[k], q)) }
	fmt.Printf(format, what, runs, ms(0, 0.5), ms(0, 0.9), ms(1, 0.5), ms(1, 0.9),
		fmt.Sprintf("%.2f", quantile(times[0], 0.5)/quantile(times[1], 0.5)), fmt.Sprintf("%.2f to %.2f", pairs[max(0, n/2-off)], pairs[min(n-1, n/2+off)]))
}

func quantile(times []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[min(int(float64(len(sorted))*q), len(sorted)-1)]
}
