package slurm

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"stepd/integration/slurm/cluster"
)

// cgroupRoots are the cgroups below which the cluster's step daemons make theirs, of the tracker
// and of each v1 controller. The spool has their parents, and its path their name.
func cgroupRoots(c *cluster.Cluster) ([]string, error) {
	text, err := os.ReadFile(c.Path("spool/stepd/cgroup"))
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) < 3 {
		return nil, fmt.Errorf("cannot read spool/stepd/cgroup: %q", text)
	}
	sum := sha256.Sum256([]byte(c.Path("spool")))
	name := fmt.Sprintf("stepd-%x", sum[:4])
	roots := []string{filepath.Join(lines[2], name)}
	for _, l := range lines[3:] {
		_, dir, _ := strings.Cut(l, " ")
		roots = append(roots, filepath.Join(dir, name))
	}
	return roots, nil
}

// left is what a job has left on its node, as an error: processes, sockets, its script, its
// cgroups. The event logs of its steps are to be there.
func left(c *cluster.Cluster, space string, job int) error {
	var what []string
	for _, p := range processes(space, job) {
		if !strings.HasPrefix(p.title, "srun ") && !strings.HasPrefix(p.title, "sbatch ") {
			what = append(what, fmt.Sprintf("process %d %q", p.pid, p.title))
		}
	}
	spool, err := os.ReadDir(c.Path("spool"))
	if err != nil {
		return err
	}
	for _, f := range spool {
		if strings.HasPrefix(f.Name(), fmt.Sprintf("%s_%d.", cluster.Node, job)) || f.Name() == fmt.Sprintf("job%05d", job) {
			what = append(what, "file "+f.Name())
		}
	}
	roots, err := cgroupRoots(c)
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
	logs, err := filepath.Glob(c.Path(fmt.Sprintf("spool/stepd/%d.*.events", job)))
	if err == nil && len(logs) == 0 {
		err = errors.New("its event log is gone")
	}
	return err
}
