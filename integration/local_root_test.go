package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// buildClient compiles the plugin of both sides.
func buildClient(t testing.TB, n *node) string {
	t.Helper()
	so := n.path("client.so")
	compile(t, "-fPIC", "-shared", "-I", ownHeaders, "testdata/plugins/client.c", "-o", so)
	return so
}

// marksOf are the lines that the plugin wrote, without the lines of noded's
// own contexts.
func marksOf(t testing.TB, path string, contexts string) []string {
	t.Helper()
	var out []string
	for _, l := range strings.Split(strings.TrimSpace(readFile(t, path)), "\n") {
		if ctx, _, ok := strings.Cut(l, " "); ok && strings.Contains(contexts, ctx) {
			out = append(out, l)
		}
	}
	return out
}

// TestRootLocalContext: what plugins do on the local side reaches the step,
// and they do it as the user.
func TestRootLocalContext(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so, marks := buildClient(t, n), n.markFile(t)
	n.stack(t, fmt.Sprintf("required %s mark=%s", so, marks))
	r := n.do(t, call{
		args: []string{"run", "--both=first", "-n2", "--flag", "--both=second", "sh", "-c", "echo $CLIENT_INIT $CLIENT_LOCAL $CLIENT_GONE. $SLURM_JOB_ID.$SLURM_STEP_ID; env | grep SPANK_OPTION; true"},
		env:  []string{"CLIENT_GONE=still here"},
	})
	if r.code != 0 || r.out != "1 1.0 . 1.0\n1 1.0 . 1.0\n" || r.err != "" {
		t.Errorf("got %v", r)
	}
	user := testUser(t).uid
	local := []string{
		fmt.Sprintf("1 init uid=%d,%d", user, user), "1 option 1 5 first remote=0", "1 option 3 0 NULL remote=0", "1 option 1 6 second remote=0",
		fmt.Sprintf("1 init_post_opt uid=%d,%d", user, user), fmt.Sprintf("1 local_user_init uid=%d,%d", user, user), fmt.Sprintf("1 exit uid=%d,%d", user, user),
	}
	if got := marksOf(t, marks, "1"); strings.Join(got, "\n") != strings.Join(local, "\n") {
		t.Errorf("local side: got %q, want %q", got, local)
	}
	remote := []string{
		"2 init uid=0,0", "2 option 1 6 second remote=1", "2 option 3 0 NULL remote=1", "2 option 1 6 second remote=1", "2 option 3 0  remote=1",
		"2 init_post_opt uid=0,0", fmt.Sprintf("2 user_init uid=0,%d", user), "2 exit uid=0,0",
	}
	if got := marksOf(t, marks, "2"); strings.Join(got, "\n") != strings.Join(remote, "\n") {
		t.Errorf("remote side: got %q, want %q", got, remote)
	}
	if got := readFile(t, marks); strings.Index(got, "1 local_user_init") > strings.Index(got, "2 init") {
		t.Error("the step was launched before local_user_init had returned")
	}
}

// TestRootTasksOfJob: a step has as many tasks as its job asked for, where
// it does not say itself.
func TestRootTasksOfJob(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	for args, want := range map[string]string{"stepctl run -l echo x": "0: x\n1: x\n2: x\n", "stepctl run -n1 -l echo x": "0: x\n"} {
		r := n.do(t, call{args: []string{"alloc", "-Q", "-n3", "sh", "-c", args + " | sort"}, env: n.withStepctl()})
		if r.code != 0 || r.out != want {
			t.Errorf("%s: %v", args, r)
		}
	}
}

