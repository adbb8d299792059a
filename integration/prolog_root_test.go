package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// nodeDoc is the document of `node status` as far as these tests read it.
type nodeDoc struct {
	State  string `json:"state"`
	Reason string `json:"reason"`
	Jobs   []struct {
		JobID  uint32   `json:"job_id"`
		Name   string   `json:"name"`
		Origin string   `json:"origin"`
		CPUs   string   `json:"cpus"`
		Steps  []uint32 `json:"steps"`
	} `json:"jobs"`
	Fallbacks []struct {
		What string `json:"what"`
		Why  string `json:"why"`
	} `json:"fallbacks"`
	Plugins []struct {
		Path    string `json:"path"`
		State   string `json:"state"`
		Problem string `json:"problem"`
	} `json:"plugins"`
}

func (n *node) status(t testing.TB) nodeDoc {
	t.Helper()
	r := n.ctlRoot(t, "node", "status", "--json")
	var doc struct {
		Node nodeDoc `json:"node"`
	}
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.code != 0 {
		t.Fatalf("node status: %v, %v", err, r)
	}
	return doc.Node
}

// idle waits until no job is left: epilogs end after their steps.
func (n *node) idle(t testing.TB) nodeDoc {
	t.Helper()
	var doc nodeDoc
	eventually(t, callTimeout, "the end of all jobs", func() error {
		if doc = n.status(t); len(doc.Jobs) > 0 {
			return fmt.Errorf("jobs %+v", doc.Jobs)
		}
		// A batch job is a step that waits before it is a job that the node has.
		if steps := n.ps(t); len(steps) > 0 {
			return fmt.Errorf("steps %+v", steps)
		}
		return nil
	})
	return doc
}

// script makes a prolog or epilog that appends its name and environment to a file.
func (n *node) script(t testing.TB, name, out, body string) string {
	t.Helper()
	path := n.path(name)
	text := fmt.Sprintf("#!/bin/sh\n{ echo %s; env | sort; echo; } >>%s\n%s\n", name, out, body)
	must(t, os.WriteFile(path, []byte(text), 0o755))
	return path
}

// TestRootPrologEpilog: plugins, then programs, before the first step and after
// the last one, with the environment that was measured and nothing of the user's.
func TestRootPrologEpilog(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so, marks := buildClient(t, n), n.markFile(t)
	n.script(t, "prolog.sh", marks, "")
	n.script(t, "epilog.sh", marks, "")
	n.restartWith(t, "Prolog=prolog.sh\nEpilog=epilog.sh\n")
	n.stack(t, fmt.Sprintf("required %s mark=%s", so, marks))
	r := n.do(t, call{args: []string{"run", "--flag", "--both=va lue", "-n2", "sh", "-c", "exit 3"}, env: []string{"LD_PRELOAD=", "SECRET=x"}})
	if r.code != 3 {
		t.Errorf("got %v", r)
	}
	n.idle(t)
	blocks := strings.Split(strings.TrimSpace(readFile(t, marks)), "\n\n")
	text := readFile(t, marks)
	order := []string{"5 job_prolog uid=0,0", "prolog.sh", "2 init uid=0,0", "2 exit uid=0,0", "5 job_epilog uid=0,0", "epilog.sh"}
	at := 0
	for _, word := range order {
		i := strings.Index(text[at:], word)
		if i < 0 {
			t.Fatalf("%q does not come after what comes before it in %q:\n%s", word, order, text)
		}
		at += i
	}
	if len(blocks) < 2 {
		t.Fatalf("marks:\n%s", text)
	}
	user := testUser(t)
	common := []string{
		"SLURM_JOB_ID=1\n", "SLURM_JOBID=1\n", "SLURM_JOB_USER=" + user.name + "\n", fmt.Sprintf("SLURM_JOB_UID=%d\n", user.uid),
		fmt.Sprintf("SLURM_JOB_GID=%d\n", user.gid), "SLURM_JOB_WORK_DIR=" + n.wd + "\n", "SLURM_NODELIST=vm\n", "SLURM_CLUSTER_NAME=golden\n",
		"SLURM_JOB_PARTITION=p\n", "SLURM_JOB_NTASKS=2\n", "SLURM_JOB_CPUS_PER_NODE=2\n", "SLURMD_NODENAME=vm\n", "SPANK_CLIENT=post opt\n",
		"SPANK__SLURM_SPANK_OPTION_client_flag=(null)\n", "SPANK__SLURM_SPANK_OPTION_client_both=va lue\n",
	}
	for _, name := range []string{"prolog.sh\n", "epilog.sh\n"} {
		_, env, _ := strings.Cut(text, name)
		env, _, _ = strings.Cut(env, "\n\n")
		env += "\n"
		contains(t, name, env, common...)
		for _, e := range strings.Split(strings.TrimSpace(env), "\n") {
			v, _, _ := strings.Cut(e, "=")
			switch {
			case strings.HasPrefix(v, "SLURM"), strings.HasPrefix(v, "SPANK_"), v == "NODED_SOCKET":
			case v == "PWD" || v == "OLDPWD" || v == "SHLVL" || v == "_": // the shell's own
			default:
				t.Errorf("%s has %q", name, e)
			}
		}
		context := "SLURM_SCRIPT_CONTEXT=" + strings.TrimSuffix(name, ".sh\n") + "_slurmd\n"
		contains(t, name, env, context)
		if name == "epilog.sh\n" {
			contains(t, name, env, "SLURM_JOB_EXIT_CODE=768\n", "SLURM_JOB_EXIT_CODE2=3:0\n", "SLURM_JOB_DERIVED_EC=768\n")
		}
	}
}

