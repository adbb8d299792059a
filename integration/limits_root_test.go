package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// dryRun is the document of run --dry-run.
type dryRun struct {
	JobID    uint32  `json:"job_id"`
	StepID   uint32  `json:"step_id"`
	MemoryMB *uint64 `json:"memory_mb"`
	CPUs     string  `json:"cpus"`
	Binding  []string
	Notes    []string
	Writes   []struct {
		Level, Path, Value string
		Deny               []struct{ Type string }
	}
}

func (n *node) dryRun(t testing.TB, args ...string) dryRun {
	t.Helper()
	r := n.ctl(t, append([]string{"run", "--dry-run", "--json"}, args...)...)
	var doc struct{ Plan dryRun }
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.code != 0 {
		t.Fatalf("run --dry-run %q: %v, %v", args, err, r)
	}
	return doc.Plan
}

// What --dry-run prints is what is written, value by value; and it starts
// nothing and spends no number.
func TestRootDryRun(t *testing.T) {
	n := startNode(t, site{
		Real:   true,
		Cgroup: "ConstrainCores=yes\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\nAllowedRAMSpace=150\nAllowedSwapSpace=50\n",
	})
	args := []string{"--mem=64M", "-J", "x", "sleep", "1000"}
	plan := n.dryRun(t, args...)
	if len(n.ps(t, "--all")) != 0 {
		t.Error("a dry run has made a step")
	}
	p := n.start(t, call{args: append([]string{"run"}, args...)})
	doc := n.running(t)
	if doc.JobID != plan.JobID || doc.StepID != plan.StepID {
		t.Errorf("the step is %s, and was to be %d.%d", doc.id(), plan.JobID, plan.StepID)
	}
	checked := map[string]int{}
	for _, w := range plan.Writes {
		path := strings.ReplaceAll(w.Path, "%t", "0")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("%s: %v", w.Level, err)
			continue
		}
		got, want := strings.TrimSpace(string(b)), w.Value
		if w.Value == "%p" {
			if want = fmt.Sprint(*doc.Tasks[0].PID); !strings.Contains("\n"+got+"\n", "\n"+want+"\n") {
				t.Errorf("%s has %q, want process %s", path, got, want)
			}
		} else if got != want {
			t.Errorf("%s has %q, want %q", path, got, want)
		}
		checked[w.Level]++
	}
	if checked["job"] < 3 || checked["step"] < 3 || checked["task"] < 1 {
		t.Errorf("checked %v; the plan is %+v", checked, plan.Writes)
	}
	n.ctl(t, "cancel", doc.id())
	p.wait(t)
	text := n.ctl(t, "run", "--dry-run", "--mem=64M", "hostname")
	contains(t, "the text", text.out, "nothing is started", `"hostname"`, "memory     64 MB", "limit      step 100663296 bytes", "binding    task 0: CPUs ")
}

// The limit of --mem holds, on top of what noded and stepd use themselves.
func TestRootMemoryLimit(t *testing.T) {
	n := startNode(t, site{Slurm: "SelectTypeParameters=CR_Core_Memory\nDefMemPerCPU=100\n", Cgroup: "ConstrainRAMSpace=yes\nConstrainSwapSpace=yes\n"})
	// tail keeps a line whole, however long it is.
	hog := func(mb int) string { return fmt.Sprintf("head -c %dm /dev/zero | tail | wc -c", mb) }
	if r := n.ctl(t, "run", "--mem=128M", "sh", "-c", hog(24)); r.code != 0 || r.out != fmt.Sprintln(24<<20) {
		t.Errorf("24 of 128 MB: %v", r)
	}
	r := n.ctl(t, "run", "--mem=64M", "sh", "-c", hog(400)+"; exit 3")
	contains(t, "400 of 64 MB", r.err, "Out Of Memory")
	if doc := n.oom(t, n.last(t).id()); doc.State != "OUT_OF_MEMORY" {
		t.Errorf("state %s (%s)", doc.State, doc.Reason)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--mem=64M"}, "SLURM_MEM_PER_NODE=64"},
		{[]string{"--mem-per-cpu=20M", "-c2"}, "SLURM_MEM_PER_CPU=20"},
		{nil, "SLURM_MEM_PER_NODE=100"}, // DefMemPerCPU
	} {
		r := n.do(t, call{args: append(append([]string{"run"}, c.args...), "env"), env: []string{"SLURM_MEM_PER_NODE_=x"}})
		if got := memoryLines(r.out); got != c.want {
			t.Errorf("%v: the task has %q, want %q", c.args, got, c.want)
		}
	}
	if plan := n.dryRun(t, "--mem-per-cpu=20M", "-c2", "true"); plan.MemoryMB == nil || *plan.MemoryMB != 40 {
		t.Errorf("--mem-per-cpu=20M -c2: %+v", plan)
	}
}

