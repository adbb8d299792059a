package gres

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"stepd/slurm/wire"
	"stepd/step"
	"stepd/step/launch"
)

// variables are those that name GPUs, by the flags of gres.conf.
var variables = []struct {
	flag wire.GresEnvFlags
	name string
}{
	{wire.GresEnvCUDA, "CUDA_VISIBLE_DEVICES"}, {wire.GresEnvROCR, "ROCR_VISIBLE_DEVICES"},
	{wire.GresEnvLevel0, "ZE_AFFINITY_MASK"}, {wire.GresEnvOpenCL, "GPU_DEVICE_ORDINAL"},
}

const (
	envGPUsOnNode   = "SLURM_GPUS_ON_NODE"
	envShardsOnNode = "SLURM_SHARDS_ON_NODE"
	envThreads      = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	envInterfaces   = "OMPI_MCA_btl_openib_if_include"
)

// vars are the variables of a task: a value, or "" for one that would tell something else.
type vars map[string]string

// unset removes a name that has no value yet.
func (v vars) unset(names ...string) {
	for _, name := range names {
		if v[name] == "" {
			v[name] = ""
		}
	}
}

// Environment are the variables of a task, NAME=VALUE, and the names of variables that a user may
// have and that would contradict them.
func (p *Plan) Environment(local int, constrained bool) (env, unset []string) {
	v := vars{}
	for i := range p.held {
		h := &p.held[i]
		switch h.node.Name {
		case "gpu":
			p.gpus(v, h, local, constrained)
		case "nic":
			p.nics(v, h, local)
		}
	}
	for i := range p.held { // parts of GPUs: a step that has whole ones has none
		h := &p.held[i]
		shared := h.node.Name == "shard" || h.node.Name == "mps"
		if shared && !slices.ContainsFunc(p.held, func(o held) bool { return o.node.Name == "gpu" && o.count > 0 }) {
			p.shares(v, h, local, constrained)
		}
	}
	for name, value := range v {
		if value == "" {
			unset = append(unset, name)
		} else {
			env = append(env, name+"="+value)
		}
	}
	if p.request != "" {
		env = append(env, p.request)
	}
	slices.Sort(env)
	slices.Sort(unset)
	return env, unset
}

// scoped is the name of a variable of the step, or of its job in a batch script.
func (p *Plan) scoped(what string) string {
	if p.batch {
		return "SLURM_JOB_" + what
	}
	return "SLURM_STEP_" + what
}

// visible are a task's devices that its variables name.
func (h *held) visible(local int) []int {
	if h.bind != nil && h.bind.kind == bindNone {
		return nil
	}
	return h.of(local)
}

func (p *Plan) gpus(v vars, h *held, local int, constrained bool) {
	v.unset(envGPUsOnNode, p.scoped("GPUS"), envThreads)
	if h.count > 0 {
		v[envGPUsOnNode] = strconv.FormatUint(h.count, 10)
	}
	if own := h.visible(local); len(own) > 0 {
		v[p.scoped("GPUS")] = h.names(own, false)
	}
	h.visibleDevices(v, h.node.EnvFlags, local, constrained)
}

// visibleDevices sets the variables by which libraries find GPUs.
func (h *held) visibleDevices(v vars, flags wire.GresEnvFlags, local int, constrained bool) {
	names := h.names(h.visible(local), constrained)
	for _, e := range variables {
		switch {
		case flags&e.flag == 0:
		case names == "":
			v.unset(e.name)
		default:
			v[e.name] = names
		}
	}
}

// names lists devices by their numbers, or where others are hidden from the task from 0 on.
// A part of a GPU has a name of its own.
func (h *held) names(own []int, hidden bool) string {
	var list []string
	for n, i := range own {
		name := strconv.Itoa(i)
		if hidden {
			name = strconv.Itoa(n)
		}
		at := slices.IndexFunc(h.node.Devices, func(d wire.NodeDevice) bool { return int(d.Index) == i })
		if at >= 0 && h.node.Devices[at].UniqueID != "" {
			name = h.node.Devices[at].UniqueID
		}
		list = append(list, name)
	}
	return strings.Join(list, ",")
}

