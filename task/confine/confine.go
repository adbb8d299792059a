// Package confine says what a step's cgroups limit: what cgroup.conf asks for, on the cgroups
// that a tracker's root has. It joins packages proctrack and task/cgroup for those who make a
// step's place, noded and slurmstepd; stepd only works in that place.
//
// It makes no cgroup and writes to none. Begin with New.
package confine

import (
	"fmt"
	"slices"

	"stepd/proctrack"
	"stepd/slurmconf"
	"stepd/step"
	"stepd/step/launch"
	"stepd/task/cgroup"
)

// Limits are the limits of a node's steps. Its methods may be called from several goroutines.
type Limits struct {
	conf     cgroup.Conf
	plugin   bool // task/cgroup is among the site's task plugins
	oomGroup bool // by TaskPluginParam
	account  bool // JobAcctGatherType=jobacct_gather/cgroup
	bindable bool
	nodeMB   uint64
	percent  *float64 // of the machine's processes, for one step; nil: processesPercent, of v2 alone
	v2Only   bool     // CgroupPlugin=cgroup/v2: v1 hierarchies are not used, if there are any
	at       Places
}

// Config is what Limits follow.
type Config struct {
	// Site are the site's files.
	Site *slurmconf.Config
	// At is where jobs and steps are limited.
	At Places
	// MemoryMB is the node's memory. Bindable says that the CPU numbers are the machine's.
	MemoryMB uint64
	Bindable bool
	// Devices says that Plan is told which devices a step is denied. Else ConstrainDevices
	// does nothing.
	Devices bool
}

// Places is where jobs and steps are limited.
type Places interface {
	// Kind is the tracker's (proctrack.KindCgroupV2).
	Kind() string
	Controllers() Controllers
	// Roots are the directories below which jobs have theirs: on v2, "" without,
	// and in the v1 hierarchies, by controller.
	Roots() (v2 string, v1 map[string]string)
	// Of are the cgroups of a job and a step, whether they exist or not.
	Of(id step.ID) StepPlaces
}

// Controllers are the names of the controllers that can limit jobs and steps ("memory",
// "cpuset").
type Controllers struct{ V2, V1 []string }

// StepPlaces are the cgroups of a job and a step: of the tracker, on v2 ("" without), and on v1
// by controller.
type StepPlaces struct {
	Tracked       string
	JobV2, StepV2 string
	JobV1, StepV1 map[string]string
}

// rooted are the places below a tracker's root.
type rooted struct {
	kind string
	root *proctrack.Root
	v2   []string
}

// Below are the places below a root, of a tracker of this kind. v2 are the v2 controllers that
// limit there (Root.Controllers).
func Below(kind string, root *proctrack.Root, v2 []string) Places { return rooted{kind, root, v2} }

func (r rooted) Kind() string { return r.kind }

func (r rooted) Controllers() Controllers { return Controllers{r.v2, r.root.V1()} }

func (r rooted) Roots() (v2 string, v1 map[string]string) {
	if r.kind != proctrack.KindCgroupV1 {
		v2 = r.root.Dir()
	}
	v1 = make(map[string]string)
	for _, c := range r.root.V1() {
		v1[c] = r.root.V1Dir(c)
	}
	return v2, v1
}

func (r rooted) Of(id step.ID) StepPlaces {
	p := StepPlaces{Tracked: r.root.TasksDir(id), JobV1: make(map[string]string), StepV1: make(map[string]string)}
	if r.kind != proctrack.KindCgroupV1 {
		p.JobV2, p.StepV2 = r.root.JobTasksDir(id.Job), r.root.TasksDir(id)
	}
	for _, c := range r.root.V1() {
		p.JobV1[c], p.StepV1[c] = r.root.V1JobDir(c, id.Job), r.root.V1StepDir(c, id)
	}
	return p
}

// nowhere is a node without cgroups.
type nowhere struct{ kind string }

// Nowhere are the places of a tracker without cgroups.
func Nowhere(kind string) Places { return nowhere{kind} }

func (n nowhere) Kind() string                     { return n.kind }
func (nowhere) Controllers() Controllers           { return Controllers{} }
func (nowhere) Roots() (string, map[string]string) { return "", nil }
func (nowhere) Of(step.ID) StepPlaces              { return StepPlaces{} }

