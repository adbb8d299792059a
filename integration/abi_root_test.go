package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// buildABI compiles the plugin that uses slurm.h, with the headers of an
// installed Slurm.
func buildABI(t testing.TB, n *node, name string, flags ...string) string {
	t.Helper()
	if _, err := os.Stat("/usr/include/slurm/slurm.h"); err != nil {
		missing(t, "no Slurm headers: apt-get install libslurm-dev")
	}
	so := n.path(name)
	args := append([]string{"-fPIC", "-shared", "testdata/plugins/abi.c", "-o", so}, flags...)
	compile(t, args...)
	return so
}

// says waits until each text was printed to the user or stands in noded's log
// behind the first bytes of it: the log comes through another pipe.
func (n *node) says(t testing.TB, r result, before int, texts ...string) {
	t.Helper()
	eventually(t, callTimeout, "the words", func() error {
		got := r.err + n.log.String()[before:]
		for _, s := range texts {
			if !strings.Contains(got, s) {
				return fmt.Errorf("no %q in %s", s, got)
			}
		}
		return nil
	})
}

// TestRootABIAnswers: what slurm.h offers beyond spank.h answers in every hook,
// as far as a step's host can know.
func TestRootABIAnswers(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := buildABI(t, n, "abi.so")
	own := buildABI(t, n, "own.so", "-DOWN", "-lslurm")
	user := testUser(t)
	hostlist := "hostlist n1 7 2 m4,n[2-3,07-09],z[1-2] m4,n[2-3,07-09],z[1-2] 0 none"
	for _, hook := range remoteHooks {
		t.Run(hook, func(t *testing.T) {
			for _, c := range []struct {
				so, do string
				says   []string
			}{
				{so, "hostlist", []string{hostlist}},
				{so, "job", []string{
					fmt.Sprintf("job 1 state 1 uid %d name it first vm of 1 batch vm in p of golden at %s", user.uid, n.wd),
					"other job -1 No such job",
				}},
				{so, "own", []string{"own none none spankhost: [", hostlist}},
				// The host's functions come first, those that it lacks from the plugin's library.
				{own, "own", []string{"own RUNNING libslurm.so.38 spankhost: [", hostlist}},
				{own, "job", []string{"first vm of 1"}},
				{so, "debug", nil},
			} {
				n.stack(t, fmt.Sprintf("required %s hook=%s do=%s", c.so, hook, c.do))
				before := len(n.log.String())
				r := n.ctl(t, "run", "-J", "it", "echo", "ran")
				if r.code != 0 || r.out != "ran\n" {
					t.Fatalf("%s: %v", c.do, r)
				}
				n.says(t, r, before, c.says...)
				if strings.Contains(r.err, "nothing here provides") {
					t.Errorf("%s: the user need not know what was not called: %v", c.do, r)
				}
			}
		})
	}
}

// TestRootABIMissing: a function that nothing here provides is reported to the
// administrator when the plugin is loaded, and to the user when it is called:
// then the message names it, and the step ends as by a crash.
func TestRootABIMissing(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := buildABI(t, n, "abi.so")
	const why = "a step's host has no slurmctld to ask"
	t.Run("not called", func(t *testing.T) {
		n.stack(t, "required "+so)
		if r := n.ctl(t, "run", "echo", "ran"); r.code != 0 || r.out != "ran\n" || r.err != "" {
			t.Errorf("got %v", r)
		}
		n.says(t, result{}, 0, `spank: plugin \"abi.so\": nothing here provides slurm_update_node(), which it may call: `+why)
	})
	for _, what := range []struct{ do, says string }{
		{"missing", "called slurm_update_node(), which nothing here provides: " + why},
		{"fatal", "called slurm_fatal()"},
	} {
		for _, hook := range remoteHooks {
			for _, flag := range []string{"required", "optional"} {
				t.Run(fmt.Sprintf("%s in %s %s", what.do, hook, flag), func(t *testing.T) {
					n.stack(t, fmt.Sprintf("%s %s hook=%s do=%s", flag, so, hook, what.do))
					r := n.ctl(t, "run", "sh", "-c", "echo ran; exit 3")
					contains(t, "stderr", r.err, fmt.Sprintf("plugin \"abi.so\": slurm_spank_%s", hook), what.says)
					onlyOurLines(t, r)
					ran := !beforeGate(hook) && !inChild(hook)
					code := 1
					switch {
					case ran && flag == "optional":
						code = 3
					case inChild(hook) && what.do == "missing":
						code = 127 // as ld.so ends it in Slurm
					}
					if r.code != code || (r.out == "ran\n") != ran {
						t.Errorf("want exit code %d and the task run: %v, got %v", code, ran, r)
					}
					if what.do == "fatal" {
						n.says(t, r, 0, "fatal: abi: no way")
					}
					if hook != "exit" || flag == "required" {
						contains(t, "the reason", n.lastEnded(t).Reason, what.says)
					}
					n.checkClean(t)
				})
			}
		}
	}
}

// TestRootABIContexts: the same in the programs around a step.
func TestRootABIContexts(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := buildABI(t, n, "abi.so")
	const local, allocator = 1, 3
	job := fmt.Sprintf("job 1 state 1 uid %d name it first vm of 1 batch vm in p of golden at %s", testUser(t).uid, n.wd)
	for _, c := range []struct {
		name     string
		context  int
		hook, do string
		args     []string
		says     []string // to the user or in the log
		code     int
	}{
		{"the job of the client", local, "local_user_init", "job", []string{"run", "-J", "it"}, []string{job, "other job -1 No such job"}, 0},
		{"no job yet", local, "init", "job", []string{"run"}, []string{"job No such job"}, 0},
		{"no job of the allocator's", allocator, "init_post_opt", "job", []string{"alloc"}, []string{"job No such job"}, 0},
		{"hosts in the allocator", allocator, "init", "hostlist", []string{"alloc"}, []string{"hostlist n1 7 2"}, 0},
		{"missing in the client", local, "local_user_init", "missing", []string{"run"},
			[]string{"abi.so", "slurm_spank_local_user_init: called slurm_update_node(), which nothing here provides"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.stack(t, fmt.Sprintf("required %s hook=%s do=%s context=%d", so, c.hook, c.do, c.context))
			before := len(n.log.String())
			r := n.ctl(t, append(c.args, "true")...)
			if r.code != c.code {
				t.Errorf("want exit code %d, got %v", c.code, r)
			}
			n.says(t, r, before, c.says...)
		})
	}
}

// TestRootABIRefused: what dlopen refuses names the symbol.
func TestRootABIRefused(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	for _, c := range []struct{ name, flag, symbol string }{
		{"data.so", "-DDATA", "no_such_data_xyz"},
		{"now.so", "-Wl,-z,now", "slurm_update_node"},
	} {
		so := buildABI(t, n, c.name, c.flag)
		t.Run(c.name, func(t *testing.T) {
			n.stack(t, "required "+so)
			r := n.ctl(t, "run", "echo", "ran")
			if r.code != 1 || r.out != "" {
				t.Errorf("want exit code 1 and no task, got %v", r)
			}
			contains(t, "stderr", r.err, so, c.symbol)
		})
	}
	t.Run("bound at once, with a library of its own", func(t *testing.T) {
		n.stack(t, "required "+buildABI(t, n, "nowown.so", "-DOWN", "-Wl,-z,now", "-lslurm"))
		if r := n.ctl(t, "run", "echo", "ran"); r.code != 0 || r.out != "ran\n" || r.err != "" {
			t.Errorf("got %v", r)
		}
	})
}
