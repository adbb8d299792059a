package place

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"stepd/node"
	"stepd/node/selection"
	"stepd/proctrack"
	"stepd/slurmconf"
	"stepd/step"
	"stepd/step/launch"
	"stepd/task/cgroup"
	"stepd/task/device"
)

var _ node.Limits = (*limits)(nil)

// limits is task/cgroup as noded wants it: what the files ask for, on what the
// node has.
type limits struct {
	conf     cgroup.Conf
	plugins  []string
	oomGroup bool // by TaskPluginParam
	account  bool // JobAcctGatherType=jobacct_gather/cgroup
	bindable bool // the CPU numbers are the machine's
	nodeMB   uint64
	gres     []selection.Gres
	v2Only   bool // CgroupPlugin=cgroup/v2: v1 hierarchies are not used, if there are any
	at       limitPlaces
	nodes    deviceNodes
}

// deviceNodes remembers the numbers of device nodes. A driver that goes takes
// its nodes away and makes them again when it comes back, with the numbers that
// they had: a step that began in between must have been refused them, too.
type deviceNodes struct {
	mu    sync.Mutex
	known map[string]step.Device // by path; guarded by mu
}

// find is the device at path. The error says why there is none now; was is then
// the last that there has been, if ok.
func (n *deviceNodes) find(path string) (was step.Device, ok bool, err error) {
	d, err := device.Stat(path)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		n.known[path] = d
		return d, true, nil
	}
	was, ok = n.known[path]
	return was, ok, err
}

// limitPlaces is where jobs and steps are limited: *cgroupTracker is one.
type limitPlaces interface {
	Kind() string
	Controllers() controllers
	// Roots are the directories below which jobs have theirs: on v2, "" without,
	// and in the v1 hierarchies, by controller.
	Roots() (v2 string, v1 map[string]string)
	// Places are the cgroups of a job and a step: of the tracker, on v2, and on v1.
	Places(id step.ID) places
}

// controllers are the names of the controllers that can limit jobs and steps ("memory",
// "cpuset").
type controllers struct{ v2, v1 []string }

type places struct {
	tracked       string
	jobV2, stepV2 string
	jobV1, stepV1 map[string]string
}

// Roots are the directories below which jobs have theirs.
func (t *cgroupTracker) Roots() (v2 string, v1 map[string]string) {
	if t.kind != proctrack.KindCgroupV1 {
		v2 = t.root.Dir()
	}
	v1 = make(map[string]string)
	for _, c := range t.root.V1() {
		v1[c] = t.root.V1Dir(c)
	}
	return v2, v1
}

// Places are the cgroups of a job and a step.
func (t *cgroupTracker) Places(id step.ID) places {
	p := places{tracked: t.root.TasksDir(id), jobV1: make(map[string]string), stepV1: make(map[string]string)}
	if t.kind != proctrack.KindCgroupV1 {
		p.jobV2, p.stepV2 = t.root.JobTasksDir(id.Job), t.root.TasksDir(id)
	}
	for _, c := range t.root.V1() {
		p.jobV1[c], p.stepV1[c] = t.root.V1JobDir(c, id.Job), t.root.V1StepDir(c, id)
	}
	return p
}

// noPlaces is a node without cgroups.
type noPlaces struct{ kind string }

func (n noPlaces) Kind() string                     { return n.kind }
func (noPlaces) Controllers() controllers           { return controllers{} }
func (noPlaces) Roots() (string, map[string]string) { return "", nil }
func (noPlaces) Places(step.ID) places              { return places{} }

// NewLimits confines steps where the tracker, which NewTracker has made, has cgroups; each
// step's plan reports what a site asks for and the tracker has not. memory is the node's, in
// bytes; bindable says that the CPU numbers are the machine's.
func NewLimits(c *slurmconf.Config, tracker node.Tracker, gres []selection.Gres, memory uint64, bindable bool) node.Limits {
	if t, ok := tracker.(*cgroupTracker); ok {
		return newLimits(c, t, gres, memory, bindable)
	}
	return newLimits(c, noPlaces{tracker.Kind()}, gres, memory, bindable)
}