// TestRootOptionOfOneSide: an option is taken where it is registered and passed over elsewhere, as in Slurm
// 22.05.8. noded's log names one whose plugin is not loaded on the remote side at all.
func TestRootOptionOfOneSide(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := buildClient(t, n)
	marks := n.markFile(t)
	for _, verb := range [][]string{{"run"}, {"batch", "-W"}, {"alloc"}} {
		for _, required := range []string{"required", "optional"} {
			n.stack(t, fmt.Sprintf("%s %s side=local mark=%s", required, so, marks))
			must(t, os.Truncate(marks, 0))
			command := []string{"echo", "ran"}
			if verb[0] == "batch" {
				command = []string{"--wrap=echo ran"}
			}
			if r := n.ctl(t, slices.Concat(verb, []string{"--one=1", "--both=2"}, command)...); r.code != 0 || strings.Contains(r.err, "--one") {
				t.Errorf("%s %s, local side only: %v", required, verb, r)
			}
			got := readFile(t, marks)
			contains(t, "marks", got, "option 2 1 1 remote=0", "option 1 1 2 remote=0")
			if verb[0] != "alloc" {
				contains(t, "marks", got, "option 1 1 2 remote=1")
			}
			if strings.Contains(got, "option 2 1 1 remote=1") {
				t.Errorf("%s %s: an option that is not registered was called: %s", required, verb, got)
			}
		}
	}
	n.logs(t, `spank: plugin \"client\" option \"one\" not found on the remote side`)

	n.stack(t, fmt.Sprintf("required %s side=remote mark=%s", so, marks))
	r := n.ctl(t, "run", "--one=1", "echo", "ran")
	if r.code != 1 || r.out != "" {
		t.Errorf("remote side only: %v", r)
	}
	contains(t, "stderr", r.err, "stepctl: error: unknown option --one")
	must(t, os.Truncate(marks, 0))
	if r = n.do(t, call{args: []string{"run", "echo", "ran"}, env: []string{"_SLURM_SPANK_OPTION_client_one=e"}}); r.code != 0 || r.out != "ran\n" {
		t.Errorf("remote side only, by the environment: %v", r)
	}
	contains(t, "marks", readFile(t, marks), "option 2 1 e remote=1")

	for _, name := range []string{"_SLURM_SPANK_OPTION_client_gone", "SLURM_SPANK__SLURM_SPANK_OPTION_client_gone"} {
		if r = n.do(t, call{args: []string{"run", "echo", "ran"}, env: []string{name + "=x"}}); r.code != 0 || r.out != "ran\n" || r.err != "" {
			t.Errorf("%s: %v", name, r)
		}
	}
	n.logs(t, `offers option \"client_gone\" of the environment`)
	n.stack(t, "optional "+n.path("gone.so"))
	if r = n.ctl(t, "run", "--both", "echo", "ran"); r.code != 1 || r.out != "" {
		t.Errorf("no plugin at all: %v", r)
	}
	contains(t, "stderr", r.err, "unknown option --both")
}

// TestRootOptionCallbackCodes: any code but 0 is a failure, as measured of Slurm 22.05.8: of the command on
// the local side, and of the option alone on the remote side, where getopt does not find it then.
func TestRootOptionCallbackCodes(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	marks := n.markFile(t)
	so := buildClient(t, n)
	for _, required := range []string{"required", "optional"} {
		n.stack(t, fmt.Sprintf("%s %s getopt=1 mark=%s", required, so, marks))
		for _, code := range []string{"-1", "1", "3000", "-2147483648"} {
			for _, verb := range [][]string{{"run", "true"}, {"alloc", "true"}, {"batch", "--wrap=true"}} {
				value := "LOCAL=" + code
				r := n.ctl(t, verb[0], "--both="+value, verb[1])
				if r.code != 1 || !strings.Contains(r.err, "stepctl: error: Invalid --both argument: "+value+"\n") {
					t.Errorf("%s, %s, local: %v", required, verb, r)
				}
			}
			must(t, os.Truncate(marks, 0))
			value := "REMOTE=" + code
			if r := n.ctl(t, "run", "--both="+value, "echo", "ran"); r.code != 0 || r.out != "ran\n" {
				t.Errorf("%s, remote: %v", required, r)
			}
			contains(t, "marks", readFile(t, marks), "remote=1", "2 getopt both: 3000 NULL")
			n.logs(t, "spank: failed to process option both="+value)
		}
		must(t, os.Truncate(marks, 0))
		if r := n.ctl(t, "run", "--both=REMOTE=0", "true"); r.code != 0 {
			t.Errorf("%s: %v", required, r)
		}
		contains(t, "marks", readFile(t, marks), "getopt both: 0 REMOTE=0")
	}
	if steps := n.ps(t, "--all"); len(steps) != 10 {
		t.Errorf("%d steps, want as many as the remote side has", len(steps))
	}
}

