package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestRootClusterFiles: a file that all tasks of several nodes have in common is the
// client's to open, once and as the step's user; those of tasks and nodes are opened
// there.
func TestRootClusterFiles(t *testing.T) {
	waits(t)
	c := startCluster(t, 2, clusterSite{})
	n := c.nodes[0]
	lines := func(file string) []string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(n.wd, file))
		must(t, err)
		all := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
		slices.Sort(all)
		return all
	}
	same := func(what string, got, want []string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	ok := func(r result) {
		t.Helper()
		if r.code != 0 || r.out != "" || r.err != "" {
			t.Errorf("%v", r)
		}
	}
	const script = `echo out $SLURM_PROCID; echo err $SLURM_PROCID >&2`
	both := []string{"err 0", "err 1", "err 2", "err 3", "out 0", "out 1", "out 2", "out 3"}
	for range 2 { // the second one empties what the first has written
		ok(n.do(t, call{args: []string{"run", "-N2", "-n4", "-o", "common", "sh", "-c", script}}))
		same("common", lines("common"), both)
	}
	ok(n.do(t, call{args: []string{"run", "-N2", "-n4", "-o", "common", "--open-mode=append", "sh", "-c", script}}))
	same("appended to", lines("common"), slices.Sorted(slices.Values(append(slices.Clone(both), both...))))
	ok(n.do(t, call{args: []string{"run", "-N2", "-n4", "-l", "-o", "o.%J", "-e", "e.%s", "sh", "-c", script}}))
	same("labelled errors", lines("e.0"), []string{"0: err 0", "1: err 1", "2: err 2", "3: err 3"})
	found, err := filepath.Glob(filepath.Join(n.wd, "o.*.0"))
	if err != nil || len(found) != 1 {
		t.Errorf("the file of job and step: %q, %v", found, err)
	}
	must(t, os.WriteFile(filepath.Join(n.wd, "in"), []byte("given\n"), 0o644))
	ok(n.do(t, call{args: []string{"run", "-N2", "-n4", "-i", "in", "-o", "read", "sh", "-c", `read x; echo $x $SLURM_PROCID`}}))
	same("read", lines("read"), []string{"given 0", "given 1", "given 2", "given 3"})
	ok(n.do(t, call{args: []string{"run", "-N2", "-n4", "-o", "node.%n.%N", "-e", "task.%t", "sh", "-c", script}}))
	same("of node 0", lines("node.0.n1"), []string{"out 0", "out 1"})
	same("of node 1", lines("node.1.n2"), []string{"out 2", "out 3"})
	for rank := range 4 {
		same("of a task", lines(fmt.Sprint("task.", rank)), []string{fmt.Sprint("err ", rank)})
	}
}

// TestRootClusterFilesAsUser: root that starts a step for another user opens that
// one's files as that one.
func TestRootClusterFilesAsUser(t *testing.T) {
	waits(t)
	c := startCluster(t, 2, clusterSite{})
	n, user := c.nodes[0], testUser(t)
	uid := fmt.Sprintf("--uid=%d", user.uid)
	r := n.do(t, call{root: true, args: []string{"run", uid, "-N2", "-n2", "-D", n.wd, "-o", "theirs", "echo", "x"}})
	if r.code != 0 {
		t.Fatalf("%v", r)
	}
	st, err := os.Stat(filepath.Join(n.wd, "theirs"))
	must(t, err)
	if sys := st.Sys().(*syscall.Stat_t); sys.Uid != user.uid || sys.Gid != user.gid || st.Size() != 4 {
		t.Errorf("the file is of %d:%d and has %d bytes", sys.Uid, sys.Gid, st.Size())
	}
	roots := filepath.Join(n.wd, "roots")
	must(t, os.WriteFile(roots, []byte("kept"), 0o600))
	must(t, os.Symlink(roots, filepath.Join(n.wd, "link")))
	r = n.do(t, call{root: true, args: []string{"run", uid, "-N2", "-n2", "-D", n.wd, "-o", "link", "echo", "x"}})
	if r.code != 1 || !strings.Contains(r.err, `cannot open stdout file "`) || !strings.Contains(r.err, "permission denied") {
		t.Errorf("%v", r)
	}
	if b, err := os.ReadFile(roots); err != nil || string(b) != "kept" {
		t.Errorf("root's file has %q, %v", b, err)
	}
	c.settled(t)
}

// TestRootClusterEnvironment: what tells the tasks of the step's nodes and of the
// job's.
func TestRootClusterEnvironment(t *testing.T) {
	waits(t)
	c := startCluster(t, 3, clusterSite{})
	n := c.nodes[0]
	const script = `echo $SLURM_PROCID: $SLURM_NNODES $SLURM_STEP_NUM_NODES $SLURM_JOB_NUM_NODES $SLURM_STEP_NODELIST $SLURM_JOB_NODELIST $SLURM_NODELIST $SLURM_TASKS_PER_NODE $SLURM_GTIDS "$SLURM_JOB_CPUS_PER_NODE" $SLURM_LAUNCH_NODE_IPADDR`
	r := n.do(t, call{args: []string{"run", "-N2", "-n3", "sh", "-c", script}})
	got := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
	slices.Sort(got)
	want := []string{
		"0: 2 2 2 n[1-2] n[1-2] n[1-2] 2,1 0,1 2,1 " + c.addr(0),
		"1: 2 2 2 n[1-2] n[1-2] n[1-2] 2,1 0,1 2,1 " + c.addr(0),
		"2: 2 2 2 n[1-2] n[1-2] n[1-2] 2,1 2 2,1 " + c.addr(0),
	}
	if r.code != 0 || !slices.Equal(got, want) {
		t.Errorf("%v\nwant %q", r, want)
	}
	r = n.do(t, call{args: []string{"run", "-N2", "-n4", "-m", "cyclic", "sh", "-c", "echo $SLURM_PROCID $SLURM_GTIDS $SLURM_DISTRIBUTION"}})
	got = strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
	slices.Sort(got)
	if want := []string{"0 0,2 cyclic", "1 1,3 cyclic", "2 0,2 cyclic", "3 1,3 cyclic"}; r.code != 0 || !slices.Equal(got, want) {
		t.Errorf("%v\nwant %q", r, want)
	}
}
