package slurm

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
)

// TestRootPAM: Debian's libpam opens a session for each step, whatever it has of tasks, and closes each
// once, also where the step daemon is killed, and its keeper with it. What is called and what tasks
// have of it, the check pam compares.
func TestRootPAM(t *testing.T) {
	t.Parallel()
	onReleases(t, pamSessions)
}

func pamSessions(t *testing.T, release string) {
	c := startSite(t, ofRelease("pam", release))
	if out, err := c.Command(t.Context(), "root", c.Path("pam"), "pam_permit.so").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for range 3 {
		if out, err := c.Command(t.Context(), "alice", "timeout", "60", "srun", "-Q", "-n3", "true").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	sessions(t, c, 3, 3)
	space := space(t, c)
	for i, killed := range []func(all []process) bool{
		func(all []process) bool { return kill(t, named(all, "slurmstepd"), unix.SIGKILL) },
		func(all []process) bool { return killBoth(t, all) },
	} {
		step := c.Command(t.Context(), "alice", "timeout", "-k1", "60", "srun", "-Q", "-J", "held", "sleep", "1000")
		must(t, step.Start())
		all := func() []process {
			return search(space, func(title string, _ []byte) bool {
				return strings.Contains(title, ".0]") || title == "/usr/bin/sleep 1000"
			})
		}
		sessions(t, c, 4+i, 3+i) // it is open
		eventually(t, faultWait, func() error {
			for _, p := range all() {
				if strings.HasSuffix(p.title, "sleep 1000") {
					return nil
				}
			}
			return fmt.Errorf("no task runs among %v", all())
		})
		if !killed(all()) {
			t.Errorf("no step daemon among %v", all())
		}
		sessions(t, c, 4+i, 4+i)
		must(t, c.Command(t.Context(), "root", "scancel", "-Q", "-u", "alice").Run())
		for _, p := range search(space, func(title string, _ []byte) bool { return strings.HasPrefix(title, "srun ") }) {
			kill(t, p, unix.SIGKILL) // of a daemon and a keeper that are dead no one tells it
		}
		_ = step.Wait() // it was killed
	}
}

// sessions waits until so many sessions have been opened and closed, and no more.
func sessions(t *testing.T, c *cluster.Cluster, opened, closed int) {
	t.Helper()
	eventually(t, faultWait, func() error {
		text, err := os.ReadFile(c.Path("pam.log"))
		if o, c := strings.Count(string(text), "open_session slurm alice"), strings.Count(string(text), "close_session slurm alice"); err == nil && (o != opened || c != closed) {
			err = fmt.Errorf("%d sessions are opened and %d closed, want %d and %d", o, c, opened, closed)
		}
		return err
	})
	time.Sleep(200 * time.Millisecond) // another call would come now
	text, _ := os.ReadFile(c.Path("pam.log"))
	if got := strings.Count(string(text), "_session "); got != opened+closed {
		t.Errorf("%d calls, want %d:\n%s", got, opened+closed, text)
	}
}
