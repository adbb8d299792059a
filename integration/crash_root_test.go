package integration

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// The hooks of the remote context, in the order of a step.
var remoteHooks = []string{
	"init", "init_post_opt", "user_init", "task_init_privileged", "task_post_fork", "task_init", "task_exit", "exit",
}

// inChild reports whether a hook runs in the fork that becomes the task.
func inChild(hook string) bool { return hook == "task_init_privileged" || hook == "task_init" }

// beforeGate reports whether the host runs this hook while no task may exec.
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

// buildRuder is rude.so with the hooks of the other contexts.
func buildRuder(t testing.TB, n *node) string {
	t.Helper()
	so := n.path("ruder.so")
	compile(t, "-fPIC", "-shared", "-I", ownHeaders, "testdata/plugins/ruder.c", "-o", so)
	return so
}

// stack writes plugstack.conf, which counts for jobs that begin from now on.
func (n *node) stack(t testing.TB, lines ...string) {
	t.Helper()
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

// TestRootCancelInHook: a step whose plugin hangs, without a deadline, can
// still be cancelled, and its client can go away.
func TestRootCancelInHook(t *testing.T) {
	t.Parallel()
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
				eventually(t, callTimeout, "the hook", func() error {
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
				eventually(t, callTimeout, "the end of the step", func() error {
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
