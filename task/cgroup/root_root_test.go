package cgroup

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
	"stepd/step"
	"stepd/step/launch"
)

func TestMain(m *testing.M) {
	if os.Getenv("STEPD_TEST_TASK") != "" {
		task()
	}
	os.Exit(m.Run())
}

// task stands for a task at the gate: it waits for a line and does what that
// says: "touch BYTES", "cpus", "open FILE".
func task() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var bytes int
		word, arg, _ := strings.Cut(in.Text(), " ")
		switch word {
		case "touch":
			fmt.Sscan(arg, &bytes)
			page := make([]byte, bytes)
			for i := 0; i < bytes; i += 4096 {
				page[i] = 1
			}
			fmt.Println("touched", page[0])
		case "cpus":
			var set unix.CPUSet
			_ = unix.SchedGetaffinity(0, &set)
			fmt.Println("cpus", set.Count(), set.IsSet(0))
		case "open":
			f, err := os.Open(arg)
			if err == nil {
				f.Close()
			}
			fmt.Println("open", err)
		}
	}
	os.Exit(0)
}

// kit is a place for a job and its step, in the hierarchies that limits use
// here.
type kit struct {
	at Layout
}

// newKit makes the directories as noded does; they go with the test.
func newKit(t *testing.T) *kit {
	t.Helper()
	testkit.RequireRoot(t)
	name := fmt.Sprintf("stepd-test-limits-%d", os.Getpid())
	k := &kit{Layout{CPUs: "0", Mems: "0", JobV1: map[string]string{}, StepV1: map[string]string{}}}
	for c, home := range map[string]*Home{"memory": &k.at.Memory, "cpuset": &k.at.Cpuset, "devices": &k.at.Devices} {
		top := "/sys/fs/cgroup/" + c
		if _, err := os.Stat(top + "/cgroup.procs"); err != nil {
			continue
		}
		*home = HomeV1
		k.at.JobV1[c], k.at.StepV1[c] = filepath.Join(top, name), filepath.Join(top, name, "step_0")
		mkdir(t, k.at.JobV1[c])
		mkdir(t, k.at.StepV1[c])
		if c == "cpuset" {
			for _, d := range []string{k.at.JobV1[c], k.at.StepV1[c]} {
				must(t, writeFile(d+"/cpuset.mems", "0"))
				must(t, writeFile(d+"/cpuset.cpus", "0"))
			}
		}
	}
	if k.at.Memory == HomeV1 {
		k.at.SwapAccounting = Has(k.at.StepV1["memory"], "memory.memsw.limit_in_bytes")
		return k
	}
	const top = "/sys/fs/cgroup"
	must(t, writeFile(top+"/cgroup.subtree_control", "+memory +cpuset"))
	k.at.Memory, k.at.Cpuset = HomeV2, HomeV2
	k.at.JobV2, k.at.StepV2 = filepath.Join(top, name), filepath.Join(top, name, "step_0")
	k.at.Tracked = k.at.StepV2
	mkdir(t, k.at.JobV2)
	must(t, writeFile(k.at.JobV2+"/cgroup.subtree_control", "+memory +cpuset"))
	mkdir(t, k.at.StepV2)
	must(t, writeFile(k.at.StepV2+"/cgroup.subtree_control", "+memory"))
	k.at.SwapAccounting = Has(k.at.StepV2, "memory.swap.max")
	return k
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	must(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() {
		if err := unix.Rmdir(dir); err != nil {
			t.Errorf("cannot remove %q: %v", dir, err)
		}
	})
}

// child is a task of rank 0 that waits.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startChild(t *testing.T) *child {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	c := &child{cmd: exec.Command(self)}
	c.cmd.Env = append(os.Environ(), "STEPD_TEST_TASK=1")
	c.in, err = c.cmd.StdinPipe()
	must(t, err)
	out, err := c.cmd.StdoutPipe()
	must(t, err)
	c.out = bufio.NewScanner(out)
	must(t, c.cmd.Start())
	t.Cleanup(func() { c.end() })
	return c
}

