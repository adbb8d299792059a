package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// eventually calls a probe until it succeeds or the limit has passed: what it waits for
// happens in daemons that report it to no one.
func eventually(ctx context.Context, limit time.Duration, probe func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (waited %v)", err, limit)
		case <-tick.C:
		}
	}
}

// StartMunged starts munged; it returns when it answers.
func (c *Cluster) StartMunged(ctx context.Context) error {
	return c.do(ctx, "munged", "--force", "--key-file="+c.Path("munge.key"), "--socket="+c.Path("munge.sock"),
		"--pid-file="+c.Path("munged.pid"), "--log-file="+c.Path("munged.log"), "--seed-file="+c.Path("munged.seed"))
}

// StartSlurmctld starts slurmctld and waits until it answers.
func (c *Cluster) StartSlurmctld(ctx context.Context) error {
	if err := c.do(ctx, "slurmctld", "-f", c.Path("slurm.conf")); err != nil {
		return err
	}
	return eventually(ctx, startTime, func() error { return c.do(ctx, "scontrol", "show", "config") })
}

// StartSlurmd starts slurmd with the Site's step daemon and waits until the node takes
// jobs.
func (c *Cluster) StartSlurmd(ctx context.Context) error {
	return c.StartSlurmdWith(ctx, c.site.StepDaemon)
}

// StartSlurmdWith starts slurmd with another step daemon; an empty path names Slurm's own.
func (c *Cluster) StartSlurmdWith(ctx context.Context, stepDaemon string) error {
	for _, node := range c.Nodes() {
		if err := c.startNodeSlurmd(ctx, node, stepDaemon); err != nil {
			return err
		}
	}
	if c.site.Nodes > 0 {
		return eventually(ctx, startTime, func() error { return c.takesJobs(ctx) })
	}
	args := []string{"-f", c.Path("slurm.conf")}
	if stepDaemon != "" {
		args = append(args, "-d", stepDaemon)
	}
	if err := c.do(ctx, "slurmd", args...); err != nil {
		return err
	}
	for i, name := range c.site.Others {
		address := fmt.Sprintf("10.77.0.%d/32", i+2)
		if err := c.do(ctx, "ip", "addr", "replace", address, "dev", "lo"); err != nil {
			return err
		}
		line := append([]string{"--uts", "sh", "-ec", `hostname "$0"; exec slurmd -N "$0" "$@"`, name}, args...)
		if err := c.do(ctx, "unshare", line...); err != nil {
			return err
		}
	}
	return eventually(ctx, startTime, func() error { return c.takesJobs(ctx) })
}

// takesJobs is an error while a node takes no jobs: of these, or of all.
func (c *Cluster) takesJobs(ctx context.Context, nodes ...string) error {
	args := []string{"-h", "-N", "-o", "%N %T"}
	if len(nodes) > 0 {
		args = append(args, "-n", strings.Join(nodes, ","))
	}
	out, err := c.Command(ctx, "root", "sinfo", args...).Output()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		node, state, _ := strings.Cut(strings.TrimSpace(line), " ")
		if state != "idle" && state != "mixed" && state != "allocated" {
			return fmt.Errorf("node %s is %q", node, state)
		}
	}
	return nil
}

// End sends a daemon (munged, slurmctld, slurmd; slurmd.n1 where the Site has Nodes) a signal, and waits until it has ended.
func (c *Cluster) End(ctx context.Context, daemon string, signal syscall.Signal) error {
	text, err := os.ReadFile(c.Path(daemon + ".pid"))
	if err != nil {
		return err
	}
	pid := strings.TrimSpace(string(text))
	if _, err := strconv.Atoi(pid); err != nil {
		return fmt.Errorf("%s.pid: %w", daemon, err)
	}
	if err := c.do(ctx, "kill", "-"+strconv.Itoa(int(signal)), pid); err != nil {
		return err
	}
	return eventually(ctx, stopTime, func() error {
		if c.do(ctx, "kill", "-0", pid) == nil {
			return errors.New(daemon + " lives")
		}
		return nil
	})
}

// Revive starts slurmds again that have ended without a test's doing, and returns which. 22.05's may
// abort beside many launches at once (a double free as one of its threads ends, by its core).
func (c *Cluster) Revive(ctx context.Context) (revived []string, err error) {
	daemons := map[string]func(context.Context) error{"slurmd": c.StartSlurmd}
	if c.site.Nodes > 0 {
		clear(daemons)
		for _, node := range c.Nodes() {
			daemons["slurmd."+node] = func(ctx context.Context) error { return c.StartNode(ctx, node) }
		}
	}
	for daemon, start := range daemons {
		text, err := os.ReadFile(c.Path(daemon + ".pid"))
		if err != nil || c.do(ctx, "kill", "-0", strings.TrimSpace(string(text))) == nil {
			continue
		}
		revived = append(revived, daemon)
		if err := start(ctx); err != nil {
			return revived, err
		}
	}
	return revived, nil
}
