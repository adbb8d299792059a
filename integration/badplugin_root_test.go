package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"stepd/integration/slurm/cluster"
)

// crashSteps is how many steps run beside each other.
const crashSteps = 12

// TestRootBadPluginUnderSlurmd: a plugin that crashes, exits or hangs in a hook of a step of
// srun or of a batch job: neither the step, if it has not begun, nor its plugins go on, of an
// optional one as of a required one. The user hears which plugin and which hook, the node
// stays idle, and nothing of the step is left.
func TestRootBadPluginUnderSlurmd(t *testing.T) {
	waits(t)
	s := startSlurm(t, cluster.Site{Release: "22.05", StepDaemon: cluster.Programs + "/slurmstepd", Files: map[string]string{"stepd.conf": "HookTimeout=1\n"}})
	s.rude(t)
	var wg sync.WaitGroup
	slots := make(chan struct{}, crashSteps)
	for _, hook := range remoteHooks {
		for _, do := range []string{"segv", "exit", "hang"} {
			for _, flag := range []string{"required", "optional"} {
				for _, batch := range []bool{false, true} {
					slots <- struct{}{}
					wg.Go(func() {
						defer func() { <-slots }()
						s.badPlugin(t, hook, do, flag, batch)
					})
				}
			}
		}
	}
	wg.Wait()
	s.idle(t)
	if r := s.run(t, nil, "srun", "-n2", "echo", "well"); r.code != 0 || r.out != "well\nwell\n" || r.err != "" {
		t.Errorf("the next step: %v", r)
	}
	s.nothingLeft(t)
}

// rude has the plugin that misbehaves on order in the plugin stack, once required and once
// optional: the variables REQUIRED and OPTIONAL of a step are its orders.
func (s *realSlurm) rude(t testing.TB) {
	t.Helper()
	var stack, year, month string
	year, month, _ = strings.Cut(s.release, ".")
	for _, flag := range []string{"required", "optional"} {
		so := s.Path(flag + ".so")
		compile(t, "-fPIC", "-shared", "-I", ownHeaders, "testdata/plugins/rude.c", "-o", so,
			fmt.Sprintf("-DSLURM_VERSION_NUMBER=SLURM_VERSION_NUM(%s,%s,0)", year, strings.TrimPrefix(month, "0")))
		stack += flag + " " + so + " order=" + strings.ToUpper(flag) + "\n"
	}
	must(t, os.WriteFile(s.Path("plugstack.conf"), []byte(stack), 0o644))
}

// badPlugin runs one step, or one batch job, whose plugin misbehaves.
func (s *realSlurm) badPlugin(t testing.TB, hook, do, flag string, batch bool) {
	t.Helper()
	env := []string{strings.ToUpper(flag) + "=hook=" + hook + " do=" + do}
	out := s.Path("work/" + alice.name + "/" + strings.Join([]string{hook, do, flag}, "."))
	what := fmt.Sprintf("%s in %s, %s, batch %v", do, hook, flag, batch)
	var r result
	if batch {
		r = s.run(t, env, "sbatch", "-W", "-n1", "-o", out, "--wrap", "echo ran")
		b, err := os.ReadFile(out)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
		r.out, r.err = string(b), string(b)
	} else {
		r = s.run(t, env, "srun", "-n1", "echo", "ran")
	}
	// Behind the tasks' gate a hook has no say any more.
	late := hook == "task_exit" || hook == "exit"
	if ran := strings.Contains(r.out, "ran\n"); ran != late {
		t.Errorf("%s: the task ran: %v", what, ran)
	}
	if batch && (r.code == 0) != late {
		t.Errorf("%s: the job ends with %d", what, r.code)
	}
	said := r.err
	if batch && (hook == "init" || hook == "init_post_opt") {
		said = readFile(t, s.Path("slurmd.log")) // the job has no output yet
	}
	if !names(said, flag+".so", "slurm_spank_"+hook, do) {
		t.Errorf("%s: the user is not told of the plugin and the hook: %v", what, r)
	}
}

// names reports whether a line names the plugin, the hook and what happened there.
func names(text, plugin, hook, do string) bool {
	cause := map[string]string{"segv": "killed by SIGSEGV", "exit": "called exit(3)", "hang": "did not return within 1s"}[do]
	for line := range strings.Lines(text) {
		if strings.Contains(line, `plugin "`+plugin+`": `+hook) && strings.Contains(line, cause) {
			return true
		}
	}
	return false
}

// nothingLeft looks for what steps may leave: processes, sockets, files and cgroups.
func (s *realSlurm) nothingLeft(t testing.TB) {
	t.Helper()
	eventually(t, callTimeout, "nothing is left", func() error {
		out, err := s.Command(t.Context(), "root", "ps", "-eo", "comm=").Output()
		must(t, err)
		for _, name := range strings.Fields(string(out)) {
			if slices.Contains([]string{"slurmstepd", "spankhost", "stepkeeper", "echo"}, name) {
				return fmt.Errorf("process %q", name)
			}
		}
		for _, pattern := range []string{"spool/" + cluster.Node + "_*", "spool/job*"} {
			left, err := filepath.Glob(s.Path(pattern))
			must(t, err)
			if len(left) > 0 {
				return fmt.Errorf("files %q", left)
			}
		}
		return nil
	})
}

