package cluster

import (
	"context"
	_ "embed"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

//go:embed nodes.sh
var nodesScript string

// Login is the host of a Site with Nodes where slurmctld and users' commands run.
const Login = "login"

// firstNode is the last number of the first node's address.
const firstNode = 11

// nodesConf is what a Site with Nodes has instead: each daemon's files have its node's name.
const nodesConf = `SlurmdSpoolDir=%[1]s/spool/%%n
SlurmdPidFile=%[1]s/slurmd.%%n.pid
SlurmdLogFile=%[1]s/slurmd.%%n.log
`

// host is the name of the host where slurmctld and users' commands run.
func (s Site) host() string {
	if s.Nodes > 0 {
		return Login
	}
	return Node
}

// Nodes returns the names of the machines of a Site with Nodes.
func (c *Cluster) Nodes() (names []string) {
	for i := range c.site.Nodes {
		names = append(names, fmt.Sprintf("n%d", i+1))
	}
	return names
}

// Spool is the folder of a node's slurmd.
func (c *Cluster) Spool(node string) string {
	if c.site.Nodes > 0 || len(c.site.Others) > 0 {
		return c.Path("spool/" + node)
	}
	return c.Path("spool")
}

// startNodes makes the nodes' network and namespaces.
func (c *Cluster) startNodes(ctx context.Context) error {
	if c.site.Nodes == 0 {
		return nil
	}
	// Each node's slurmd has a mount namespace that is made on the same CPU.
	unshare := strings.Join(unshared([]string{"--net", "--uts", "--mount"}, nil), " ")
	return c.do(ctx, "sh", "-c", nodesScript, "nodes", c.Dir, strconv.Itoa(firstNode), strings.Join(c.Nodes(), " "), unshare)
}

// On is a program as Command's, on a node of a Site with Nodes: in its network, with its name and
// its files.
func (c *Cluster) On(ctx context.Context, node, user, name string, args ...string) *exec.Cmd {
	cmd := c.Command(ctx, user, name, args...)
	// After the cluster's namespaces, and before the user has lost root's rights.
	at := slices.Index(cmd.Args, "--") + 1
	cmd.Args = slices.Insert(cmd.Args, at, c.Path("on"), node)
	return cmd
}

// startNodeSlurmd starts a node's slurmd with a step daemon; an empty path names Slurm's own.
func (c *Cluster) startNodeSlurmd(ctx context.Context, node, stepDaemon string) error {
	args := []string{"-f", c.Path("slurm.conf")}
	if stepDaemon != "" {
		args = append(args, "-d", stepDaemon)
	}
	cmd := c.On(ctx, node, "root", "slurmd", args...)
	cmd.Env = append(cmd.Env, c.site.Env...)
	return c.run(cmd)
}

// StartNode starts the slurmd of a node with the Site's step daemon, and waits until the node takes
// jobs. End with "slurmd." and the node's name ends it.
func (c *Cluster) StartNode(ctx context.Context, node string) error {
	if err := c.startNodeSlurmd(ctx, node, c.site.StepDaemon); err != nil {
		return err
	}
	return eventually(ctx, startTime, func() error { return c.takesJobs(ctx, node) })
}

// SetLink takes a node's link down, so that nothing it sends arrives and nothing reaches it, or up
// again.
func (c *Cluster) SetLink(ctx context.Context, node string, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	return c.do(ctx, "ip", "link", "set", node, state)
}
