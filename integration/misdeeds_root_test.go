package integration

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The hooks that are called in the host, and in the fork that becomes the task.
var (
	inHost = []string{"init", "init_post_opt", "user_init", "task_post_fork", "task_exit", "exit"}
	inTask = []string{"task_init_privileged", "task_init"}
	asRoot = append([]string{"task_init_privileged"}, inHost...) // all but task_init
)

// TestRootPluginEnds: a plugin that ends the process which called it takes that
// one alone down. The step says which plugin, which hook, which rank and how.
func TestRootPluginEnds(t *testing.T) {
	waits(t)
	runMisdeeds(t, startNode(t, site{}), []misdeed{
		{do: "segv", kills: "killed by SIGSEGV"},
		{do: "overflow", kills: "killed by SIGSEGV"},
		{do: "abort", kills: "killed by SIGABRT"},
		{do: "kill", kills: "killed by SIGKILL"},
		{do: "exit", kills: "called exit(3)"},
		{do: "_exit", kills: "called exit(4)"},
		{do: "pthread_exit", kills: "called exit(0)"},
		{do: "exec", in: inHost, kills: "called exit(0)"},
		{do: "daemon()", in: inHost, kills: "called exit(0)"},
		{do: "kill-group", in: inHost, kills: "killed by SIGKILL"},
		{do: "seccomp", in: asRoot, kills: "killed by SIGKILL"},
		{do: "segv", kills: "killed by SIGSEGV", rank: 1},
		{do: "setuid", in: asRoot, kills: "gave up the user or group of the process that called it"},
	}, 4)
}

// TestRootPluginHangs: a hook that overruns HookTimeout ends its process, by
// name, whatever it is at.
func TestRootPluginHangs(t *testing.T) {
	waits(t)
	const late = "did not return within 1s (HookTimeout in stepd.conf)"
	runMisdeeds(t, startNode(t, site{Stepd: "HookTimeout=1\n"}), []misdeed{
		{do: "hang", kills: late, slow: true},
		{do: "hang-blocked", kills: late, slow: true},
		{do: "spin", in: []string{"init", "task_init", "task_post_fork", "exit"}, kills: late, slow: true},
		{do: "spin-blocked", in: []string{"init_post_opt", "user_init", "task_init_privileged", "task_exit"}, kills: late, slow: true},
		{do: "stop", kills: late, slow: true},
	}, 16)
}

// TestRootPluginStops: a hook that stops its process ends it where no HookTimeout does.
func TestRootPluginStops(t *testing.T) {
	waits(t)
	runMisdeeds(t, startNode(t, site{Slurm: "UnkillableStepTimeout=1\n"}), []misdeed{
		{do: "stop", in: inHost, kills: "was stopped, and did not go on within 1s (UnkillableStepTimeout in slurm.conf)", slow: true},
	}, 6)
}

// TestRootPluginDescriptors: a plugin that closes what is not its own, and one that
// leaves descriptors open to the tasks. In task_init the task needs the host's no more.
func TestRootPluginDescriptors(t *testing.T) {
	waits(t)
	const closed = "closed descriptors of the process that called it"
	toTask := []string{"init", "task_init_privileged", "task_init"}
	runMisdeeds(t, startNode(t, site{}), []misdeed{
		{do: "closefds", in: asRoot, kills: closed},
		{do: "closeall", in: asRoot, kills: closed},
		{do: "swapfds", in: asRoot, kills: closed},
		{do: "closefds", in: asRoot, kills: closed, rank: 1},
		{do: "closefds", in: []string{"task_init"}},
		{do: "closestd", in: asRoot, told: "closed a standard descriptor: it is /dev/null now", quiet: inTask},
		{do: "nofile", in: asRoot, told: "lowered the limit of open files below what its process needs: taken back"},
		{do: "leave-open", in: toTask, inherit: toTask},
		noFilesForGood(),
	}, 4)
}

