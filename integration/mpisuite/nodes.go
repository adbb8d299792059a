package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"stepd/integration/slurm/cluster"
)

// nodes are three machines of a private Slurm (integration/slurm/cluster), and a job that has
// them all.
type nodes struct {
	cluster *cluster.Cluster
	job     string
}

// nodesCount is how many nodes a test has, where it has as many ranks.
const nodesCount = 3

// shell is what hydra starts its proxies with, as rsh: HOST COMMAND...
const shell = "#!/bin/sh\nnode=$1\nshift\nexec DIR/on $node sh -c \"$*\"\n"

// startNodes starts three slurmds with our step daemon, and gives them a copy of the suite.
func startNodes(ctx context.Context, o options) (*nodes, error) {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, cluster.Site{
		Release: o.release, Cache: o.cache, Programs: bin, StepDaemon: cluster.Programs + "/slurmstepd", Nodes: nodesCount,
		Files: map[string]string{"shell": shell},
	})
	if err != nil {
		return nil, err
	}
	n := &nodes{cluster: c}
	if err := n.prepare(ctx, o); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return n, nil
}

func (n *nodes) prepare(ctx context.Context, o options) error {
	lib := filepath.Join(filepath.Dir(filepath.Clean(o.suite)), "pmi2", "lib")
	if err := os.MkdirAll(n.cluster.Path("lib"), 0o755); err != nil {
		return err
	}
	// The image has no MPICH: hydra is this machine's, with what it is linked with.
	const copies = `cp -a "$0" "$2/suite"
		cp -a "$1"/libmpi*.so* "$2/lib"
		cp "$(command -v mpiexec.hydra)" "$(command -v hydra_pmi_proxy)" "$2"
		ldd "$2/mpiexec.hydra" "$2/hydra_pmi_proxy" | awk '$2 == "=>" && $1 !~ /^lib(c|m|dl|rt|pthread|resolv)\.so/ { print $3 }' | sort -u | xargs -r cp -Lt "$2/lib"`
	if out, err := exec.CommandContext(ctx, "sh", "-ec", copies, o.suite, lib, n.cluster.Dir).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot copy the suite: %w: %s", err, out)
	}
	said, err := n.cluster.Command(ctx, "root", "sh", "-c", fmt.Sprintf("salloc -Q --no-shell -N%d -n%d -t 600 && squeue -h -o %%i", nodesCount, jobCPUs)).Output()
	if err != nil {
		return fmt.Errorf("cannot get an allocation: %w", err)
	}
	n.job = strings.TrimSpace(string(said))
	return nil
}

// stop ends the nodes with all that runs there.
func (n *nodes) stop() {
	if err := n.cluster.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "mpisuite:", err)
	}
}

// launcher is one that runs in the cluster and in the job, where srun starts what a program spawns
// as well. What it starts inherits no signal of ours: timeout(1) ends it there.
func (n *nodes) launcher(name string, argv func(np int) []string) launcher {
	return launcher{name: name, spare: 40 * time.Second, command: func(ctx context.Context, _ string, t test) *exec.Cmd {
		limit := t.limit + 10*time.Second // hydra ends it by itself
		args := []string{"--chdir=" + n.cluster.Path("suite/"+t.dir), "LD_LIBRARY_PATH=" + n.cluster.Path("lib"), "SLURM_JOB_ID=" + n.job, "SLURM_OVERLAP=1", "timeout", "-k10", fmt.Sprintf("%.0f", limit.Seconds())}
		args = append(append(args, argv(t.np)...), append([]string{"./" + t.program}, t.args...)...)
		return n.cluster.Command(ctx, "root", "env", args...)
	}}
}

func (n *nodes) srun() launcher {
	return n.launcher("srun", func(np int) []string {
		return []string{"srun", "-Q", "-O", fmt.Sprintf("-N%d", min(nodesCount, np)), fmt.Sprintf("-n%d", np), "--mpi=pmi2"}
	})
}

func (n *nodes) hydra() launcher {
	return n.launcher("hydra", func(np int) []string {
		return []string{n.cluster.Path("mpiexec.hydra"), "-launcher", "rsh", "-launcher-exec", n.cluster.Path("shell"),
			"-hosts", strings.Join(n.cluster.Nodes(), ","), "-n", fmt.Sprint(np)}
	})
}
