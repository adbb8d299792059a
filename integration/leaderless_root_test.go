package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"stepd/internal/testkit"
)

// TestRootKillsWithoutFirstThread: a process whose first thread has ended by pthread_exit, and
// that ignores SIGTERM, ends with its step, however that ends and whatever tracks it:
// cgroup.kill alone does not reach it.
func TestRootKillsWithoutFirstThread(t *testing.T) {
	for _, tc := range []struct {
		name string
		site site
	}{
		{"v2", site{Slurm: "KillWait=1\n"}},
		{"v1", site{Slurm: "KillWait=1\n", Cgroup: forceV1}},
		{"linuxproc", site{Slurm: "KillWait=1\nProctrackType=proctrack/linuxproc\n"}},
	} {
		if testkit.InGuest() && tc.name != "v2" {
			continue // the others are the same there, and it is slow
		}
		t.Run(tc.name, func(t *testing.T) {
			waits(t)
			if tc.site.Cgroup == forceV1 {
				needFreezer(t)
			}
			n := startNode(t, tc.site)
			leaderless := n.path("leaderless")
			compile(t, "testdata/tasks/leaderless.c", "-pthread", "-o", leaderless)
			for _, end := range []struct {
				name string
				argv []string
				do   func(t *testing.T, id string) // nil: the task ends by itself
				code int
			}{
				{"cancel", []string{leaderless}, func(t *testing.T, id string) { ok(t, "cancel", n.ctl(t, "cancel", id)) }, 137},
				{"signal", []string{leaderless}, func(t *testing.T, id string) { ok(t, "signal", n.ctl(t, "signal", "-s", "KILL", "--scope=cgroup", id)) }, 137},
				{"killed stepd", []string{leaderless}, func(t *testing.T, _ string) { must(t, killNow(n.findProcess(t, "stepd").pid)) }, 1},
				{"task ended", []string{"sh", "-c", "mkfifo up; " + leaderless + " >up & read x <up; echo $x; rm up"}, nil, 0},
			} {
				t.Run(end.name, func(t *testing.T) {
					out := filepath.Join(n.wd, "out")
					must(t, os.RemoveAll(out))
					p := n.start(t, call{args: append([]string{"run", "-o", "out"}, end.argv...)})
					if end.do != nil {
						id := n.running(t).id()
						awaitLeaderless(t, out)
						end.do(t, id)
					}
					if r := p.wait(t); r.code != end.code {
						t.Errorf("run: %v, want exit code %d", r, end.code)
					}
					pid := awaitLeaderless(t, out)
					n.checkClean(t)
					eventually(t, goneWithin, "the process's end", func() error {
						if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
							return fmt.Errorf("kill -0 %d: %v", pid, err)
						}
						return nil
					})
				})
			}
			n.serves(t)
		})
	}
}

// awaitLeaderless waits until the process runs without its first thread, and returns its number.
func awaitLeaderless(t *testing.T, out string) (pid int) {
	t.Helper()
	eventually(t, callTimeout, "the process", func() error {
		b, err := os.ReadFile(out)
		if err != nil {
			return err
		}
		_, err = fmt.Sscanf(string(b), "ready %d\n", &pid)
		return err
	})
	return pid
}
