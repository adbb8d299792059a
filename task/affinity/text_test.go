package affinity

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stepd/srunopt"
	"stepd/step"
)

func TestCPUSet(t *testing.T) {
	s := NewCPUSet(0, 16, 64, 130)
	if got := s.Hex(); got != "0x400000000000000010000000000010001" {
		t.Errorf("got %s", got)
	}
	if got := s.String(); got != "0,16,64,130" {
		t.Errorf("got %s", got)
	}
	for _, c := range []struct {
		s    CPUSet
		hex  string
		wide string
	}{{nil, "0x0", "0x00000000"}, {NewCPUSet(4), "0x10", "0x00000010"}, {CPUSet{0xabc, 0}, "0xabc", "0x00000ABC"}} {
		if c.s.Hex() != c.hex || c.s.padded(32) != c.wide {
			t.Errorf("%v: %s, %s", c.s, c.s.Hex(), c.s.padded(32))
		}
	}
	if got := NewCPUSet(1).padded(33); got != "0x0000000000000002" {
		t.Errorf("got %s", got)
	}
	if s.and(NewCPUSet(16, 17)).String() != "16" || s.without(NewCPUSet(16, 130)).String() != "0,64" || NewCPUSet(1).or(s).Len() != 5 || s.Has(-1) || s.Has(999) || !s.Has(130) {
		t.Error("set arithmetic")
	}
}

// TestEnv: the values were measured at 22.05.8, on 2s8c2t2n.
func TestEnv(t *testing.T) {
	for _, c := range []struct {
		options string
		want    []string // of SLURM_CPU_BIND and SLURM_MEM_BIND, without those that follow from them
	}{
		{"-n2", []string{"CPU_BIND=quiet,mask_cpu:0x00FF00FF,0xFF00FF00"}},
		{"-n4 --cpu-bind=verbose", []string{"CPU_BIND=verbose,mask_cpu:0xFFFFFFFF"}},
		{"-n3 --cpu-bind=sockets", []string{"CPU_BIND=quiet,mask_cpu:0x00FF00FF,0xFF00FF00,0x00FF00FF"}},
		{"-n4 --cpu-bind=verbose,rank", []string{"CPU_BIND=verbose,rank"}},
		{"-n4 --cpu-bind=verbose,none", []string{"CPU_BIND=verbose,none"}},
		{"-n3 --cpu-bind=verbose,map_cpu:1*2,5", []string{"CPU_BIND=verbose,map_cpu:1,1,5"}},
		{"-n2 --cpu-bind=mask_cpu:f,0xf0", []string{"CPU_BIND=quiet,mask_cpu:f,f0"}},
		{"-n4 --cpu-bind=map_ldom:1,0", []string{"CPU_BIND=quiet,map_ldom:1,0"}},
		{"-n4 --cpu-bind=rank_ldom", []string{"CPU_BIND=quiet,rank_ldom"}},
		{"-n2 --cpu-bind=none --mem-bind=verbose", []string{"CPU_BIND=quiet,none", "MEM_BIND=verbose"}},
		{"-n2 --cpu-bind=none --mem-bind=local", []string{"CPU_BIND=quiet,none", "MEM_BIND=quiet,local"}},
		{"-n2 --cpu-bind=none --mem-bind=prefer,map_mem:0,sort", []string{"CPU_BIND=quiet,none", "MEM_BIND=quiet,prefer,map_mem:0", "MEM_BIND_PREFER=prefer", "MEM_BIND_SORT=sort"}},
		{"-n2 --cpu-bind=none --mem-bind=map_mem:0*2,1", []string{"CPU_BIND=quiet,none", "MEM_BIND=quiet,map_mem:0,0,1"}},
		{"-n2 --cpu-bind=none --mem-bind=mask_mem:1", []string{"CPU_BIND=quiet,none", "MEM_BIND=quiet,mask_mem:0x1"}},
	} {
		p, err := plan(t, machine(t, "2s8c2t2n", "0-31"), c.options)
		if err != nil {
			t.Errorf("%s: %v", c.options, err)
			continue
		}
		var got []string
		for _, e := range p.Env() {
			name, value, _ := strings.Cut(strings.TrimPrefix(e, "SLURM_"), "=")
			if strings.HasSuffix(name, "_TYPE") || strings.HasSuffix(name, "_LIST") || strings.HasSuffix(name, "_VERBOSE") {
				continue
			}
			got = append(got, name+"="+value)
		}
		slices.Sort(got)
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", c.options, d)
		}
	}
	p, err := plan(t, machine(t, "2s8c2t2n", "0-31"), "-n2 --cpu-bind=v,map_cpu:1,0 --mem-bind=q,p,map_mem:1")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"SLURM_CPU_BIND_VERBOSE=verbose", "SLURM_CPU_BIND_TYPE=map_cpu:", "SLURM_CPU_BIND_LIST=1,0", "SLURM_CPU_BIND=verbose,map_cpu:1,0",
		"SLURM_MEM_BIND_PREFER=prefer", "SLURM_MEM_BIND_VERBOSE=quiet", "SLURM_MEM_BIND_TYPE=map_mem:", "SLURM_MEM_BIND_LIST=1", "SLURM_MEM_BIND=quiet,prefer,map_mem:1",
	}
	if d := cmp.Diff(want, p.Env()); d != "" {
		t.Error(d)
	}
}

