package integration

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fdTask reports in a file the descriptors that a task has inherited, each with what it
// is, and the numbers that plugins and MPI have announced.
const fdTask = `for f in /proc/$$/fd/*; do test -L $f && s="$s ${f##*/}"; done
env | grep -e ^ENDS_ -e ^PMI_FD= >env.$SLURM_PROCID
echo $s >fds.$SLURM_PROCID
`

// inherited reads what fdTask has written of a task: the descriptors, and the
// announced numbers by their names.
func inherited(t testing.TB, n *node, rank int) (fds []string, announced map[string]string) {
	t.Helper()
	file := func(name string) string { return filepath.Join(n.wd, fmt.Sprintf("%s.%d", name, rank)) }
	fds = strings.Fields(readFile(t, file("fds")))
	announced = make(map[string]string)
	for line := range strings.Lines(readFile(t, file("env"))) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		announced[name] = value
	}
	must(t, os.Remove(file("fds")))
	return fds, announced
}

// TestRootTaskDescriptors: a task has 0, 1, 2, the descriptors of its MPI, and those that
// plugins have opened without close-on-exec until task_init; none of the host's, of the
// daemons', of what started noded, or of the client's caller. In every mode of a step.
func TestRootTaskDescriptors(t *testing.T) {
	waits(t)
	base := containerBase(t)
	leaky := []string{"sh", "-c", `exec 5</etc/passwd 6</ 7>/dev/null; exec "$@"`, "sh"}
	nodes := map[string]*node{
		"":          startNode(t, site{Before: leaky}),
		"tmpfs":     startNode(t, site{Before: leaky, Slurm: "JobContainerType=job_container/tmpfs\n", Container: "AutoBasePath=true\nBasePath=" + base + "\n"}),
		"linux":     startNode(t, site{Before: leaky, Slurm: "JobContainerType=job_container/linux\n", Container: "AutoBasePath=true\nBasePath=" + base + "\nCloneNSFlags=CLONE_NEWPID,CLONE_NEWUSER\n"}),
		"linuxproc": startNode(t, site{Before: leaky, Slurm: "ProctrackType=proctrack/linuxproc\n"}),
	}
	kept := []string{"init", "init_post_opt", "user_init", "task_init_privileged", "task_init"}
	stacks := map[string]string{"none": "", "open": "task_post_fork:open", "open-close": ""}
	for _, hook := range kept {
		stacks["open"] += " " + hook + ":open"
		stacks["open-close"] += " " + hook + ":open-close"
	}
	run := []string{"run", "-n", "2"}
	for _, c := range []struct {
		name, node string
		args       []string
		mpi        bool
	}{
		{name: "plain", args: run}, {name: "label", args: append(run, "-l")}, {name: "unbuffered", args: append(run, "-u")},
		{name: "files", args: append(run, "-o", "out.%t", "-i", "/dev/null")}, {name: "one file", args: append(run, "-o", "out")},
		{name: "pty", args: append(run, "--pty")}, {name: "pmi2", args: append(run, "--mpi=pmi2"), mpi: true},
		{name: "pmix", args: append(run, "--mpi=pmix")}, {name: "task prolog", args: append(run, "--task-prolog=/bin/true", "--task-epilog=/bin/true")},
		{name: "bound", args: append(run, "--cpu-bind=none", "--mem-bind=none")},
		{name: "batch", args: []string{"batch", "-W", "-o", "out"}}, {name: "alloc", args: []string{"alloc", "-Q", "-n", "2", "STEPCTL", "run"}},
		{name: "tmpfs", node: "tmpfs", args: run}, {name: "linux", node: "linux", args: run},
		{name: "batch in tmpfs", node: "tmpfs", args: []string{"batch", "-W", "-o", "out"}}, {name: "linuxproc", node: "linuxproc", args: run},
	} {
		n := nodes[c.node]
		so := buildKind(t, n, "ends.c")
		script := n.userFile(t, "fds.sh", "#!/bin/sh\nexec sh -c '"+fdTask+"'\n", 0o755) // a shell holds its script open
		for _, flag := range []string{"required", "optional"} {
			for stack, args := range stacks {
				t.Run(strings.Join([]string{c.name, flag, stack}, " "), func(t *testing.T) {
					n.stack(t, flag+" "+so+" "+args)
					args := append(slices.Clone(c.args), script)
					if i := slices.Index(args, "STEPCTL"); i >= 0 {
						args[i] = n.bin
					}
					if c.name == "pty" {
						s := openTerminal(t, 24, 80)
						s.ctl(n, call{args: args})
						s.ends(0)
					} else {
						// The caller leaves some open, too.
						if r := n.do(t, call{program: "/bin/sh", args: append([]string{"-c", `exec 5</etc/passwd 6</ 7>/dev/null; exec "$@"`, "sh", n.bin}, args...)}); r.code != 0 {
							t.Fatal(r)
						}
					}
					tasks := 2
					if args[0] == "batch" {
						tasks = 1
					}
					for rank := range tasks {
						fds, announced := inherited(t, n, rank)
						want := []string{"0", "1", "2"}
						for _, hook := range kept {
							switch number := announced["ENDS_"+hook]; {
							case stack == "none" && number == "", stack == "open-close" && number != "":
							case stack == "open" && number != "":
								want = append(want, number)
							default:
								t.Errorf("rank %d: %s has announced %q", rank, hook, number)
							}
						}
						if c.mpi {
							want = append(want, announced["PMI_FD"])
						}
						slices.Sort(fds)
						slices.Sort(want)
						if !slices.Equal(fds, want) {
							t.Errorf("rank %d has %q, want %q: %v", rank, fds, want, announced)
						}
					}
				})
			}
		}
		n.stack(t)
	}
}