// noFilesForGood lowers the upper limit, too: only a root that may raise it can
// take that back (a container's may not).
func noFilesForGood() misdeed {
	m := misdeed{do: "nofile-hard", in: asRoot}
	var caps [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
	if err == nil && caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		m.told = "lowered the limit of open files below what its process needs: taken back"
	} else {
		m.kills = "lowered the limit of open files below what the process that called it needs"
	}
	return m
}

// TestRootPluginSignals: handlers, masks and timers of a plugin do not reach the
// tasks from the host, and do not end it; task_init's are the task's.
func TestRootPluginSignals(t *testing.T) {
	waits(t)
	const sigchld = "ignored SIGCHLD: taken back, or the tasks' ends would be lost"
	const unblocked = "unblocked signals that would end the host: blocked again"
	runMisdeeds(t, startNode(t, site{}), []misdeed{
		{do: "ignore-sigchld", told: sigchld, quiet: inTask}, // the shell takes it back
		{do: "no-zombies", told: sigchld, quiet: inTask},
		{do: "ignore-sigterm", inherit: []string{"task_init"}},
		{do: "handlers"},
		{do: "block", inherit: []string{"task_init"}},
		{do: "unblock", told: unblocked, quiet: inTask},
		{do: "alarm", in: inHost},
		{do: "alarm-unblocked", in: inHost, told: unblocked},
		{do: "no-pdeathsig"},
		{do: "term-group", in: inHost},
	}, 4)
}

// cannotFork is how a limit ends that a plugin has set for the tasks: as in
// Slurm, it is theirs.
func cannotFork(t *testing.T, c *rudeStep) {
	if c.result.code != 11 || !strings.Contains(c.result.err, "execve(): /usr/bin/sh: Resource temporarily unavailable") {
		t.Errorf("want EAGAIN, 11, got %v", c.result)
	}
}

// TestRootPluginState: what else of its process a plugin changes, and writes
// over of what it was given.
func TestRootPluginState(t *testing.T) {
	waits(t)
	fromUserInit := []string{"user_init", "task_init_privileged", "task_init"}
	runMisdeeds(t, startNode(t, site{}), []misdeed{
		{do: "chdir", inherit: []string{"task_init"}},
		{do: "umask", inherit: fromUserInit}, // before, the job's own is not set
		{do: "setpgid"},
		{do: "setsid"},
		{do: "core", inherit: append([]string{"init", "init_post_opt"}, fromUserInit...)},
		{do: "nproc", in: []string{"init"}, ends: cannotFork},
		{do: "seteuid", told: "changed its user or group: taken back", quiet: []string{"user_init", "task_init"}}, // there it may not
		{do: "args"},
		{do: "env"},
		{do: "option"},
	}, 4)
}

// TestRootPluginLeaves: what a plugin leaves running ends with the step, and
// does not keep it from ending.
func TestRootPluginLeaves(t *testing.T) {
	waits(t)
	runMisdeeds(t, startNode(t, site{}), []misdeed{
		{do: "thread", told: "left 3 threads running", quiet: inTask},
		{do: "thread-crash", in: []string{"init", "init_post_opt", "user_init", "task_post_fork"}, ends: crashedLater},
		{do: "helper"},
		{do: "daemon"},
		{do: "twice", in: inHost},
		{do: "twice-raw", in: inHost},
		{do: "reap", in: inHost},
		{do: "reap-all", in: []string{"task_exit"}, ends: statusesKept},
		{do: "twice", in: inTask, ends: ranTwice},
	}, 4)
}

// crashedLater: a thread that a plugin has left ends the host when no hook runs
// that could be named: before the gate on a slow machine, after it on others. Or it does
// while another hook happens to be called.
func crashedLater(t *testing.T, c *rudeStep) {
	meanwhile := fmt.Sprintf(": killed by SIGSEGV, in that hook or in 1 thread that rude.so has left running in slurm_spank_%s", c.hook)
	told := regexp.MustCompile(` at [^ ]+( \([^)]*\))?`).ReplaceAllString(c.result.err, "") // its place
	if !strings.Contains(told, meanwhile) {
		contains(t, "stderr", told, fmt.Sprintf("plugin %q: slurm_spank_%s: killed by SIGSEGV later, with 1 thread of it running", "rude.so", c.hook))
	}
	want := 1
	if c.flag == "optional" && c.result.out != "" {
		want = 3
	}
	if c.result.code != want || c.doc.State != "FAILED" && c.flag == "required" {
		t.Errorf("want exit code %d: state %s, %q, %v", want, c.doc.State, c.doc.Reason, c.result)
	}
}

