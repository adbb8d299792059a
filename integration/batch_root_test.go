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

// pidsOf finds processes by a part of their command line.
func pidsOf(t testing.TB, cmdline string) []int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	var pids []int
	for _, dir := range dirs {
		b, err := os.ReadFile(dir + "/cmdline")
		if err != nil || !strings.Contains(strings.ReplaceAll(string(b), "\x00", " "), cmdline) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		must(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// pidsOf are the processes whose environment names the node's directory.
func (n *node) pidsOf(t testing.TB, cmdline string) []int {
	t.Helper()
	return slices.DeleteFunc(pidsOf(t, cmdline), func(pid int) bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		return err != nil || !strings.Contains(string(b), n.dir)
	})
}

// TestRootBatchJob: the script is a step of its own, and the job's; the steps in
// it are numbered from 0 and end with it.
func TestRootBatchJob(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	script := n.userFile(t, "job.sh", `#!/bin/sh
#SBATCH -J name -n2
echo "$0 $1|$SLURM_JOB_ID|$SLURM_NTASKS|$SLURM_JOB_NAME|$(pwd)|${SLURM_STEP_ID-none}|$(id -u)|$(readlink /proc/self/fd/0)"
stepctl run -n2 sh -c 'echo $SLURM_JOB_ID.$SLURM_STEP_ID $SLURM_PROCID' | sort
stepctl run -n1 sleep 86393 &
while ! stepctl show --json $SLURM_JOB_ID.1 2>/dev/null | grep -q RUNNING; do sleep 0.05; done
exit 6
`, 0o755)
	r := n.do(t, call{args: []string{"batch", "-W", script, "arg"}, env: append(n.withStepctl(), "SLURM_STEP_ID=7", "SLURM_STEPID=7")})
	if r.code != 6 || r.out != "Submitted batch job 1\n" {
		t.Errorf("got %v", r)
	}
	spool := n.path("spool/scripts/job00001/slurm_script")
	want := fmt.Sprintf("%s arg|1|2|name|%s|none|%d|/dev/null\n1.0 0\n1.0 1\n", spool, n.wd, testUser(t).uid)
	if got := readFile(t, filepath.Join(n.wd, "slurm-1.out")); !strings.HasPrefix(got, want) {
		t.Errorf("output %q, want %q", got, want)
	}
	n.idle(t)
	n.logs(t, "step=1.batch")
	if log := n.wholeLog(t); strings.Contains(log, "step=1.4294967291") {
		t.Errorf("the log has two names for a step: %s", log)
	}
	for _, verb := range []string{"show", "stat", "explain", "timeline", "events", "ps"} {
		for _, id := range []string{"1.batch", "1.4294967291"} {
			if r := n.ctl(t, verb, "--json", id); !strings.Contains(r.out, `"id":"1.batch"`) || !strings.Contains(r.out, `"step_id":4294967291`) {
				t.Errorf("%s --json %s: %v", verb, id, r)
			}
		}
		if r := n.ctl(t, verb, "2.batch"); r.code != 1 || r.err != "stepctl: error: no such step \"2.batch\"\n" {
			t.Errorf("%s 2.batch: %v", verb, r)
		}
	}
	doc := n.show(t, "1.4294967291")
	if doc.StepID != 4294967291 || doc.NTasks != 1 || doc.State != "FAILED" || doc.ExitCode == nil || *doc.ExitCode != 6 || strings.Join(doc.Command, " ") != "job.sh arg" {
		t.Errorf("the batch step: %+v", doc)
	}
	if doc := n.show(t, "1.1"); doc.State != "CANCELLED" || doc.Reason != "its job has ended" {
		t.Errorf("the step that the script has left: %+v", doc)
	}
	if _, err := os.Stat(spool); err == nil {
		t.Errorf("%s is left", spool)
	}
	n.checkClean(t)
}

// TestRootBatchOverRestart: no client has to live but the script.
func TestRootBatchOverRestart(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	script := n.userFile(t, "job.sh", "#!/bin/sh\ntouch up\nwhile test ! -e go; do sleep 0.05; done\nstepctl run echo inside\n", 0o755)
	if r := n.do(t, call{args: []string{"batch", script}, env: n.withStepctl()}); r.code != 0 {
		t.Fatal(r)
	}
	eventually(t, callTimeout, "the script", func() error { _, err := os.Stat(filepath.Join(n.wd, "up")); return err })
	st, err := os.Stat(n.path("spool/scripts/job00001/slurm_script"))
	if err != nil || st.Mode() != 0o750 || st.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("the script: %v, %v", st, err)
	}
	n.kill9(t)
	n.boot(t)
	n.userFile(t, "go", "", 0o644)
	n.idle(t)
	if doc := n.show(t, "1.4294967291"); doc.State != "COMPLETED" {
		t.Errorf("the batch step: %+v", doc)
	}
	if got := readFile(t, filepath.Join(n.wd, "slurm-1.out")); got != "inside\n" {
		t.Errorf("output %q", got)
	}
	// A cancel by the job's number ends it.
	must(t, os.Remove(filepath.Join(n.wd, "go")))
	if r := n.ctl(t, "batch", script); r.code != 0 {
		t.Fatal(r)
	}
	n.running(t)
	if r := n.do(t, call{args: []string{"cancel", "2"}, uid: bob.uid}); r.code != 1 {
		t.Errorf("another's job was cancelled: %v", r)
	}
	if r := n.ctl(t, "cancel", "2"); r.code != 0 {
		t.Error(r)
	}
	n.idle(t)
	if doc := n.show(t, "2.4294967291"); doc.State != "CANCELLED" {
		t.Errorf("the batch step: %+v", doc)
	}
	n.checkClean(t)
}

