package integration

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// The hooks of the remote context, in the order of a step.
var remoteHooks = []string{
	"init", "init_post_opt", "user_init", "task_init_privileged", "task_post_fork", "task_init", "task_exit", "exit",
}

// inChild tells whether a hook runs in the fork that becomes the task.
func inChild(hook string) bool { return hook == "task_init_privileged" || hook == "task_init" }

// beforeGate tells whether the host runs this hook while no task may exec.
func beforeGate(hook string) bool {
	return hook == "init" || hook == "init_post_opt" || hook == "user_init" || hook == "task_post_fork"
}

// buildRude compiles the plugin that misbehaves on order.
func buildRude(t testing.TB, n *node) string {
	t.Helper()
	so := n.path("rude.so")
	compile(t, "-fPIC", "-shared", "-I", ownHeaders, "testdata/plugins/rude.c", "-o", so)
	return so
}

// stack writes plugstack.conf; it is read again for every step, and for every
// prolog and epilog: those of jobs whose steps have ended are waited for.
func (n *node) stack(t testing.TB, lines ...string) {
	t.Helper()
	eventually(t, 10*time.Second, "the end of ended jobs", func() error {
		running := map[uint32]bool{}
		for _, s := range n.ps(t) {
			running[s.JobID] = s.State != "COMPLETING" || running[s.JobID]
		}
		for _, j := range n.status(t).Jobs {
			if j.Origin != "alloc" && !running[j.JobID] {
				return fmt.Errorf("job %d", j.JobID)
			}
		}
		return nil
	})
	n.write(t, "plugstack.conf", strings.Join(lines, "\n")+"\n")
}

// markFile makes a file that the plugin can append to in every hook, also as
// the user, and returns its path.
func (n *node) markFile(t testing.TB) string {
	t.Helper()
	path := n.path("marks")
	must(t, os.WriteFile(path, nil, 0o666))
	must(t, os.Chmod(path, 0o666))
	return path
}

// crashLine finds the line that names the plugin, the hook and what happened.
func crashLine(stderr, hook, what string) bool {
	for _, line := range strings.Split(stderr, "\n") {
		if strings.Contains(line, `plugin "rude.so": slurm_spank_`+hook) && strings.Contains(line, what) {
			return true
		}
	}
	return false
}

// TestRootPluginCrash: a plugin that crashes takes the host down alone. The
// step says which plugin, which hook and what, and ends by the rule
// (rulings 7): before the gate no task execs; after it a required plugin ends
// the step and an optional one does not.
func TestRootPluginCrash(t *testing.T) {
	n := startNode(t, site{})
	so := buildRude(t, n)
	crash := func(t *testing.T, hook, flag, do, what string) {
		// Rank 1 alone crashes in a child; rank 0 shows that the others go on.
		n.stack(t, fmt.Sprintf("%s %s hook=%s do=%s rank=1", flag, so, hook, do))
		r := n.ctl(t, "run", "-n", "2", "sh", "-c", "echo ran $SLURM_PROCID; test $SLURM_PROCID = 1 && exit 3; sleep 0.3; echo late")
		if !crashLine(r.err, hook, what) {
			t.Errorf("stderr names no plugin, hook and %q: %v", what, r)
		}
		onlyOurLines(t, r)
		step := n.lastEnded(t)
		n.checkClean(t)
		if !strings.Contains(step.Reason, "rude.so") && !(hook == "exit" && flag == "optional") {
			t.Errorf("reason %q does not name the plugin", step.Reason)
		}
		switch {
		case beforeGate(hook):
			if r.code != 1 || r.out != "" || step.State != "FAILED" {
				t.Errorf("want FAILED, exit code 1 and no task: state %s, %v", step.State, r)
			}
		case inChild(hook):
			if r.code != 1 || r.out != "ran 0\nlate\n" || step.State != "FAILED" {
				t.Errorf("want FAILED, exit code 1 and rank 0 alone: state %s, %v", step.State, r)
			}
		case flag == "required":
			if r.code != 1 || step.State != "FAILED" || hook == "task_exit" && strings.Contains(r.out, "late") {
				t.Errorf("want FAILED, exit code 1 and the tasks killed: state %s, %v", step.State, r)
			}
		default:
			if r.code != 3 || !strings.Contains(r.out, "late") || !strings.Contains(r.out, "ran 1") {
				t.Errorf("want the tasks' own end, exit code 3: state %s, %v", step.State, r)
			}
		}
	}
	for _, hook := range remoteHooks {
		for _, flag := range []string{"required", "optional"} {
			t.Run("segv in "+hook+" "+flag, func(t *testing.T) { crash(t, hook, flag, "segv", "killed by SIGSEGV") })
		}
	}
	for _, hook := range []string{"init", "user_init", "task_init_privileged", "task_exit", "exit"} {
		t.Run("abort in "+hook, func(t *testing.T) { crash(t, hook, "required", "abort", "killed by SIGABRT") })
	}
	for _, hook := range []string{"init_post_opt", "task_init", "task_post_fork"} {
		t.Run("exit() in "+hook, func(t *testing.T) { crash(t, hook, "optional", "exit", "exit(3)") })
	}
	// In task_init the task needs the host's descriptors no more.
	for _, hook := range remoteHooks {
		for _, flag := range []string{"required", "optional"} {
			if hook != "task_init" {
				t.Run("closed descriptors in "+hook+" "+flag, func(t *testing.T) {
					crash(t, hook, flag, "closefds", "closed descriptors of the process that called it")
				})
			}
		}
	}
	t.Run("the node goes on", func(t *testing.T) {
		n.stack(t)
		if r := n.ctl(t, "run", "true"); r.code != 0 || r.err != "" {
			t.Errorf("got %v", r)
		}
	})
}

