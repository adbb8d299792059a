// Command demo is the part of `make demo` under Slurm: a private Slurm of Debian's packages,
// whose slurmd starts first its own step daemon and then ours, with the same commands of srun
// and their times side by side. It needs root, and mmdebstrap the first time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"stepd/integration/slurm/cluster"
)

func main() {
	programs := flag.String("bin", "bin", "the folder of the built programs")
	cache := flag.String("cache", "/var/cache/stepd-slurm", "the folder of images")
	release := flag.String("release", cluster.Releases()[0], "the release of Slurm")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	site := cluster.Site{Release: *release, Cache: *cache, Programs: *programs, Users: []string{user}}
	err := run(ctx, site)
	if errors.Is(err, cluster.ErrMoved) {
		fmt.Printf("not run: %v\n", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// user is the user who runs srun.
const user = "ann"

// daemons are the step daemons, by their paths for slurmd -d.
var daemons = []struct{ name, path string }{
	{"Slurm's", ""},
	{"stepd's", cluster.Programs + "/slurmstepd"},
}

// failing is a command that shows what a user sees of a failure.
const failing = `srun -n 2 sh -c 'test $SLURM_PROCID = 0 || kill -SEGV $$'`

func run(ctx context.Context, site cluster.Site) (err error) {
	fmt.Printf("\nUnder Slurm %s: Debian's slurmctld, slurmd and munge, in folders of their own, and srun as a user.\n"+
		"slurmd starts its own step daemon first, and then stepd's (slurmd -d).\n", site.Release)
	c, err := cluster.Start(ctx, site)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	var times [2][]float64
	job := cluster.FirstJob
	for i, d := range daemons {
		if i > 0 {
			if err := errors.Join(c.End(ctx, "slurmd", syscall.SIGTERM), c.StartSlurmdWith(ctx, d.path)); err != nil {
				return err
			}
		}
		fmt.Printf("\nWith %s step daemon:\n\n", d.name)
		if err := errors.Join(shows(ctx, c, "srun -n 2 -l hostname"), shows(ctx, c, failing)); err != nil {
			return err
		}
		if d.path != "" {
			if err := shows(ctx, c, fmt.Sprintf("stepctl explain %d.0", job+1)); err != nil { // the second job's
				return err
			}
		}
		if times[i], err = measure(ctx, c); err != nil {
			return err
		}
		job += 3
	}
	fmt.Printf("\nThe time that srun takes, medians of %d runs in one allocation, in ms:\n\n%-36s %8s %8s\n", runs, "command", daemons[0].name, daemons[1].name)
	for i, r := range rows {
		fmt.Printf("%-36s %8.0f %8.0f\n", r, times[0][i], times[1][i])
	}
	return nil
}

// shows prints a command and what it prints; its exit code may be any.
func shows(ctx context.Context, c *cluster.Cluster, line string) error {
	fmt.Printf("$ %s\n", line)
	cmd := c.Command(ctx, user, "sh", "-c", "PATH="+cluster.Programs+":$PATH; "+line)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

// rows are the measured commands, and runs how often each one runs.
var rows = []string{
	"srun -n 1 true",
	"srun -n 4 true",
	"srun -n 64 true",
	"srun -n 1 head -c 50M /dev/zero",
}

const runs = 5

// measure returns the median time of each row, in ms.
func measure(ctx context.Context, c *cluster.Cluster) ([]float64, error) {
	script := "set -e\n"
	for _, r := range rows {
		// The shell's own clock: a process for it would count.
		script += "for i in {1.." + strconv.Itoa(runs) + "}; do t=$EPOCHREALTIME; " + r + " >/dev/null; echo $((${EPOCHREALTIME/./} - ${t/./})); done\n"
	}
	cmd := c.Command(ctx, user, "salloc", "-Q", "-n", "64", "bash", "-c", script)
	var said strings.Builder // srun waits for CPUs now and then, and says so
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot measure: %w: %s", err, said.String())
	}
	figures := strings.Fields(string(out))
	if len(figures) != len(rows)*runs {
		return nil, fmt.Errorf("cannot measure: want %d figures of bash, got %q", len(rows)*runs, out)
	}
	var medians []float64
	for row := range slices.Chunk(figures, runs) {
		var us []float64
		for _, f := range row {
			n, err := strconv.ParseFloat(f, 64)
			if err != nil {
				return nil, fmt.Errorf("cannot measure: %w", err)
			}
			us = append(us, n)
		}
		slices.Sort(us)
		medians = append(medians, us[len(us)/2]/1000)
	}
	return medians, nil
}