// restartWith boots noded anew with more in slurm.conf.
func (n *node) restartWith(t testing.TB, more string) {
	t.Helper()
	n.write(t, "slurm.conf", "ClusterName=golden\nNodeName=vm CPUs=64\nPartitionName=p Nodes=ALL Default=YES\n"+more)
	n.kill9(t)
	n.boot(t)
}

// TestRootPrologFailures: a required plugin's or a program's failure, in prolog
// and epilog, what it does to the step and to the node; an optional one's
// has no effect.
func TestRootPrologFailures(t *testing.T) {
	waits(t)
	start := func(hookTimeout int) (n *node, so, other, marks string) {
		n = startNode(t, site{Slurm: "UnkillableStepTimeout=1\n", Stepd: fmt.Sprintf("HookTimeout=%d\n", hookTimeout)})
		so, other = buildClient(t, n), n.path("other.so")
		must(t, os.Link(so, other))
		return n, so, other, n.markFile(t)
	}
	type row struct {
		flag, hook, do string
		code           int
		drain          string // of the reason, "" is none
	}
	failed := func(hook, cause string) string {
		return fmt.Sprintf(`plugin "client.so": slurm_spank_%s: %s`, hook, cause)
	}
	rows := []row{
		{"required", "job_prolog", "rc=-1", 182, failed("job_prolog", "failed with rc=-1")},
		{"required", "job_prolog", "segv", 182, failed("job_prolog", "killed by SIGSEGV")},
		{"required", "job_prolog", "hang", 182, failed("job_prolog", "did not return within 2s")},
		{"required", "job_prolog", "stop", 182, failed("job_prolog", "was stopped, and did not go on within 1s (UnkillableStepTimeout in slurm.conf)")},
		{"required", "job_prolog", "closefds", 182, failed("job_prolog", "closed descriptors of the process that called it")},
		{"required", "job_prolog", "rc=1", 182, failed("job_prolog", "failed with rc=1")},
		{"required", "job_prolog", "rc=3000", 182, failed("job_prolog", "failed with rc=3000")},
		{"optional", "job_prolog", "rc=-1", 0, ""},
		{"optional", "job_prolog", "abort", 0, ""},
		{"required", "job_epilog", "rc=-1", 0, failed("job_epilog", "failed with rc=-1")},
		{"required", "job_epilog", "rc=1", 0, failed("job_epilog", "failed with rc=1")},
		{"required", "job_epilog", "exit", 0, failed("job_epilog", "called exit(0)")},
		{"required", "job_epilog", "hang", 0, failed("job_epilog", "did not return within 2s")},
		{"optional", "job_epilog", "rc=-1", 0, ""},
		{"optional", "job_epilog", "closefds", 0, ""},
		{"optional", "job_epilog", "segv", 0, ""},
	}
	n, so, other, marks := start(2)
	// Both limits of a stopped host begin with its hook: the hook's is long enough not to be the first.
	patient, so2, other2, marks2 := start(20)
	for _, c := range rows {
		n, so, other, marks := n, so, other, marks
		if c.do == "stop" {
			n, so, other, marks = patient, so2, other2, marks2
		}
		t.Run(fmt.Sprintf("%s %s %s", c.flag, c.hook, c.do), func(t *testing.T) {
			must(t, os.WriteFile(marks, nil, 0o666))
			n.stack(t, fmt.Sprintf("%s %s ctx=5 hook=%s do=%s mark=%s", c.flag, so, c.hook, c.do, marks),
				fmt.Sprintf("required %s mark=%s", other, marks))
			r := n.ctl(t, "run", "echo", "ran")
			if r.code != c.code || (r.out == "ran\n") != (c.code == 0) {
				t.Errorf("want exit code %d, got %v", c.code, r)
			}
			doc := n.idle(t)
			prolog := c.hook == "job_prolog"
			if c.drain == "" {
				if doc.State != "IDLE" || strings.Contains(r.err, "error") {
					t.Errorf("node %s: %q, %v", doc.State, doc.Reason, r)
				}
			} else {
				last := n.last(t)
				title := map[bool]string{true: "Prolog error: ", false: "Epilog error: "}[prolog]
				want := fmt.Sprintf("%sjob %d: %s", title, last.JobID, c.drain)
				if doc.State != "DRAINED" || !strings.HasPrefix(doc.Reason, want) {
					t.Errorf("node %s: %q, want %q", doc.State, doc.Reason, want)
				}
				if prolog {
					contains(t, "stderr", r.err, "Job prolog failed: "+c.drain)
				}
				if again := n.ctl(t, "run", "true"); again.code != 1 || !strings.Contains(again.err, doc.Reason) {
					t.Errorf("a step on the drained node: %v", again)
				}
				if back := n.ctlRoot(t, "node", "resume"); back.code != 0 {
					t.Fatal(back)
				}
			}
			// The epilog runs all the same, and the second plugin is called
			// unless a required one before it has failed.
			text := readFile(t, marks)
			if got := strings.Count(text, "5 job_epilog"); got == 0 || (c.hook == "job_prolog" && got != 2) {
				t.Errorf("epilogs were called %d times:\n%s", got, text)
			}
			second := strings.Count(text, "5 "+c.hook) == 2
			if want := c.flag == "optional"; second != want {
				t.Errorf("the second plugin was called: %v, want %v:\n%s", second, want, text)
			}
		})
	}
}

