package slurm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"stepd/integration/slurm/cluster"
)

// left is what a job has left on its node, as an error, as remains has it. The event logs of
// its steps are to be there.
func left(c *cluster.Cluster, space string, job int) error {
	if err := remains(c, space, job); err != nil {
		return err
	}
	logs, err := filepath.Glob(c.Path(fmt.Sprintf("spool/stepd/%d.*.events", job)))
	if err == nil && len(logs) == 0 {
		err = errors.New("its event log is gone")
	}
	return err
}

// remains is an error of what a job has left on its node: processes, sockets, its script, its
// cgroups.
func remains(c *cluster.Cluster, space string, job int) error {
	return remainsOn(c, cluster.Node, space, job)
}

// remainsOn is the same of a node of several, whose space is nodeSpace.
func remainsOn(c *cluster.Cluster, node, space string, job int) error {
	var what []string
	for _, p := range processes(space, job) {
		if !strings.HasPrefix(p.title, "srun ") && !strings.HasPrefix(p.title, "sbatch ") {
			what = append(what, fmt.Sprintf("process %d %q", p.pid, p.title))
		}
	}
	spool, err := os.ReadDir(c.Spool(node))
	if err != nil {
		return err
	}
	for _, f := range spool {
		if strings.HasPrefix(f.Name(), fmt.Sprintf("%s_%d.", node, job)) || f.Name() == fmt.Sprintf("job%05d", job) {
			what = append(what, "file "+f.Name())
		}
	}
	roots, err := c.CgroupRoots(node)
	if err != nil {
		return err
	}
	for _, root := range roots {
		dirs, err := filepath.Glob(fmt.Sprintf("%s/job_%d", root, job))
		if err != nil {
			return err
		}
		what = append(what, dirs...)
	}
	if len(what) > 0 {
		slices.Sort(what)
		return errors.New("left: " + strings.Join(what, ", "))
	}
	return nil
}
