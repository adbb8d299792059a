package acct

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"stepd/internal/linux"
	"stepd/step"
	"stepd/step/launch"
)

const mb = 1 << 20

// end is what wait4 reports for a task of so many CPU milliseconds and megabytes.
func end(rank int, cpuMS, rssMB int64) launch.TaskEnd {
	return launch.TaskEnd{LocalID: rank, Usage: &launch.Usage{
		User: time.Duration(cpuMS) * time.Millisecond, MaxRSSBytes: rssMB * mb, MinorFaults: 3,
		IO: "rchar: 10\nwchar: 20\nread_bytes: 0\nwrite_bytes: 4096\n",
	}}
}

func record(g *Gatherer, ntasks int) step.Record {
	rec := step.Record{Tasks: make([]step.Task, ntasks)}
	g.Fill(&rec)
	return rec
}

func sameFloat(t *testing.T, what string, got *float64, want float64) {
	t.Helper()
	if got == nil {
		t.Errorf("%s is not known, want %v", what, want)
	} else if d := *got - want; d > 1e-9 || d < -1e-9 {
		t.Errorf("%s is %v, want %v", what, *got, want)
	}
}

// What the kernel tells at the ends is all that "none" needs.
func TestEnds(t *testing.T) {
	g := New(Config{Ranks: []int{0, 1}})
	if rec := record(g, 2); rec.Usage != nil {
		t.Errorf("before the beginning: %+v", rec.Usage)
	}
	g.Begin(1, false, []int{100, 101})
	g.TaskEnded(end(0, 1000, 64))
	if rec := record(g, 2); rec.Usage.CPUSeconds != nil || rec.Tasks[1].Usage != nil {
		t.Errorf("task 1 has not told yet, and the step's sum is %v", *rec.Usage.CPUSeconds)
	}
	g.TaskEnded(end(1, 500, 32))
	g.TaskEnded(end(1, 9999, 32)) // a second word on the same end changes nothing
	g.OrphanEnded(555, end(0, 250, 128).Usage)
	g.Finish()
	rec := record(g, 2)
	sameFloat(t, "task 0's CPU time", rec.Tasks[0].CPUSeconds, 1)
	sameFloat(t, "the step's CPU time", rec.Usage.CPUSeconds, 1.75)
	known(t, "MaxRSS of the largest task", rec.Usage.MaxRSSBytes, 64*mb)
	known(t, "read", rec.Usage.ReadBytes, 30)
	known(t, "written", rec.Usage.WrittenBytes, 60)
	known(t, "to disk", rec.Usage.DiskWrittenBytes, 3*4096)
	known(t, "minor faults", rec.Usage.MinorFaults, 9)
	if u := rec.Usage; !u.Final || u.Sources["cpu_seconds"] != "wait4" || u.PeakMemoryBytes != nil || u.Pressure != nil || u.RSSBytes != nil {
		t.Errorf("%+v", u)
	}
}

// The figures of a task whose end was not reported are unknown, and so is the step's sum.
func TestLostEnd(t *testing.T) {
	g := New(Config{Ranks: []int{0, 1}})
	g.Begin(1, false, []int{100, 101})
	g.TaskEnded(end(0, 1000, 64))
	g.TaskEnded(launch.TaskEnd{LocalID: 1, Lost: true})
	g.Finish()
	rec := record(g, 2)
	if rec.Usage.CPUSeconds != nil || rec.Usage.ReadBytes != nil || rec.Tasks[1].CPUSeconds != nil {
		t.Errorf("a sum of which a part is unknown: %+v", rec.Usage.Used)
	}
	if rec.Usage.Sources["cpu_seconds"] != "" {
		t.Errorf("the source of nothing: %v", rec.Usage.Sources)
	}
	known(t, "MaxRSS of the known task", rec.Usage.MaxRSSBytes, 64*mb)
}

// proc is a process as a sample sees it.
func proc(pid, parent int, cpuMS, rssMB int64) seen {
	s := seen{pid: pid, stat: procStat{parent: parent, start: int64(pid)}}
	s.f.zero()
	s.f.set(cpu, cpuMS*1000)
	s.f.set(maxVM, 2*rssMB*mb)
	rss := rssMB * mb
	s.rss = &rss
	return s
}

