package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRootClusterPrograms: what tasks run, and for how long, where they are on two
// nodes.
func TestRootClusterPrograms(t *testing.T) {
	waits(t)
	c := startCluster(t, 2, clusterSite{})
	head := c.nodes[0]
	lines := func(r result) []string {
		l := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
		slices.Sort(l)
		return l
	}
	t.Run("multi-prog", func(t *testing.T) {
		head.userFile(t, "mp", "0-1 echo a %t %o\n* echo b %t %o\n", 0o644)
		r := head.ctl(t, "run", "-N2", "-n4", "--multi-prog", "mp")
		if want := []string{"a 0 0", "a 1 1", "b 2 2", "b 3 3"}; r.code != 0 || !slices.Equal(lines(r), want) {
			t.Errorf("got %v, want %q", r, want)
		}
	})
	t.Run("time", func(t *testing.T) {
		r := head.ctl(t, "run", "-N2", "-t", "0:01", "sleep", "60")
		if r.code != 143 {
			t.Errorf("got %v", r)
		}
		contains(t, "stderr", r.err, "DUE TO TIME LIMIT")
		if rec := head.lastEnded(t); rec.State != "TIMEOUT" {
			t.Errorf("the step is %s: %s", rec.State, rec.Reason)
		}
	})
	t.Run("leader", func(t *testing.T) {
		p := head.start(t, call{args: []string{"run", "-N2", "sh", "-c", `trap "echo $SLURM_PROCID; exit 0" USR1 USR2; : > ready.$SLURM_PROCID; while :; do sleep 60 & wait; done`}})
		id := head.running(t).id()
		for _, rank := range []string{"0", "1"} {
			awaitFile(t, filepath.Join(head.wd, "ready."+rank))
		}
		if r := head.ctl(t, "signal", "-s", "USR1", "--scope=leader", id); r.code != 0 {
			t.Error(r)
		}
		eventually(t, callTimeout, "the first task's end", func() error {
			for _, task := range head.show(t, id).Tasks {
				if (task.Rank == 0) != (task.State == "EXITED") {
					return unix.EAGAIN
				}
			}
			return nil
		})
		// One node says that it has no task any more.
		_ = head.ctl(t, "signal", "-s", "USR2", "--scope=tasks", id)
		if r := p.wait(t); r.code != 0 || !slices.Equal(lines(r), []string{"0", "1"}) {
			t.Errorf("got %v", r)
		}
	})
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	eventually(t, callTimeout, path, func() error {
		_, err := os.Stat(path)
		return err
	})
}