// TestRootPrologScriptFails: the program's name and last words are in the reason.
func TestRootPrologScriptFails(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	marks := n.markFile(t)
	prolog := n.script(t, "prolog.sh", marks, "echo 'the disk is full' >&2\nexit 9")
	n.script(t, "epilog.sh", marks, "")
	n.restartWith(t, "Prolog=prolog.sh\nEpilog=epilog.sh\n")
	r := n.ctl(t, "run", "true")
	cause := fmt.Sprintf("prolog %q: exited with code 9: the disk is full", prolog)
	if r.code != 182 || !strings.Contains(r.err, "Job prolog failed: "+cause) {
		t.Errorf("got %v", r)
	}
	doc := n.idle(t)
	if doc.State != "DRAINED" || doc.Reason != "Prolog error: job 1: "+cause {
		t.Errorf("node %s: %q", doc.State, doc.Reason)
	}
	contains(t, "marks", readFile(t, marks), "epilog.sh\n")
	if back := n.ctlRoot(t, "node", "resume"); back.code != 0 {
		t.Fatal(back)
	}

	// What it prints is read to the end, and the last of it is kept.
	n.script(t, "prolog.sh", marks, "head -c 300M /dev/zero; head -c 100000 /dev/zero | tr '\\0' x; echo; echo last words; exit 1")
	r = n.ctl(t, "run", "true")
	if !strings.Contains(r.err, "exited with code 1: last words\n") || len(r.err) > 1000 {
		t.Errorf("a prolog that prints a lot: %d bytes, %.1000v", len(r.err), r)
	}
	if back := n.ctlRoot(t, "node", "resume"); back.code != 0 {
		t.Fatal(back)
	}

	// Root runs nothing that others may change.
	for what, undo := range map[string]func() error{
		"may be written by everybody, and root runs it: chmod o-w " + prolog: func() error { return os.Chmod(prolog, 0o757) },
		"belongs to uid 7001, not to root, and root runs it: chown root":     func() error { return os.Chown(prolog, 7001, 0) },
		"cannot run it: it is no executable file":                            func() error { return os.Chmod(prolog, 0o644) },
		"cannot run it: no such file or directory":                           func() error { return os.Remove(prolog) },
	} {
		n.script(t, "prolog.sh", marks, "echo ran")
		must(t, os.Chown(prolog, 0, 0))
		must(t, os.Chmod(prolog, 0o755))
		must(t, undo())
		if r := n.ctl(t, "run", "true"); r.code != 182 || !strings.Contains(r.err, what) {
			t.Errorf("want %q, got %v", what, r)
		}
		if back := n.ctlRoot(t, "node", "resume"); back.code != 0 {
			t.Fatal(back)
		}
	}

	must(t, os.WriteFile(prolog, nil, 0o755)) // it may be gone
	must(t, os.Chown(prolog, 0, 0))
	must(t, os.Chmod(prolog, 0o755))

	// One that hangs is ended by its bound; what a batch job ends with says why.
	n.restartWith(t, "Prolog=prolog.sh\nEpilog=epilog.sh\nPrologEpilogTimeout=2\n")
	n.script(t, "prolog.sh", marks, "sleep 1000")
	n.userFile(t, "job.sh", "#!/bin/sh\ntouch ran\n", 0o755)
	r = n.ctl(t, "batch", "-W", "job.sh")
	if r.code == 0 {
		t.Errorf("a batch job without its prolog: %v", r)
	}
	if last := n.lastEnded(t); last.State != "FAILED" || !strings.Contains(last.Reason, "did not end within 2s (PrologEpilogTimeout)") {
		t.Errorf("%+v", last)
	}
	if _, err := os.Stat(n.wd + "/ran"); err == nil {
		t.Error("the script has run")
	}
	n.idle(t)
	if back := n.ctlRoot(t, "node", "resume"); back.code != 0 {
		t.Fatal(back)
	}
}