// TestRootTaskHookExits: a hook that calls exit(n) in a task ends it with n, as in Slurm;
// the others run. The record and explain name the plugin.
func TestRootTaskHookExits(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := buildKind(t, n, "ends.c")
	for _, hook := range []string{"task_init_privileged", "task_init"} {
		for _, status := range []int{0, 1, 7, 127, 253, 255, -1, 3000, math.MinInt32} {
			for _, flag := range []string{"required", "optional"} {
				t.Run(fmt.Sprintf("%s %s %d", flag, hook, status), func(t *testing.T) {
					code := status & 0xff // exit(3)
					n.stack(t, fmt.Sprintf("%s %s %s:exit:%d", flag, so, hook, status))
					r := n.ctl(t, "run", "-n", "2", "echo", "ran")
					if r.code != code || r.out != "" {
						t.Errorf("want exit code %d, and no task run: %v", code, r)
					}
					doc := n.lastEnded(t)
					if want := map[bool]string{true: "COMPLETED", false: "FAILED"}[code == 0]; doc.State != want || doc.ExitCode == nil || *doc.ExitCode != code {
						t.Errorf("want %s with code %d, got %+v", want, code, doc)
					}
					for _, task := range doc.Tasks {
						if task.State != "FAILED" || task.ExitCode == nil || *task.ExitCode != code {
							t.Errorf("rank %d: state %s, exit code %v: want FAILED with %d", task.Rank, task.State, task.ExitCode, code)
						}
					}
					plugin := fmt.Sprintf("plugin %q: slurm_spank_%s", "ends.so", hook)
					for rank := range 2 {
						contains(t, "stderr", r.err, fmt.Sprintf("%s (rank %d): called exit(%d)", plugin, rank, code))
					}
					contains(t, "reason", doc.Reason, plugin, fmt.Sprintf("called exit(%d)", code))
					contains(t, "explain", n.ctl(t, "explain", doc.id()).out, strings.Replace(plugin, "plugin ", "plugin: ", 1), fmt.Sprintf("called exit(%d)", code))
				})
			}
		}
	}
	// Of several codes the highest is the step's.
	n.stack(t, "required "+so+" task_init:exit:7")
	if r := n.ctl(t, "batch", "-W", "-o", "out", "--wrap=true"); r.code != 7 {
		t.Errorf("batch: want 7, got %v", r)
	}
	if r := n.ctl(t, "run", "-n", "2", "--kill-on-bad-exit", "true"); r.code != 7 {
		t.Errorf("--kill-on-bad-exit: want 7, got %v", r)
	}
	n.stack(t)
	n.serves(t)
}

