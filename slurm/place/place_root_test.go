package place

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
	"stepd/slurmconf"
	"stepd/step"
	"stepd/task/cgroup"
)

// node is a node with a spool of the test's own and these lines in its files.
func node(t testing.TB, slurm, cgroup string) Config {
	t.Helper()
	testkit.RequireRoot(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"slurm.conf": slurm, "cgroup.conf": cgroup} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	site, problems, err := slurmconf.Load(filepath.Join(dir, "slurm.conf"), "n1")
	if err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
	cfg := Config{Spool: dir, Node: "n1", Site: site, MemoryMB: 4096, Bindable: true}
	t.Cleanup(func() { // the root, which stays as long as the node does
		p := &Place{cfg: cfg}
		if err := p.find(); err != nil {
			t.Fatal(err)
		}
		if p.root == nil {
			return
		}
		if ids, err := p.root.Steps(); err != nil || len(ids) > 0 {
			t.Errorf("the test left steps %v, %v", ids, err)
			for _, id := range ids {
				_ = p.root.KillStep(context.Background(), id)
			}
		}
		if err := p.root.Remove(); err != nil {
			t.Error(err)
		}
	})
	return cfg
}

func spec(job, number uint32) *step.Spec {
	return &step.Spec{ID: step.ID{Job: job, Step: number}, CPUs: "0", JobCPUs: "0-1", MemoryMB: 100, JobMemoryMB: 200}
}

