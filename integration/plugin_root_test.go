package integration

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestRootPluginReturnCodes holds the failure table of spank(8) and the
// measured chain rules (spank-behaviour §5): below zero is fatal for a
// required plugin, above zero stops the chain for that hook only, and an
// optional plugin's code has no effect.
func TestRootPluginReturnCodes(t *testing.T) {
	n := startNode(t, site{})
	so := buildRude(t, n)
	type row struct {
		hook, flag, rc string
		code           int
		ran            bool // the task
		next           bool // the second plugin's same hook is called
		exit           bool // the exit hooks are called
		says           []string
	}
	failed := func(hook, rc string) string {
		return fmt.Sprintf("stepd-vm: error: spank: required plugin rude.so: %s() failed with rc=%s", hook, rc)
	}
	rows := []row{
		{"user_init", "required", "-1", 0, false, false, true, []string{failed("user_init", "-1")}},
		{"task_post_fork", "required", "-1", 0, false, false, true, []string{failed("task_post_fork", "-1")}},
		{"task_init_privileged", "required", "-1", 1, false, false, true, []string{failed("task_init_privileged", "-1")}},
		{"task_init", "required", "-1", 1, false, false, true, []string{failed("task_init", "-1")}},
		{"task_exit", "required", "-1", 0, true, false, true, []string{failed("task_exit", "-1")}},
		{"exit", "required", "-1", 0, true, false, true, nil},
		// Without the local part the table has no row for these two: as measured.
		{"init", "required", "-1", 0, false, false, false, nil},
		{"init_post_opt", "required", "-1", 0, false, false, false, nil},
		{"user_init", "required", "-5", 0, false, false, true, []string{failed("user_init", "-5")}},
		{"user_init", "required", "3000", 0, true, false, true, []string{failed("user_init", "3000")}},
	}
	for _, hook := range remoteHooks {
		var says []string
		if hook != "init" && hook != "init_post_opt" && hook != "exit" {
			says = []string{failed(hook, "1")}
		}
		rows = append(rows, row{hook, "required", "1", 0, true, false, true, says}, row{hook, "optional", "-1", 0, true, true, true, nil})
	}
	for _, c := range rows {
		t.Run(fmt.Sprintf("%s %s rc=%s", c.flag, c.hook, c.rc), func(t *testing.T) {
			marks := n.markFile(t)
			n.stack(t,
				fmt.Sprintf("%s %s hook=%s do=rc=%s mark=%s tag=A", c.flag, so, c.hook, c.rc, marks),
				fmt.Sprintf("required %s mark=%s tag=B", so, marks))
			r := n.ctl(t, "run", "echo", "ran")
			if r.code != c.code || (r.out == "ran\n") != c.ran {
				t.Errorf("want exit code %d and the task run: %v; got %v", c.code, c.ran, r)
			}
			contains(t, "stderr", r.err, c.says...)
			if c.flag == "optional" && r.err != "" {
				t.Errorf("an optional plugin's code is silent, got %q", r.err)
			}
			called := readFile(t, marks)
			if got := strings.Contains(called, "B "+c.hook+" "); got != c.next {
				t.Errorf("second plugin's %s called: %v, want %v\n%s", c.hook, got, c.next, called)
			}
			if got := strings.Contains(called, "A exit -"); got != c.exit {
				t.Errorf("exit hook called: %v, want %v\n%s", got, c.exit, called)
			}
			if doc := n.lastEnded(t); !c.ran && doc.State != "FAILED" {
				t.Errorf("state %s: want FAILED, the task has not run", doc.State)
			}
		})
	}
}

// TestRootPluginChain: with two plugins every hook goes through the stack in
// its order, for each task.
func TestRootPluginChain(t *testing.T) {
	n := startNode(t, site{})
	so := buildRude(t, n)
	marks := n.markFile(t)
	n.stack(t, fmt.Sprintf("required %s mark=%s tag=A", so, marks), "optional "+so+" mark="+marks+" tag=B # a comment")
	if r := n.ctl(t, "run", "-n", "2", "true"); r.code != 0 {
		t.Fatal(r)
	}
	lines := strings.Split(strings.TrimSpace(readFile(t, marks)), "\n")
	for _, hook := range remoteHooks {
		for _, rank := range []string{"-", "0", "1"} {
			a, b := slices.Index(lines, "A "+hook+" "+rank), slices.Index(lines, "B "+hook+" "+rank)
			wanted := (rank != "-") == strings.HasPrefix(hook, "task_")
			if wanted && (a < 0 || b < a) || !wanted && (a >= 0 || b >= 0) {
				t.Errorf("%s of rank %s: A at %d, B at %d in %q", hook, rank, a, b, lines)
			}
		}
	}
}