// merge plays a sample that has seen these.
func (g *Gatherer) played(between func(), procs ...seen) {
	p := &g.pass
	p.procs, p.at = procs, make(map[int]int)
	for i := range procs {
		p.at[procs[i].pid] = i
	}
	g.mu.Lock()
	g.stray.dirty = false
	for rank := range g.tasks {
		g.tasks[rank].dirty = false
	}
	g.mu.Unlock()
	if between != nil {
		between()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.merge(p)
}

func TestSamples(t *testing.T) {
	g := New(Config{Ranks: []int{0, 1}, Acct: step.Accounting{Gather: gatherLinux}})
	g.Begin(1, false, []int{100, 101})
	// 103 is 100's grandchild; 200 belongs to no task.
	g.played(nil, proc(100, 9, 100, 10), proc(101, 9, 10, 5), proc(102, 100, 50, 20), proc(103, 102, 40, 30), proc(200, 9, 7, 1))
	rec := record(g, 2)
	sameFloat(t, "task 0", rec.Tasks[0].CPUSeconds, 0.190)
	sameFloat(t, "the step", rec.Usage.CPUSeconds, 0.207)
	known(t, "MaxRSS", rec.Tasks[0].MaxRSSBytes, 60*mb)
	known(t, "MaxVMSize", rec.Tasks[0].Usage.MaxVMSizeBytes, 120*mb)
	known(t, "RSS of all", rec.Usage.RSSBytes, 66*mb)
	if n := rec.Tasks[0].Usage.Processes; n == nil || *n != 3 {
		t.Errorf("processes: %v", n)
	}
	// Its parent ends: 103 comes to stepd, and stays task 0's. The largest RSS
	// stays, the sums do not fall.
	g.played(nil, proc(100, 9, 160, 10), proc(101, 9, 10, 5), proc(103, 9, 60, 30))
	rec = record(g, 2)
	sameFloat(t, "task 0, its daemon living", rec.Tasks[0].CPUSeconds, 0.220)
	known(t, "MaxRSS, which stays", rec.Tasks[0].MaxRSSBytes, 60*mb)
	// The daemon ends, then the tasks: each counts once.
	g.OrphanEnded(103, &launch.Usage{User: 70 * time.Millisecond, IO: procIO})
	g.TaskEnded(end(0, 200, 20))
	g.TaskEnded(end(1, 30, 5))
	g.OrphanEnded(200, &launch.Usage{User: 8 * time.Millisecond, IO: procIO})
	g.Finish()
	rec = record(g, 2)
	sameFloat(t, "task 0 in all", rec.Tasks[0].CPUSeconds, 0.270)
	sameFloat(t, "the step in all", rec.Usage.CPUSeconds, 0.308)
	known(t, "MaxRSS in all", rec.Tasks[0].MaxRSSBytes, 60*mb)
	known(t, "read", rec.Usage.ReadBytes, 20+2*6976)
}

// A task that ended before the first sample has no size of its address space, and not 0.
func TestEndedUnseen(t *testing.T) {
	g := New(Config{Ranks: []int{0, 1}, Acct: step.Accounting{Gather: gatherLinux}})
	g.Begin(1, false, []int{100, 101})
	g.TaskEnded(end(0, 20, 5))
	g.played(nil, proc(101, 9, 10, 5))
	rec := record(g, 2)
	if vm := rec.Tasks[0].Usage.MaxVMSizeBytes; vm != nil {
		t.Errorf("a task that no sample has seen: %d", *vm)
	}
	known(t, "the other's MaxVMSize", rec.Tasks[1].Usage.MaxVMSizeBytes, 10*mb)
}

// What the kernel tells while a sample is under way may be in the sample, too.
func TestEndDuringSample(t *testing.T) {
	g := New(Config{Ranks: []int{0}, Acct: step.Accounting{Gather: gatherLinux}})
	g.Begin(1, false, []int{100})
	g.played(nil, proc(100, 9, 100, 10), proc(101, 100, 50, 10))
	// 101 was read, and reaped by 100, whose end is told before the sample is done.
	g.played(func() { g.TaskEnded(end(0, 170, 10)) }, proc(100, 9, 110, 10), proc(101, 100, 55, 10))
	g.Finish()
	rec := record(g, 1)
	sameFloat(t, "the task", rec.Tasks[0].CPUSeconds, 0.170)
	sameFloat(t, "the step", rec.Usage.CPUSeconds, 0.170)

	// A child with a lower number than its parent was read before it.
	g = New(Config{Ranks: []int{0}, Acct: step.Accounting{Gather: gatherLinux}})
	g.Begin(1, false, []int{100})
	g.played(nil, proc(50, 100, 40, 10), proc(100, 9, 140, 10))
	rec = record(g, 1)
	sameFloat(t, "a child that its parent may have counted", rec.Tasks[0].CPUSeconds, 0.140)
	known(t, "its memory", rec.Tasks[0].MaxRSSBytes, 20*mb)
}

// A process number that comes again is another process.
func TestNumberComesAgain(t *testing.T) {
	g := New(Config{Ranks: []int{0}, Acct: step.Accounting{Gather: gatherLinux}})
	g.Begin(1, false, []int{100})
	g.played(nil, proc(100, 9, 10, 10), proc(101, 100, 10, 10))
	again := proc(101, 9, 10, 10)
	again.stat.start = 7777
	g.played(nil, proc(100, 9, 20, 10), again)
	rec := record(g, 1)
	if n := rec.Tasks[0].Usage.Processes; n == nil || *n != 1 {
		t.Errorf("processes of the task: %v, want 1", n)
	}
}

func TestOverMemory(t *testing.T) {
	for _, tt := range []struct {
		name    string
		kill    bool
		limit   uint64
		rssMB   int64
		unknown bool
		want    bool
	}{
		{"over", true, 50 * mb, 60, false, true},
		{"under", true, 70 * mb, 60, false, false},
		{"not asked for", false, 50 * mb, 60, false, false},
		{"no limit", true, 0, 60, false, false},
		{"not known", true, 50 * mb, 60, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var why []string
			g := New(Config{
				Ranks: []int{0}, MemoryBytes: tt.limit, OverMemory: func(s string) { why = append(why, s) },
				Acct: step.Accounting{Gather: gatherLinux, OverMemoryKill: tt.kill},
			})
			g.Begin(1, false, []int{100})
			g.checkMemory() // nothing is known yet
			p := proc(100, 9, 1, tt.rssMB)
			if tt.unknown {
				p.rss = nil
			}
			g.played(nil, p)
			g.checkMemory()
			g.checkMemory()
			if (len(why) == 1) != tt.want || len(why) > 1 {
				t.Fatalf("%q", why)
			}
			if tt.want && (!strings.Contains(why[0], "60.0 MB of resident memory") || !strings.Contains(why[0], "limit of the step is 50.0 MB")) {
				t.Errorf("%q names not both", why[0])
			}
		})
	}
}

