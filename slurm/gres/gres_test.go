package gres

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"stepd/slurm/wire"
	"stepd/step"
	"stepd/step/launch"
)

// captured is the stream of a step with gpu:a100:1, gpu:v100:2, nic:1, fpga:1 and tool:2 that
// asks for --gpu-bind=verbose,closest.
func captured(t *testing.T, v wire.Release) *wire.Stream {
	t.Helper()
	b, err := os.ReadFile("../wire/testdata/" + v.String() + "/gres.stream")
	if err != nil {
		t.Fatal(err)
	}
	s, err := wire.ReadStream(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func all(int) []int { return nil }

// TestCaptured has what the step daemons of each release have made of it.
func TestCaptured(t *testing.T) {
	for v := wire.V2205; v <= wire.V2605; v += 1 << 8 {
		p, err := Of(captured(t, v), Step{Tasks: 2, CPUs: all})
		if err != nil {
			t.Fatalf("%s: %v", v, err)
		}
		bind := "gres/gpu:verbose,closest"
		if v < wire.V2311 {
			bind = "gpu:verbose,closest"
		}
		env, unset := p.Environment(1, false)
		want := []string{
			"CUDA_VISIBLE_DEVICES=0,2,3", "OMPI_MCA_btl_openib_if_include=mlx4_0", "SLURMD_TRES_BIND=" + bind,
			"SLURM_GPUS_ON_NODE=3", "SLURM_STEP_GPUS=0,2,3", "SLURM_STEP_NICS=mlx4_0",
		}
		if !slices.Equal(env, want) || !slices.Equal(unset, []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}) {
			t.Errorf("%s: %q, without %q", v, env, unset)
		}
		if env, _ := p.Environment(0, true); !slices.Contains(env, "CUDA_VISIBLE_DEVICES=0,1,2") || !slices.Contains(env, "SLURM_STEP_GPUS=0,2,3") {
			t.Errorf("%s: where others are hidden: %q", v, env)
		}
		line := "gpu-bind: usable_gres=0xD; bit_alloc=0xD; local_inx=0; global_list=0,2,3; local_list=0,2,3"
		if says := p.Says(1, "slurmstepd-n1", false); !slices.Equal(says, []string{line}) {
			t.Errorf("%s: it says %q", v, says)
		}
		denied := "c 240:1 rwm,c 240:5 rwm" // gpu1, nic1
		if v >= wire.V2302 {
			denied += ",c 240:7 rwm" // fpga1: 22.05 knows no files of what has no plugin
		}
		if got := rules(p.StepDenied); got != denied || rules(p.JobDenied) != denied || rules(p.TaskDenied[0]) != denied {
			t.Errorf("%s: denied are %s, of the job %s", v, got, rules(p.JobDenied))
		}
	}
}

func rules(list []step.Device) string {
	var out []string
	for _, d := range list {
		out = append(out, d.Rule())
	}
	return strings.Join(out, ",")
}

// node is a stream of a node with four GPUs, two to each of two CPUs, of which the step has
// the ones of bits.
func node(v wire.Release, bind string, bits ...bool) *wire.Stream {
	gpu := wire.NodeGres{Name: "gpu", ID: 7, Count: 4, EnvFlags: wire.GresEnvCUDA}
	for i := range 4 {
		gpu.Devices = append(gpu.Devices, wire.NodeDevice{Index: int32(i), Kind: wire.DeviceChar, Major: 195, Minor: uint32(i), Path: "/dev/nvidia" + string(rune('0'+i))})
	}
	has := []wire.Gres{{ID: 7, Counts: []uint64{0, 4}, Bits: [][]bool{nil, bits}}}
	return &wire.Stream{
		Conf: &wire.Conf{Release: v}, NodeGres: []wire.NodeGres{gpu},
		GresLines: []wire.GresLine{{Name: "nic", Count: 9}, {Name: "gpu", Count: 2, CPUs: []bool{true}}, {Name: "gpu", Count: 2, CPUs: []bool{false, true}}},
		Launch:    &wire.Launch{GresBind: bind, Cred: &wire.Cred{JobGres: has, StepGres: has}},
	}
}

// TestBind has bindings as srun's tasks have met them.
func TestBind(t *testing.T) {
	four, last := []bool{true, true, true, true}, []bool{false, false, true, true}
	const first = "Binding to the first device"
	for _, c := range []struct {
		v           wire.Release
		bind        string
		bits        []bool
		cpus        []int // of each task, nil: all
		constrained bool
		want, says  string // of the tasks, parted by blanks; part of what the last is told
	}{
		{v: wire.V2205, bind: "", bits: four, want: "0,1,2,3 0,1,2,3 0,1,2,3"},
		{v: wire.V2205, bind: "gpu:none", bits: four, want: "- - -"},
		{v: wire.V2302, bind: "gpu:none", bits: four, want: "0,1,2,3 0,1,2,3 0,1,2,3"},
		{v: wire.V2205, bind: "gpu:single:1", bits: four, want: "0 1 2"},
		{v: wire.V2605, bind: "gres/gpu:single:2", bits: four, want: "0 0 1"},
		{v: wire.V2205, bind: "gpu:single:1", bits: last, want: "2 3 2"},
		{v: wire.V2605, bind: "gres/gpu:single:1", bits: last, want: "2 3 2", says: "Can't find free slot for local_proc_id = 2"},
		{v: wire.V2205, bind: "gpu:single:1", bits: four, cpus: []int{1, 0, 1}, want: "2 1 2"},
		{v: wire.V2605, bind: "gres/gpu:single:1", bits: four, cpus: []int{1, 0, 1}, want: "2 0 3"},
		{v: wire.V2605, bind: "gres/gpu:closest", bits: four, cpus: []int{1, 0, 1}, want: "2,3 0,1 2,3"},
		{v: wire.V2205, bind: "gpu:closest", bits: last, cpus: []int{1, 1, 0}, want: "2,3 2,3 2", says: first},
		{v: wire.V2205, bind: "gpu:per_task:2", bits: four, want: "0,1 2,3 0", says: first},
		{v: wire.V2605, bind: "nic:none;gres/gpu:per_task:3", bits: four, want: "0,1,2 3 0", says: "Not enough gres to bind 3 per task"},
		{v: wire.V2205, bind: "gpu:map_gpu:3,0x1,0", bits: four, want: "3 1 0"},
		{v: wire.V2205, bind: "gpu:map_gpu:0*2,3", bits: four, want: "0 0 3"},
		{v: wire.V2205, bind: "gpu:map_gpu:2,3,1", bits: last, want: "2 3 2", says: first},
		{v: wire.V2205, bind: "gpu:map_gpu:1,0,2", bits: last, constrained: true, want: "3 2 2", says: "Invalid --gpu-bind= value"},
		{v: wire.V2605, bind: "gres/gpu:mask_gpu:0xc,0xF,f", bits: four, want: "2,3 0,1,2,3 0", says: "Invalid map or mask value"},
		{v: wire.V2605, bind: "gres/gpu:mask_gpu:0x3,0x1,0x10", bits: last, constrained: true, want: "2,3 2 2", says: "Invalid map or mask value"},
	} {
		cpus := func(local int) []int {
			if c.cpus == nil {
				return nil
			}
			return c.cpus[local : local+1]
		}
		p, err := Of(node(c.v, c.bind, c.bits...), Step{Node: 1, Tasks: 3, Constrained: c.constrained, CPUs: cpus})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for local := range 3 {
			env, _ := p.Environment(local, c.constrained)
			at := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, "SLURM_STEP_GPUS=") })
			if at < 0 {
				got = append(got, "-")
			} else {
				got = append(got, strings.TrimPrefix(env[at], "SLURM_STEP_GPUS="))
			}
		}
		says := strings.Join(p.Says(2, "s", c.constrained), "\n")
		if text := strings.Join(got, " "); text != c.want || (c.says == "") != (says == "") || !strings.Contains(says, c.says) {
			t.Errorf("%s %s of %v: %s, want %s; it says %q", c.v, c.bind, c.bits, text, c.want, says)
		}
	}
}