// TestRootPluginMessages: what a plugin says reaches the user in the hooks
// where Slurm lets it, and the log elsewhere (spank-behaviour §6).
func TestRootPluginMessages(t *testing.T) {
	n := startNode(t, site{})
	so := buildRude(t, n)
	for _, hook := range remoteHooks {
		t.Run(hook, func(t *testing.T) {
			n.stack(t, fmt.Sprintf("required %s hook=%s do=say", so, hook))
			r := n.ctl(t, "run", "true")
			if r.code != 0 {
				t.Fatal(r)
			}
			if hook == "init" || hook == "init_post_opt" || hook == "exit" {
				if r.err != "" || r.out != "" {
					t.Errorf("want silence, got %v", r)
				}
			} else {
				contains(t, "stderr", r.err, "stepd-vm: error: rude says error\n", "rude says log\n", "rude says stderr\n")
				if strings.Contains(r.err, "says info") || strings.Contains(r.err, "says verbose") || strings.Contains(r.err, "says debug") {
					t.Errorf("info, verbose and debug are for the log: %q", r.err)
				}
			}
			if want := map[bool]string{true: "rude says stdout\n"}[hook == "task_init"]; r.out != want {
				t.Errorf("stdout %q, want %q", r.out, want)
			}
			n.logs(t, "rude says error")
		})
	}
}

// TestRootPluginMessagesElsewhere: the same in the other contexts; what a plugin
// prints on the local side stands there before what comes after the hook.
func TestRootPluginMessagesElsewhere(t *testing.T) {
	n := startNode(t, site{})
	so := buildRuder(t, n)
	for _, c := range []struct {
		ctx        int
		hook, want string
		args       []string
	}{
		{1, "init", "printed in init\nran\n", []string{"run", "echo", "ran"}},
		{1, "init_post_opt", "printed in init_post_opt\nran\n", []string{"run", "echo", "ran"}},
		{1, "local_user_init", "printed in local_user_init\nran\n", []string{"run", "echo", "ran"}},
		{1, "exit", "ran\nprinted in exit\n", []string{"run", "echo", "ran"}},
		{3, "init", "printed in init\nran\n", []string{"alloc", "-Q", "echo", "ran"}},
		{3, "exit", "ran\nprinted in exit\n", []string{"alloc", "-Q", "echo", "ran"}},
		{5, "job_prolog", "ran\n", []string{"run", "echo", "ran"}},
	} {
		n.stack(t, fmt.Sprintf("required %s ctx=%d hook=%s do=print", so, c.ctx, c.hook))
		if r := n.ctl(t, c.args...); r.code != 0 || r.out != c.want || r.err != "" {
			t.Errorf("context %d, %s: want %q, got %v", c.ctx, c.hook, c.want, r)
		}
	}
	n.stack(t, fmt.Sprintf("required %s ctx=1 hook=init do=say", so))
	r := n.ctl(t, "run", "true")
	contains(t, "stderr", r.err, "stepctl: error: rude says error\n", "stepctl: rude says info\n", "rude says log\n", "rude says stderr\n")
	if strings.Contains(r.err, "verbose") || strings.Contains(r.err, "debug") {
		t.Errorf("verbose and debug are not for the user: %q", r.err)
	}
	n.stack(t, fmt.Sprintf("required %s ctx=5 hook=job_prolog do=say", so))
	if r := n.ctl(t, "run", "true"); r.code != 0 || r.err != "" {
		t.Errorf("in job_prolog: want silence, got %v", r)
	}
	// The log comes by pipes, which may lag behind.
	for _, want := range []string{
		`level=error msg="ruder.so: rude says error"`, `level=info msg="ruder.so: rude says info"`,
		`level=debug msg="ruder.so: rude says verbose"`, `level=error msg="ruder.so: rude says log"`,
	} {
		eventually(t, callTimeout, want, func() error {
			if !n.inLog(want) {
				return errors.New("not in noded's log")
			}
			return nil
		})
	}
}
