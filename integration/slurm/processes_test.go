package slurm

import (
	"bytes"
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

// process is one of a cluster's, seen from the machine.
type process struct {
	pid   int
	title string // its arguments, by blanks
}

// space is the namespace of a cluster's processes.
func space(t testing.TB, c *cluster.Cluster) string {
	t.Helper()
	out, err := c.Command(t.Context(), "root", "readlink", "/proc/self/ns/pid").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// nodeSpace is the namespace of a node's processes at a site of several: of its network.
func nodeSpace(t testing.TB, c *cluster.Cluster, node string) string {
	t.Helper()
	out, err := c.On(t.Context(), node, "root", "readlink", "/proc/self/ns/net").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// processes lists the job's processes in the namespace: its daemons by their titles,
// its tasks by their environment. A process that has ended, and is not waited for yet, is none.
func processes(space string, job int) []process {
	number := fmt.Sprintf("SLURM_JOB_ID=%d\x00", job)
	return search(space, func(title string, env []byte) bool {
		return strings.Contains(title, fmt.Sprintf(": [%d.", job)) || bytes.Contains(env, []byte(number))
	})
}

// search lists the processes in the namespace that match.
func search(space string, match func(title string, env []byte) bool) (found []process) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	kind, _, _ := strings.Cut(space, ":")
	for _, dir := range dirs {
		if ns, err := os.Readlink(dir + "/ns/" + kind); err != nil || ns != space {
			continue
		}
		args, err1 := os.ReadFile(dir + "/cmdline")
		env, err2 := os.ReadFile(dir + "/environ")
		if err1 != nil || err2 != nil || len(args) == 0 {
			continue
		}
		title := string(bytes.TrimRight(bytes.ReplaceAll(args, []byte{0}, []byte(" ")), " "))
		if match(title, env) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			found = append(found, process{pid, title})
		}
	}
	return found
}

// named returns the process of the job whose title begins so; its pid is 0 where there is none.
func named(all []process, begin string) process {
	for _, p := range all {
		if strings.HasPrefix(p.title, begin+": [") {
			return p
		}
	}
	return process{}
}

// kill sends a process a signal, and reports whether it existed.
func kill(t testing.TB, p process, sig unix.Signal) bool {
	t.Helper()
	if p.pid == 0 {
		return false
	}
	err := unix.Kill(p.pid, sig)
	if err != nil && err != unix.ESRCH {
		t.Fatal(err)
	}
	return err == nil
}

// killBoth kills a step daemon and its keeper, so that none of them follows the other, and
// reports whether both existed.
func killBoth(t testing.TB, all []process) bool {
	t.Helper()
	daemon, keeper := named(all, "slurmstepd"), named(all, "stepkeeper")
	for _, v := range []process{daemon, keeper} {
		if !kill(t, v, unix.SIGSTOP) {
			kill(t, daemon, unix.SIGCONT)
			return false
		}
	}
	return kill(t, keeper, unix.SIGKILL) && kill(t, daemon, unix.SIGKILL)
}

// reader finds the job of the step daemon that reads the FIFO.
func reader(t testing.TB, space, fifo string) (job int) {
	t.Helper()
	want, err := os.Stat(fifo)
	if err != nil {
		t.Fatal(err)
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		title, _ := os.ReadFile(dir + "/cmdline")
		if ns, _ := os.Readlink(dir + "/ns/pid"); ns != space || !bytes.HasPrefix(title, []byte("slurmstepd: [")) {
			continue
		}
		fds, _ := filepath.Glob(dir + "/fd/*")
		for _, fd := range fds {
			if is, err := os.Stat(fd); err == nil && os.SameFile(is, want) {
				_, _ = fmt.Sscanf(string(title), "slurmstepd: [%d.", &job)
				return job
			}
		}
	}
	t.Errorf("no step daemon reads %q", fifo)
	return 0
}

// eventually calls a probe until it succeeds, for at most so long: what it waits for happens
// in several daemons.
func eventually(t testing.TB, limit time.Duration, probe func() error) {
	t.Helper()
	end := time.Now().Add(limit)
	for {
		err := probe()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Errorf("after %v: %v", limit, err)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