func (c *child) end() syscall.WaitStatus {
	c.in.Close()
	timer := time.AfterFunc(20*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer timer.Stop()
	_ = c.cmd.Wait() // the status tells
	return c.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

func (c *child) ask(t *testing.T, line string) string {
	t.Helper()
	fmt.Fprintln(c.in, line)
	if !c.out.Scan() {
		return ""
	}
	return c.out.Text()
}

// kitRank is the rank of the one task that the node has.
const kitRank = 9

// confine carries a plan out as noded and stepd do.
func (k *kit) confine(t *testing.T, conf Conf, a Ask, pid int) *Plugin {
	t.Helper()
	plan, err := MakePlan(conf, k.at, a)
	must(t, err)
	must(t, Apply(plan.Writes, nil))
	if k.at.Memory == HomeV2 { // the tracker's part
		dir := filepath.Join(k.at.StepV2, launch.TaskName(kitRank))
		mkdir(t, dir)
		must(t, writeFile(dir+"/cgroup.procs", fmt.Sprint(pid)))
	}
	p := New(plan.Confine, k.at.StepV2, []int{kitRank}, nil)
	must(t, p.PreSetuid())
	must(t, p.PreLaunch(nil))
	must(t, p.PreLaunchPriv(0, pid))
	return p
}

func kitAsk(mb uint64) Ask {
	return Ask{NodeMB: 1 << 20, JobMB: 4 * mb, MB: mb, JobCPUs: "0", CPUs: "0", Bindable: true, CgroupPlugin: true}
}

// A task may use what it was given, and dies of more.
func TestRootMemoryLimitHolds(t *testing.T) {
	k := newKit(t)
	c := startChild(t)
	p := k.confine(t, conf(func(c *Conf) { c.Devices = false }), kitAsk(96), c.cmd.Process.Pid)
	if got := c.ask(t, fmt.Sprint("touch ", 24<<20)); !strings.HasPrefix(got, "touched") {
		t.Fatalf("touching 24 of 96 MB: %q", got)
	}
	if got := c.ask(t, "cpus"); got != "cpus 1 true" {
		t.Errorf("its CPUs: %q", got)
	}
	if got := c.ask(t, fmt.Sprint("touch ", 512<<20)); got != "" {
		t.Errorf("touching 512 of 96 MB: %q", got)
	}
	if st := c.end(); st.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v, want SIGKILL", st)
	}
	must(t, p.PostStep())
	must(t, p.PostStep()) // once more is nothing
}

// Only a group that dies together: both tasks.
func TestRootOOMGroup(t *testing.T) {
	k := newKit(t)
	if k.at.Memory != HomeV2 {
		t.Log("memory.oom.group is cgroup v2's; on v1 stepd ends the step itself")
		return
	}
	one, other := startChild(t), startChild(t)
	a := kitAsk(96)
	a.OOMGroup = step.OOMGroupStep
	k.confine(t, conf(func(c *Conf) { c.Devices = false }), a, one.cmd.Process.Pid)
	must(t, writeFile(filepath.Join(k.at.StepV2, launch.TaskName(kitRank), "cgroup.procs"), fmt.Sprint(other.cmd.Process.Pid)))
	one.ask(t, fmt.Sprint("touch ", 512<<20))
	for _, c := range []*child{one, other} {
		if st := c.end(); st.Signal() != syscall.SIGKILL {
			t.Errorf("ended with %v, want SIGKILL", st)
		}
	}
}

// On v1 the refused device cannot be opened, and the others can.
func TestRootDevicesV1(t *testing.T) {
	k := newKit(t)
	if k.at.Devices != HomeV1 {
		t.Log("no devices hierarchy: device programs are tested in package device")
		return
	}
	dir := t.TempDir()
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "full": 7} {
		must(t, unix.Mknod(filepath.Join(dir, name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))))
	}
	c := startChild(t)
	a := kitAsk(512)
	a.JobDenied, a.Denied = []step.Device{{Type: "c", Major: 1, Minor: 3}}, []step.Device{{Type: "c", Major: 1, Minor: 3}, {Type: "c", Major: 1, Minor: 5}}
	p := k.confine(t, conf(nil), a, c.cmd.Process.Pid)
	for name, may := range map[string]bool{"null": false, "zero": false, "full": true} {
		if got := c.ask(t, "open "+filepath.Join(dir, name)); may != (got == "open <nil>") {
			t.Errorf("opening %s: %q, allowed is %v", name, got, may)
		}
	}
	c.end()
	must(t, p.PostStep())
}

// What the kernel refuses is told with the file, the value and what it means.
func TestRootApplyRefused(t *testing.T) {
	k := newKit(t)
	dir, home := k.at.JobV2, k.at.Cpuset
	if home == HomeV1 {
		dir = k.at.JobV1["cpuset"]
	}
	for _, c := range []struct {
		w    step.CgroupWrite
		want string
	}{
		{step.CgroupWrite{Level: "job", Path: dir + "/cpuset.cpus", Value: "4095"}, "cpuset.cpus"},
		{step.CgroupWrite{Level: "job", Path: dir + "/cpuset.cpus", Value: "many"}, `"many"`},
		{step.CgroupWrite{Level: "step", Path: dir + "/memory.none", Value: "1"}, "the memory controller is not enabled there"},
	} {
		err := Apply([]step.CgroupWrite{c.w}, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "cannot limit the "+c.w.Level) {
			t.Errorf("%s <- %s: %v, want %q", c.w.Path, c.w.Value, err, c.want)
		}
	}
	if err := Apply([]step.CgroupWrite{{Path: dir, Value: "deny", Deny: []step.Device{{Type: "c"}}}}, nil); err == nil {
		t.Error("a device program without a way to attach it")
	}
}
