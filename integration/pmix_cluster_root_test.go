package integration

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// TestRootClusterPMIx: fences and keys between the PMIx servers of several nodes,
// spawn from a node, and a rank that never comes.
func TestRootClusterPMIx(t *testing.T) {
	c := startCluster(t, 3, clusterSite{})
	n := c.nodes[0]
	dir := libOpenMPI.build(t, n, "world", "spawn", "linger")
	for _, nodes := range []int{2, 3} {
		t.Run(fmt.Sprintf("world of %d nodes", nodes), func(t *testing.T) {
			r := n.do(t, call{
				args:  append([]string{"run", "-N", fmt.Sprint(nodes), "-n", fmt.Sprint(2 * nodes), "--mpi=pmix", filepath.Join(dir, "world")}, worldParts...),
				env:   libOpenMPI.env,
				limit: 2 * time.Minute, // ranks that poll, more of them than CPUs
			})
			if r.code != 0 {
				t.Errorf("got %v", r)
			}
			for _, part := range worldParts[1:] {
				contains(t, "stdout", r.out, fmt.Sprintf("%s ok %d\n", part, 2*nodes))
			}
		})
	}
	t.Run("spawn", func(t *testing.T) {
		r := n.do(t, call{args: []string{"run", "-N2", "-n", "2", "--mpi=pmix", filepath.Join(dir, "spawn")}, env: libOpenMPI.env, limit: 2 * time.Minute})
		if r.code != 0 {
			t.Errorf("got %v", r)
		}
		contains(t, "stdout", r.out, "spawn ok 2+2\n", "spawn_multiple ok 2+2+1\n")
	})
	t.Run("a rank that is killed", func(t *testing.T) {
		r := n.do(t, call{args: []string{"run", "-N2", "-n", "4", "--mpi=pmix", filepath.Join(dir, "linger"), "3", "kill"}, env: libOpenMPI.env, limit: time.Minute})
		if r.code != 137 {
			t.Errorf("got %v", r)
		}
	})
	for _, n := range c.nodes {
		n.noPMIxLeft(t)
	}
}