// TestRootLocalExits: a plugin that calls exit(n) on the local side ends stepctl with n, as
// it ends srun, salloc and sbatch, and says so; nothing of the request is left.
func TestRootLocalExits(t *testing.T) {
	waits(t)
	n, strict := startNode(t, site{}), startNode(t, site{Stepd: "SpankStrict=yes\n"})
	so := map[*node]string{n: buildKind(t, n, "ends.c"), strict: buildKind(t, strict, "ends.c")}
	run := []string{"run", "sh", "-c", "echo ran; exit 3"}
	alloc, batch := []string{"alloc", "-Q", "sh", "-c", "echo ran; exit 3"}, []string{"batch", "-W", "-o", "/dev/null", "--wrap=exit 3"}
	for _, c := range []struct {
		ctx   int
		args  []string
		hooks []string
	}{
		{1, run, []string{"init", "init_post_opt", "local_user_init", "exit"}},
		{3, alloc, []string{"init", "init_post_opt", "exit"}},
		{3, batch, []string{"init", "init_post_opt", "exit"}},
	} {
		for _, hook := range c.hooks {
			for _, status := range []int{0, 7, 3000, math.MinInt32} {
				for _, flag := range []string{"required", "optional"} {
					for _, n := range []*node{n, strict} {
						t.Run(fmt.Sprintf("%s %s %s %d strict=%v", c.args[0], hook, flag, status, n == strict), func(t *testing.T) {
							code := status & 0xff
							n.stack(t, fmt.Sprintf("%s %s ctx=%d %s:exit:%d", flag, so[n], c.ctx, hook, status))
							r := n.ctl(t, c.args...)
							want := code
							if n == strict && flag == "required" {
								want = max(1, code)
							}
							if ran := strings.Contains(r.out, "ran\n") || strings.Contains(r.out, "Submitted batch job"); r.code != want || ran != (hook == "exit") {
								t.Errorf("want exit code %d: %v", want, r)
							}
							contains(t, "stderr", r.err, fmt.Sprintf("stepctl: error: plugin %q: slurm_spank_%s: called exit(%d)\n", "ends.so", hook, code))
							if strings.Contains(r.err, "Plugin stack") || strings.Contains(r.err, "Plug-in") {
								t.Errorf("more is said than happened: %v", r)
							}
							n.idle(t)
							n.checkClean(t)
						})
					}
				}
			}
		}
		t.Run(c.args[0]+" option", func(t *testing.T) {
			n.stack(t, "required "+so[n])
			r := n.ctl(t, append([]string{c.args[0], "--ends=9"}, c.args[1:]...)...)
			if r.code != 9 || r.out != "" {
				t.Errorf("want exit code 9: %v", r)
			}
			contains(t, "stderr", r.err, `plugin "ends.so": option callback: called exit(9)`)
			n.checkClean(t)
		})
	}
	n.serves(t)
}

// TestRootExitHelpers: processes that a plugin leaves in slurm_spank_exit have ExitGrace
// after the step's end, which does not wait for them; then they are killed.
func TestRootExitHelpers(t *testing.T) {
	waits(t)
	const grace = 6 * time.Second // three times the default: 64 tasks took 3.5 s beside others
	sites := map[string]site{
		"cgroup":    {},
		"linuxproc": {Slurm: "ProctrackType=proctrack/linuxproc\n"},
		"epilog":    {Slurm: "Epilog=/bin/true\n"},
	}
	for name, s := range sites {
		s.Stepd = fmt.Sprintf("ExitGrace=%d\n", grace/time.Second)
		n := startNode(t, s)
		so := buildKind(t, n, "ends.c")
		for _, how := range []string{"fork", "system"} {
			for _, flag := range []string{"required", "optional"} {
				t.Run(strings.Join([]string{name, how, flag}, " "), func(t *testing.T) {
					marks := func(name string) string { return n.path("marks." + name) }
					left := func(name, seconds string) string {
						return fmt.Sprintf("exit:%s:%s:%s", how, seconds, marks(name))
					}
					for _, name := range []string{"soon", "late", "before"} {
						must(t, os.RemoveAll(marks(name)))
					}
					n.stack(t, strings.Join([]string{flag, so, left("soon", "1"), left("late", "600"), "init:fork:600:" + marks("before")}, " "))
					begin := time.Now()
					if r := n.ctl(t, "run", "-n", "64", "echo", "ran"); r.code != 0 || strings.Count(r.out, "ran\n") != 64 || r.err != "" {
						t.Fatal(r)
					}
					ended := time.Now()
					if took := ended.Sub(begin); took > grace {
						t.Errorf("the step's end took %v: it waits for the helpers", took)
					}
					soon, late := helperPID(t, marks("soon")), helperPID(t, marks("late"))
					gone := func(pid int) func() error {
						return func() error {
							if alive(pid) {
								return fmt.Errorf("process %d lives", pid)
							}
							return nil
						}
					}
					eventually(t, callTimeout, "the end of a helper of an earlier hook", gone(helperPID(t, marks("before"))))
					if time.Since(ended) < grace/2 && !alive(late) {
						t.Errorf("the helper was killed %v after the step's end", time.Since(ended))
					}
					// The next step has all CPUs at once, but where an epilog is still due.
					again := time.Now()
					if r := n.ctl(t, "run", "-n", "64", "true"); r.code != 0 {
						t.Error(r)
					} else if took := time.Since(again); name != "epilog" && took > grace/2 {
						t.Errorf("the next step took %v", took)
					}
					eventually(t, callTimeout, "the end of the helper that takes 1 s", gone(soon))
					if !strings.Contains(readFile(t, marks("soon")), "done\n") {
						t.Error("the helper that takes 1 s was killed")
					}
					eventually(t, callTimeout, "the end of the other", gone(late))
					// The grace begins with the step's end, which the test learns of late.
					if took := time.Since(begin); took < grace {
						t.Errorf("it was killed %v after the step's begin", took)
					}
					n.checkClean(t)
				})
			}
		}
	}
}

