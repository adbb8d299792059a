package cluster

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// CgroupRoots are the cgroups below which a node's step daemons under test make theirs, of the tracker
// and of each v1 controller. The spool has their parents, and its path their name. The error
// wraps fs.ErrNotExist where no step has run yet.
func (c *Cluster) CgroupRoots(node string) ([]string, error) {
	spool := c.Spool(node)
	text, err := os.ReadFile(filepath.Join(spool, "stepd/cgroup"))
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) < 3 {
		return nil, fmt.Errorf("cannot read %q: %q", spool+"/stepd/cgroup", text)
	}
	name := cgroupName(spool)
	roots := []string{filepath.Join(lines[2], name)}
	for _, l := range lines[3:] {
		_, dir, _ := strings.Cut(l, " ")
		roots = append(roots, filepath.Join(dir, name))
	}
	return roots, nil
}

// cgroupName is the name of each of them.
func cgroupName(spool string) string {
	sum := sha256.Sum256([]byte(spool))
	return fmt.Sprintf("stepd-%x", sum[:4])
}

// removeCgroups removes the cluster's cgroups, in which no process is left: its tree, or what its
// step daemons have made in the machine's. It looks for the latter: a spool that was a mount of
// the cluster's is gone.
func (c *Cluster) removeCgroups() error {
	if c.cgroups != "" {
		c.leaf.Close()
		return removeTree(c.cgroups)
	}
	var names []string
	for _, node := range slices.Concat([]string{Node}, c.Nodes(), c.site.Others) {
		names = append(names, cgroupName(c.Spool(node)))
	}
	return filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // another's, meanwhile
			return nil
		case err != nil || !d.IsDir() || !slices.Contains(names, d.Name()):
			return err
		}
		if err := removeTree(path); err != nil {
			return err
		}
		return fs.SkipDir
	})
}

// removeTree removes a cgroup and those below it.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, dir := range slices.Backward(dirs) {
		err = errors.Join(err, os.Remove(dir))
	}
	return err
}