func (p *Plan) nics(v vars, h *held, local int) {
	var list []string
	for _, d := range h.node.Devices {
		if name := fmt.Sprintf("mlx4_%d", d.Number); slices.Contains(h.visible(local), int(d.Index)) && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	for _, name := range []string{p.scoped("NICS"), envInterfaces} {
		v[name] = strings.Join(list, ",")
	}
}

// shares sets the variables of a part of a GPU.
func (p *Plan) shares(v vars, h *held, local int, constrained bool) {
	own, flags := h.visible(local), h.node.EnvFlags
	if h.node.Name == "mps" {
		flags = wire.GresEnvCUDA
	}
	h.visibleDevices(v, flags, local, constrained)
	v.unset(envThreads, envShardsOnNode, envGPUsOnNode, p.scoped("GPUS"))
	if len(own) > 0 {
		v[envGPUsOnNode], v[p.scoped("GPUS")] = strconv.Itoa(len(own)), h.names(own, false)
	}
	switch {
	case h.count == 0:
	case h.node.Name == "shard":
		v[envShardsOnNode] = strconv.FormatUint(h.count, 10)
	case len(own) > 0 && h.count <= 1<<32:
		at := slices.IndexFunc(h.node.Shares, func(s wire.GresShare) bool { return s.Index == uint64(own[0]) && s.Count > 0 })
		if at >= 0 {
			v[envThreads] = strconv.FormatUint(h.count*100/h.node.Shares[at].Count, 10)
		}
	}
}

// Says are the lines that a task's stderr gets: what could not be bound, which begins with the
// speaker, and with "verbose" what was.
func (p *Plan) Says(local int, speaker string, constrained bool) (lines []string) {
	for i := range p.held {
		h := &p.held[i]
		if h.bound == nil {
			continue
		}
		for _, line := range h.says[local] {
			lines = append(lines, speaker+": "+line)
		}
		if h.bind.verbose {
			lines = append(lines, h.bindLine(local, constrained))
		}
	}
	return lines
}

// bindLine is Slurm's line of what a task is bound to.
func (h *held) bindLine(local int, constrained bool) string {
	own, among := h.of(local), 0
	if constrained {
		among = len(h.index)
	}
	return fmt.Sprintf("%s-bind: usable_gres=0x%X; bit_alloc=0x%X; local_inx=%d; global_list=%s; local_list=%s",
		h.node.Name, bitmap(own), bitmap(h.index), among, h.names(own, false), h.names(own, constrained))
}

func bitmap(list []int) *big.Int {
	var bits big.Int
	for _, i := range list {
		bits.SetBit(&bits, i, 1)
	}
	return &bits
}

// Plugin tells the tasks what they have.
type Plugin struct {
	Plan        *Plan
	Constrained bool
	Speaker     string
	Lines       []string          // for the step as a whole
	Say         func(line string) // to the tasks' stderr
}

// Name is what messages call it.
func (p *Plugin) Name() string { return "gres" }

// PreSetuid says what holds for all tasks.
func (p *Plugin) PreSetuid() error {
	for _, line := range p.Lines {
		p.Say(line)
	}
	return nil
}

// PreLaunch gives each task its variables.
func (p *Plugin) PreLaunch(l *launch.Launch) error {
	for local := range l.TaskEnv {
		if env, _ := p.Plan.Environment(local, p.Constrained); len(env) > 0 {
			l.TaskEnv[local] = append(slices.Clone(l.TaskEnv[local]), env...)
		}
	}
	return nil
}

// PreLaunchPriv tells a task what it is bound to.
func (p *Plugin) PreLaunchPriv(local, _ int) error {
	for _, line := range p.Plan.Says(local, p.Speaker, p.Constrained) {
		p.Say(line)
	}
	return nil
}

// PostTerm does nothing.
func (p *Plugin) PostTerm(launch.TaskEnd) {}

// PostStep does nothing either.
func (p *Plugin) PostStep() error { return nil }

// Clean takes variables out of the job's environment that would tell a task something else.
func (p *Plan) Clean(out *step.Spec) {
	_, unset := p.Environment(0, false)
	out.Env = slices.DeleteFunc(out.Env, func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(unset, name)
	})
}