func newLimits(c *slurmconf.Config, at limitPlaces, gres []selection.Gres, memory uint64, bindable bool) *limits {
	g := &c.Cgroup
	l := &limits{
		conf: cgroup.Conf{
			Cores: g.ConstrainCores, RAM: g.ConstrainRAMSpace, Swap: g.ConstrainSwapSpace, Devices: g.ConstrainDevices,
			AllowedRAM: g.AllowedRAMSpace, AllowedSwap: g.AllowedSwapSpace,
			MaxRAM: g.MaxRAMPercent, MaxSwap: g.MaxSwapPercent, MinRAM: g.MinRAMSpace,
		},
		plugins: c.TaskPlugin, oomGroup: c.TaskPluginParam.OOMKillStep,
		account: c.JobAcctGatherType == "cgroup", bindable: bindable,
		nodeMB: memory >> 20, gres: gres, at: at, v2Only: g.CgroupPlugin == "cgroup/v2",
		nodes: deviceNodes{known: make(map[string]step.Device)},
	}
	if l.conf.Devices { // the first look, for steps that begin when a device is gone
		_, _ = l.denied(nil) // it fails for devices that are given alone
	}
	if g.MemorySwappiness != nil {
		l.conf.Swappiness = new(uint64(*g.MemorySwappiness))
	}
	return l
}

// Plan decides what confines the step.
func (l *limits) Plan(spec *step.Spec) (*launch.LimitPlan, error) {
	at, err := l.layout(spec.ID)
	if err != nil {
		return nil, err
	}
	ask := cgroup.Ask{
		NodeMB: l.nodeMB, JobMB: spec.JobMemoryMB, MB: spec.MemoryMB,
		JobCPUs: spec.JobCPUs, CPUs: spec.CPUs, Bindable: l.bindable,
		OOMGroup: l.group(spec), PerTask: l.account,
		CgroupPlugin: slices.Contains(l.plugins, "task/cgroup"),
	}
	if l.account && !l.v2Only {
		ask.AccountV1 = []string{"blkio", "memory"}
		if at.StepV2 == "" {
			ask.AccountV1 = append(ask.AccountV1, "cpuacct") // v2 counts CPU time without a controller
		}
	}
	if l.conf.Devices {
		if ask.JobDenied, err = l.denied(spec.JobGres); err != nil {
			return nil, err
		}
		if ask.Denied, err = l.denied(spec.StepGres); err != nil {
			return nil, err
		}
	}
	return cgroup.MakePlan(l.conf, at, ask)
}

// group is what dies together when memory runs out: all of a step of an MPI
// program, whose other ranks would wait for the dead one for ever.
func (l *limits) group(spec *step.Spec) step.OOMGroup {
	whole := l.oomGroup || (spec.MPI != "" && spec.MPI != "none" && len(spec.Script) == 0)
	if spec.OOMKillStep != nil {
		whole = *spec.OOMKillStep
	}
	if whole {
		return step.OOMGroupStep
	}
	return step.OOMGroupNone
}

// Apply carries out writes of a plan.
func (l *limits) Apply(writes []step.CgroupWrite) error { return cgroup.Apply(writes, device.Attach) }

// Devices reports whether a step sees its own devices alone.
func (l *limits) Devices() bool {
	if !l.conf.Devices || !slices.Contains(l.plugins, "task/cgroup") {
		return false
	}
	v2, _ := l.at.Roots()
	return l.home("devices", v2) != cgroup.HomeNone
}

