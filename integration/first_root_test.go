package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// inside is a call of stepctl in the pid namespace of a contained node, as root.
func (n *node) inside(args ...string) call {
	return n.within(append([]string{n.bin}, args...)...)
}

// within is a command in the namespaces of a contained node, as root.
func (n *node) within(command ...string) call {
	enter := []string{"--target", strconv.Itoa(n.cmd.Process.Pid), "--pid", "--mount"}
	return call{program: "nsenter", args: append(enter, command...), root: true}
}

// children are the children of process 1, by their names.
func (n *node) children(t *testing.T) map[string]int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.cmd.Process.Pid))
	must(t, err)
	found := make(map[string]int)
	for _, file := range files {
		list, _ := os.ReadFile(file) // a thread may have ended
		for pid := range strings.FieldsSeq(string(list)) {
			number, err := strconv.Atoi(pid)
			must(t, err)
			if comm, err := os.ReadFile(filepath.Join("/proc", pid, "comm")); err == nil {
				found[strings.TrimSpace(string(comm))] = number
			}
		}
	}
	return found
}

// TestRootFirstProcess: noded as the entry point of a container, where it is process 1.
func TestRootFirstProcess(t *testing.T) {
	n := startNode(t, site{Contained: true, Slurm: "KillWait=2\n"})
	t.Run("steps and allocations", func(t *testing.T) {
		if r := n.do(t, n.inside("alloc", n.bin, "run", "echo", "ran")); r.code != 0 || r.out != "ran\n" {
			t.Errorf("inside: %v", r)
		}
		if r := n.ctl(t, "run", "echo", "ran"); r.code != 0 || r.out != "ran\n" {
			t.Errorf("outside: %v", r)
		}
		if r := n.ctl(t, "alloc", "true"); r.code != 1 || !strings.Contains(r.err, "cannot follow the client: it has no number in the pid namespace of noded's container") {
			t.Errorf("an allocation whose client noded cannot know again: %v", r)
		}
	})
	t.Run("orphans are reaped", func(t *testing.T) {
		if r := n.do(t, n.within("sh", "-c", "(sh -c 'exit 3' & exec sleep 0.1) & true")); r.code != 0 {
			t.Fatal(r)
		}
		eventually(t, callTimeout, "process 1 to have noded alone", func() error {
			if all := n.children(t); len(all) != 1 || all["noded"] == 0 {
				return fmt.Errorf("it has %v", all)
			}
			return nil
		})
	})
	// The clients are outside: those inside end with the container.
	t.Run("noded crashes, and the container is stopped", func(t *testing.T) {
		// Process 1 ends all that there is, and stepd what it has: the task ends by the latter,
		// or a little later, when stepd has heard its own.
		const task = `trap 'trap - TERM; sleep 0.5; kill -TERM $$' TERM; sleep 1000 & wait`
		p := n.start(t, call{args: []string{"run", "sh", "-c", task}})
		id := n.running(t).id()
		crashed := n.children(t)["noded"]
		if crashed == 0 {
			t.Fatalf("process 1 has %v", n.children(t))
		}
		// Its program cannot be executed for a while.
		program := filepath.Join(filepath.Dir(n.bin), "noded")
		if r := n.do(t, n.within("mount", "--bind", "/dev/null", program)); r.code != 0 {
			t.Fatal(r)
		}
		must(t, syscall.Kill(crashed, syscall.SIGKILL))
		n.logs(t, "noded has ended with SIGKILL: starting it again; steps go on")
		n.logs(t, "permission denied: starting it again; steps go on")
		if r := n.do(t, n.within("umount", program)); r.code != 0 {
			t.Fatal(r)
		}
		eventually(t, callTimeout, "another noded", func() error {
			if now := n.children(t)["noded"]; now == 0 || now == crashed {
				return fmt.Errorf("it is %d", now)
			}
			if r := n.ctlRoot(t, "ps"); r.code != 0 || !strings.Contains(r.out, "RUNNING") {
				return fmt.Errorf("%v", r)
			}
			return nil
		})
		must(t, n.cmd.Process.Signal(syscall.SIGTERM))
		<-n.done
		if code := n.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("exit code %d after SIGTERM", code)
		}
		n.boot(t)
		if r := p.wait(t); r.code != 143 {
			t.Errorf("its client: %v", r)
		}
		if d := n.ended(t, id); d.State != "NODE_FAIL" || !strings.Contains(d.Reason, "stepd got SIGTERM: the host goes down") {
			t.Errorf("the step: %s, %q", d.State, d.Reason)
		}
	})
	t.Run("the container is killed", func(t *testing.T) {
		p := n.start(t, call{args: []string{"run", "sleep", "1000"}})
		id := n.running(t).id()
		n.kill9(t)
		n.boot(t)
		if r := p.wait(t); r.code != 1 {
			t.Errorf("its client: %v", r)
		}
		if d := n.ended(t, id); d.State != "NODE_FAIL" || d.Reason != "noded's container was started again while the step ran" {
			t.Errorf("the step: %s, %q", d.State, d.Reason)
		}
	})
}