// TestRootOptionRegisterCodes: what spank_option_register returned in Slurm 22.05.8, in both contexts.
func TestRootOptionRegisterCodes(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	marks := n.markFile(t)
	n.stack(t, fmt.Sprintf("required %s odd=1 mark=%s", buildClient(t, n), marks))
	r := n.ctl(t, "run", "--plain", "true")
	if r.code != 0 {
		t.Error(r)
	}
	contains(t, "stderr", r.err, "too long. Ignoring.", `option "both" provided by both client.so and client.so`)
	got := readFile(t, marks)
	for _, context := range []string{"1", "2"} {
		for i, code := range []string{"0", "0", "3005", "0", "3001", "3001", "0"} {
			contains(t, "marks", got, fmt.Sprintf("%s register %d: %s\n", context, i, code))
		}
		contains(t, "marks", got, context+" register NULL: 3001\n", context+" register by no handle: 3001\n")
	}
}

// TestRootOptionsAlike: two options whose names come to one key in the
// environment stay two; the environment alone cannot tell them apart.
func TestRootOptionsAlike(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	marks := n.markFile(t)
	n.stack(t, fmt.Sprintf("required %s alike=1 mark=%s", buildClient(t, n), marks))
	if r := n.ctl(t, "run", "--a-like=one", "true"); r.code != 0 {
		t.Error(r)
	}
	if got := readFile(t, marks); strings.Count(got, "2 option 4 3 one remote=1") != 2 || strings.Contains(got, "option 5") {
		t.Errorf("one of them: %s", got)
	}
	must(t, os.Truncate(marks, 0))
	if r := n.ctl(t, "run", "--a-like=one", "--a_like=two", "true"); r.code != 0 {
		t.Error(r)
	}
	if got := readFile(t, marks); strings.Count(got, "2 option 4 3 one remote=1") != 2 || strings.Count(got, "2 option 5 3 two remote=1") != 2 {
		t.Errorf("both: %s", got)
	}
	r := n.do(t, call{args: []string{"run", "true"}, env: []string{"_SLURM_SPANK_OPTION_client_a_like=x"}})
	if r.code != 1 || !strings.Contains(r.err, "it stands for both --a-like and --a_like") {
		t.Errorf("the environment: %v", r)
	}
}

// TestRootOptionErrors: what is wrong is said before anything runs.
func TestRootOptionErrors(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	n.stack(t, "optional "+buildClient(t, n)+" side=local")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--both=FAIL", "true"}, "stepctl: error: Invalid --both argument: FAIL\n"},
		{[]string{"run", "--flag=x", "true"}, "it takes no argument"},
		{[]string{"run", "--one"}, "option --one needs a value"},
		{[]string{"alloc", "--both=FAIL", "true"}, "stepctl: error: Invalid --both argument: FAIL\n"},
		{[]string{"batch", "--both=FAIL", "--wrap=true"}, "stepctl: error: Invalid --both argument: FAIL\n"},
	} {
		if r := n.ctl(t, c.args...); r.code != 1 || r.out != "" || !strings.Contains(r.err, c.want) {
			t.Errorf("%q: want 1 and %q, got %v", c.args, c.want, r)
		}
	}
	if steps := n.ps(t, "--all"); len(steps) != 0 {
		t.Errorf("a number was spent: %+v", steps)
	}
	for _, verb := range []string{"run", "alloc", "batch"} {
		if r := n.ctl(t, verb, "--help"); r.code != 0 {
			t.Errorf("%s --help: %v", verb, r)
		} else {
			contains(t, verb+" --help", r.out+r.err, "Options of plugin client (client.so):", "--both[=value]", "offered on both sides", "--flag ", "--cpus-per-task")
		}
	}
}