func memoryLines(env string) string {
	var found []string
	for line := range strings.Lines(env) {
		if strings.HasPrefix(line, "SLURM_MEM_PER_NODE=") || strings.HasPrefix(line, "SLURM_MEM_PER_CPU=") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return strings.Join(found, " ")
}

// Memory is given out: what one job has another cannot have.
func TestRootMemoryIsGivenOut(t *testing.T) {
	waits(t)
	n := startNode(t, site{Node: "CPUs=4 RealMemory=1000", Slurm: "SelectTypeParameters=CR_Core_Memory\n"})
	p := n.start(t, call{args: []string{"run", "--mem=700M", "sleep", "1000"}})
	doc := n.running(t)
	r := n.ctl(t, "run", "--mem=400M", "true")
	contains(t, "a second job", r.err, "needs 400 MB of memory on this node: of its 1000 MB 300 MB are free")
	if r.code != 1 {
		t.Errorf("exit code %d", r.code)
	}
	if r := n.ctl(t, "run", "--mem=300M", "true"); r.code != 0 {
		t.Errorf("what is free: %v", r)
	}
	eventually(t, callTimeout, "the end of the second job", func() error {
		if out := n.ctl(t, "node", "status").out; !strings.Contains(out, "given      700 MB") {
			return errors.New(out)
		}
		return nil
	})
	// A restarted noded knows who has what.
	n.kill9(t)
	n.boot(t)
	contains(t, "after a restart", n.ctl(t, "run", "--mem=400M", "true").err, "300 MB are free")
	n.ctl(t, "cancel", doc.id())
	p.wait(t)
	n.idle(t)
	if r := n.ctl(t, "run", "--mem=1000M", "true"); r.code != 0 {
		t.Errorf("after its end: %v", r)
	}
	n.idle(t)
	// In an allocation: a step has the job's memory, or less.
	in := n.ctl(t, "alloc", "--mem=100M", "sh", "-c", n.bin+" run env; "+n.bin+" run --mem=50M env; "+n.bin+" run --mem=101M true")
	contains(t, "in an allocation", in.out, "SLURM_MEM_PER_NODE=100\n", "SLURM_MEM_PER_NODE=50\n")
	contains(t, "in an allocation", in.err, "needs 101 MB of memory in job", "which has 100 MB")
}

// What is asked for and cannot be had is refused with the reason, and spends no
// number.
func TestRootLimitsRefused(t *testing.T) {
	n := startNode(t, site{
		Node:   "CPUs=2 RealMemory=1000",
		Slurm:  "SelectTypeParameters=CR_Core_Memory\nMaxMemPerCPU=600\n",
		Cgroup: "ConstrainRAMSpace=yes\n",
	})
	for _, c := range []struct{ arg, want string }{
		{"--mem=64G", "needs 64 GB of memory on this node, which has 1000 MB"},
		{"--mem=700M", "MaxMemPerCPU"},
		{"--mem=much", `--mem: "much" is no size`},
		{"--mem=-1", "is no size"},
		{"--mem-per-cpu=2000", "which has 1000 MB"},
		{"--gres=gpu:1", "there is no such generic resource"},
		{"--gres=gpu:", "--gres: "},
		{"--gres=:1", "--gres: "},
		{"--oom-kill-step=maybe", "want 0 or 1"},
	} {
		r := n.ctl(t, "run", c.arg, "true")
		if r.code != 1 || !strings.Contains(r.err, c.want) || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%s: %v, want %q", c.arg, r, c.want)
		}
	}
	if r := n.ctl(t, "run", "--mem=1M", "--mem-per-cpu=1M", "true"); r.code != 1 || !strings.Contains(r.err, "exclude each other") {
		t.Errorf("both: %v", r)
	}
	if steps := n.ps(t, "--all"); len(steps) != 0 {
		t.Errorf("refused requests have made steps: %v", steps)
	}
	// Less than a step needs is raised, as in Slurm, and said.
	plan := n.dryRun(t, "--mem=1M", "true")
	if len(plan.Notes) != 1 || !strings.Contains(plan.Notes[0], "raised from 1 MB to 30 MB (MinRAMSpace)") {
		t.Errorf("notes %q", plan.Notes)
	}
	if r := n.ctl(t, "run", "--mem=1M", "true"); r.code != 0 {
		t.Errorf("--mem=1M: %v", r)
	}
}