// New returns the limits of a node. Nothing is touched.
func New(cfg Config) *Limits {
	c := cfg.Site
	g := &c.Cgroup
	l := &Limits{
		conf: cgroup.Conf{
			Cores: g.ConstrainCores, RAM: g.ConstrainRAMSpace, Swap: g.ConstrainSwapSpace,
			Devices:    g.ConstrainDevices && cfg.Devices,
			AllowedRAM: g.AllowedRAMSpace, AllowedSwap: g.AllowedSwapSpace,
			MaxRAM: g.MaxRAMPercent, MaxSwap: g.MaxSwapPercent, MinRAM: g.MinRAMSpace,
		},
		plugin: slices.Contains(c.TaskPlugin, "task/cgroup"), oomGroup: c.TaskPluginParam.OOMKillStep,
		account: c.JobAcctGatherType == "cgroup", bindable: cfg.Bindable,
		nodeMB: cfg.MemoryMB, percent: c.Stepd.StepProcessesPercent, at: cfg.At, v2Only: g.CgroupPlugin == "cgroup/v2",
	}
	if g.MemorySwappiness != nil {
		l.conf.Swappiness = new(uint64(*g.MemorySwappiness))
	}
	return l
}

// Denied are the devices that a job and its step must not open, and single tasks by local id.
type Denied struct {
	Job, Step []step.Device
	Tasks     [][]step.Device
}

// Plan decides what confines the step, by its ID, CPUs, memory and MPI type. The error says
// what of the request cannot be had.
func (l *Limits) Plan(spec *step.Spec, denied Denied) (*launch.LimitPlan, error) {
	at, err := l.layout(spec.ID)
	if err != nil {
		return nil, err
	}
	ask := cgroup.Ask{
		NodeMB: l.nodeMB, JobMB: spec.JobMemoryMB, MB: spec.MemoryMB,
		JobCPUs: spec.JobCPUs, CPUs: spec.CPUs, Bindable: l.bindable,
		JobDenied: denied.Job, Denied: denied.Step, TaskDenied: denied.Tasks,
		OOMGroup: l.group(spec), PerTask: l.account,
		CgroupPlugin: l.plugin,
	}
	if ask.Processes, err = l.processes(at.PIDs); err != nil {
		return nil, err
	}
	if l.account && !l.v2Only {
		ask.AccountV1 = []string{"blkio", "memory"}
		if at.StepV2 == "" {
			ask.AccountV1 = append(ask.AccountV1, "cpuacct") // v2 counts CPU time without a controller
		}
	}
	return cgroup.MakePlan(l.conf, at, ask)
}

// processesPercent is a step's share by default, where cgroup v2 has the controller: the move of
// the host into a tree of v1 costs a launch up to 10 ms, and is for sites that ask for it.
const processesPercent = 50

// processes is a step's share of the processes and threads that the machine can have; 0 is no limit.
func (l *Limits) processes(home cgroup.Home) (uint64, error) {
	percent := 0.0
	switch {
	case l.percent != nil:
		percent = *l.percent
	case home != cgroup.HomeV1:
		percent = processesPercent
	}
	if percent == 0 {
		return 0, nil
	}
	all, err := cgroup.MachineProcesses("/proc/sys/kernel")
	return max(1, uint64(float64(all)*percent/100)), err
}

// group is what dies together when memory runs out: all of a step of an MPI
// program, whose other ranks would wait for the dead one for ever.
func (l *Limits) group(spec *step.Spec) step.OOMGroup {
	whole := l.oomGroup || (spec.MPI != "" && spec.MPI != "none" && len(spec.Script) == 0)
	if spec.OOMKillStep != nil {
		whole = *spec.OOMKillStep
	}
	if whole {
		return step.OOMGroupStep
	}
	return step.OOMGroupNone
}

// Devices reports whether a step sees its own devices alone.
func (l *Limits) Devices() bool {
	if !l.conf.Devices || !l.plugin {
		return false
	}
	v2, _ := l.at.Roots()
	return l.home("devices", v2) != cgroup.HomeNone
}

// layout is where the controllers are now: hot plugged CPUs and limits above
// the root change.
func (l *Limits) layout(id step.ID) (cgroup.Layout, error) {
	v2, v1 := l.at.Roots()
	p := l.at.Of(id)
	at := cgroup.Layout{
		Memory: l.home("memory", v2), Cpuset: l.home("cpuset", v2), Devices: l.home("devices", v2), PIDs: l.home("pids", v2),
		JobV2: p.JobV2, StepV2: p.StepV2, JobV1: p.JobV1, StepV1: p.StepV1, Tracked: p.Tracked,
		Why: make(map[string]string),
	}
	for c, home := range map[string]cgroup.Home{"memory": at.Memory, "cpuset": at.Cpuset, "devices": at.Devices, "pids": at.PIDs} {
		if home == cgroup.HomeNone {
			at.Why[c] = fmt.Sprintf("there is no %s controller here (tracking is %s)", c, l.at.Kind())
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
func (l *Limits) home(controller, v2 string) cgroup.Home {
	have := l.at.Controllers()
	switch {
	case slices.Contains(have.V2, controller):
		return cgroup.HomeV2
	case slices.Contains(have.V1, controller) && !l.v2Only:
		return cgroup.HomeV1
	case controller == "devices" && v2 != "":
		return cgroup.HomeV2
	}
	return cgroup.HomeNone
}