// TestRootFailingPluginUnderSlurmd compares how a step of srun's and one of sbatch's end where a
// plugin's hook returns -1: what is printed, srun's exit code, and how slurmctld shows the job and
// the node.
func TestRootFailingPluginUnderSlurmd(t *testing.T) {
	waits(t)
	for _, release := range cluster.Releases() {
		t.Run(release, func(t *testing.T) {
			twins := startTwins(t, release)
			for i := range twins {
				twins[i].rude(t)
			}
			r := newReportWith(t, release, "testdata/differences-failing.tsv")
			for _, hook := range remoteHooks {
				for _, what := range []string{hook + ", required", hook + ", optional", hook + ", required, batch"} {
					words := strings.Split(what, ", ")
					var ends [2]map[string]string
					var wg sync.WaitGroup
					for i := range twins {
						wg.Go(func() { ends[i] = twins[i].failing(t, words[0], words[1], len(words) > 2) })
					}
					wg.Wait()
					for _, field := range []string{"exit code", "output", "stderr", "job", "node"} {
						r.fact(what, what, field, ends[0][field], ends[1][field])
					}
				}
			}
			r.end(80)
		})
	}
}

// failing runs one step whose plugin fails, of srun's or of a batch job.
func (s *realSlurm) failing(t testing.TB, hook, flag string, batch bool) map[string]string {
	t.Helper()
	env := []string{strings.ToUpper(flag) + "=hook=" + hook + " do=fail"}
	ask := func(args ...string) string {
		b, err := s.Command(t.Context(), "root", args[0], args[1:]...).Output()
		must(t, err)
		return strings.TrimSpace(string(b))
	}
	var r result
	if batch {
		path := s.Path("work/" + alice.name + "/" + hook + "." + flag)
		r = s.run(t, env, "sbatch", "-Q", "-n1", "-o", path, "--wrap", "echo ran")
		s.batchEnds(t)
		b, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		r.err, r.out = string(b), "" // the lines of several programs
	} else {
		r = s.run(t, env, "srun", "-Q", "-n1", "echo", "ran")
		s.noJob(t)
	}
	ends := map[string]string{"exit code": fmt.Sprint(r.code), "output": s.lines(r.out), "stderr": s.lines(r.err)}
	for _, word := range strings.Fields(ask("scontrol", "show", "job", "-o")) {
		switch name, _, _ := strings.Cut(word, "="); name {
		case "JobId":
			ends["job"] = "" // the last one counts
		case "JobState", "Reason", "ExitCode", "Restarts":
			if word == "Reason=BeginTime" { // of a job that begins anew, once the scheduler has looked at it
				word = "Reason=None"
			}
			if word != "Restarts=0" {
				ends["job"] += word + " "
			}
		}
	}
	ends["node"] = ask("sinfo", "-h", "-o", "%T %E")
	ask("scancel", "-u", alice.name)
	s.noJob(t)
	if !strings.HasPrefix(ends["node"], "idle") {
		ask("scontrol", "update", "NodeName="+cluster.Node, "State=RESUME")
	}
	return ends
}

// noJob waits until all jobs have ended.
func (s *realSlurm) noJob(t testing.TB) {
	t.Helper()
	eventually(t, callTimeout, "the job is over", func() error {
		out, err := s.Command(t.Context(), "root", "squeue", "-h").Output()
		if len(out) > 0 {
			err = errors.New(string(out))
		}
		return err
	})
}

// batchEnds waits until the last job has ended, or is to begin anew.
func (s *realSlurm) batchEnds(t testing.TB) {
	t.Helper()
	eventually(t, 10*time.Second, "the batch job has ended", func() error {
		out, err := s.Command(t.Context(), "root", "scontrol", "show", "job", "-o").Output()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		last := lines[len(lines)-1]
		for _, begun := range []string{"RUNNING", "COMPLETING", "CONFIGURING"} {
			if strings.Contains(last, " JobState="+begun+" ") {
				err = errors.New(last)
			}
		}
		if strings.Contains(last, " JobState=PENDING ") && strings.Contains(last, " Restarts=0 ") {
			err = errors.New(last)
		}
		return err
	})
}

// lines are the lines of a text in the order of their words, in one line: several programs
// write at once.
func (s *realSlurm) lines(text string) string {
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(text, s.Dir, "DIR")), "\n")
	slices.Sort(lines)
	return strings.Join(lines, " / ")
}

// TestRootSlurmAPIUnderSlurmd: a plugin that calls Slurm's library gets the controller's answer.
// The library loads plugins of its own, which need its functions.
func TestRootSlurmAPIUnderSlurmd(t *testing.T) {
	waits(t)
	s := startSlurm(t, cluster.Site{Release: "22.05", StepDaemon: cluster.Programs + "/slurmstepd"})
	so := s.Path("slurmapi.so")
	compile(t, "-fPIC", "-shared", "testdata/plugins/slurmapi.c", "-o", so, "-lslurm", "-Wl,-rpath,"+s.Dir)
	// The cluster's Debian root has the daemons alone, of the same release.
	lib, err := os.ReadFile("/usr/lib/x86_64-linux-gnu/libslurm.so.38")
	must(t, errors.Join(err, os.WriteFile(s.Path("libslurm.so.38"), lib, 0o755)))
	must(t, os.WriteFile(s.Path("plugstack.conf"), []byte("required "+so+"\n"), 0o644))
	r := s.run(t, nil, "srun", "-n1", "echo", "ran")
	if r.code != 0 || r.out != "ran\n" || !strings.Contains(r.err, "slurmctld has 1 node, "+cluster.Node+"\n") {
		t.Errorf("got %v", r)
	}
}