// The cgroups' files, as a real tree has them.
func TestCgroups(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("v2/cpu.stat", "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\n")
	write("v2/task_5/cpu.stat", "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n")
	write("v2/memory.peak", "104857600\n")
	write("v2/task_5/memory.peak", "94371840\n")
	write("v2/io.stat", ioStat)
	write("v2/cpu.pressure", psi)
	write("v2/task_5/io.pressure", psi)
	g := New(Config{
		Ranks: []int{5}, Acct: step.Accounting{Gather: gatherCgroup}, Proctrack: step.Proctrack{Tasks: filepath.Join(dir, "v2")},
		Confine: step.Confinement{PerTask: true}, Log: func(text string) { t.Error(text) },
	})
	g.Begin(1, false, []int{100})
	g.TaskEnded(end(0, 2000, 64))
	g.Finish()
	rec := record(g, 1)
	sameFloat(t, "the step", rec.Usage.CPUSeconds, 3)
	sameFloat(t, "the task", rec.Tasks[0].CPUSeconds, 2.5)
	sameFloat(t, "the task's system time", rec.Tasks[0].Usage.SystemSeconds, 0.5)
	known(t, "the step's peak", rec.Usage.PeakMemoryBytes, 100*mb)
	known(t, "the task's peak", rec.Tasks[0].Usage.PeakMemoryBytes, 90*mb)
	known(t, "from disk", rec.Usage.DiskReadBytes, 1048576+24576)
	known(t, "the step's stalls", rec.Usage.CPUStallUS, 7041)
	known(t, "the task's stalls", rec.Tasks[0].Usage.IOStallUS, 7041)
	if p := rec.Usage.Pressure; p == nil || p.CPU == nil || p.IO != nil {
		t.Errorf("pressure: %+v", p)
	}
	if s := rec.Usage.Sources; s["cpu_seconds"] != "cpu.stat" || s["peak_memory_bytes"] != "memory.peak" || s["disk_read_bytes"] != "io.stat" {
		t.Errorf("sources: %v", s)
	}

	// The same of a dead stepd; and v1, where the controllers lie apart.
	u, err := ReadCgroups(step.Proctrack{Tasks: filepath.Join(dir, "v2")}, nil, gatherCgroup, time.Now())
	if err != nil || u == nil {
		t.Fatalf("%v, %v", u, err)
	}
	sameFloat(t, "a dead stepd's step", u.CPUSeconds, 3)
	write("cpu1/cpuacct.usage", "4000000000\n")
	write("cpu1/cpuacct.usage_user", "3000000000\n")
	write("mem1/memory.max_usage_in_bytes", "4096\n")
	write("io1/blkio.throttle.io_service_bytes_recursive", blkio)
	v1 := map[string]string{
		"cpuacct": filepath.Join(dir, "cpu1"), "memory": filepath.Join(dir, "mem1"), "blkio": filepath.Join(dir, "io1"),
	}
	if u, _ := ReadCgroups(step.Proctrack{}, v1, gatherCgroup, time.Now()); u != nil {
		t.Errorf("the host may be in there: %+v", u)
	}
	write("mem1/task_17/memory.max_usage_in_bytes", "4096\n") // a node's first task is of any rank
	if u, err = ReadCgroups(step.Proctrack{}, v1, gatherCgroup, time.Now()); err != nil {
		t.Fatal(err)
	}
	sameFloat(t, "v1", u.CPUSeconds, 4)
	known(t, "v1's peak", u.PeakMemoryBytes, 4096)
	known(t, "v1's bytes from disk", u.DiskReadBytes, 4097)
	if u.SystemSeconds != nil || u.Pressure != nil {
		t.Errorf("figures that nobody told: %+v", u)
	}
}

