package integration

import (
	"strings"
	"testing"
)

// TestRootInteractive: an allocation's shell is a step of the node where the site wants it
// so, and the job lives and ends with it.
func TestRootInteractive(t *testing.T) {
	n := startNode(t, site{Slurm: "KillWait=1\nLaunchParameters=use_interactive_step\n"})
	env := append(n.withStepctl(), "SHELL=/bin/sh")
	open := func(t *testing.T, args ...string) *screen {
		s := openTerminal(t, 24, 80)
		s.ctl(n, call{args: append([]string{"alloc"}, args...), env: env})
		s.sees("Granted job allocation ")
		s.sees("$ ")
		return s
	}
	t.Run("a step", func(t *testing.T) {
		s := open(t, "-n2")
		s.types("echo $SLURM_JOB_ID.$SLURM_STEP_ID of $SLURM_NTASKS, $SLURM_STEP_NUM_TASKS, $SLURM_JOB_NAME; ps -o comm= -p $PPID; tty\n")
		s.sees("1.4294967290 of 2, 1, interactive\r\nspankhost\r\n/dev/pts/")
		s.sees("$ ")
		// It holds none of the CPUs, and what it starts has the job's tasks.
		s.types("stepctl run echo beside\n")
		s.sees("\r\nbeside\r\nbeside\r\n$ ")
		s.types("stepctl run --interactive true\n")
		s.sees("there is, or was, a step 1.interactive already")
		s.sees("$ ")
		doc := n.show(t, "1.interactive")
		if doc.State != "RUNNING" || doc.NTasks != 1 || doc.Name != "interactive" || doc.StepID != 4294967290 {
			t.Errorf("the step: %+v", doc)
		}
		if r := n.ctl(t, "ps"); !strings.Contains(r.out, "1.interactive") {
			t.Errorf("ps: %v", r)
		}
		s.types("trap 'echo caught' USR1\n")
		s.sees("$ ")
		must(t, n.ctlErrorRoot(t, "signal", "-s", "USR1", "1.interactive"))
		s.types("\n")
		s.sees("caught")
		s.types("exit 7\n")
		s.sees("Exited with exit code 7")
		s.sees("Relinquishing job allocation 1")
		s.ends(7)
		n.idle(t)
		if r := n.ctl(t, "explain", "1.interactive"); r.code != 0 || !strings.Contains(r.out, "exit") {
			t.Errorf("explain: %v", r)
		}
	})
	t.Run("left and taken up again", func(t *testing.T) {
		s := open(t)
		s.types("number=41\n")
		s.sees("$ ")
		s.types("\x1dd")
		s.sees("Job 2 goes on until its shell ends: `stepctl attach 2.interactive`")
		s.ends(0)
		n.kill9(t)
		n.boot(t)
		again := openTerminal(t, 24, 80)
		again.ctl(n, call{args: []string{"attach", "2.interactive"}})
		again.sees("$ ") // of what was shown before
		again.types("echo $((number+1))\n")
		again.sees("42\r\n")
		again.types("exit 3\n")
		again.ends(3)
		n.idle(t)
	})
	t.Run("without alloc", func(t *testing.T) {
		s := open(t)
		must(t, s.p.cmd.Process.Kill())
		_ = s.p.cmd.Wait() // it was killed
		s.p.cancel()
		again := openTerminal(t, 24, 80)
		again.ctl(n, call{args: []string{"attach", "3.interactive"}})
		again.sees("$ ")
		again.types("echo still $((1+1))\n")
		again.sees("still 2\r\n")
		must(t, n.ctlErrorRoot(t, "cancel", "3"))
		again.p.wait(t)
		n.idle(t)
		if doc := n.show(t, "3.interactive"); doc.State != "CANCELLED" {
			t.Errorf("the step: %+v", doc)
		}
	})
	t.Run("left where SIGHUP is ignored", func(t *testing.T) {
		s := openTerminal(t, 24, 80)
		s.ctl(n, call{args: []string{"alloc", "sh", "-c", "trap '' HUP; stepctl run --interactive --pty sh -c 'echo up; exec cat'; echo code $?"}, env: env})
		s.sees("up\r\n")
		s.types("\x1dd")
		s.sees("code 129\r\n")
		s.ends(0)
		n.idle(t)
	})
	t.Run("refused", func(t *testing.T) {
		refused(t, "without a job", n.ctl(t, "run", "--interactive", "true"), "it is a step of a job, and none is named")
		if r := n.do(t, call{args: []string{"run", "sh", "-c", "stepctl run --interactive true"}, env: env}); r.code != 1 || !strings.Contains(r.err, "was not made by alloc") {
			t.Errorf("in a job of run: %v", r)
		}
		if r := n.do(t, call{args: []string{"alloc", "-Q", "sh", "-c", "echo ${SLURM_STEP_ID-none}"}, env: env}); r.out != "none\n" {
			t.Errorf("a command: %v", r)
		}
	})
	n.checkClean(t)
}