// TestRootPrologLeavesDaemon: what the prolog leaves running lives as long as
// the job, and no longer.
func TestRootPrologLeavesDaemon(t *testing.T) {
	n := startNode(t, site{})
	marks := n.markFile(t)
	pidfile := n.path("pid")
	n.script(t, "prolog.sh", marks, "setsid sleep 86397 & echo $! >"+pidfile)
	n.script(t, "epilog.sh", marks, "kill -0 $(cat "+pidfile+") && echo 'it lives' >>"+marks)
	n.restartWith(t, "Prolog=prolog.sh\nEpilog=epilog.sh\n")
	if r := n.ctl(t, "run", "sh", "-c", "kill -0 $(cat "+pidfile+") || ps -o comm= -p $(cat "+pidfile+")"); r.code != 0 || strings.TrimSpace(r.out) != "sleep" {
		t.Errorf("the daemon during the step: %v", r)
	}
	n.idle(t)
	contains(t, "marks", readFile(t, marks), "it lives\n")
	n.logs(t, "prolog or epilog have left processes running", `\"sleep\"`)
	n.checkClean(t)
}

// TestRootEpilogOverRestart: an epilog that noded's end has interrupted is run
// again, alone. A noded that gets SIGTERM ends what is left of it.
func TestRootEpilogOverRestart(t *testing.T) {
	waits(t)
	t.Run("SIGKILL", func(t *testing.T) {
		epilogOverRestart(t, func(n *node) { n.kill9(t) })
	})
	t.Run("SIGTERM", func(t *testing.T) {
		epilogOverRestart(t, func(n *node) { n.shutdownInWork(t) })
	})
}

func epilogOverRestart(t *testing.T, end func(*node)) {
	n := startNode(t, site{})
	marks, hold, held := n.markFile(t), n.path("hold"), n.path("held")
	must(t, os.WriteFile(hold, nil, 0o644))
	n.script(t, "epilog.sh", marks, "test ! -e "+hold+" || { : >"+held+"; sleep 86396; }")
	n.restartWith(t, "Epilog=epilog.sh\n")
	if r := n.ctl(t, "run", "sh", "-c", "exit 5"); r.code != 5 {
		t.Errorf("got %v", r)
	}
	awaitFile(t, held) // it has written its marks by then
	must(t, os.Remove(hold))
	end(n)
	n.boot(t)
	n.idle(t)
	text := readFile(t, marks)
	if strings.Count(text, "epilog.sh\n") != 2 || strings.Count(text, "SLURM_JOB_EXIT_CODE=1280\n") != 2 {
		t.Errorf("marks:\n%s", text)
	}
	n.checkClean(t)
}

// TestRootStopInAllocation: a noded that gets SIGTERM leaves a job that is
// held as it is, its prolog's place among it.
func TestRootStopInAllocation(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	marks := n.markFile(t)
	n.script(t, "prolog.sh", marks, "sleep 86393 >/dev/null 2>&1 &")
	n.script(t, "epilog.sh", marks, "")
	n.restartWith(t, "Prolog=prolog.sh\nEpilog=epilog.sh\n")
	p := n.held(t)
	if r := n.ctl(t, "run", "--jobid", "1", "echo", "ran"); r.out != "ran\n" {
		t.Errorf("got %v", r)
	}
	must(t, n.cmd.Process.Signal(syscall.SIGTERM))
	<-n.done
	if code := n.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("noded: exit code %d after SIGTERM, want 0", code)
	}
	n.boot(t)
	if r := n.ctl(t, "run", "--jobid", "1", "echo", "again"); r.out != "again\n" {
		t.Errorf("got %v", r)
	}
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.wait(t)
	n.idle(t)
	text := readFile(t, marks)
	if strings.Count(text, "prolog.sh\n") != 1 || strings.Count(text, "epilog.sh\n") != 1 {
		t.Errorf("marks:\n%s", text)
	}
	n.checkClean(t)
}