// layout is where the controllers are now: hot plugged CPUs and limits above
// noded change.
func (l *limits) layout(id step.ID) (cgroup.Layout, error) {
	v2, v1 := l.at.Roots()
	p := l.at.Places(id)
	at := cgroup.Layout{
		Memory: l.home("memory", v2), Cpuset: l.home("cpuset", v2), Devices: l.home("devices", v2),
		JobV2: p.jobV2, StepV2: p.stepV2, JobV1: p.jobV1, StepV1: p.stepV1, Tracked: p.tracked,
		Why: make(map[string]string),
	}
	for c, home := range map[string]cgroup.Home{"memory": at.Memory, "cpuset": at.Cpuset, "devices": at.Devices} {
		if home == cgroup.HomeNone {
			at.Why[c] = fmt.Sprintf("noded has no %s controller (tracking is %s)", c, l.at.Kind())
		}
	}
	dir := func(controller string, home cgroup.Home) string {
		if home == cgroup.HomeV1 {
			return v1[controller]
		}
		return v2
	}
	var err error
	if at.Memory != cgroup.HomeNone && (l.conf.RAM || l.conf.Swap) {
		root := dir("memory", at.Memory)
		swap := map[cgroup.Home]string{cgroup.HomeV1: "memory.memsw.limit_in_bytes", cgroup.HomeV2: "memory.swap.max"}[at.Memory]
		at.SwapAccounting = cgroup.Has(root, swap)
		if at.Parents, err = cgroup.ParentLimits(at.Memory, root); err != nil {
			return at, err
		}
	}
	if at.Cpuset != cgroup.HomeNone && l.conf.Cores {
		root := dir("cpuset", at.Cpuset)
		if at.CPUs, err = cgroup.ReadList(root, "cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"); err != nil {
			return at, err
		}
		if at.Mems, err = cgroup.ReadList(root, "cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems"); err != nil {
			return at, err
		}
	}
	return at, nil
}

// home finds a controller. Devices have none on v2: programs are attached to
// any directory there. On a hybrid the v1 hierarchy is the site's own way.
func (l *limits) home(controller, v2 string) cgroup.Home {
	have := l.at.Controllers()
	switch {
	case slices.Contains(have.v2, controller):
		return cgroup.HomeV2
	case slices.Contains(have.v1, controller) && !l.v2Only:
		return cgroup.HomeV1
	case controller == "devices" && v2 != "":
		return cgroup.HomeV2
	}
	return cgroup.HomeNone
}

// denied are the devices of the node's generic resources that has does not
// name. What is no device now, and has not been one, needs no refusal; what was
// given must be one.
func (l *limits) denied(has []step.GresAlloc) ([]step.Device, error) {
	var deny, allow []step.Device
	for _, g := range l.gres {
		for i, files := range g.Files {
			given := selection.HasGres(has, g.Name, g.First+i)
			for _, file := range files {
				d, ok, err := l.nodes.find(file)
				switch {
				case given && err != nil:
					return nil, &launch.FaultError{Err: fmt.Errorf("gres/%s %d: %w", g.Name, g.First+i, err)}
				case given:
					allow = append(allow, d)
				case ok && !slices.ContainsFunc(deny, d.Same):
					deny = append(deny, d)
				}
			}
		}
	}
	// One node may belong to two resources.
	return slices.DeleteFunc(deny, func(d step.Device) bool {
		return slices.ContainsFunc(allow, d.Same)
	}), nil
}

// Gres numbers the site's generic resources as the node's: through all lines
// of one name, in their order.
func Gres(c *slurmconf.Config) []selection.Gres {
	next := make(map[string]int)
	var out []selection.Gres
	for i := range c.Gres {
		g := &c.Gres[i]
		s := selection.Gres{
			Name: g.Name, Type: g.Type, Count: g.Count, First: next[g.Name], Files: g.Devices(),
			Env: gpuVariables(g), NoConsume: g.NoConsume,
		}
		next[g.Name] += len(s.Files)
		out = append(out, s)
	}
	return out
}

// gpuVariables are the variables that the flags of a gpu stand for (gres.conf(5)).
func gpuVariables(g *slurmconf.Gres) []string {
	if !strings.EqualFold(g.Name, "gpu") {
		return nil
	}
	var out []string
	for _, v := range []struct{ flag, name string }{
		{slurmconf.GresNvidiaEnv, "CUDA_VISIBLE_DEVICES"}, {slurmconf.GresAMDEnv, "ROCR_VISIBLE_DEVICES"},
		{slurmconf.GresIntelEnv, "ZE_AFFINITY_MASK"}, {slurmconf.GresOpenCLEnv, "GPU_DEVICE_ORDINAL"},
	} {
		if slices.Contains(g.Flags, v.flag) {
			out = append(out, v.name)
		}
	}
	return out
}