// TestEnvOff: where CPUs= is more than there are, the tasks get no variables, unless
// a binding was asked for.
func TestEnvOff(t *testing.T) {
	for options, want := range map[string]string{
		"-n2":                    "",
		"-n2 --cpu-bind=none":    "SLURM_CPU_BIND=quiet,none",
		"-n2 --cpu-bind=verbose": "SLURM_CPU_BIND=verbose,none",
	} {
		in, err := input(options)
		if err != nil {
			t.Fatal(err)
		}
		in.Topology, in.Site.Off = machine(t, "2c", "0-1"), "CPUs=64"
		p, err := MakePlan(in)
		if err != nil || p.CPUs != nil {
			t.Errorf("%s: %v, %v", options, p, err)
			continue
		}
		if got := p.Env(); want == "" && len(got) > 0 || want != "" && !slices.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", options, got, want)
		}
	}
	if _, err := MakePlan(Input{Topology: machine(t, "2c", "0-1"), NTasks: 1, Site: step.AffinityConf{Off: "CPUs=64"}, Binding: step.Binding{CPU: step.CPUBind{Kind: srunopt.CPUBindCores}}}); err == nil || err.Error() != "cannot bind tasks (--cpu-bind=cores): CPUs=64" {
		t.Errorf("got %v", err)
	}
}

// TestLongLists: a variable of more than 128 KiB would let no task start
// (MAX_ARG_STRLEN): then repetitions are told as such, or the type alone.
func TestLongLists(t *testing.T) {
	entries := func(n, times int) (out []listEntry) {
		for range n {
			out = append(out, listEntry{"0x00000001", times})
		}
		return out
	}
	if got := listText(entries(2, 2)); got != "0x00000001,0x00000001,0x00000001,0x00000001" {
		t.Errorf("got %s", got)
	}
	if got := listText(entries(2, 60000)); got != "0x00000001*60000,0x00000001*60000" {
		t.Errorf("got %.80s", got)
	}
	if got := listText(entries(20000, 1)); got != "" {
		t.Errorf("got %d bytes", len(got))
	}
	in, err := input("-n20000 -O --cpu-bind=map_cpu:0*10000,1*10000")
	if err != nil {
		t.Fatal(err)
	}
	in.Topology = machine(t, "2c", "0-1")
	in.NTasks = 40000
	p, err := MakePlan(in)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(p.Env(), "SLURM_CPU_BIND=quiet,map_cpu:0,"+strings.Repeat("0,", 9999)+strings.Repeat("1,", 9999)+"1") {
		t.Error("20,000 short entries fit, and are not told")
	}
	if again, err := srunopt.ParseCPUBind("map_cpu:" + p.list); err != nil || again.Kind != srunopt.CPUBindMap {
		t.Errorf("what is told cannot be asked for: %v", err)
	}
}