// TestRootBatchScript: a job's script is for its user to read and execute, and for no user to change;
// nothing else in the spool is for users.
func TestRootBatchScript(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	script := n.userFile(t, "job.sh", "#!/bin/sh\ntouch up\nsleep 86392\n", 0o755)
	if r := n.ctl(t, "batch", script); r.code != 0 {
		t.Fatal(r)
	}
	eventually(t, callTimeout, "the script", func() error { _, err := os.Stat(filepath.Join(n.wd, "up")); return err })
	dir := n.path("spool/scripts")
	own := dir + "/job00001/slurm_script"
	for _, c := range []struct {
		who  uint32
		line string
		code int
	}{
		{0, "test -x " + own, 0},
		{0, "cat " + own + " >/dev/null", 0},
		{0, "echo exit >>" + own, 2},
		{0, "chmod 700 " + own, 1},
		{bob.uid, "cat " + own, 1},
		{0, "ls " + dir, 2},
		{0, "rm -f " + own, 1},
		{0, "touch " + own + ".other", 1},
		{0, "touch " + dir + "/2", 1},
		{0, "cat " + n.path("spool/durable.journal"), 1},
		{0, "ls " + n.path("spool"), 2},
		{0, "ls " + n.path("spool/events"), 2},
	} {
		r := n.do(t, call{program: "/bin/sh", args: []string{"-c", c.line}, uid: c.who})
		if r.code != c.code {
			t.Errorf("%q as uid %d: %v", c.line, c.who, r)
		}
	}
	if r := n.ctl(t, "cancel", "1"); r.code != 0 {
		t.Error(r)
	}
	eventually(t, callTimeout, "the script's removal", func() error {
		if _, err := os.Stat(dir + "/1"); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}

// TestRootBatchLines: a wrong line of the script is named, and so is an option that has left.
func TestRootBatchLines(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	for line, want := range map[string]string{
		"--comment-is-none-of-ours": "unknown option --comment-is-none-of-ours",
		"--array=1-5:2%1":           "--array is not supported: use Slurm: docs/slurm.md",
	} {
		n.userFile(t, "job.sh", "#!/bin/sh\n#SBATCH -J name\n#SBATCH "+line+"\n", 0o755)
		if r := n.ctl(t, "batch", "job.sh"); r.code != 1 || !strings.HasPrefix(r.err, "stepctl: error: job.sh:3: #SBATCH: "+want) {
			t.Errorf("%s: %v", line, r)
		}
	}
	refused(t, "on the command line", n.ctl(t, "batch", "-d", "afterok:77", "--wrap", "true"), "--dependency is not supported: use Slurm: docs/slurm.md")
	if r := n.ctl(t, "batch", "-W", "--requeue", "-o", "/dev/null", "--wrap", "exit 4"); r.code != 4 {
		t.Errorf("--requeue: %v", r)
	}
}

// TestRootSlurmOptions: options of srun, sbatch and salloc that few use have their effect, or are named
// as having none.
func TestRootSlurmOptions(t *testing.T) {
	waits(t)
	n := startNode(t, site{Node: "CPUs=8 Gres=gpu:4", Slurm: "GresTypes=gpu\n", Gres: "Name=gpu File=/dev/zero\nName=gpu File=/dev/full\nName=gpu File=/dev/random\nName=gpu File=/dev/urandom\n"})
	n.userFile(t, "gpus.sh", "#!/bin/sh\n#SBATCH --gpus=2 --ntasks-per-gpu=2 --cpus-per-gpu=4\n#SBATCH -q high --cpu-freq=low -o out\n"+
		"echo $SLURM_NTASKS $SLURM_JOB_CPUS_PER_NODE $SLURM_GPUS_ON_NODE $A\n", 0o755)
	n.userFile(t, "vars", "A=of the file\x00", 0o644)
	stepctl := n.bin
	for _, c := range []struct {
		script, out string
		code        int
	}{
		{stepctl + " run -n2 --gpus-per-task=2 sh -c 'echo $SLURM_GPUS_ON_NODE'",
			"stepctl: --gpus-per-task binds no task to a GPU: each task sees all GPUs of its step\n4\n4\n", 0},
		{stepctl + " run -n2 --tres-per-task=gres/gpu=1 --gpu-bind=none sh -c 'echo $SLURM_GPUS_ON_NODE'", "2\n2\n", 0},
		{stepctl + " run -Q -n5 --gpus-per-task=1 true", "stepctl: error: the step does not fit: it needs gpu:5, and there are 4 gpu in all\n", 1},
		{stepctl + " batch --parsable -W --export-file=vars gpus.sh >number; cat out",
			"stepctl: without effect, since there is no queue and one node: --qos\nstepctl: without effect, since noded does not do it: --cpu-freq\n" +
				"stepctl: --ntasks-per-gpu binds no task to a GPU: each task sees all GPUs of its step\n4 8 2 of the file\n", 0},
		{stepctl + ` alloc -Q --kill-command=USR1 sh -c 'trap "echo usr1; exit 3" USR1; ` + stepctl + ` cancel $SLURM_JOB_ID; while :; do sleep .1; done'`, "usr1\n", 3},
		{`>wait; ` + stepctl + ` run -X sh -c 'trap "echo int; exit 4" INT; rm wait; while :; do sleep .1; done' & while test -e wait; do sleep .1; done; kill -INT $!; wait $!`,
			"int\nstepctl: error: vm: task 0: Exited with exit code 4\n", 4},
		{stepctl + " run --container=b true", "stepctl: error: --container is not supported: containers of the OCI are made under Slurm alone (docs/slurm.md); let the command start one\n", 1},
		{stepctl + " run --gpu-bind=closest true", "stepctl: error: --gpu-bind is not supported: each task sees all devices of its step; none is accepted, and under Slurm all are done (docs/slurm.md)\n", 1},
	} {
		r := n.do(t, call{program: "/bin/sh", args: []string{"-c", "exec 2>&1\n" + c.script}})
		if r.code != c.code || r.out != c.out {
			t.Errorf("%s: exit code %d, %q; want %d, %q", c.script, r.code, r.out, c.code, c.out)
		}
	}
}

// TestRootArrayTask: a controller's words on a job array reach the job's plugins and
// scripts, to its steps, and to the names of its files.
func TestRootArrayTask(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so, marks := n.path("array.so"), n.markFile(t)
	compile(t, "-fPIC", "-shared", "-I", ownHeaders, "testdata/plugins/array.c", "-o", so)
	n.stack(t, "required "+so+" "+marks)
	client := n.web(t)
	script := `#!/bin/sh
echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_TASK_MIN-$SLURM_ARRAY_TASK_MAX:$SLURM_ARRAY_TASK_STEP $SLURM_JOB_ID $SLURM_RESTART_COUNT
stepctl run -o step.%A.%a echo of task $SLURM_ARRAY_TASK_ID
exit $SLURM_ARRAY_TASK_ID
`
	for _, task := range []int{1, 3} {
		doc, err := runRaw(t, client, request(t, []string{"job.sh"}, n.withStepctl(), func(doc map[string]any) {
			doc["script"], doc["cwd"], doc["id"] = []byte(script), n.wd, map[string]int{"job": 20 + task}
			doc["stdout"] = map[string]any{"kind": "file", "pattern": "slurm-%A_%a.out"}
			doc["array_task"] = map[string]int{"job": 21, "task": task, "count": 3, "min": 1, "max": 5, "step": 2}
			doc["restart_count"] = 1
		}))
		if err != nil || doc.ExitCode == nil || *doc.ExitCode != task {
			t.Fatalf("task %d: %+v, %v", task, doc, err)
		}
		if got, want := readFile(t, filepath.Join(n.wd, fmt.Sprintf("slurm-21_%d.out", task))), fmt.Sprintf("21 %d 3 1-5:2 %d 1\n", task, 20+task); got != want {
			t.Errorf("task %d: %q, want %q", task, got, want)
		}
		if got, want := readFile(t, filepath.Join(n.wd, fmt.Sprintf("step.21.%d", task))), fmt.Sprintf("of task %d\n", task); got != want {
			t.Errorf("a step of task %d: %q", task, got)
		}
		if r := n.ctl(t, "output", fmt.Sprintf("%d.0", 20+task)); r.code != 0 || r.out != fmt.Sprintf("of task %d\n", task) {
			t.Errorf("output of a step: %v", r)
		}
	}
	n.idle(t)
	var seen []string
	for _, task := range []int{1, 3} {
		for _, step := range []uint32{4294967291, 0} {
			seen = append(seen, fmt.Sprintf("%d %d: array 21, task %d\n", 20+task, step, task))
		}
	}
	if got := readFile(t, marks); got != strings.Join(seen, "") {
		t.Errorf("a plugin sees %q, want %q", got, seen)
	}
	n.checkClean(t)
}

// TestRootImmediate: a command that may wait says what for, and gets its turn; one whose
// time is over says what blocks it, and one that is killed is forgotten.
func TestRootImmediate(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	gate := filepath.Join(n.wd, "go")
	holder := n.start(t, call{args: []string{"run", "-n64", "sh", "-c", "while test ! -e " + gate + "; do sleep 0.02; done"}})
	n.running(t)
	blocked := "the step does not fit: it needs 1 CPU on this node: of its 64 CPUs 0 are free"
	for verb, args := range map[string][]string{"run": {"true"}, "alloc": {"true"}, "batch": {"-o", "/dev/null", "--wrap", "true"}} {
		refused(t, verb, n.ctl(t, append([]string{verb}, args...)...), blocked)
		r := n.ctl(t, append([]string{verb, "--immediate"}, args...)...)
		refused(t, verb+" --immediate", r, "stepctl: waiting for room: it needs 1 CPU", "stepctl: error: "+blocked, "job 1 has no time limit")
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(t, err)
	defer null.Close()
	// waiting starts a command, and returns when it says that it waits.
	waiting := func(args ...string) *process {
		t.Helper()
		said, err := os.CreateTemp(t.TempDir(), "stderr")
		must(t, err)
		defer said.Close()
		p := n.start(t, call{args: args, files: []*os.File{null, null, said}})
		eventually(t, callTimeout, "its place in the line", func() error {
			if text := readFile(t, said.Name()); !strings.Contains(text, "stepctl: waiting for room: ") {
				return fmt.Errorf("%q says %q", args, text)
			}
			return nil
		})
		return p
	}
	killed := waiting("run", "--immediate=inf", "true")
	must(t, killed.cmd.Process.Kill())
	killed.wait(t)
	var all []*process
	for _, args := range [][]string{
		{"batch", "-W", "--immediate=inf", "-o", "out", "--wrap", "echo batch"}, {"alloc", "--immediate=60", "sh", "-c", "exit 5"}, {"run", "--immediate=inf", "sh", "-c", "exit 6"},
	} {
		all = append(all, waiting(args...))
	}
	n.userFile(t, "go", "", 0o644)
	if r := holder.wait(t); r.code != 0 {
		t.Errorf("the one before them: %v", r)
	}
	for i, want := range []int{0, 5, 6} {
		if r := all[i].wait(t); r.code != want {
			t.Errorf("want %d: %v", want, r)
		}
	}
	if got := readFile(t, filepath.Join(n.wd, "out")); got != "batch\n" {
		t.Errorf("the script has said %q", got)
	}
	n.idle(t)
	n.checkClean(t)
}
