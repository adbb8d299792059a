package slurm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
)

// TestRootTmpfsKilled: a job whose extern step was killed together with its keeper keeps its private
// directories as long as a step of it runs here, and leaves none.
func TestRootTmpfsKilled(t *testing.T) {
	t.Parallel()
	onReleases(t, tmpfsKilled)
}

func tmpfsKilled(t *testing.T, release string) {
	c := startSite(t, ofRelease("tmpfs", release))
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	run := func(user, script string) {
		t.Helper()
		if out, err := c.Command(ctx, user, "timeout", "120", "sh", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
	step := c.Command(ctx, "alice", "srun", "-Q", "sh", "-c", "echo y > /tmp/y; echo $SLURM_JOB_ID > up.new; mv up.new up; until [ -e go ]; do sleep .05; done; cat /tmp/y > over")
	must(t, step.Start())
	job := 0
	eventually(t, time.Minute, func() error {
		text, err := os.ReadFile(c.Path("work/alice/up"))
		if err == nil {
			_, err = fmt.Sscan(string(text), &job)
		}
		return err
	})
	extern := (&display{n: &displayNode{space: space(t, c)}, job: job}).externs()
	if !killBoth(t, extern) {
		t.Errorf("no extern step's daemon and keeper among %v", extern)
	}
	run("alice", "srun -Q sleep 0.2") // sweeps
	run("alice", "touch go")
	must(t, step.Wait())
	run("alice", "grep -qx y over")
	eventually(t, time.Minute, func() error {
		if _, err := os.Lstat(c.Path(fmt.Sprintf("jc/n1/%d", job))); !os.IsNotExist(err) {
			return fmt.Errorf("the directories of job %d are left: %v", job, err)
		}
		return nil
	})
	sweepsLater(t, c)
}

// sweepsLater has a step remove the private directories of a job whose extern step was killed, which
// takes long: the step's own end does not wait for that.
func sweepsLater(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	run := func(script string) string {
		t.Helper()
		out, err := c.Command(t.Context(), "alice", "timeout", "60", "sh", "-c", script).Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	job, err := strconv.Atoi(run("salloc -n1 --no-shell 2>&1 | sed -n 's/.*Granted job allocation //p'"))
	must(t, err)
	private := c.Path(fmt.Sprintf("jc/n1/%d/.%d", job, job))
	extern := (&display{n: &displayNode{space: space(t, c)}, job: job}).externs()
	if !killBoth(t, extern) {
		t.Errorf("no extern step's daemon and keeper among %v", extern)
	}
	must(t, os.WriteFile(private+"/file", nil, 0o600)) // an empty directory is removed unopened
	// Who opens the directory waits until the descriptor is closed.
	hold, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC)
	must(t, err)
	held := os.NewFile(uintptr(hold), "fanotify")
	defer held.Close()
	must(t, unix.FanotifyMark(hold, unix.FAN_MARK_ADD|unix.FAN_MARK_ONLYDIR, unix.FAN_OPEN_PERM|unix.FAN_ONDIR, unix.AT_FDCWD, private))
	other := run("srun -Q sh -c 'echo $SLURM_JOB_ID; sleep .2'") // sweeps
	must(t, held.SetReadDeadline(time.Now().Add(time.Minute)))
	event := make([]byte, 64)
	if n, err := held.Read(event); n == 0 || err != nil {
		t.Errorf("the directory is not opened: %v", err)
	}
	eventually(t, time.Minute, func() error {
		left, err := filepath.Glob(c.Path("spool/n1_" + other + ".*"))
		if len(left) > 0 {
			err = fmt.Errorf("steps that have ended have sockets: %q", left)
		}
		return err
	})
	if _, err := os.Lstat(private); err != nil {
		t.Errorf("the directory is gone, which was held: %v", err)
	}
	must(t, held.Close())
	eventually(t, time.Minute, func() error {
		if _, err := os.Lstat(private); !os.IsNotExist(err) {
			return fmt.Errorf("%q is left: %v", private, err)
		}
		return nil
	})
	run(fmt.Sprintf("scancel %d", job))
}
