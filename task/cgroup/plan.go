package cgroup

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

// Home says where a controller is available.
type Home string

const (
	HomeNone Home = ""
	HomeV1   Home = "v1"
	HomeV2   Home = "v2"
)

// Layout is where this node's controllers are, and where the directories of job
// and step are, or will be.
type Layout struct {
	Memory, Cpuset, Devices, PIDs Home
	// Why tells, by controller ("memory", "cpuset", "devices", "pids"), why one is not had.
	Why map[string]string
	// SwapAccounting: the kernel limits swap as well.
	SwapAccounting bool
	// CPUs and Mems are what the cpuset controller can give, as lists; Mems
	// counts on v1 alone.
	CPUs, Mems string
	// Parents are limits above the jobs, the innermost first.
	Parents []step.MemoryLevel

	JobV2, StepV2 string            // "" without a v2 tree
	JobV1, StepV1 map[string]string // by controller
	// Tracked is where the tracker puts the step's tasks: StepV2, or a directory of
	// v1's freezer; "" without cgroups.
	Tracked string
}

// Ask is what job and step were given, and what of the node they were not.
type Ask struct {
	NodeMB, JobMB, MB uint64 // memory; of the node RealMemory
	JobCPUs, CPUs     string // lists
	JobDenied, Denied []step.Device
	TaskDenied        [][]step.Device // by local id; nil: the tasks have the step's devices
	Bindable          bool            // the CPU numbers are the machine's
	Processes         uint64          // and threads of the step, at most; 0 is no limit
	OOMGroup          step.OOMGroup
	AccountV1         []string // v1 controllers that are accounted by
	PerTask           bool     // accounted by task
	CgroupPlugin      bool     // task/cgroup is among the site's task plugins
}

// planner gathers a plan.
type planner struct {
	conf Conf
	at   Layout
	ask  Ask
	plan launch.LimitPlan
}

// MakePlan decides what confines a step and its job. It touches nothing. An
// error says what of the request cannot be had.
func MakePlan(conf Conf, at Layout, ask Ask) (*launch.LimitPlan, error) {
	if !ask.CgroupPlugin {
		conf = Conf{}
	}
	p := &planner{conf: conf, at: at, ask: ask}
	p.plan.Confine.PerTask = ask.PerTask
	for _, c := range ask.AccountV1 {
		p.needV1(c)
	}
	if err := p.memory(); err != nil {
		return nil, err
	}
	if err := p.cpuset(); err != nil {
		return nil, err
	}
	p.devices()
	p.processes()
	p.tasks()
	for _, c := range p.plan.V1 {
		if p.plan.Confine.V1 == nil {
			p.plan.Confine.V1 = make(map[string]string)
		}
		p.plan.Confine.V1[c] = at.StepV1[c]
	}
	// The job's before the step's: a limit of the step never stands alone.
	slices.SortStableFunc(p.plan.Writes, func(a, b step.CgroupWrite) int { return levelOrder(a.Level) - levelOrder(b.Level) })
	return &p.plan, nil
}

func levelOrder(level string) int { return slices.Index([]string{"job", "step", "task"}, level) }

func (p *planner) needV1(controller string) {
	if p.at.StepV1[controller] != "" && !slices.Contains(p.plan.V1, controller) {
		p.plan.V1 = append(p.plan.V1, controller)
		slices.Sort(p.plan.V1)
	}
}

func (p *planner) note(format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, fmt.Sprintf(format, args...))
}

func (p *planner) write(level, dir, file, value string) {
	p.plan.Writes = append(p.plan.Writes, step.CgroupWrite{Level: level, Path: filepath.Join(dir, file), Value: value})
}

// dirs are the directories of job and step for a controller.
func (p *planner) dirs(controller string, home Home) (job, step string) {
	if home == HomeV1 {
		return p.at.JobV1[controller], p.at.StepV1[controller]
	}
	return p.at.JobV2, p.at.StepV2
}