func mustMake(t *testing.T, cfg Config, s *step.Spec) *Place {
	t.Helper()
	p, err := Make(t.Context(), cfg, s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustRemove(t *testing.T, p *Place) {
	t.Helper()
	if err := p.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// sleeper is a process in the tasks' cgroup; ended reports whether it has ended.
func sleeper(t *testing.T, dir string) (ended func() bool) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	return func() bool {
		select {
		case <-done:
			return true
		case <-time.After(50 * time.Millisecond):
			return false
		}
	}
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// A step has cgroups whatever slurm.conf says, below a root of the spool's own; the job's go
// with its last step's.
func TestRootMake(t *testing.T) {
	for name, conf := range map[string]string{
		"cgroup": "", "linuxproc": "ProctrackType=proctrack/linuxproc", "pgid": "ProctrackType=proctrack/pgid",
	} {
		t.Run(name, func(t *testing.T) {
			cfg := node(t, conf, "CgroupPlugin=disabled")
			one, two := spec(7, 0), spec(7, step.BatchStep)
			first, second := mustMake(t, cfg, one), mustMake(t, cfg, two)
			if !strings.HasPrefix(one.Proctrack.Kind, "cgroup/") || !exists(one.Proctrack.Dir) || !exists(one.Proctrack.Tasks) {
				t.Fatalf("%+v", one.Proctrack)
			}
			ended := sleeper(t, one.Proctrack.Tasks)
			job := filepath.Dir(one.Proctrack.Dir)
			mustRemove(t, first)
			if !ended() {
				t.Error("Remove has left a task alive")
			}
			if exists(one.Proctrack.Dir) || exists(one.Proctrack.Tasks) || !exists(job) || !exists(two.Proctrack.Tasks) {
				t.Error("Remove has taken too little or too much")
			}
			mustRemove(t, second)
			if exists(job) {
				t.Errorf("%q is left", job)
			}
			mustRemove(t, second) // does nothing
		})
	}
}

// The step's and the job's cgroups have the limits of cgroup.conf.
func TestRootMakeConfines(t *testing.T) {
	cfg := node(t, "TaskPlugin=task/cgroup\nSelectType=select/cons_tres\nSelectTypeParameters=CR_CPU_Memory",
		"ConstrainCores=yes\nConstrainRAMSpace=yes\nAllowedRAMSpace=90")
	s := spec(8, 0)
	p := mustMake(t, cfg, s)
	defer mustRemove(t, p)
	memory := map[string]string{"step": s.Proctrack.Tasks + "/memory.max", "job": filepath.Dir(s.Proctrack.Tasks) + "/memory.max"}
	cpus := s.Proctrack.Tasks + "/cpuset.cpus"
	if dir := s.Confine.V1["memory"]; dir != "" {
		memory = map[string]string{"step": dir + "/memory.limit_in_bytes", "job": filepath.Dir(dir) + "/memory.limit_in_bytes"}
	}
	if dir := s.Confine.V1["cpuset"]; dir != "" {
		cpus = dir + "/cpuset.cpus"
	}
	for path, want := range map[string]uint64{memory["step"]: 90 << 20, memory["job"]: 180 << 20} {
		got, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(got)) != strconv.FormatUint(want, 10) {
			t.Errorf("%s: %q, %v; want %d", path, got, err, want)
		}
	}
	if got, err := os.ReadFile(cpus); err != nil || strings.TrimSpace(string(got)) != "0" {
		t.Errorf("%s: %q, %v", cpus, got, err)
	}
	if !s.Confine.PerTask || len(s.Confine.Memory) < 2 {
		t.Errorf("stepd is told %+v", s.Confine)
	}
}

// TestRootMakeLimitsProcesses: a step has its share of the machine's processes, whatever the task
// plugins are.
func TestRootMakeLimitsProcesses(t *testing.T) {
	cfg := node(t, "", "")
	cfg.Site.Stepd.StepProcessesPercent = new(50.0) // of v1 as well
	all, err := cgroup.MachineProcesses("/proc/sys/kernel")
	if err != nil {
		t.Fatal(err)
	}
	s := spec(9, 0)
	p := mustMake(t, cfg, s)
	defer mustRemove(t, p)
	if got := s.Confine.ProcessesMax; got != all/2 {
		t.Fatalf("the limit is %d, want %d", got, all/2)
	}
	got, err := os.ReadFile(filepath.Join(s.Confine.ProcessesDir, "pids.max"))
	if err != nil || strings.TrimSpace(string(got)) != strconv.FormatUint(all/2, 10) {
		t.Errorf("%s: %q, %v; want %d", s.Confine.ProcessesDir, got, err, all/2)
	}
}

// A cgroup tree that has gone since an earlier step found it, is found again.
func TestRootMakeElsewhere(t *testing.T) {
	cfg := node(t, "", "")
	s := spec(1, 0)
	p := mustMake(t, cfg, s)
	mustRemove(t, p)
	kept := filepath.Join(Dir(cfg.Spool), keptName)
	was, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	parent := filepath.Dir(p.root.Dir())
	moved := strings.Replace(string(was), "\n"+parent+"\n", "\n"+parent+"/stepd-gone\n", 1)
	if err := os.WriteFile(kept, []byte(moved), 0o600); err != nil {
		t.Fatal(err)
	}
	mustRemove(t, mustMake(t, cfg, s))
	if now, err := os.ReadFile(kept); err != nil || string(now) != string(was) {
		t.Errorf("kept is %q, %v; want %q", now, err, was)
	}
}

// nothing else is to be cleaned.
func nothing(step.ID) error { return nil }

// die is the death of a daemon and its keeper: no process holds the place any more.
func (p *Place) die() { p.lock.Close(); p.lock = nil }

func TestRootSweep(t *testing.T) {
	cfg := node(t, "", "")
	dead, living, mine := spec(1, 0), spec(1, 1), spec(2, 0)
	d, l, m := mustMake(t, cfg, dead), mustMake(t, cfg, living), mustMake(t, cfg, mine)
	defer mustRemove(t, l)
	defer mustRemove(t, m)
	killed, spared := sleeper(t, dead.Proctrack.Tasks), sleeper(t, living.Proctrack.Tasks)
	socket := filepath.Join(cfg.Spool, "n1_1.0")
	other := filepath.Join(cfg.Spool, "n1_1.1")
	for _, path := range []string{socket, other} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.root.MakeJob(3, nil); err != nil { // a daemon died before the step's own cgroup existed
		t.Fatal(err)
	}
	if swept, err := m.Sweep(t.Context(), nothing); err != nil || len(swept) > 0 || exists(m.root.JobTasksDir(3)) {
		t.Fatalf("swept %v, %v", swept, err)
	}
	// A child that has inherited the lock keeps the place: the keeper.
	keeper := exec.Command("sleep", "1000")
	keeper.ExtraFiles = []*os.File{d.Lock()}
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	d.die()
	if swept, err := m.Sweep(t.Context(), nothing); err != nil || len(swept) > 0 {
		t.Errorf("swept %v, %v while the keeper lives", swept, err)
	}
	_ = keeper.Process.Kill()
	_ = keeper.Wait()
	var cleaned []step.ID
	swept, err := m.Sweep(t.Context(), func(id step.ID) error { cleaned = append(cleaned, id); return nil })
	if err != nil || len(swept) != 1 || swept[0] != dead.ID || !slices.Equal(cleaned, swept) {
		t.Errorf("swept %v, cleaned %v, %v", swept, cleaned, err)
	}
	if !killed() || exists(dead.Proctrack.Dir) || exists(dead.Proctrack.Tasks) || exists(socket) {
		t.Error("the dead step is not gone")
	}
	if spared() || !exists(living.Proctrack.Dir) || !exists(other) {
		t.Error("the living step is not spared")
	}
}

// What a dead daemon of the same step has left is killed by the step's next start; a living
// one's is not.
func TestRootMakeAgain(t *testing.T) {
	cfg := node(t, "", "")
	s := spec(1, step.BatchStep)
	first := mustMake(t, cfg, s)
	ended := sleeper(t, s.Proctrack.Tasks)
	if _, err := Make(t.Context(), cfg, spec(1, step.BatchStep)); err == nil || !strings.Contains(err.Error(), "a living step daemon") {
		t.Fatalf("a second daemon of a living step: %v", err)
	}
	if ended() {
		t.Fatal("the second daemon has killed the first one's step")
	}
	first.die()
	again := mustMake(t, cfg, spec(1, step.BatchStep))
	if !ended() {
		t.Error("a process of the dead step has lived on")
	}
	mustRemove(t, again)
}

// Steps of few jobs start, end, die and sweep side by side: no living one is swept, and
// nothing is left.
func TestRootSweepRace(t *testing.T) {
	cfg := node(t, "TaskPlugin=task/cgroup", "ConstrainCores=yes")
	var all sync.WaitGroup
	for job := range uint32(2) {
		for number := range uint32(4) {
			all.Go(func() {
				for round := range testkit.Fewer(30) {
					s := spec(job+1, number)
					p, err := Make(context.Background(), cfg, s)
					if err != nil {
						t.Error(err)
						return
					}
					swept, err := p.Sweep(context.Background(), nothing)
					if err != nil {
						t.Error(err)
					}
					for _, id := range swept {
						if id == s.ID {
							t.Error("a step has swept itself")
						}
					}
					for _, dir := range []string{s.Proctrack.Dir, s.Proctrack.Tasks, s.Confine.V1["cpuset"]} {
						if dir != "" && !exists(dir) {
							t.Errorf("%q of a living step is gone", dir)
						}
					}
					if round%3 == 0 {
						p.die()
					} else if err := p.Remove(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	last := mustMake(t, cfg, spec(9, 0))
	if _, err := last.Sweep(t.Context(), nothing); err != nil {
		t.Error(err)
	}
	mustRemove(t, last)
}

// A process that SIGKILL does not end does not hold up the others for long, and is found
// again by the next sweep.
func TestRootSweepUnkillable(t *testing.T) {
	cfg := node(t, "", "")
	dead, mine := spec(1, 0), spec(2, 0)
	d, m := mustMake(t, cfg, dead), mustMake(t, cfg, mine)
	defer mustRemove(t, m)
	freezer := fmt.Sprintf("/sys/fs/cgroup/freezer/stepd-test-%d", os.Getpid())
	if err := os.Mkdir(freezer, 0o755); err != nil {
		t.Skipf("no freezer of cgroup v1, in which SIGKILL waits: %v", err)
	}
	defer os.Remove(freezer)
	ended := sleeper(t, dead.Proctrack.Tasks)
	pids, err := os.ReadFile(dead.Proctrack.Tasks + "/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	write := func(file, value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(freezer, file), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	write("cgroup.procs", strings.TrimSpace(string(pids)))
	write("freezer.state", "FROZEN")
	thaw := sync.OnceFunc(func() { write("freezer.state", "THAWED") })
	defer thaw()
	d.die()
	brief, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if swept, err := m.Sweep(brief, nothing); err == nil || len(swept) > 0 {
		t.Errorf("swept %v, %v", swept, err)
	}
	thaw()
	if !ended() {
		t.Error("it has not got SIGKILL")
	}
	if swept, err := m.Sweep(t.Context(), nothing); err != nil || len(swept) != 1 || exists(dead.Proctrack.Tasks) {
		t.Errorf("the next sweep has swept %v, %v", swept, err)
	}
}

// The lock is of the open file: it is gone with its last holder, and no sooner.
func TestRootLock(t *testing.T) {
	cfg := node(t, "", "")
	s := spec(1, 0)
	p := mustMake(t, cfg, s)
	fd, err := syscall.Dup(int(p.Lock().Fd()))
	if err != nil {
		t.Fatal(err)
	}
	p.die()
	if _, err := lock(s.Proctrack.Dir, unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("lock: %v, want EWOULDBLOCK", err)
	}
	syscall.Close(fd)
	mustRemove(t, mustMake(t, cfg, s))
}

// BenchmarkRootMake is what a step pays for its place, with 50 steps beside it.
// A user who could lock these directories would keep every step of the node from its start.
func TestRootPrivate(t *testing.T) {
	cfg := node(t, "", "")
	s := spec(77, 0)
	p := mustMake(t, cfg, s)
	defer mustRemove(t, p)
	if p.root == nil {
		t.Skip("no cgroups here")
	}
	as := func(name string, args ...string) error {
		cmd := exec.Command(name, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return cmd.Run()
	}
	for _, dir := range []string{p.root.Dir(), p.root.StepDir(s.ID)} {
		if as("flock", "--nonblock", "--shared", dir, "true") == nil {
			t.Errorf("user 65534 could lock %q", dir)
		}
	}
	if err := as("cat", filepath.Join(s.Proctrack.Tasks, "cgroup.procs")); err != nil {
		t.Errorf("a task's cgroup cannot be read: %v", err)
	}
	if err := os.Chmod(p.root.Dir(), 0o755); err != nil { // a former version's
		t.Fatal(err)
	}
	mustRemove(t, mustMake(t, cfg, spec(77, 1)))
	if as("flock", "--nonblock", "--shared", p.root.Dir(), "true") == nil {
		t.Error("user 65534 could lock a root that was there")
	}
}

func BenchmarkRootMake(b *testing.B) {
	cfg := node(b, "", "")
	var others []*Place
	for i := range uint32(50) {
		p, err := Make(context.Background(), cfg, spec(i+1, 0))
		if err != nil {
			b.Fatal(err)
		}
		others = append(others, p)
	}
	run := func(name string, do func(p *Place)) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				p, err := Make(context.Background(), cfg, spec(100, 0))
				if err != nil {
					b.Fatal(err)
				}
				do(p)
				if err := p.Remove(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("make", func(*Place) {})
	run("make and sweep", func(p *Place) {
		if _, err := p.Sweep(context.Background(), nothing); err != nil {
			b.Fatal(err)
		}
	})
	for _, p := range others {
		_ = p.Remove(context.Background())
	}
}