// TestRootExitHelpersEnd: whatever ends in the grace, nothing is left of it.
func TestRootExitHelpersEnd(t *testing.T) {
	waits(t)
	n := startNode(t, site{Stepd: "ExitGrace=600\n"})
	begin := func(t *testing.T) (helper int, step stepDoc) {
		t.Helper()
		marks := n.path("marks")
		must(t, os.RemoveAll(marks))
		n.stack(t, fmt.Sprintf("required %s exit:fork:600:%s", buildKind(t, n, "ends.c"), marks))
		r := n.ctl(t, "run", "-v", "true")
		id := jobLine.FindStringSubmatch(r.err)
		if r.code != 0 || id == nil {
			t.Fatal(r)
		}
		n.write(t, "plugstack.conf", "")
		eventually(t, callTimeout, "the step's end in noded", func() error {
			if step = n.show(t, id[1]+"."+id[2]); step.State != "COMPLETED" {
				return fmt.Errorf("state %s", step.State)
			}
			return nil
		})
		return helperPID(t, marks), step
	}
	ends := func(t *testing.T, helper int) {
		t.Helper()
		eventually(t, callTimeout, "the helper's end", func() error {
			if alive(helper) {
				return fmt.Errorf("process %d lives", helper)
			}
			return nil
		})
		n.checkClean(t)
		n.serves(t)
	}
	t.Run("the helper ends", func(t *testing.T) {
		helper, _ := begin(t)
		must(t, syscall.Kill(helper, syscall.SIGKILL))
		ends(t, helper)
	})
	for name, sig := range map[string]syscall.Signal{"stepd is ended": syscall.SIGTERM, "stepd is killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			helper, step := begin(t)
			must(t, syscall.Kill(step.StepdPID, sig))
			ends(t, helper)
			if doc := n.show(t, step.id()); doc.State != "COMPLETED" {
				t.Errorf("the step has ended before: %+v", doc)
			}
		})
	}
	t.Run("noded is killed", func(t *testing.T) {
		helper, _ := begin(t)
		n.kill9(t)
		n.boot(t)
		ends(t, helper)
	})
	t.Run("no grace", func(t *testing.T) {
		n := startNode(t, site{Stepd: "ExitGrace=0\n"})
		n.stack(t, fmt.Sprintf("required %s exit:system:600:%s", buildKind(t, n, "ends.c"), n.path("marks")))
		begin := time.Now()
		if r := n.ctl(t, "batch", "-W", "-o", "out", "--wrap=true"); r.code != 0 || time.Since(begin) > time.Second {
			t.Errorf("%v, after %v", r, time.Since(begin))
		}
		n.checkClean(t)
	})
}

// helperPID is the pid that a helper has written.
func helperPID(t testing.TB, path string) (pid int) {
	t.Helper()
	eventually(t, callTimeout, "the helper's pid in "+path, func() error {
		b, err := os.ReadFile(path)
		if err == nil {
			_, err = fmt.Sscan(string(b), &pid)
		}
		return err
	})
	return pid
}