// statusesKept: a plugin has waited for every task; a kernel from 6.15 on still
// knows how they ended.
func statusesKept(t *testing.T, c *rudeStep) {
	contains(t, "stderr", c.result.err, "cannot learn how task ", "a plugin may have waited for it: rude.so")
	code, lost := 3, strings.Contains(c.doc.Reason, "cannot learn")
	if lost {
		code = 1
	}
	if c.result.code != code || !strings.Contains(c.result.out, "late\n") || c.doc.State != "FAILED" || lost == newerThan(t, 6, 15) {
		t.Errorf("state %s, %q, %v", c.doc.State, c.doc.Reason, c.result)
	}
}

// ranTwice: in a task there is no telling which of two is the task: both go on,
// as in Slurm. The step has its own end, and does not wait for the other.
func ranTwice(t *testing.T, c *rudeStep) {
	if r := c.result; r.code != 3 || !strings.Contains(r.out, "rank 1 in ") || !strings.Contains(r.out, "late\n") {
		t.Errorf("want the tasks' own end, exit code 3: %v", r)
	}
}

// newerThan reports whether the running kernel is newer.
func newerThan(t *testing.T, major, minor int) bool {
	t.Helper()
	var u unix.Utsname
	must(t, unix.Uname(&u))
	var x, y int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &x, &y); err != nil {
		t.Fatal(err)
	}
	return x > major || x == major && y >= minor
}

// TestRootPluginLaterTask: what is not done for the first task is taken back as
// well; then it may have been any of the plugins that have the hook.
func TestRootPluginLaterTask(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	first := buildRude(t, n)
	second := n.path("second.so")
	must(t, os.Rename(first, second))
	first = buildRude(t, n)
	n.stack(t, "optional "+first+" hook=task_post_fork do=seteuid rank=1", "optional "+second)
	if r := n.ctl(t, "run", "-n", "2", "id", "-u"); r.code != 0 || r.out != "7001\n7001\n" || r.err != "" {
		t.Errorf("got %v", r)
	}
	n.logs(t, "slurm_spank_task_post_fork: one of rude.so, second.so changed its user or group: taken back")
	// Past the C library a thread is found when all plugins were called.
	n.stack(t, "optional "+first+" hook=init do=thread-raw", "optional "+second)
	if r := n.ctl(t, "run", "-n", "2", "id", "-u"); r.code != 0 || r.out != "7001\n7001\n" || r.err != "" {
		t.Errorf("got %v", r)
	}
	n.logs(t, "slurm_spank_init: one of rude.so, second.so left threads running")
	n.stack(t, "optional "+first+" hook=task_exit do=setuid rank=1")
	r := n.ctl(t, "run", "-n", "2", "id", "-u")
	if r.code != 0 || r.out != "7001\n7001\n" {
		t.Errorf("got %v", r)
	}
	contains(t, "stderr", r.err, `plugin "rude.so": slurm_spank_task_exit (rank 1): gave up the user or group of the process that called it`)
	n.checkClean(t)
}

// TestRootPluginChroot: what a plugin makes of the root directory is the tasks',
// as with a chroot plugin of Slurm; the host needs no path any more.
func TestRootPluginChroot(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := buildRude(t, n)
	for _, hook := range []string{"init", "init_post_opt", "task_init_privileged", "task_post_fork", "task_exit", "exit"} {
		n.stack(t, fmt.Sprintf("required %s hook=%s do=chroot=%s", so, hook, n.dir))
		r := n.ctl(t, "run", "sh", "-c", "echo ran; exit 3")
		inside := hook != "task_post_fork" && hook != "task_exit" && hook != "exit"
		if want := map[bool]int{true: 2, false: 3}[inside]; r.code != want || inside != strings.Contains(r.err, "execve(): sh: No such file or directory") {
			t.Errorf("%s: want exit code %d, got %v", hook, want, r)
		}
		n.checkClean(t)
	}
}

