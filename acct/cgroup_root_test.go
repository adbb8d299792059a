package acct

import (
	"fmt"
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

// loadVar makes a process of this test binary a load: it enters the cgroups that
// the variable names, says what CPU time it had used before (in ns: it is not the
// cgroups'), touches 64 MB and burns 200 ms.
const loadVar = "STEPD_ACCT_LOAD"

const loadMB, loadMS = 64, 200

func TestMain(m *testing.M) {
	if dirs, ok := os.LookupEnv(loadVar); ok {
		if err := playLoad(strings.Fields(dirs)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func playLoad(dirs []string) error {
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	before, err := ownCPU()
	if err != nil {
		return err
	}
	fmt.Println(before)
	b, err := unix.Mmap(-1, 0, loadMB*mb, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	for {
		if used, err := ownCPU(); err != nil || used >= before+loadMS*1e6 {
			return err
		}
	}
}

func ownCPU() (ns int64, err error) {
	var ru unix.Rusage
	err = unix.Getrusage(unix.RUSAGE_SELF, &ru)
	return ru.Utime.Nano() + ru.Stime.Nano(), err
}

// group makes a cgroup of this test's below a mount, with one of a task in it;
// "" where nothing is mounted there.
func group(t *testing.T, mount string) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(mount, "cgroup.procs")); err != nil {
		return ""
	}
	dir := filepath.Join(mount, fmt.Sprintf("stepd-acct-test-%d", os.Getpid()))
	for _, d := range []string{dir, filepath.Join(dir, "task_0")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(d); err != nil {
				t.Error(err)
			}
		})
	}
	return dir
}

// enable gives the controllers that the mount has to the task's cgroup; a hybrid
// tree has none of them.
func enable(t *testing.T, mount, dir string) (have []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range strings.Fields(string(data)) {
		if c != "memory" && c != "io" {
			continue
		}
		for _, d := range []string{mount, dir} {
			if err := os.WriteFile(filepath.Join(d, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
				t.Fatal(err)
			}
		}
		have = append(have, c)
	}
	return have
}

// v2Mount is where the v2 tree is mounted.
func v2Mount(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	t.Fatal("no cgroup v2 is mounted")
	return ""
}

// A known load in cgroups of the real kernel, on the layout that this machine has.
func TestRootCgroups(t *testing.T) {
	testkit.RequireRoot(t)
	mount := v2Mount(t)
	dir := group(t, mount)
	have := enable(t, mount, dir)
	confine := step.Confinement{PerTask: true, V1: make(map[string]string)}
	enter := []string{filepath.Join(dir, "task_0")}
	for _, c := range []string{"memory", "cpuacct", "blkio"} {
		if d := group(t, filepath.Join("/sys/fs/cgroup", c)); d != "" {
			confine.V1[c] = d
			enter = append(enter, filepath.Join(d, "task_0"))
		}
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), loadVar+"="+strings.Join(enter, " "))
	var before int64
	out, err := cmd.CombinedOutput()
	if err == nil {
		_, err = fmt.Sscan(string(out), &before)
	}
	if err != nil {
		t.Fatalf("the load: %v\n%s", err, out)
	}
	g := New(Config{
		Ranks: []int{0}, Acct: step.Accounting{Gather: gatherCgroup}, Proctrack: step.Proctrack{Kind: "cgroup/v2", Tasks: dir},
		Confine: confine, Log: func(text string) { t.Error(text) },
	})
	g.Begin(1, false, []int{cmd.Process.Pid})
	g.TaskEnded(launch.TaskEnd{Usage: &launch.Usage{User: time.Millisecond}}) // the cgroups know more
	g.Finish()
	rec := record(g, 1)
	u, task := rec.Usage, rec.Tasks[0].Usage
	t.Logf("v2 with %v, v1 %v: step %s", have, confine.V1, u.Sources)
	close := func(what string, got, want float64) {
		if got < 0.9*want || got > 1.25*want {
			t.Errorf("%s: %g, want about %g", what, got, want)
		}
	}
	ru := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	whole := float64(ru.Utime.Nano()+ru.Stime.Nano()-before) / 1e9
	close("the step's CPU time", *u.CPUSeconds, whole)
	close("the task's CPU time", *task.CPUSeconds, whole)
	close("user and system", *task.UserSeconds+*task.SystemSeconds, *task.CPUSeconds)
	if u.Sources["cpu_seconds"] != "cpu.stat" {
		t.Errorf("the source of the CPU time: %v", u.Sources)
	}
	if u.PeakMemoryBytes == nil || task.PeakMemoryBytes == nil {
		t.Fatalf("no peak is known: v2 has %v, v1 %v", have, confine.V1)
	}
	close("the step's peak", float64(*u.PeakMemoryBytes), loadMB*mb)
	close("the task's peak", float64(*task.PeakMemoryBytes), loadMB*mb)
	if u.DiskReadBytes == nil || u.DiskWrittenBytes == nil {
		t.Errorf("no bytes are known of the disk: %+v", u.Used)
	}
	if _, err := os.Stat("/proc/pressure/cpu"); err == nil && (u.Pressure == nil || u.Pressure.CPU == nil || task.MemoryStallUS == nil) {
		t.Errorf("the kernel measures pressure, and %+v, %+v", u.Pressure, task)
	}
	left, err := ReadCgroups(step.Proctrack{Kind: "cgroup/v2", Tasks: dir}, confine.V1, gatherCgroup, time.Now())
	if err != nil || left == nil || *left.CPUSeconds != *u.CPUSeconds {
		t.Errorf("after stepd's death: %+v, %v", left, err)
	}
}

// What one sample of a thousand processes costs.
func BenchmarkSample(b *testing.B) {
	for _, n := range []int{1, 64, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			pids := make([]int, n)
			for i := range pids {
				pids[i] = os.Getpid() // one process, read as often
			}
			g := New(Config{Ranks: make([]int, n), Acct: step.Accounting{Gather: gatherLinux}, PIDs: func() ([]int, error) { return pids, nil }})
			g.Begin(1, false, nil)
			for b.Loop() {
				g.sample(b.Context())
			}
		})
	}
}
