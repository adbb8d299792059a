package cgroup

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

var update = flag.Bool("update", false, "write the golden files")

const gb = 1024 // in MB

// confs of cgroup.conf(5): what is not told has its default.
func conf(change func(*Conf)) Conf {
	c := Conf{Cores: true, RAM: true, Swap: true, Devices: true, AllowedRAM: 100, MaxRAM: 100, MaxSwap: 100, MinRAM: 30}
	if change != nil {
		change(&c)
	}
	return c
}

func layoutV2() Layout {
	return Layout{
		Memory: HomeV2, Cpuset: HomeV2, Devices: HomeV2, SwapAccounting: true, CPUs: "0-7",
		PIDs: HomeV2, JobV2: "/cg/job_7/tasks", StepV2: "/cg/job_7/tasks/step_0", Tracked: "/cg/job_7/tasks/step_0",
	}
}

// layoutV1 is a hybrid: processes are tracked on v2, limits are in v1.
func layoutV1() Layout {
	l := layoutV2()
	l.Memory, l.Cpuset, l.Devices, l.PIDs, l.Mems = HomeV1, HomeV1, HomeV1, HomeV1, "0-1"
	l.JobV1, l.StepV1 = map[string]string{}, map[string]string{}
	for _, c := range []string{"memory", "cpuset", "devices", "cpuacct", "pids"} {
		l.JobV1[c], l.StepV1[c] = "/v1/"+c+"/job_7", "/v1/"+c+"/job_7/step_0"
	}
	return l
}

func ask(change func(*Ask)) Ask {
	a := Ask{
		NodeMB: 16 * gb, JobMB: 4 * gb, MB: 1 * gb, JobCPUs: "2-5", CPUs: "2-3",
		Bindable: true, CgroupPlugin: true,
		JobDenied: []step.Device{{Type: "c", Major: 195, Minor: 1}},
		Denied:    []step.Device{{Type: "c", Major: 195, Minor: 0}, {Type: "c", Major: 195, Minor: 1}},
	}
	if change != nil {
		change(&a)
	}
	return a
}

func text(p *launch.LimitPlan) string {
	var b strings.Builder
	for _, w := range append(append([]step.CgroupWrite(nil), p.Writes...), p.TaskWrites...) {
		verb := "<-"
		if len(w.Deny) > 0 {
			verb = "bpf"
		}
		fmt.Fprintf(&b, "%s %s %s %q\n", w.Level, w.Path, verb, w.Value)
	}
	for _, m := range p.Confine.Memory {
		fmt.Fprintf(&b, "limit %s %s", m.Level, m.Dir)
		if m.Bytes != nil {
			fmt.Fprintf(&b, " bytes=%d", *m.Bytes)
		}
		if m.SwapBytes != nil {
			fmt.Fprintf(&b, " swap=%d", *m.SwapBytes)
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "v1 %v per_task %v oom_group %q\n", p.V1, p.Confine.PerTask, p.Confine.OOMGroup)
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "note %s\n", n)
	}
	return b.String()
}