// TestRootLongOption: a value of 1 MB passes; one byte more is an error.
func TestRootLongOption(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	marks := n.markFile(t)
	n.stack(t, fmt.Sprintf("required %s mark=%s", buildClient(t, n), marks))
	script := func(size int) string {
		return n.userFile(t, "long.sh", "#!/bin/sh\n#SBATCH --both="+strings.Repeat("v", size)+"\necho ran\n", 0o755)
	}
	if r := n.ctl(t, "batch", "-W", "-o", "out", script(1<<20)); r.code != 0 || !strings.Contains(r.err, "the job's commands do not see it") {
		t.Errorf("1 MB: %v", r)
	}
	if got := readFile(t, filepath.Join(n.wd, "out")); got != "ran\n" {
		t.Errorf("the script wrote %q", got)
	}
	contains(t, "callbacks", readFile(t, marks), "3 option 1 1048576 vvvvvvvvvvvvvvvvvvvv remote=0", "2 option 1 1048576 vvvvvvvvvvvvvvvvvvvv remote=1")
	if r := n.ctl(t, "batch", "-W", script(1<<20+1)); r.code != 1 || !strings.Contains(r.err, "has 1048577 bytes: the limit is 1048576") {
		t.Errorf("more than 1 MB: %v", r)
	}
}

// TestRootLocalFailure: a plugin that fails or takes its host down on the
// local side ends the command by name, and nothing is left.
func TestRootLocalFailure(t *testing.T) {
	t.Parallel()
	// On a busy machine a short timeout may hit a hook which does no such thing.
	ever, soon := startNode(t, site{}), startNode(t, site{Stepd: "HookTimeout=2\n"})
	plugin := map[*node]string{ever: buildClient(t, ever), soon: buildClient(t, soon)}
	verbs := map[string]struct {
		ctx   int
		args  []string
		hooks []string
	}{
		"run":   {1, []string{"run", "echo", "ran"}, []string{"init", "init_post_opt", "local_user_init", "exit"}},
		"alloc": {3, []string{"alloc", "-Q", "echo", "ran"}, []string{"init", "init_post_opt", "exit"}},
		"batch": {3, []string{"batch", "-W", "-o", "/dev/null", "--wrap=true"}, []string{"init", "init_post_opt", "exit"}},
	}
	deeds := map[string]string{
		"rc=-1": "failed with rc=-1", "segv": "killed by SIGSEGV", "abort": "killed by SIGABRT", "exit": "called exit(0)", "closefds": "closed descriptors of the process that called it",
		"hang": "did not return within 2s (HookTimeout in stepd.conf)",
	}
	for verb, v := range verbs {
		for _, hook := range v.hooks {
			for _, flag := range []string{"required", "optional"} {
				for deed, what := range deeds {
					n := ever
					if deed == "hang" {
						n = soon
						if verb == "batch" || verb == "alloc" && flag == "optional" {
							continue // it is alloc's code, and run's
						}
					}
					t.Run(strings.Join([]string{verb, hook, flag, deed}, " "), func(t *testing.T) {
						n.stack(t, fmt.Sprintf("%s %s ctx=%d hook=%s do=%s", flag, plugin[n], v.ctx, hook, deed))
						r := n.ctl(t, v.args...)
						fails := hook != "exit" && (deed != "rc=-1" || flag == "required")
						if (r.code != 0) != (fails && deed != "exit") || (r.out == "") != fails {
							t.Errorf("want failure %v, got %v", fails, r)
						}
						contains(t, "stderr", r.err, "client.so", hook, what)
						n.checkClean(t)
					})
				}
			}
		}
	}
}

