package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// pidsOf are those of them whose environment names the node's directory.
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
	spool := n.path("spool/scripts/1")
	want := fmt.Sprintf("%s arg|1|2|name|%s|none|%d|/dev/null\n1.0 0\n1.0 1\n", spool, n.wd, testUser(t).uid)
	if got := readFile(t, filepath.Join(n.wd, "slurm-1.out")); !strings.HasPrefix(got, want) {
		t.Errorf("output %q, want %q", got, want)
	}
	n.idle(t)
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

// TestRootBatchOverRestart: nobody has to be there but the script.
func TestRootBatchOverRestart(t *testing.T) {
	n := startNode(t, site{})
	script := n.userFile(t, "job.sh", "#!/bin/sh\ntouch up\nwhile test ! -e go; do sleep 0.05; done\nstepctl run echo inside\n", 0o755)
	if r := n.do(t, call{args: []string{"batch", script}, env: n.withStepctl()}); r.code != 0 {
		t.Fatal(r)
	}
	eventually(t, callTimeout, "the script", func() error { _, err := os.Stat(filepath.Join(n.wd, "up")); return err })
	st, err := os.Stat(n.path("spool/scripts/1"))
	if err != nil || st.Mode() != 0o700 {
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

// TestRootBatchScriptIsTheUsers: nothing in the spool is anybody else's.
func TestRootBatchScriptIsTheUsers(t *testing.T) {
	n := startNode(t, site{})
	script := n.userFile(t, "job.sh", "#!/bin/sh\ntouch up\nsleep 86392\n", 0o755)
	if r := n.ctl(t, "batch", script); r.code != 0 {
		t.Fatal(r)
	}
	eventually(t, callTimeout, "the script", func() error { _, err := os.Stat(filepath.Join(n.wd, "up")); return err })
	dir := n.path("spool/scripts")
	for _, c := range []struct {
		who  uint32
		line string
		code int
	}{
		{0, "test -x " + dir + "/1", 0},
		{bob.uid, "cat " + dir + "/1", 1},
		{0, "ls " + dir, 2},
		{0, "rm -f " + dir + "/1", 1},
		{0, "touch " + dir + "/2", 1},
		{0, "cat " + n.path("spool/state.db"), 1},
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

// TestRootBatchArray: a job for each task, with its own output and variables; the highest
// code is -W's.
func TestRootBatchArray(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so, marks := n.path("array.so"), n.markFile(t)
	compile(t, "-fPIC", "-shared", "-I", ownHeaders, "testdata/plugins/array.c", "-o", so)
	n.stack(t, "required "+so+" "+marks)
	n.userFile(t, "job.sh", `#!/bin/sh
#SBATCH -J name --array=1-5:2%1
#SBATCH --comment-is-none-of-ours
`, 0o755)
	r := n.ctl(t, "batch", "job.sh")
	if r.code != 1 || !strings.HasPrefix(r.err, "stepctl: error: job.sh:3: #SBATCH: unknown flag: --comment-is-none-of-ours") {
		t.Errorf("a wrong line: %v", r)
	}
	n.userFile(t, "job.sh", `#!/bin/sh
#SBATCH --array=1-5:2%1
echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_TASK_MIN-$SLURM_ARRAY_TASK_MAX:$SLURM_ARRAY_TASK_STEP $SLURM_JOB_ID
stepctl run -o step.%A.%a echo of task $SLURM_ARRAY_TASK_ID
exit $SLURM_ARRAY_TASK_ID
`, 0o755)
	r = n.do(t, call{args: []string{"batch", "-W", "job.sh"}, env: n.withStepctl()})
	if r.code != 5 || r.out != "Submitted batch job 1\n" {
		t.Errorf("got %v", r)
	}
	for i, task := range []int{1, 3, 5} {
		if got, want := readFile(t, filepath.Join(n.wd, fmt.Sprintf("slurm-1_%d.out", task))), fmt.Sprintf("1 %d 3 1-5:2 %d\n", task, i+1); got != want {
			t.Errorf("task %d: %q, want %q", task, got, want)
		}
		if got, want := readFile(t, filepath.Join(n.wd, fmt.Sprintf("step.1.%d", task))), fmt.Sprintf("of task %d\n", task); got != want {
			t.Errorf("a step of task %d: %q", task, got)
		}
	}
	n.idle(t)
	var seen []string
	for i, task := range []int{1, 3, 5} {
		for _, step := range []uint32{4294967291, 0} {
			seen = append(seen, fmt.Sprintf("%d %d: array 1, task %d\n", i+1, step, task))
		}
	}
	if got := readFile(t, marks); got != strings.Join(seen, "") {
		t.Errorf("a plugin sees %q, want %q", got, seen)
	}
	contains(t, "ps", n.ctl(t, "ps", "--all").out, "1_1.batch ", "1_3.0 ", "1_5.batch ")
	contains(t, "show", n.ctl(t, "show", "1_3.batch").out, "step 1_3.batch  FAILED")
	if r := n.ctl(t, "output", "1_3.batch"); r.code != 0 || r.out != "1 3 3 1-5:2 2\n" {
		t.Errorf("output: %v", r)
	}
	if r := n.ctl(t, "output", "1_3.0"); r.code != 0 || r.out != "of task 3\n" {
		t.Errorf("output of a step: %v", r)
	}
	contains(t, "events", n.ctl(t, "events", "1_3.0").out, `"job_id":2,`)
	refused(t, "attach", n.ctl(t, "attach", "1_3.0"), "step 2.0 has ended")
	for _, spec := range []string{"0-1001", "0-4294967295", "x", "1-2%0"} {
		if r := n.ctl(t, "batch", "--wrap=true", "--array="+spec); r.code != 1 || !strings.Contains(r.err, "rray") {
			t.Errorf("--array=%s: %v", spec, r)
		}
	}

	// A job that has no place waits, and says so; it is run again under its number.
	n.userFile(t, "job.sh", "#!/bin/sh\necho run ${SLURM_RESTART_COUNT:-0}\ntouch up\nwhile test ! -e go; do sleep 0.02; done\n", 0o755)
	if r := n.ctl(t, "batch", "--parsable", "-n64", "--open-mode=append", "-o", "out", "job.sh"); r.out != "4\n" {
		t.Fatal(r)
	}
	up := func() error { return os.Remove(filepath.Join(n.wd, "up")) }
	eventually(t, callTimeout, "the script", up)
	waiting := n.start(t, call{args: []string{"batch", "-W", "--wrap=exit 3", "-o", "/dev/null"}})
	eventually(t, callTimeout, "the queue", func() error {
		if r := n.ctl(t, "show", "5"); !strings.Contains(r.out, "PENDING") || !strings.Contains(r.out, "Resources: ") {
			return errors.New(r.out)
		}
		return nil
	})
	if r := n.do(t, call{args: []string{"requeue", "4"}, uid: bob.uid}); r.code != 1 || !strings.Contains(r.err, "permission denied") {
		t.Errorf("another's job was requeued: %v", r)
	}
	if r := n.ctl(t, "requeue", "4"); r.code != 0 {
		t.Error(r)
	}
	eventually(t, callTimeout, "the second run", up)
	if r := n.ctl(t, "requeue", "--hold", "4"); r.code != 0 {
		t.Error(r)
	}
	eventually(t, callTimeout, "a job that is held", func() error {
		if doc := n.show(t, "4.batch"); doc.State != "PENDING" || !strings.HasPrefix(doc.Reason, "JobHeldUser") {
			return fmt.Errorf("%s: %s", doc.State, doc.Reason)
		}
		return nil
	})
	if r := n.ctl(t, "release", "4"); r.code != 0 {
		t.Error(r)
	}
	eventually(t, callTimeout, "the third run", up)
	n.userFile(t, "go", "", 0o644)
	if r := waiting.wait(t); r.code != 3 {
		t.Errorf("the job behind it: %v", r)
	}
	n.idle(t)
	if got := readFile(t, filepath.Join(n.wd, "out")); !regexp.MustCompile(`^run 0\n.*STEP 4\.4294967291 ON vm CANCELLED AT \S+ \*\*\*\nrun 1\n.* CANCELLED AT \S+ \*\*\*\nrun 2\n$`).MatchString(got) {
		t.Errorf("output %q", got)
	}
	if doc := n.show(t, "4.batch"); doc.State != "COMPLETED" {
		t.Errorf("the batch step: %+v", doc)
	}
	n.checkClean(t)
}

// TestRootBatchDepends: jobs that are held, and those that wait for others.
func TestRootBatchDepends(t *testing.T) {
	n := startNode(t, site{})
	submit := func(args ...string) string {
		t.Helper()
		r := n.ctl(t, append([]string{"batch", "--parsable", "-o", "out"}, args...)...)
		if r.code != 0 {
			t.Fatal(r)
		}
		return strings.TrimSpace(r.out)
	}
	reason := func(job, words string) {
		t.Helper()
		eventually(t, callTimeout, words, func() error {
			if doc := n.show(t, job+".batch"); doc.State != "PENDING" || !strings.HasPrefix(doc.Reason, words) {
				return fmt.Errorf("job %s is %s: %s", job, doc.State, doc.Reason)
			}
			return nil
		})
	}
	held := submit("--hold", "--wrap", "true")
	reason(held, "JobHeldUser")
	next := submit("-d", "afterok:"+held, "--wrap", "echo $SLURM_JOB_DEPENDENCY")
	never := submit("--dependency=afternotok:"+held, "--wrap", "true")
	reason(next, "Dependency: afterok:"+held)
	refused(t, "another user's release", n.do(t, call{args: []string{"release", held}, uid: bob.uid}), "permission denied")
	refused(t, "a job that there is not", n.ctl(t, "batch", "-d", "afterok:77", "--wrap", "true"), "no such batch job")
	refused(t, "no dependency", n.ctl(t, "batch", "-d", "when:1", "--wrap", "true"), "--dependency=when:1: ", "no kind of dependency")
	if r := n.ctl(t, "release", held); r.code != 0 {
		t.Fatal(r)
	}
	if r := n.ctl(t, "batch", "-W", "-d", "afterany:"+next, "-o", "/dev/null", "--wrap", "exit 4"); r.code != 4 {
		t.Errorf("the last: %v", r)
	}
	if text := readFile(t, n.wd+"/out"); text != "afterok:"+held+"\n" {
		t.Errorf("the script was told %q", text)
	}
	reason(never, "DependencyNeverSatisfied: afternotok:"+held+": job "+held+": COMPLETED")
	refused(t, "a hold of one that has ended", n.ctl(t, "hold", held), "no batch job that waits")
	must(t, n.ctlErrorRoot(t, "cancel", never))
	n.idle(t)
	n.checkClean(t)
}
