package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// screenOf is what a verb writes on a terminal of 80 columns and 24 rows.
func (n *node) screenOf(t *testing.T, args ...string) []string {
	t.Helper()
	s := n.on(t, 80, 24, args...)
	s.ends(t, 0)
	s.slave.Close()
	<-s.done // all is read
	lines := strings.Split(strings.TrimRight(strings.ReplaceAll(escapes.ReplaceAllString(s.text(), ""), "\r", ""), "\n"), "\n")
	for _, line := range lines {
		if utf8.RuneCountInString(line) > 80 {
			t.Errorf("%q: a line of %d columns: %q", args, utf8.RuneCountInString(line), line)
		}
	}
	return lines
}

// alarms are the lines of a log of error and warning level.
func alarms(log string) (lines []string) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, " level=error ") || strings.Contains(line, " level=warning ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// TestRootEndsAreTold: of each kind of end, explain on a real terminal says in its first three lines what
// happened, why, and what to do now; show and stat name explain there; and noded's log has one line of
// error or warning level where an administrator must act, and none where the cause is the user's own.
func TestRootEndsAreTold(t *testing.T) {
	n := startNode(t, site{Slurm: "KillWait=1\n", Cgroup: "ConstrainRAMSpace=yes\nConstrainSwapSpace=yes\n"})
	so := buildRude(t, n)
	run := func(args ...string) func() {
		return func() {
			if r := n.ctl(t, append([]string{"run"}, args...)...); r.code == 0 {
				t.Errorf("%q: %v", args, r)
			}
		}
	}
	hook := func(name, does string, code int) func() {
		return func() {
			n.stack(t, fmt.Sprintf("required %s hook=%s do=%s", so, name, does))
			if r := n.ctl(t, "run", "sleep", "0.1"); r.code != code {
				t.Errorf("%s %s: %v", name, does, r)
			}
			n.idle(t) // a job that runs has its stack kept
			n.stack(t, "# none")
		}
	}
	crash := func(name string) func() { return hook(name, "segv", 1) }
	// kills sends SIGKILL to a process of a step that runs.
	kills := func(of func(stepDoc) int) func() {
		return func() {
			p := n.start(t, call{args: []string{"run", "sleep", "100"}})
			must(t, unix.Kill(of(n.running(t)), syscall.SIGKILL))
			p.wait(t)
		}
	}
	for _, c := range []struct {
		name             string
		do               func()
		state, why, what string // how the lines of explain begin
		log              string // the one line of the log, "" for none
	}{
		{"an exit code", run("sh", "-c", "exit 3"), "FAILED", "exit: rank 0: Exited with exit code 3", "what it wrote says more", ""},
		{"a signal of its own", run("sh", "-c", "kill -SEGV $$"), "FAILED", "exit: rank 0: Segmentation fault", "ulimit -c unlimited", ""},
		{"CPU time", run("sh", "-c", "kill -XCPU $$"), "FAILED", "exit: rank 0: CPU time limit exceeded", "the limit of CPU time is reached: ulimit -t", ""},
		{"no such program", run("/no/such"), "FAILED", "exec: rank 0 never ran: no such file or directory: ", "the directory is not on this node", ""},
		{"a program that cannot be executed", run(n.userFile(t, "text", "no program\n", 0o755)), "FAILED", "exec: rank 0 never ran: exec format error: ", "begin a script with a line", ""},
		{"an output that cannot be opened", run("-o", "/no/such/x", "true"), "FAILED", "exec: rank 0 never ran: no such file or directory: ", "the directory is not on this node", ""},
		{"kill on bad exit", run("-n2", "-K", "sh", "-c", "[ $SLURM_PROCID = 1 ] || exec sleep 100; exit 9"), "FAILED", "exit: rank 1: Exited with exit code 9; --kill-on-bad-exit ended the others", "what it wrote says more", ""},
		{"the time limit", run("-t", "0:01", "sleep", "100"), "TIMEOUT", "cancel: the step's time was over: ", "-t asks for more time", ""},
		{"the memory limit", run("--mem=64M", "sh", "-c", "exec tail </dev/zero"), "OUT_OF_MEMORY", "memory: rank 0: the memory limit of the job is reached", "--mem or --mem-per-cpu asks for more", "Out Of Memory"},
		{"a TaskProlog", run("--task-prolog="+n.userFile(t, "prolog", "#!/bin/sh\nexit 1\n", 0o755), "true"), "FAILED", "exec: rank 0 never ran: ", "what TaskProlog, or --task-prolog, wrote", ""},
		{"a cancel", func() {
			p := n.start(t, call{args: []string{"run", "sleep", "100"}})
			if r := n.ctl(t, "cancel", n.running(t).id()); r.code != 0 {
				t.Error(r)
			}
			p.wait(t)
		}, "CANCELLED", "cancel: the step was cancelled: by uid ", "it may be started again", ""},
		{"a task that is killed", kills(func(d stepDoc) int { return *d.Tasks[0].PID }), "FAILED", "exit: rank 0: Killed", "dmesg has it", ""},
		{"stepd that is killed", kills(func(d stepDoc) int { return d.StepdPID }), "FAILED", "node: vm: stepd (pid ", "start it again", "stepd"},
		{"spankhost that is killed", kills(func(d stepDoc) int { return n.findProcess(t, "spankhost").pid }), "FAILED", "state: spankhost (pid ", "start it again", "spankhost"},
		{"a hook that fails", hook("user_init", "fail", 0), "COMPLETED", "plugin: ", "SpankStrict=yes in stepd.conf lets it fail the step", "user_init"},
		{"a crash in init", crash("init"), "FAILED", "plugin: killed by SIGSEGV at ", "see docs/plugin.md (gdb)", "SIGSEGV"},
		{"a crash in init_post_opt", crash("init_post_opt"), "FAILED", "plugin: killed by SIGSEGV at ", "see docs/plugin.md (gdb)", "SIGSEGV"},
		{"a crash in user_init", crash("user_init"), "FAILED", "plugin: killed by SIGSEGV at ", "see docs/plugin.md (gdb)", "SIGSEGV"},
		{"a crash in task_init_privileged", crash("task_init_privileged"), "FAILED", "plugin: killed by SIGSEGV at ", "see docs/plugin.md (gdb)", "SIGSEGV"},
		{"a crash in task_post_fork", crash("task_post_fork"), "FAILED", "plugin: killed by SIGSEGV at ", "see docs/plugin.md (gdb)", "SIGSEGV"},
		{"a crash in task_init", crash("task_init"), "FAILED", "plugin: killed by SIGSEGV at ", "see docs/plugin.md (gdb)", "SIGSEGV"},
		{"a crash in task_exit", crash("task_exit"), "FAILED", "plugin: killed by SIGSEGV at ", "see docs/plugin.md (gdb)", "SIGSEGV"},
		{"a crash in exit", crash("exit"), "FAILED", "plugin: killed by SIGSEGV at ", "see docs/plugin.md (gdb)", "SIGSEGV"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(n.wholeLog(t))
			c.do()
			id := n.lastEnded(t).id()
			n.idle(t)
			log := alarms(n.wholeLog(t)[before:])
			if c.log == "" && len(log) > 0 || c.log != "" && (len(log) != 1 || !strings.Contains(log[0], c.log)) {
				t.Errorf("the log has %q, want a line with %q", log, c.log)
			}
			x := n.screenOf(t, "explain", id)
			if len(x) < 3 || len(x) > 24 || !strings.HasPrefix(x[0], "step "+id+"  "+c.state) || !strings.HasPrefix(x[1], "  "+c.why) || !strings.HasPrefix(x[2], "    "+c.what) || c.what == "" {
				t.Errorf("explain: %s", strings.Join(x, "\n"))
			}
			for _, verb := range []string{"show", "stat"} {
				s := n.screenOf(t, verb, id)
				if len(s) < 3 || !strings.HasPrefix(s[0], "step "+id+"  "+c.state+"  ") || !strings.HasPrefix(s[1], "  reason   ") || s[2] != "  see      stepctl explain "+id {
					t.Errorf("%s: %s", verb, strings.Join(s, "\n"))
				}
			}
		})
	}
}

