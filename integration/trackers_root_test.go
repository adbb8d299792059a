package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// trackingDoc is the part of the node document that reports how steps are tracked.
type trackingDoc struct {
	Proctrack string
	Fallbacks []struct{ What, Why string }
}

func (n *node) tracking(t testing.TB) trackingDoc {
	t.Helper()
	r := n.ctl(t, "node", "status", "--json")
	var doc struct{ Node trackingDoc }
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
		t.Fatalf("node status: %v: %v", err, r)
	}
	return doc.Node
}

// needFreezer skips where v1's freezer is not mounted.
func needFreezer(t testing.TB) {
	t.Helper()
	if _, err := os.Stat("/sys/fs/cgroup/freezer/tasks"); err != nil {
		t.Skip("no v1 freezer here")
	}
}

const forceV1 = "CgroupPlugin=cgroup/v1\n"

// readOnly runs noded where it sees the cgroups and can make none, as in an
// unprivileged container.
var readOnly = []string{"unshare", "-m", "sh", "-c", `
	for m in $(awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts); do mount -o remount,bind,ro "$m" || exit 9; done
	exec "$@"`, "sh"}

// TestRootLadder: how a node tracks, by what it has, and that it says so once, in
// its log and in its document. On each rung steps run, and nothing is left.
func TestRootLadder(t *testing.T) {
	for _, tc := range []struct {
		name string
		site site
		want string // of proctrack; "" is v2 or hybrid
		what string // of the fallback, "" none
		why  string
	}{
		{name: "the best", site: site{}},
		{name: "v1 asked for", site: site{Cgroup: forceV1}, want: "cgroup/v1"},
		{name: "none wanted", site: site{Cgroup: "CgroupPlugin=disabled\n"}, want: "linuxproc"},
		{name: "read-only", site: site{Before: readOnly}, want: "linuxproc", what: "proctrack/cgroup", why: "read-only file system"},
		{name: "linuxproc asked for", site: site{Slurm: "ProctrackType=proctrack/linuxproc\n"}, want: "linuxproc"},
		{name: "pgid asked for", site: site{Slurm: "ProctrackType=proctrack/pgid\n"}, want: "linuxproc", what: "proctrack/pgid", why: "proctrack/linuxproc, which finds it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.want == "cgroup/v1" {
				needFreezer(t)
			}
			tc.site.Real = true // else there is a fallback about CPUs
			n := startNode(t, tc.site)
			got := n.tracking(t)
			if got.Proctrack != tc.want && !(tc.want == "" && (got.Proctrack == "cgroup/v2" || got.Proctrack == "cgroup/hybrid")) {
				t.Errorf("proctrack %q, want %q", got.Proctrack, tc.want)
			}
			switch {
			case tc.what == "" && len(got.Fallbacks) > 0:
				t.Errorf("fallbacks: %+v", got.Fallbacks)
			case tc.what != "":
				if len(got.Fallbacks) == 0 || got.Fallbacks[0].What != tc.what || !strings.Contains(got.Fallbacks[0].Why, tc.why) {
					t.Errorf("fallbacks %+v, want %q because of %q", got.Fallbacks, tc.what, tc.why)
				}
				if c := strings.Count(n.wholeLog(t), "fallback: no "+tc.what); c != 1 {
					t.Errorf("announced %d times:\n%s", c, n.log)
				}
			}
			// A daemon of the task's is not left.
			r := n.ctl(t, "run", "-n", "2", "sh", "-c", "( setsid sleep 86397 & ); echo out; exit $SLURM_PROCID")
			if r.code != 1 || r.out != "out\nout\n" {
				t.Errorf("run: %v", r)
			}
			n.checkClean(t)
		})
	}
}

// TestRootTrackedByV1: what a step on v2 can, on v1's freezer.
func TestRootTrackedByV1(t *testing.T) {
	t.Parallel()
	needFreezer(t)
	n := startNode(t, site{Cgroup: forceV1, Slurm: "KillWait=1\n"})
	t.Run("suspend", func(t *testing.T) {
		p, id := n.startTicker(t)
		ok(t, "suspend", n.ctl(t, "suspend", id))
		n.ticks(t, id, false)
		ok(t, "resume", n.ctl(t, "resume", id))
		n.ticks(t, id, true)
		ok(t, "suspend", n.ctl(t, "suspend", id))
		ok(t, "cancel", n.ctl(t, "cancel", id))
		if r := p.wait(t); r.code != 137 {
			t.Errorf("a suspended step that was cancelled: %v", r)
		}
		n.checkClean(t)
	})
	t.Run("killed stepd of a suspended step", func(t *testing.T) {
		p, id := n.startTicker(t)
		ok(t, "suspend", n.ctl(t, "suspend", id))
		if state := readFile(t, filepath.Join("/sys/fs/cgroup/freezer", n.freezerOf(t, id), "freezer.state")); state != "FROZEN\n" {
			t.Errorf("the tasks' cgroup is %q", state)
		}
		must(t, killNow(n.findProcess(t, "stepd").pid))
		if r := p.wait(t); r.code != 1 {
			t.Errorf("run: %v", r)
		}
		n.checkClean(t)
		contains(t, "reason", n.ended(t, id).Reason, "SIGKILL")
	})
	t.Run("killed stepd", func(t *testing.T) {
		p, step := startStubborn(t, n)
		must(t, killNow(n.findProcess(t, "stepd").pid))
		if r := p.wait(t); r.code != 1 {
			t.Errorf("run: %v", r)
		}
		n.checkClean(t)
		contains(t, "reason", n.ended(t, step.id()).Reason, "SIGKILL")
	})
	t.Run("killed noded", func(t *testing.T) {
		p, step := startStubborn(t, n)
		n.kill9(t)
		n.boot(t)
		eventually(t, callTimeout, "the adopted step", func() error {
			if doc := n.show(t, step.id()); doc.State != "RUNNING" {
				return fmt.Errorf("it is %s: %s", doc.State, doc.Reason)
			}
			return nil
		})
		ok(t, "cancel", n.ctl(t, "cancel", step.id()))
		if r := p.wait(t); r.code != 137 && r.code != 143 {
			t.Errorf("run: %v", r)
		}
		n.checkClean(t)
	})
	n.serves(t)
}