// The host's time is taken off, and what cannot be is not told.
func TestHostInside(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"cpu.stat": "usage_usec 9000000000\nuser_usec 1\nsystem_usec 1\n", "memory.peak": "4096\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	g := New(Config{Ranks: []int{0}, Acct: step.Accounting{Gather: gatherCgroup}, Proctrack: step.Proctrack{Tasks: dir}})
	g.Begin(os.Getpid(), true, []int{100}) // this process plays the host
	g.TaskEnded(end(0, 1000, 64))
	g.HostMoved()
	own := g.host.us
	g.Finish()
	u := record(g, 1).Usage
	if own <= 0 {
		t.Fatalf("the host's CPU time: %d µs", own)
	}
	sameFloat(t, "without the host", u.CPUSeconds, 9000-float64(own)/1e6)
	if u.PeakMemoryBytes != nil {
		t.Error("the peak is the host's, too")
	}
}

// Two processes and what this machine's /proc says about them.
func TestSampleLive(t *testing.T) {
	var pids []int
	for range 2 {
		cmd := exec.Command("sh", "-c", "echo; read x")
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		defer func() { in.Close(); cmd.Wait() }()
		if _, err := out.Read(make([]byte, 1)); err != nil { // its libraries are loaded
			t.Fatal(err)
		}
		pids = append(pids, cmd.Process.Pid)
	}
	for _, a := range []step.Accounting{{}, {UsePss: true}, {NoShared: true}} {
		a.Gather = gatherLinux
		g := New(Config{
			Ranks: []int{0, 1}, Acct: a, Log: func(text string) { t.Error(text) },
			PIDs: func() ([]int, error) { return append([]int{os.Getpid()}, pids...), nil },
		})
		g.Begin(os.Getpid(), true, pids)
		g.Sample()
		g.Sample() // fresh enough
		rec := record(g, 2)
		u := rec.Tasks[1].Usage
		if rec.Usage.Samples != 1 || u == nil || u.RSSBytes == nil || *u.RSSBytes > 64*mb || u.MaxVMSizeBytes == nil || *u.MaxVMSizeBytes < mb {
			t.Fatalf("%+v: %+v, %+v", a, rec.Usage, u)
		}
		if !a.NoShared && *u.RSSBytes == 0 {
			t.Errorf("%+v: a process without memory", a)
		}
		if os.Geteuid() == 0 && (u.ReadBytes == nil || *u.ReadBytes == 0) {
			t.Errorf("%+v: %+v: ld.so has read", a, u)
		}
		if rec.Usage.Processes == nil || *rec.Usage.Processes != 2 {
			t.Errorf("processes: %v: the host is none of the tasks'", rec.Usage.Processes)
		}
		g.Finish()
	}
}