// TestBadCredential: what the node has not is refused by name.
func TestBadCredential(t *testing.T) {
	long := node(wire.V2205, "", true, false, false, false, true)
	if p, err := Of(long, Step{Node: 1, Tasks: 1, CPUs: all}); err == nil || !strings.Contains(err.Error(), "device 4 of gres/gpu") {
		t.Errorf("a bitmap that is too long: %v, %v", p, err)
	}
	other := node(wire.V2205, "", true)
	other.Launch.Cred.StepGres = []wire.Gres{{ID: 8}}
	if p, err := Of(other, Step{Tasks: 1, CPUs: all}); err == nil || !strings.Contains(err.Error(), "GresTypes") {
		t.Errorf("an unknown resource: %v, %v", p, err)
	}
	counted := node(wire.V2205, "", true)
	counted.NodeGres[0].Devices = nil
	counted.Launch.Cred.StepGres[0].Counts[1] = 1<<64 - 1
	if p, err := Of(counted, Step{Node: 1, Tasks: 1, CPUs: all}); err != nil || p.Allocated()[0].Count != 1<<64-1 {
		t.Errorf("a resource that is counted only: %v, %v", p, err)
	}
}

// TestBatch: a script has its job's; variables of a step that its user has are left alone.
func TestBatch(t *testing.T) {
	s := node(wire.V2605, "", true, false, false, true)
	s.Batch, s.Launch = &wire.Batch{Cred: s.Launch.Cred}, nil
	s.Batch.Cred.StepGres = nil
	p, err := Of(s, Step{Node: 1, Tasks: 1, CPUs: all})
	if err != nil {
		t.Fatal(err)
	}
	out := &step.Spec{}
	out.Env = []string{"SLURM_STEP_GPUS=x", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=9", "A=1"}
	p.Clean(out)
	l := &launch.Launch{TaskEnv: [][]string{{"R=0"}}}
	if err := (&Plugin{Plan: p}).PreLaunch(l); err != nil {
		t.Fatal(err)
	}
	if want := []string{"R=0", "CUDA_VISIBLE_DEVICES=0,3", "SLURM_GPUS_ON_NODE=4", "SLURM_JOB_GPUS=0,3"}; !slices.Equal(l.TaskEnv[0], want) {
		t.Errorf("%q", l.TaskEnv[0])
	}
	if !slices.Equal(out.Env, []string{"SLURM_STEP_GPUS=x", "A=1"}) {
		t.Errorf("%q", out.Env)
	}
}

// TestInteractive: the shell of salloc has its job's, as a script does.
func TestInteractive(t *testing.T) {
	s := node(wire.V2605, "", true, false, false, true)
	s.Launch.Step.Step, s.Launch.Cred.StepGres = wire.StepInteractive, nil
	p, err := Of(s, Step{Node: 1, Tasks: 1, CPUs: all})
	if err != nil {
		t.Fatal(err)
	}
	if env, _ := p.Environment(0, false); !slices.Equal(env, []string{"CUDA_VISIBLE_DEVICES=0,3", "SLURM_GPUS_ON_NODE=4", "SLURM_JOB_GPUS=0,3"}) || len(p.StepDenied) != 2 {
		t.Errorf("%q, denied are %v", env, p.StepDenied)
	}
}

func TestShares(t *testing.T) {
	s := node(wire.V2605, "", false, true)
	s.NodeGres = append(s.NodeGres, wire.NodeGres{Name: "mps", ID: 9, Devices: s.NodeGres[0].Devices, Shares: []wire.GresShare{{Count: 100, Index: 0}, {Count: 200, Index: 1}}})
	s.Launch.Cred.StepGres = []wire.Gres{{ID: 9, Counts: []uint64{0, 50}, Bits: [][]bool{nil, {false, true}}}}
	p, err := Of(s, Step{Node: 1, Tasks: 1, CPUs: all})
	if err != nil {
		t.Fatal(err)
	}
	env, _ := p.Environment(0, false)
	if want := []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25", "CUDA_VISIBLE_DEVICES=1", "SLURM_GPUS_ON_NODE=1", "SLURM_STEP_GPUS=1"}; !slices.Equal(env, want) {
		t.Errorf("%q", env)
	}
}