// TestRootOneLineACause: what fails around a step is one line of error or warning level in noded's log.
func TestRootOneLineACause(t *testing.T) {
	waits(t)
	fails := func(key string) func(*testing.T, *node) func() {
		return func(t *testing.T, n *node) func() {
			n.script(t, "fails.sh", n.path("marks"), "echo it is broken >&2; exit 3")
			n.restartWith(t, key+"=fails.sh\n")
			return func() { n.ctl(t, "run", "true") }
		}
	}
	crash := func(hook string) func(*testing.T, *node) func() {
		return func(t *testing.T, n *node) func() {
			n.stack(t, fmt.Sprintf("required %s ctx=5 hook=%s do=segv", buildClient(t, n), hook))
			return func() { n.ctl(t, "run", "true") }
		}
	}
	for _, c := range []struct {
		name, slurm string
		prepare     func(*testing.T, *node) (do func())
		log         string
	}{
		{"a prolog", "", fails("Prolog"), "Prolog error: "},
		{"an epilog", "", fails("Epilog"), "Epilog error: "},
		{"a plugin in its prolog", "", crash("job_prolog"), "SIGSEGV"},
		{"a plugin in its epilog", "", crash("job_epilog"), "SIGSEGV"},
		{"a job container", "", func(t *testing.T, n *node) func() {
			base := filepath.Join(containerBase(t), "base")
			must(t, os.Mkdir(base, 0o755))
			n.write(t, "job_container.conf", "BasePath="+base+"\n")
			n.restartWith(t, "JobContainerType=job_container/tmpfs\n")
			return func() {
				must(t, os.Chmod(base, 0o777))
				n.ctl(t, "run", "true")
			}
		}, "others than root may write there"},
		{"a reload", "", func(t *testing.T, n *node) func() {
			n.conf(t, "many", "")
			return func() { n.hup(t, "cannot reload: ") }
		}, "slurm.conf:2"},
		{"a process that does not end", quickKill, func(t *testing.T, n *node) func() {
			h := n.mountHang(t)
			return func() {
				_, doc := n.hung(t, h)
				x := n.screenOf(t, "explain", doc.id())
				if len(x) < 3 || !strings.HasPrefix(x[1], "  unkillable: ") || x[2] != "    bring the file server or the disk back, or umount -f (NFS), or abort the" {
					t.Errorf("explain: %s", strings.Join(x, "\n"))
				}
				eventually(t, callTimeout, "the drain", func() error {
					if doc := n.status(t); doc.State != "DRAINED" {
						return errors.New(doc.State)
					}
					return nil
				})
				t.Cleanup(func() { h.end(); n.freed(t) })
			}
		}, "UnkillableStepTimeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := startNode(t, site{Slurm: c.slurm})
			do := c.prepare(t, n)
			before := len(n.wholeLog(t))
			do()
			if c.slurm != quickKill {
				n.idle(t)
			}
			if log := alarms(n.wholeLog(t)[before:]); len(log) != 1 || !strings.Contains(log[0], c.log) {
				t.Errorf("the log has %q, want one line with %q", log, c.log)
			}
		})
	}
}