// ConstrainCores: a task has its step's CPUs, and cannot leave them.
func TestRootConstrainCores(t *testing.T) {
	n := startNode(t, site{Real: true, Cgroup: "ConstrainCores=yes\n"})
	r := n.ctl(t, "run", "-n1", "sh", "-c", "grep Cpus_allowed_list /proc/self/status; taskset -pc 0-63 $$ >/dev/null; grep Cpus_allowed_list /proc/self/status")
	if want := "Cpus_allowed_list:\t0\nCpus_allowed_list:\t0\n"; r.out != want || r.code != 0 {
		t.Errorf("%v, want %q", r, want)
	}
	if runtime.NumCPU() < 2 {
		return
	}
	// Two jobs do not share CPUs, nor do two steps of one job.
	script := `for i in 1 2; do ` + n.bin + ` run -n1 sh -c 'grep Cpus_allowed_list /proc/self/status; touch up.$SLURM_STEP_ID; while [ ! -e go ]; do sleep 0.05; done' & done
while [ ! -e up.0 ] || [ ! -e up.1 ]; do sleep 0.05; done; touch go; wait`
	r = n.ctl(t, "alloc", "-Q", "-n2", "sh", "-c", script)
	contains(t, "two steps", r.out, "Cpus_allowed_list:\t0\n", "Cpus_allowed_list:\t1\n")
}

// devices makes device nodes that anybody may open: null, zero and a block
// device of the loop driver that nothing is bound to.
func (n *node) devices(t testing.TB) (dir string) {
	t.Helper()
	dir = n.path("dev")
	must(t, os.Mkdir(dir, 0o755))
	for _, d := range []struct {
		name         string
		mode         uint32
		major, minor uint32
	}{{"card0", unix.S_IFCHR, 1, 3}, {"card1", unix.S_IFCHR, 1, 5}, {"loop", unix.S_IFBLK, 7, 177}, {"other", unix.S_IFCHR, 1, 7}} {
		path := filepath.Join(dir, d.name)
		must(t, unix.Mknod(path, d.mode|0o666, int(unix.Mkdev(d.major, d.minor))))
		must(t, os.Chmod(path, 0o666))
	}
	return dir
}

// tryDevices reports which of the nodes a task may open: the kernel says EPERM for
// one that is refused, and something else, or nothing, for the others.
const tryDevices = `for d in card0 card1 loop other; do
	if (exec 3<"$DEV/$d") 2>&1 | grep -q "not permitted"; then echo "$d refused"; else echo "$d allowed"; fi
done; echo "cuda ${CUDA_VISIBLE_DEVICES-unset} rocr ${ROCR_VISIBLE_DEVICES-unset} step ${SLURM_STEP_GPUS-unset} job ${SLURM_JOB_GPUS-unset} n ${SLURM_GPUS_ON_NODE-unset}"
`