// The sampler keeps its time, and no more than its share of a CPU.
func TestSampler(t *testing.T) {
	for _, tt := range []struct {
		name      string
		frequency int
		gather    string
		waits     time.Duration // for a processor, or a lock
		works     time.Duration
		want      int
	}{
		{"every 10 s", 10, gatherLinux, 0, 0, 7}, // after 1, 11, … 61 s
		{"every second", 1, gatherLinux, 0, 0, 64},
		{"0 is never", 0, gatherLinux, 0, 0, 0},
		{"none", 10, gatherNone, 0, 0, 0},
		{"waits", 1, gatherLinux, 100 * time.Millisecond, 0, 58}, // 1.1 s apart
		{"dear", 1, gatherLinux, 0, 100 * time.Millisecond, 7},   // 10 s apart
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := New(Config{
					Ranks: []int{0}, Acct: step.Accounting{Gather: tt.gather, FrequencyS: tt.frequency},
					PIDs: func() ([]int, error) {
						time.Sleep(tt.waits)
						for begin := linux.ThreadTime(); linux.ThreadTime()-begin < tt.works; {
						}
						return nil, nil
					},
				})
				g.Begin(1, false, []int{100})
				time.Sleep(64*time.Second + 500*time.Millisecond)
				g.Finish()
				if rec := record(g, 1); rec.Usage.Samples != tt.want {
					t.Errorf("%d samples, want %d", rec.Usage.Samples, tt.want)
				}
			})
		})
	}
}

// A read that hangs, of a process that cannot be killed, delays neither the
// step's end nor a client that asks for its figures.
func TestSampleHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		var log []string
		g := New(Config{
			Ranks: []int{0}, Acct: step.Accounting{Gather: gatherLinux, FrequencyS: 1},
			PIDs: func() ([]int, error) { <-back; return nil, nil }, Log: func(text string) { log = append(log, text) },
		})
		begin := time.Now()
		g.Begin(1, false, []int{100})
		time.Sleep(2 * time.Second) // the sampler hangs
		g.Sample()
		g.TaskEnded(end(0, 1000, 64))
		g.Finish()
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("the end came after %v", took)
		}
		rec := record(g, 1)
		known(t, "MaxRSS as the kernel told it", rec.Usage.MaxRSSBytes, 64*mb)
		if len(log) != 1 || !strings.Contains(log[0], "not come back") {
			t.Errorf("log: %q", log)
		}
		close(back)
		synctest.Wait()
		if rec := record(g, 1); rec.Usage.Samples != 0 {
			t.Errorf("%d samples: one was taken in after the end", rec.Usage.Samples)
		}
	})
}

// TestWhole: what an extern step has adopted counts as its one task's, and no task's otherwise.
func TestWhole(t *testing.T) {
	for _, whole := range []bool{false, true} {
		g := New(Config{Ranks: []int{0}, Whole: whole})
		g.Begin(1, false, []int{100})
		g.OrphanEnded(555, end(0, 250, 128).Usage)
		g.TaskEnded(end(0, 1000, 64))
		g.Finish()
		rec := record(g, 1)
		want := 1.0
		if whole {
			want = 1.25
		}
		sameFloat(t, "the task's CPU time", rec.Tasks[0].CPUSeconds, want)
		sameFloat(t, "the step's CPU time", rec.Usage.CPUSeconds, 1.25)
	}
}