// TestLines: srun's words, as measured.
func TestLines(t *testing.T) {
	for _, c := range []struct{ options, cpu, mem string }{
		{"-n2", "cpu-bind=MASK - n1, task  0  0 [77]: mask 0xff00ff set", "mem-bind=NULL - n1, task  1  1 [78]: mask 0x3"},
		{"-n2 --cpu-bind=none --mem-bind=none", "cpu-bind=NONE - n1, task  0  0 [77]: mask 0x0", "mem-bind=NONE - n1, task  1  1 [78]: mask 0x3"},
		{"-n2 --cpu-bind=rank --mem-bind=rank", "cpu-bind=RANK - n1, task  0  0 [77]: mask 0x1 set", "mem-bind=RANK - n1, task  1  1 [78]: mask 0x2 set"},
		{"-n2 --cpu-bind=map_cpu:2 --mem-bind=local", "cpu-bind=MAP  - n1, task  0  0 [77]: mask 0x4 set", "mem-bind=LOC - n1, task  1  1 [78]: mask 0x3 set"},
		{"-n2 --cpu-bind=rank_ldom --mem-bind=map_mem:1,0", "cpu-bind=LDRANK - n1, task  0  0 [77]: mask 0xff00ff set", "mem-bind=MAP - n1, task  1  1 [78]: mask 0x1 set"},
		{"-n2 --cpu-bind=map_ldom:1 --mem-bind=mask_mem:3", "cpu-bind=LDMAP  - n1, task  0  0 [77]: mask 0xff00ff00 set", "mem-bind=MASK - n1, task  1  1 [78]: mask 0x3 set"},
		{"-n2 --cpu-bind=mask_ldom:3 --mem-bind=p,map_mem:1", "cpu-bind=LDMASK - n1, task  0  0 [77]: mask 0xffffffff set", "mem-bind PREFER MAP - n1, task  1  1 [78]: mask 0x2 set"},
	} {
		p, err := plan(t, machine(t, "2s8c2t2n", "0-31"), c.options)
		if err != nil {
			t.Fatalf("%s: %v", c.options, err)
		}
		var has CPUSet
		if p.CPUs != nil {
			has = p.CPUs[0]
		}
		if got := p.CPULine("n1", 0, 77, has); got != c.cpu {
			t.Errorf("%s: got %q, want %q", c.options, got, c.cpu)
		}
		if got := p.MemLine("n1", 1, 78); got != c.mem {
			t.Errorf("%s: got %q, want %q", c.options, got, c.mem)
		}
	}
}

// On one of several nodes a line has the rank, and then the local id.
func TestLinesOfNode(t *testing.T) {
	in, err := input("-n2 --cpu-bind=map_cpu:2,3 --mem-bind=map_mem:0,7")
	if err != nil {
		t.Fatal(err)
	}
	in.Topology, in.Ranks = machine(t, "2s8c2t2n", "0-31"), []int{4, 11}
	if _, err := MakePlan(in); err == nil || !strings.Contains(err.Error(), "cannot bind the memory of task 11 ") {
		t.Errorf("a bad node of the second task: %v", err)
	}
	in.Binding.Mem = step.MemBind{}
	p, err := MakePlan(in)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.CPULine("n2", 1, 77, p.CPUs[1]), "cpu-bind=MAP  - n2, task 11  1 [77]: mask 0x8 set"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := p.MemLine("n2", 0, 78), "mem-bind=NULL - n2, task  4  0 [78]: mask 0x3"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