func (p *planner) memory() error {
	asked := max(p.ask.JobMB, p.ask.MB)
	if !p.conf.RAM && !p.conf.Swap {
		if asked > 0 && p.ask.CgroupPlugin {
			p.note("memory is not limited: ConstrainRAMSpace is no in cgroup.conf")
		}
		return nil
	}
	if p.at.Memory == HomeNone {
		p.note("memory is not limited: %s", p.at.Why["memory"])
		return nil
	}
	if p.conf.Swap && !p.at.SwapAccounting {
		p.note("swap is not limited: the kernel does not account for it (swapaccount=0, or no CONFIG_SWAP)")
	}
	job := p.conf.memory(p.ask.JobMB, p.ask.NodeMB)
	own := job
	if p.ask.MB > 0 {
		own = p.conf.memory(p.ask.MB, p.ask.NodeMB)
	}
	if own.note != "" {
		p.note("%s", own.note)
	}
	for _, up := range p.at.Parents {
		if asked > 0 && up.Bytes != nil && own.hard > *up.Bytes {
			return fmt.Errorf("it needs %s of memory, and cgroup %q, in which all jobs are, may have %s", formatBytes(own.hard), up.Dir, formatBytes(*up.Bytes))
		}
	}
	jobDir, stepDir := p.dirs("memory", p.at.Memory)
	for _, l := range []struct {
		level, dir string
		limit      memoryLimit
	}{{"job", jobDir, job}, {"step", stepDir, own}} {
		p.memoryWrites(l.level, l.dir, l.limit)
	}
	p.plan.Confine.Memory = append([]step.MemoryLevel{p.level("step", stepDir, own), p.level("job", jobDir, job)}, p.at.Parents...)
	p.plan.Confine.PerTask = true // running out of memory is to be reported for the right task
	p.plan.Confine.OOMGroup = p.ask.OOMGroup
	if p.at.Memory == HomeV1 {
		p.needV1("memory")
	} else if p.ask.OOMGroup == step.OOMGroupStep {
		p.write("step", stepDir, "memory.oom.group", "1")
	}
	return nil
}

func (p *planner) level(name, dir string, l memoryLimit) step.MemoryLevel {
	m := step.MemoryLevel{Level: name, Dir: dir, Bytes: &l.hard}
	if p.swaps() {
		m.SwapBytes = new(l.all - l.hard)
	}
	return m
}

func (p *planner) swaps() bool { return p.conf.Swap && p.at.SwapAccounting }

// memoryWrites limits one directory. The soft limit is written where it is below
// the hard one (AllowedRAMSpace over 100): at the same value it would slow
// the tasks down just before they fail, and do nothing else.
func (p *planner) memoryWrites(level, dir string, l memoryLimit) {
	num := func(v uint64) string { return strconv.FormatUint(v, 10) }
	if p.at.Memory == HomeV2 {
		p.write(level, dir, "memory.max", num(l.hard))
		if l.soft < l.hard {
			p.write(level, dir, "memory.high", num(l.soft))
		}
		if p.swaps() {
			p.write(level, dir, "memory.swap.max", num(l.all-l.hard))
		}
		return
	}
	p.write(level, dir, "memory.limit_in_bytes", num(l.hard))
	if p.swaps() { // after the other: the kernel wants it to be no less
		p.write(level, dir, "memory.memsw.limit_in_bytes", num(l.all))
		if p.conf.Swappiness != nil {
			p.write(level, dir, "memory.swappiness", num(*p.conf.Swappiness))
		}
	}
	if l.soft < l.hard {
		p.write(level, dir, "memory.soft_limit_in_bytes", num(l.soft))
	}
}

// cpuset gives job and step their CPUs and nothing else.
func (p *planner) cpuset() error {
	if !p.conf.Cores {
		return nil
	}
	switch {
	case p.at.Cpuset == HomeNone:
		p.note("CPUs are not constrained: %s", p.at.Why["cpuset"])
		return nil
	case !p.ask.Bindable:
		p.note("CPUs are not constrained: NodeName CPUs= is more than the machine has")
		return nil
	}
	for _, l := range []struct{ what, cpus string }{{"job", p.ask.JobCPUs}, {"step", p.ask.CPUs}} {
		if err := p.checkCPUs(l.cpus); err != nil {
			return err
		}
	}
	jobDir, stepDir := p.dirs("cpuset", p.at.Cpuset)
	for _, l := range []struct{ level, dir, cpus string }{{"job", jobDir, p.ask.JobCPUs}, {"step", stepDir, p.ask.CPUs}} {
		if p.at.Cpuset == HomeV1 {
			p.write(l.level, l.dir, "cpuset.mems", p.at.Mems)
		}
		p.write(l.level, l.dir, "cpuset.cpus", l.cpus)
	}
	if p.at.Cpuset == HomeV1 {
		p.needV1("cpuset")
	}
	return nil
}