// harmless are misdeeds after which a host goes on, in the order in which their
// plugins are called; a thread comes late, as forks lose it.
var harmless = []string{
	"closestd", "handlers", "ignore-sigchld", "no-zombies", "ignore-sigterm", "block", "unblock", "chdir", "umask", "core",
	"setpgid", "setsid", "nofile", "seteuid", "args", "env", "twice", "thread", "thread-raw",
}

// jobNumber is what differs from job to job in the words of batch.
var jobNumber = regexp.MustCompile(`batch job \d+`)

// TestRootPluginElsewhere: what plugins do to their process in the contexts that
// launch nothing reaches neither the step nor the scripts. A plugin
// for each misdeed, all of them in one hook.
func TestRootPluginElsewhere(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := buildRuder(t, n)
	lines := func(flag string, ctx int, hook string, deeds ...string) []string {
		var out []string
		for _, deed := range deeds {
			out = append(out, fmt.Sprintf("%s %s ctx=%d hook=%s do=%s", flag, so, ctx, hook, deed))
		}
		return out
	}
	const look = "umask; pwd; id -u; grep -E '^(SigBlk|SigIgn|Threads)' /proc/self/status; ulimit -Sn -Sc; exit 3"
	run, alloc := []string{"run", "sh", "-c", look}, []string{"alloc", "-Q", "sh", "-c", look}
	batch := []string{"batch", "-W", "-o", "/dev/null", "--wrap=" + look}
	for _, c := range []struct {
		ctx   int
		args  []string
		hooks []string
	}{
		{1, run, []string{"init", "init_post_opt", "local_user_init", "exit"}},
		{3, alloc, []string{"init", "init_post_opt", "exit"}},
		{3, batch, []string{"init", "init_post_opt", "exit"}},
		{5, run, []string{"job_prolog", "job_epilog"}},
	} {
		n.stack(t)
		asEver := n.ctl(t, c.args...)
		if asEver.code != 3 {
			t.Fatalf("without plugins: %v", asEver)
		}
		deeds := harmless
		if c.ctx == 5 { // elsewhere they go on, as in Slurm
			deeds = append([]string{"helper", "daemon"}, harmless...)
		}
		for _, hook := range c.hooks {
			for _, flag := range []string{"required", "optional"} {
				t.Run(fmt.Sprintf("%s context %d %s %s", c.args[0], c.ctx, hook, flag), func(t *testing.T) {
					n.stack(t, lines(flag, c.ctx, hook, deeds...)...)
					r := n.ctl(t, c.args...)
					if out := jobNumber.ReplaceAllString(r.out, "N"); r.code != 3 || out != jobNumber.ReplaceAllString(asEver.out, "N") {
						t.Errorf("got %v\nwant %v", r, asEver)
					}
					onlyOurLines(t, r)
					if doc := n.idle(t); doc.State != "IDLE" {
						t.Errorf("node %s: %q", doc.State, doc.Reason)
					}
					n.checkClean(t)
				})
			}
		}
	}
	n.kill9(t)
	for _, hook := range []string{"init", "slurmd_exit"} {
		for _, flag := range []string{"required", "optional"} {
			t.Run(fmt.Sprintf("noded context 4 %s %s", hook, flag), func(t *testing.T) {
				n.write(t, "plugstack.conf", strings.Join(lines(flag, 4, hook, harmless...), "\n")+"\n")
				n.boot(t)
				if r := n.ctl(t, "run", "echo", "ran"); r.out != "ran\n" || r.code != 0 {
					t.Error(r)
				}
				n.idle(t)
				must(t, n.cmd.Process.Signal(unix.SIGTERM))
				<-n.done
				if code := n.cmd.ProcessState.ExitCode(); code != 0 {
					t.Errorf("noded ended with %d: %s", code, n.log.String())
				}
				n.checkClean(t)
			})
		}
	}
	n.write(t, "plugstack.conf", "")
	n.boot(t)
}