// ConstrainDevices on the hierarchy that this host has, and with device
// programs on its v2 tree.
func TestRootDevices(t *testing.T) {
	waits(t)
	_, pure := os.Stat("/sys/fs/cgroup/devices/devices.list")
	for _, c := range []struct{ name, cgroup string }{{"as it is", ""}, {"programs", "CgroupPlugin=cgroup/v2\n"}} {
		if pure != nil && c.cgroup != "" {
			continue // programs are what it has, and were tested
		}
		t.Run(c.name, func(t *testing.T) { testDevices(t, c.cgroup) })
	}
}

func testDevices(t *testing.T, cgroup string) {
	n := startNode(t, site{Slurm: "JobAcctGatherType=jobacct_gather/none\n"})
	dev := n.devices(t)
	n.kill9(t)
	n.write(t, "slurm.conf", "ClusterName=golden\nGresTypes=gpu,disk\nNodeName=vm CPUs=8 Gres=gpu:2,disk:1\nPartitionName=p Nodes=ALL Default=YES\n")
	n.write(t, "gres.conf", fmt.Sprintf("Name=gpu File=%s/card[0-1] Flags=nvidia_gpu_env\nName=disk File=%s/loop\n", dev, dev))
	n.write(t, "cgroup.conf", "ConstrainDevices=yes\n"+cgroup)
	n.boot(t)
	programs := 0
	for _, w := range n.dryRun(t, "--gres=gpu:1", "true").Writes {
		programs += len(w.Deny)
	}
	if _, err := os.Stat("/sys/fs/cgroup/devices/devices.list"); (programs > 0) != (cgroup != "" || err != nil) {
		t.Errorf("%d devices are refused by programs", programs)
	}
	script := n.userFile(t, "try", "#!/bin/sh\n"+tryDevices, 0o755)
	env := []string{"DEV=" + dev, "CUDA_VISIBLE_DEVICES=7"}
	try := func(args ...string) string {
		r := n.do(t, call{args: append(append([]string{"run"}, args...), script), env: env})
		if r.code != 0 {
			t.Errorf("run %q: %v", args, r)
		}
		n.ended(t, n.last(t).id()) // its devices are free again
		return r.out
	}
	const none = "card0 refused\ncard1 refused\nloop refused\nother allowed\ncuda unset rocr unset step unset job unset n unset\n"
	one := func(card, step string) string {
		s := "card0 refused\ncard1 refused\nloop refused\nother allowed\ncuda 0 rocr unset step " + step + " job unset n 1\n"
		return strings.Replace(s, card+" refused", card+" allowed", 1)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, none},
		{[]string{"--gres=none"}, none},
		{[]string{"--gres=gpu:1"}, one("card0", "0")},
		{[]string{"--gres=gpu:2"}, "card0 allowed\ncard1 allowed\nloop refused\nother allowed\ncuda 0,1 rocr unset step 0,1 job unset n 2\n"},
		{[]string{"--gres=disk"}, strings.Replace(none, "loop refused", "loop allowed", 1)},
	} {
		if got := try(c.args...); got != c.want {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}

	// Beside a job that has one, the other; then nothing, with who has them.
	p := n.start(t, call{args: []string{"run", "--gres=gpu:1", "sleep", "60"}})
	doc := n.running(t)
	if got := try("--gres=gpu:1"); got != one("card1", "1") {
		t.Errorf("the other one: %q", got)
	}
	n.kill9(t)
	n.boot(t)
	r := n.ctl(t, "run", "--gres=gpu:2", "true")
	contains(t, "both, after a restart", r.err, fmt.Sprintf("it needs gpu:2, and of 2 gpu 1 are free: job %d has gpu:1(IDX:0)", doc.JobID))
	contains(t, "node status", n.ctl(t, "node", "status").out, "gres       gpu: 1 of 2 used (0)", "gres       disk: 0 of 1 used")
	n.ctl(t, "cancel", doc.id())
	p.wait(t)
	n.idle(t)

	// Steps of a job: a part of what the job has, and no more.
	in := n.do(t, call{args: []string{"alloc", "-Q", "--gres=gpu:2", "sh", "-c",
		fmt.Sprintf("%s run --gres=gpu:1 %s; %s run --gres=none %s; %s run --gres=gpu:3 true", n.bin, script, n.bin, script, n.bin)}, env: env})
	if want := one("card0", "0") + none; in.out != want {
		t.Errorf("in an allocation: %q, want %q", in.out, want)
	}
	contains(t, "in an allocation", in.err, "in job", "it needs gpu:3, and there are 2 gpu in all")
	n.idle(t)

	// A device that goes away: the client that is to have it gets an error, and the node
	// is drained. Others run, if an administrator wishes.
	must(t, os.Remove(filepath.Join(dev, "card1")))
	r = n.ctl(t, "run", "--gres=gpu:2", "true")
	contains(t, "a device that is gone", r.err, "gres/gpu 1: cannot find device", "card1")
	contains(t, "without card1", n.ctl(t, "run", "true").err, "node is drained: gres/gpu 1: cannot find device", "card1")
	ok(t, "node resume", n.ctlRoot(t, "node", "resume"))
	if got := try("--gres=gpu:1"); !strings.Contains(got, "card0 allowed") {
		t.Errorf("beside a device that is gone: %q", got)
	}
}

