package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"stepd/slurmconf"
	"stepd/step"
)

// nodeOptions say on which nodes a step is to run.
type nodeOptions struct {
	count     string // -N
	want, not string // -w, -x
	perNode   int
	flags     *pflag.FlagSet // which of them were told
}

func (o *nodeOptions) bind(c *cobra.Command) {
	f := c.Flags()
	o.flags = f
	f.StringVarP(&o.count, "nodes", "N", "1", "number of nodes: N, or MIN-MAX")
	f.StringVarP(&o.want, "nodelist", "w", "", "nodes that the step must have, as a list of hosts: n[1-3,5]")
	f.StringVarP(&o.not, "exclude", "x", "", "nodes that it must not have")
	f.IntVar(&o.perNode, "ntasks-per-node", 0, "most tasks of a node; without --ntasks, the tasks of each")
}

// set puts them into the request. Without --ntasks there is one task on each node,
// or as many as --ntasks-per-node says.
func (o *nodeOptions) set(r *step.Request, inJob bool) error {
	var err error
	if r.WantNodes, err = hosts("--nodelist", o.want); err != nil {
		return err
	}
	if r.NotNodes, err = hosts("--exclude", o.not); err != nil {
		return err
	}
	if o.perNode < 0 || o.perNode > step.TasksMax {
		return fmt.Errorf("--ntasks-per-node=%d: want 1 to %d", o.perNode, step.TasksMax)
	}
	r.TasksPerNode = o.perNode
	text, told := o.count, o.flags.Changed("nodes")
	name := "--nodes"
	if !told && inJob && os.Getenv("SLURM_NNODES") != "" {
		name, text = "SLURM_NNODES", os.Getenv("SLURM_NNODES")
	}
	if r.NNodes, r.NNodesMax, err = nodeCount(text); err != nil {
		return fmt.Errorf("%s=%s: %w", name, text, err)
	}
	ntasks := o.flags.Changed("ntasks")
	switch {
	case !told && len(r.WantNodes) > 0:
		r.NNodes, r.NNodesMax = len(r.WantNodes), 0
	case told && len(r.WantNodes) > max(r.NNodes, r.NNodesMax):
		return fmt.Errorf("--nodes=%s: --nodelist names %d nodes", text, len(r.WantNodes))
	case !told && inJob && r.NTasks < r.NNodes:
		r.NNodes = r.NTasks // as srun: a job's nodes are the most that its steps get
	}
	if !ntasks && !inJob && r.NNodes*max(1, o.perNode) > r.NTasks {
		r.NTasks = r.NNodes * max(1, o.perNode)
	}
	if len(r.WantNodes) > r.NTasks {
		return fmt.Errorf("--ntasks=%d and --nodelist=%s exclude each other: each of %d nodes has one task at least", r.NTasks, o.want, len(r.WantNodes))
	}
	return o.setPerNode(r, text, told, inJob)
}

// setPerNode settles what --nodes, --ntasks and --ntasks-per-node say together, as srun
// does: the number of tasks counts.
func (o *nodeOptions) setPerNode(r *step.Request, nodes string, told, inJob bool) error {
	if r.NTasks < r.NNodes {
		say("%d tasks cannot run on %d nodes: --nodes=%s is taken for %d", r.NTasks, r.NNodes, nodes, r.NTasks)
		r.NNodes = r.NTasks
		if r.NNodesMax <= r.NNodes {
			r.NNodesMax = 0
		}
	}
	if most := max(r.NNodes, r.NNodesMax); told && o.perNode > 0 && r.NTasks > most*o.perNode {
		if !inJob {
			return fmt.Errorf("--ntasks=%d and --ntasks-per-node=%d exclude each other with --nodes=%s: that makes %d tasks at most", r.NTasks, o.perNode, nodes, most*o.perNode)
		}
		say("--ntasks-per-node=%d is disregarded: --ntasks=%d with --nodes=%s needs more", o.perNode, r.NTasks, nodes)
		r.TasksPerNode = 0
	}
	return nil
}

// nodeCount reads -N: "2" or "2-4".
func nodeCount(text string) (least, most int, err error) {
	from, to, ranged := strings.Cut(text, "-")
	if least, err = strconv.Atoi(from); err != nil || least < 1 {
		return 0, 0, fmt.Errorf("write a number of nodes, or MIN-MAX")
	}
	if !ranged {
		return least, 0, nil
	}
	if most, err = strconv.Atoi(to); err != nil || most < least {
		return 0, 0, fmt.Errorf("write a number of nodes, or MIN-MAX")
	}
	return least, most, nil
}

// hosts expands a list of hosts; each is taken once.
func hosts(option, list string) (names []string, err error) {
	all, err := slurmconf.ExpandHosts(list)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", option, err)
	}
	seen := make(map[string]bool, len(all))
	for _, name := range all {
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names, nil
}