func TestPlanGolden(t *testing.T) {
	swappiness := uint64(10)
	for _, c := range []struct {
		name string
		conf Conf
		at   Layout
		ask  Ask
	}{
		{"v2_all", conf(nil), layoutV2(), ask(nil)},
		{"v1_all", conf(nil), layoutV1(), ask(nil)},
		{"v1_swappiness", conf(func(c *Conf) { c.Swappiness = &swappiness; c.Cores, c.Devices = false, false }), layoutV1(), ask(nil)},
		{"v2_soft", conf(func(c *Conf) { c.AllowedRAM, c.AllowedSwap, c.Cores, c.Devices = 150, 50, false, false }), layoutV2(), ask(nil)},
		{"v1_soft", conf(func(c *Conf) { c.AllowedRAM, c.AllowedSwap, c.Cores, c.Devices = 150, 50, false, false }), layoutV1(), ask(nil)},
		{"v2_ram_only", conf(func(c *Conf) { c.Swap, c.Cores, c.Devices = false, false, false }), layoutV2(), ask(nil)},
		// ConstrainSwapSpace alone limits RAM by the sum; AllowedRAMSpace is 100 then.
		{"v2_swap_only", conf(func(c *Conf) { c.RAM, c.Cores, c.Devices, c.AllowedRAM, c.AllowedSwap = false, false, false, 50, 25 }), layoutV2(), ask(nil)},
		{"v1_no_swap_accounting", conf(func(c *Conf) { c.Cores, c.Devices = false, false }), func() Layout { l := layoutV1(); l.SwapAccounting = false; return l }(), ask(nil)},
		// Nothing was given out: MaxRAMPercent of the node.
		{"v2_none_given", conf(func(c *Conf) { c.MaxRAM, c.MaxSwap, c.Cores, c.Devices = 50, 75, false, false }), layoutV2(), ask(func(a *Ask) { a.JobMB, a.MB = 0, 0 })},
		{"v2_min", conf(func(c *Conf) { c.Cores, c.Devices = false, false }), layoutV2(), ask(func(a *Ask) { a.JobMB, a.MB = 10, 10 })},
		{"v2_max", conf(func(c *Conf) { c.MaxRAM, c.Cores, c.Devices = 10, false, false }), layoutV2(), ask(nil)},
		{"v2_oom_step", conf(func(c *Conf) { c.Cores, c.Devices = false, false }), layoutV2(), ask(func(a *Ask) { a.OOMGroup = step.OOMGroupStep })},
		{"v2_oom_task", conf(func(c *Conf) { c.Cores, c.Devices = false, false }), layoutV2(), ask(func(a *Ask) { a.OOMGroup = step.OOMGroupTask })},
		{"no_plugin", conf(nil), layoutV2(), ask(func(a *Ask) { a.CgroupPlugin = false })},
		{"nothing_constrained", Conf{}, layoutV2(), ask(nil)},
		{"no_controllers", conf(nil), Layout{Why: map[string]string{"memory": "no memory controller", "cpuset": "no cpuset controller", "devices": "no devices controller"}}, ask(nil)},
		{"v2_processes", Conf{}, layoutV2(), ask(func(a *Ask) { a.Processes, a.CgroupPlugin = 16384, false })},
		{"v1_processes", Conf{}, layoutV1(), ask(func(a *Ask) { a.Processes, a.CgroupPlugin = 16384, false })},
		{"v1_account", Conf{}, layoutV1(), ask(func(a *Ask) { a.AccountV1, a.PerTask = []string{"memory", "cpuacct", "blkio"}, true })},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := MakePlan(c.conf, c.at, c.ask)
			if err != nil {
				t.Fatal(err)
			}
			got := text(p)
			file := filepath.Join("testdata", c.name+".golden")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

func TestPlanRefuses(t *testing.T) {
	parent := uint64(512 << 20)
	for _, c := range []struct {
		name string
		at   func(*Layout)
		ask  func(*Ask)
		want string
	}{
		{"offline", func(l *Layout) { l.CPUs = "0-2" }, nil, `CPUs 2-5, of which 3-5 are offline`},
		{"empty", nil, func(a *Ask) { a.CPUs = "" }, "no CPUs"},
		{"parent", func(l *Layout) { l.Parents = []step.MemoryLevel{{Level: "parent", Dir: "/cg", Bytes: &parent}} }, nil, `needs 1 GB of memory, and cgroup "/cg"`},
	} {
		l := layoutV2()
		if c.at != nil {
			c.at(&l)
		}
		_, err := MakePlan(conf(nil), l, ask(c.ask))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestParentLimits(t *testing.T) {
	top := t.TempDir()
	for dir, limit := range map[string]string{"a": "1000\n", "a/b": "max\n", "a/b/c": "500\n"} {
		must(t, os.MkdirAll(filepath.Join(top, dir), 0o755))
		must(t, os.WriteFile(filepath.Join(top, dir, "memory.max"), []byte(limit), 0o644))
	}
	got, err := ParentLimits(HomeV2, filepath.Join(top, "a/b/c"))
	must(t, err)
	if len(got) != 2 || *got[0].Bytes != 500 || *got[1].Bytes != 1000 || got[1].Dir != filepath.Join(top, "a") {
		t.Errorf("got %+v", got)
	}
	if got, err := ParentLimits(HomeV1, top); err != nil || got != nil {
		t.Errorf("without files: %+v, %v", got, err)
	}
	must(t, os.WriteFile(filepath.Join(top, "a/memory.max"), []byte("many\n"), 0o644))
	if _, err := ParentLimits(HomeV2, filepath.Join(top, "a/b")); err == nil || !strings.Contains(err.Error(), `"many"`) {
		t.Errorf("a limit that is none: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// No limit overflows, whatever is asked for, and none is below MinRAMSpace.
func FuzzMemory(f *testing.F) {
	f.Add(uint64(1000), uint64(100), 100.0, 0.0)
	f.Add(uint64(srunopt.MemoryMax), uint64(srunopt.MemoryMax), 1e6, 1e6)
	f.Fuzz(func(t *testing.T, node, mb uint64, ram, swap float64) {
		node, mb = node%(srunopt.MemoryMax+1), mb%(srunopt.MemoryMax+1)
		if ram < 0 || swap < 0 || ram > 1e6 || swap > 1e6 || ram != ram || swap != swap {
			t.Skip()
		}
		c := conf(func(c *Conf) { c.AllowedRAM, c.AllowedSwap = ram, swap })
		l := c.memory(mb, node)
		if l.all < l.hard || l.soft > l.hard {
			t.Errorf("limits of %d of %d MB: %+v", mb, node, l)
		}
		if mb > 0 && l.hard < min(30<<20, node<<20) {
			t.Errorf("limits of %d of %d MB: %+v is below MinRAMSpace", mb, node, l)
		}
	})
}

func FuzzLimit(f *testing.F) {
	for _, s := range []string{"max\n", "9223372036854771712\n", "0\n", "1048576", "-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, ok, err := parseLimit(s); err == nil && ok && v >= unlimited {
			t.Errorf("parseLimit(%q) = %d", s, v)
		}
	})
}