// TestLongRequest: a task's message does not repeat all of a long request, which is a user's.
func TestLongRequest(t *testing.T) {
	s := node(wire.V2605, "gpu:map_gpu:"+strings.Repeat("9,", 1<<20), true)
	p, err := Of(s, Step{Node: 1, Tasks: 1, CPUs: all})
	if err != nil {
		t.Fatal(err)
	}
	if line := strings.Join(p.Says(0, "s", false), ""); !strings.Contains(line, "Bind request gpu:map_gpu:9,") || len(line) > 2*requestMax {
		t.Errorf("%d bytes: %.100q", len(line), line)
	}
}

func FuzzBind(f *testing.F) {
	for _, seed := range []string{"gpu:single:1", "gres/gpu:verbose,map_gpu:0*3,2", "gpu:mask_gpu:0xff*65535,0x1*65535", "gpu:per_task:99999999999", "gpu:map:", "gpu:verbose,", "+;gpu:"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, bind string) {
		for _, v := range []wire.Release{wire.V2205, wire.V2605} {
			p, err := Of(node(v, bind, true, true, false, true), Step{Node: 1, Tasks: 3, CPUs: all})
			if err != nil {
				t.Fatal(err)
			}
			for local := range 3 {
				own := p.held[0].of(local)
				if len(own) == 0 || !slices.IsSorted(own) || slices.Contains(own, 2) || slices.Max(own) > 3 {
					t.Errorf("%q: task %d has %v", bind, local, own)
				}
				p.Says(local, "s", false)
			}
		}
	})
}