// checkCPUs refuses what the kernel would refuse, or widen without a word.
func (p *planner) checkCPUs(list string) error {
	want, err := step.ParseCPUList(list)
	if err != nil {
		return fmt.Errorf("internal error: CPUs %q: %w", list, err)
	}
	if len(want) == 0 {
		return fmt.Errorf("it has no CPUs, and ConstrainCores=yes")
	}
	have, err := step.ParseCPUList(p.at.CPUs)
	if err != nil {
		return fmt.Errorf("cannot parse the CPUs of the cgroup %q: %w", p.at.CPUs, err)
	}
	var missing []int
	for _, c := range want {
		if !slices.Contains(have, c) {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("it was given CPUs %s, of which %s are offline or not in the node's cpuset (%s)", list, step.FormatCPUList(missing), p.at.CPUs)
	}
	return nil
}

// devices refuses the devices of generic resources that were not given. All
// other devices stay as they are, as in Slurm.
func (p *planner) devices() {
	if !p.conf.Devices {
		return
	}
	if p.at.Devices == HomeNone {
		p.note("devices are not constrained: %s", p.at.Why["devices"])
		return
	}
	jobDir, stepDir := p.dirs("devices", p.at.Devices)
	// What the job is denied the step is, too.
	var rest []step.Device
	for _, d := range p.ask.Denied {
		if !slices.ContainsFunc(p.ask.JobDenied, d.Same) {
			rest = append(rest, d)
		}
	}
	p.taskDevices()
	if p.at.Devices == HomeV1 && len(p.ask.Denied)+len(p.ask.JobDenied)+len(p.plan.Confine.TaskDeny) > 0 {
		p.needV1("devices")
	}
	p.denyWrites("job", jobDir, p.ask.JobDenied)
	p.denyWrites("step", stepDir, rest)
}

// taskDevices leaves to each task's own cgroup what the step's does not refuse.
func (p *planner) taskDevices() {
	if p.at.Devices == HomeV2 && p.at.Tracked == "" {
		return
	}
	for _, list := range p.ask.TaskDenied {
		own := slices.DeleteFunc(slices.Clone(list), func(d step.Device) bool { return slices.ContainsFunc(p.ask.Denied, d.Same) })
		p.plan.Confine.TaskDeny = append(p.plan.Confine.TaskDeny, own)
	}
	p.plan.Confine.PerTask = p.plan.Confine.PerTask || p.plan.Confine.TaskDeny != nil
}

func (p *planner) denyWrites(level, dir string, denied []step.Device) {
	if len(denied) == 0 {
		return
	}
	if p.at.Devices == HomeV2 {
		text := "deny"
		for i, d := range denied {
			if i > 0 {
				text += ","
			}
			text += " " + d.Rule()
		}
		p.plan.Writes = append(p.plan.Writes, step.CgroupWrite{Level: level, Path: dir, Value: text, Deny: denied})
		return
	}
	for _, d := range denied {
		p.write(level, dir, "devices.deny", d.Rule())
	}
}

// processes bounds the step's processes and threads, whatever the site's task plugins are: a
// fork bomb must not take the machine's.
func (p *planner) processes() {
	if p.ask.Processes == 0 {
		return
	}
	if p.at.PIDs == HomeNone {
		p.note("processes are not limited: %s", p.at.Why["pids"])
		return
	}
	_, dir := p.dirs("pids", p.at.PIDs)
	if p.at.PIDs == HomeV1 {
		p.needV1("pids")
	}
	p.write("step", dir, "pids.max", strconv.FormatUint(p.ask.Processes, 10))
	p.plan.Confine.ProcessesMax, p.plan.Confine.ProcessesDir = p.ask.Processes, dir
}

// tasks lists what stepd does for each task.
func (p *planner) tasks() {
	add := func(dir, file, value string) {
		p.plan.TaskWrites = append(p.plan.TaskWrites, step.CgroupWrite{Level: "task", Path: filepath.Join(dir, file), Value: value})
	}
	c := &p.plan.Confine
	if p.at.Tracked != "" {
		dir := p.at.Tracked
		if c.PerTask {
			dir = filepath.Join(dir, "task_%t")
		}
		add(dir, "cgroup.procs", "%p")
		if p.at.Memory == HomeV2 && c.OOMGroup == step.OOMGroupTask {
			add(dir, "memory.oom.group", "1")
		}
	}
	for _, controller := range p.plan.V1 {
		if controller == "pids" {
			continue // the tasks are born in it, as children of the host
		}
		add(TaskDir(p.at.StepV1[controller], "task_%t", PerTask(c, controller)), "cgroup.procs", "%p")
	}
}

// TaskDir is where the processes of a task go in a v1 hierarchy.
func TaskDir(dir, task string, perTask bool) string {
	if perTask {
		return filepath.Join(dir, task)
	}
	return dir
}

// PerTask reports whether each task has a directory of its own in a v1 hierarchy: where it is
// accounted for by task, or has devices of its own. The others are the step's.
func PerTask(c *step.Confinement, controller string) bool {
	switch controller {
	case "memory", "cpuacct", "blkio":
		return c.PerTask
	}
	return controller == "devices" && c.TaskDeny != nil
}

// Conf is cgroup.conf as far as it limits steps (cgroup.conf(5)).
type Conf struct {
	Cores, RAM, Swap, Devices bool
	// AllowedRAM and AllowedSwap are percent of the memory that was given,
	// MaxRAM and MaxSwap percent of the node's.
	AllowedRAM, AllowedSwap, MaxRAM, MaxSwap float64
	// MinRAM is the least limit, in MB.
	MinRAM uint64
	// Swappiness is for v1; nil leaves the kernel's.
	Swappiness *uint64
}

// memoryLimit is a level's limits, in bytes.
type memoryLimit struct {
	hard uint64 // RAM
	soft uint64 // RAM from which on the kernel takes pages back
	all  uint64 // RAM and swap
	note string // why it is not what was asked for
}

// memory is the limit of who was given mb of a node with nodeMB; 0 was given
// none, and may have what MaxRAMPercent leaves.
func (c Conf) memory(mb, nodeMB uint64) memoryLimit {
	allowedRAM := c.AllowedRAM
	if !c.RAM {
		allowedRAM = 100 // only RAM and swap together are limited (ConstrainSwapSpace)
	}
	maxRAM, maxAll := percent(nodeMB<<20, c.MaxRAM), percent(nodeMB<<20, c.MaxSwap)
	if mb == 0 {
		l := memoryLimit{hard: maxRAM, soft: maxRAM, all: max(maxAll, maxRAM)}
		return c.swapOnly(l)
	}
	given := mb << 20
	l := memoryLimit{hard: percent(given, allowedRAM), soft: given}
	least := c.MinRAM << 20
	switch {
	case l.hard < least:
		l.note = fmt.Sprintf("the memory limit is raised from %s to %s (MinRAMSpace)", formatBytes(l.hard), formatBytes(least))
		l.hard, l.soft = least, least
	case l.hard > maxRAM:
		l.note = fmt.Sprintf("the memory limit is lowered from %s to %s (MaxRAMPercent)", formatBytes(l.hard), formatBytes(maxRAM))
		l.hard = maxRAM
	}
	l.soft = min(l.soft, l.hard)
	l.all = max(min(l.hard+percent(given, c.AllowedSwap), maxAll), l.hard)
	return c.swapOnly(l)
}

// swapOnly limits RAM by the sum where only that is to be limited.
func (c Conf) swapOnly(l memoryLimit) memoryLimit {
	if !c.RAM {
		l.hard, l.soft = l.all, l.all
	}
	return l
}

// percent never overflows: a limit is at most 2^60 bytes and percent a float.
func percent(bytes uint64, p float64) uint64 {
	v := float64(bytes) * p / 100
	if v >= 1<<62 {
		return 1 << 62
	}
	return uint64(v)
}

func formatBytes(b uint64) string {
	if b%(1<<20) == 0 {
		return srunopt.FormatMB(b >> 20)
	}
	return fmt.Sprintf("%d bytes", b)
}