// freezerOf is the cgroup of a step's first task below v1's freezer.
func (n *node) freezerOf(t *testing.T, id string) string {
	t.Helper()
	text := readFile(t, fmt.Sprintf("/proc/%d/cgroup", *n.show(t, id).Tasks[0].PID))
	for line := range strings.Lines(text) {
		if _, path, ok := strings.Cut(strings.TrimSpace(line), ":freezer:"); ok {
			return path
		}
	}
	t.Fatalf("no freezer in %q", text)
	return ""
}

// TestRootKilledByV1: so many processes that nothing can be measured beside them, and that
// others' count among them: alice's limit is one for all that she runs.
func TestRootKilledByV1(t *testing.T) {
	needFreezer(t)
	n := startNode(t, site{Cgroup: forceV1, Slurm: "KillWait=1\n"})
	t.Run("5000 daemons", func(t *testing.T) {
		daemons := n.path("daemons")
		compile(t, "testdata/tasks/daemons.c", "-o", daemons)
		n.killsOnV1(t, 5001, daemons, "5000")
	})
	t.Run("fork bomb", func(t *testing.T) { n.killsOnV1(t, 200, "bash", "-c", bomb) })
	n.serves(t)
}

// killsOnV1 runs what does not want to end, and ends it.
func (n *node) killsOnV1(t *testing.T, least int, argv ...string) {
	t.Helper()
	p := n.start(t, call{args: append([]string{"run"}, argv...)})
	id := n.running(t).id()
	eventually(t, callTimeout, "the processes", func() error {
		if all := n.inStep(); all < least {
			return fmt.Errorf("%d processes", all)
		}
		return nil
	})
	had := n.inStep()
	ok(t, "cancel", n.ctl(t, "cancel", id))
	if r := p.wait(t); r.code != 137 && r.code != 143 {
		t.Errorf("run: %v", r)
	}
	n.checkClean(t)
	took := n.killTime(t, id)
	t.Logf("%d processes: %v from SIGKILL to the step's end", had, took)
	if took > 20*time.Second {
		t.Errorf("it took %v from SIGKILL to the step's end", took)
	}
}

// TestRootEscapedTask: a task that root has moved away is reported, gets the
// step's signals, and ends with it; an orphan of another task's is reported alone.
func TestRootEscapedTask(t *testing.T) {
	for name, force := range map[string]string{"v2": "", "v1": forceV1} {
		t.Run(name, func(t *testing.T) {
			parent := ""
			if force != "" {
				needFreezer(t)
				parent = "/sys/fs/cgroup/freezer"
			} else {
				for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
					if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
						parent = dir
					}
				}
			}
			n := startNode(t, site{Cgroup: force, Slurm: "KillWait=1\n"})
			away := filepath.Join(parent, "escape-"+filepath.Base(n.dir))
			must(t, os.Mkdir(away, 0o755))
			t.Cleanup(func() {
				// v1 sends no event when a group can be removed.
				eventually(t, callTimeout, "the other cgroup's end", func() error {
					if err := os.Remove(away); err != nil && !errors.Is(err, os.ErrNotExist) {
						return err
					}
					return nil
				})
			})
			p := n.start(t, call{args: []string{"run", "-n", "2", "sh", "-c", "trap '' TERM; (setsid sh -c 'echo $$ >o.$SLURM_PROCID; mv o.$SLURM_PROCID orphan.$SLURM_PROCID; exec sleep 86396' </dev/null >/dev/null 2>&1 &); : >trap.$SLURM_PROCID; while :; do sleep 0.1; done"}})
			doc := n.running(t)
			for rank := range 2 {
				awaitFile(t, filepath.Join(n.wd, fmt.Sprint("trap.", rank)))
			}
			pid := *n.show(t, doc.id()).Tasks[1].PID
			awaitFile(t, filepath.Join(n.wd, "orphan.0"))
			text, err := os.ReadFile(filepath.Join(n.wd, "orphan.0"))
			must(t, err)
			orphan, err := strconv.Atoi(strings.TrimSpace(string(text)))
			must(t, err)
			for _, moved := range []int{pid, orphan} {
				must(t, os.WriteFile(filepath.Join(away, "cgroup.procs"), []byte(strconv.Itoa(moved)), 0))
			}
			ok(t, "cancel", n.ctl(t, "cancel", doc.id()))
			r := p.wait(t)
			if r.code != 137 {
				t.Errorf("run: %v", r)
			}
			contains(t, "stderr", r.err, fmt.Sprintf(`task 1: process %d ("sh") was moved out of the step's cgroup to "`, pid), filepath.Base(away))
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("the task that was moved: %v", err)
			}
			n.logs(t, fmt.Sprintf("process %d (\\\"sleep\\\") was moved out of the step's cgroup to ", orphan))
			must(t, syscall.Kill(orphan, syscall.SIGKILL))
			n.checkClean(t)
		})
	}
}