// A limit that cannot be written fails the step with the file's name.
func TestRootLimitsOfAJob(t *testing.T) {
	n := startNode(t, site{Real: true, Cgroup: "ConstrainRAMSpace=yes\n"})
	// Batch: the script has all of the job's memory, its steps what they ask for.
	script := n.userFile(t, "job.sh", "#!/bin/sh\n#SBATCH --mem=80M -o job.out\nenv | grep SLURM_MEM\n"+n.bin+" run --mem=40M env | grep SLURM_MEM\n", 0o755)
	r := n.ctl(t, "batch", "-W", script)
	b, err := os.ReadFile(filepath.Join(n.wd, "job.out"))
	if err != nil || string(b) != "SLURM_MEM_PER_NODE=80\nSLURM_MEM_PER_NODE=40\n" {
		t.Errorf("%v; output %q, %v", r, b, err)
	}
	var stats []string
	eventually(t, callTimeout, "the job's end", func() error {
		stats = nil
		for _, s := range n.ps(t, "--all") {
			stats = append(stats, s.id()+" "+s.State+" "+strconv.Itoa(s.NTasks))
		}
		if len(stats) != 2 {
			return fmt.Errorf("steps %q", stats)
		}
		return nil
	})
}

// TestRootMemoryUnlimited: an option whose limit nothing enforces is named once, with what is
// missing, where the user has written it.
func TestRootMemoryUnlimited(t *testing.T) {
	n := startNode(t, site{})
	const said = "stepctl: --mem is not enforced: cgroup.conf has no ConstrainRAMSpace=yes\n"
	if r := n.ctl(t, "run", "--mem=64M", "true"); r.code != 0 || r.err != said {
		t.Errorf("run --mem: %v", r)
	}
	if r := n.ctl(t, "alloc", "--mem=64M", n.bin, "run", "true"); r.code != 0 || strings.Count(r.err, said) != 1 {
		t.Errorf("alloc --mem: %v", r)
	}
	if r := n.ctl(t, "batch", "-W", "--mem-per-cpu=64M", "--wrap", "true"); r.code != 0 || strings.Count(r.err, "--mem-per-cpu is not enforced") != 1 {
		t.Errorf("batch --mem-per-cpu: %v", r)
	}
	for _, args := range [][]string{{"run", "-Q", "--mem=64M", "true"}, {"run", "--mem=0", "true"}, {"run", "true"}} {
		if r := n.ctl(t, args...); r.code != 0 || r.err != "" {
			t.Errorf("%q: %v", args, r)
		}
	}
}
