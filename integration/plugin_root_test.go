package integration

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestRootPluginChain: with two plugins every hook goes through the stack in
// its order, for each task.
func TestRootPluginChain(t *testing.T) {
	waits(t)
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
	waits(t)
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
	waits(t)
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