// TestRootLocalStrict: with SpankStrict=yes a required plugin's failure on the
// local side that would change nothing makes the exit code 1.
func TestRootLocalStrict(t *testing.T) {
	waits(t)
	for _, strict := range []bool{true, false} {
		n := startNode(t, site{Stepd: map[bool]string{true: "SpankStrict=yes\n"}[strict]})
		so := buildClient(t, n)
		for verb, args := range map[string][]string{
			"run": {"run", "true"}, "alloc": {"alloc", "-Q", "true"}, "batch": {"batch", "-W", "-o", "/dev/null", "--wrap=true"},
		} {
			ctx := 3
			if verb == "run" {
				ctx = 1
			}
			for deed, fails := range map[string]bool{"hook=exit do=rc=-1": true, "hook=exit do=segv": true, "hook=exit do=rc=7": true, "hook=exit do=rc=0": false} {
				for _, flag := range []string{"required", "optional"} {
					n.stack(t, fmt.Sprintf("%s %s ctx=%d %s", flag, so, ctx, deed))
					want := 0
					if strict && fails && flag == "required" {
						want = 1
					}
					if r := n.ctl(t, args...); r.code != want {
						t.Errorf("strict %v, %s, %s %s: want %d, got %v", strict, verb, flag, deed, want, r)
					}
				}
			}
		}
	}
}

// TestRootLocalHostDies: neither process outlives the other: stepctl killed in a hook,
// and the host killed while the tasks run.
func TestRootLocalHostDies(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so, marks := buildClient(t, n), n.markFile(t)
	for _, hook := range []string{"init", "local_user_init"} {
		n.stack(t, fmt.Sprintf("required %s ctx=1 hook=%s do=hang mark=%s", so, hook, marks))
		must(t, os.Truncate(marks, 0))
		p := n.start(t, call{args: []string{"run", "true"}})
		eventually(t, callTimeout, "the hook", func() error {
			if !strings.Contains(readFile(t, marks), "1 "+hook) {
				return errors.New("not entered yet")
			}
			return nil
		})
		host := childOf(t, p.cmd.Process.Pid)
		must(t, p.cmd.Process.Kill())
		p.wait(t)
		eventually(t, callTimeout, "the end of the host", func() error { return gone(host) })
		eventually(t, callTimeout, "the end of the reservation", func() error {
			if steps := n.ps(t); len(steps) != 0 {
				return fmt.Errorf("%+v", steps)
			}
			return nil
		})
		n.checkClean(t)
	}
	n.stack(t, fmt.Sprintf("required %s mark=%s", so, marks))
	p := n.start(t, call{args: []string{"run", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"}})
	n.running(t)
	host := childOf(t, p.cmd.Process.Pid)
	must(t, syscall.Kill(host, syscall.SIGKILL))
	eventually(t, callTimeout, "the end of the host", func() error { return gone(host) })
	n.letGo(t)
	if r := p.wait(t); r.code != 0 || !strings.Contains(r.err, "spankhost (local context") || !strings.Contains(r.err, "SIGKILL") {
		t.Errorf("the host was killed beside the step: %v", r)
	}
}

// childOf finds the one child of a process.
func childOf(t testing.TB, pid int) int {
	t.Helper()
	var child int
	eventually(t, callTimeout, "a child", func() error {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		must(t, err)
		for _, f := range tasks {
			b, err := os.ReadFile(f)
			if err != nil {
				continue // the thread has ended
			}
			if fields := strings.Fields(string(b)); len(fields) > 0 {
				child, err = strconv.Atoi(fields[0])
				return err
			}
		}
		return errors.New("none")
	})
	return child
}

// gone is nil where no such process lives; a zombie counts as gone.
func gone(pid int) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || strings.Contains(string(b), ") Z ") {
		return nil
	}
	return fmt.Errorf("pid %d lives", pid)
}