// TestRootPluginHang: a hook that overruns HookTimeout ends its step, by name.
func TestRootPluginHang(t *testing.T) {
	n := startNode(t, site{Stepd: "HookTimeout=1\n"})
	so := buildRude(t, n)
	for _, hook := range remoteHooks {
		t.Run(hook, func(t *testing.T) {
			n.stack(t, fmt.Sprintf("required %s hook=%s do=hang", so, hook))
			started := time.Now()
			r := n.ctl(t, "run", "sh", "-c", "exit 0")
			if took := time.Since(started); took < time.Second || took > 6*time.Second {
				t.Errorf("took %v, want the second of HookTimeout and little more", took)
			}
			if r.code != 1 || !crashLine(r.err, hook, "") {
				t.Errorf("want exit code 1 and the hook named, got %v", r)
			}
			n.checkClean(t)
		})
	}
}

// TestRootCancelInHook: a step whose plugin hangs, without a deadline, can
// still be cancelled, and its client can go away.
func TestRootCancelInHook(t *testing.T) {
	n := startNode(t, site{Slurm: "KillWait=1\n"})
	so := buildRude(t, n)
	marks := n.markFile(t)
	for _, hook := range []string{"init", "user_init", "task_init_privileged", "task_init", "task_exit"} {
		for _, how := range []string{"cancel", "client killed"} {
			if how == "client killed" && hook == "task_exit" {
				continue // after the gate the step goes on without its client
			}
			t.Run(how+" in "+hook, func(t *testing.T) {
				must(t, os.Truncate(marks, 0))
				n.stack(t, fmt.Sprintf("required %s hook=%s do=hang mark=%s", so, hook, marks))
				p := n.start(t, call{args: []string{"run", "true"}})
				eventually(t, 10*time.Second, "the hook", func() error {
					if !strings.Contains(readFile(t, marks), " "+hook+" ") {
						return errors.New("not entered yet")
					}
					return nil
				})
				step := n.last(t)
				if how == "cancel" {
					if r := n.ctl(t, "cancel", step.id()); r.code != 0 {
						t.Errorf("cancel: %v", r)
					}
				} else {
					must(t, p.cmd.Process.Kill())
				}
				if r := p.wait(t); r.code == 0 {
					t.Errorf("run: %v", r)
				}
				eventually(t, 5*time.Second, "the end of the step", func() error {
					if doc := n.show(t, step.id()); doc.State != "CANCELLED" && doc.State != "FAILED" {
						return fmt.Errorf("state %s", doc.State)
					}
					return nil
				})
				n.checkClean(t)
			})
		}
	}
}
