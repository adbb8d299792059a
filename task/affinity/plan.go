package affinity

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

// Input is all that a plan depends on.
type Input struct {
	Binding step.Binding
	Site    step.AffinityConf
	// NTasks counts the tasks of this node. Ranks are theirs by local id, for
	// messages; nil is those that are the local ids.
	NTasks      int
	Ranks       []int
	CPUsPerTask int
	Overcommit  bool
	// OwnJob says that the step is all of its job: --ntasks-per-core and its kin are
	// limits on a job's CPUs, and only a hint to the steps in it (srun(1)).
	OwnJob bool
	// Decided says that slurmd has made the binding's list, which the tasks' variables have
	// as it is.
	Decided bool
	// Topology is the topology of the step's CPUs.
	Topology *Topology
}

// Plan is where each task of a step runs. MakePlan makes it; it is only read.
type Plan struct {
	// Kind is the resulting type of binding: the requested one, or the automatic
	// binding's result, or CPUBindMask where all tasks share the step's CPUs.
	Kind step.CPUBindKind
	// CPUs are each task's by local id, nil where the tasks are not bound. Tasks may
	// share a set.
	CPUs []CPUSet
	// Mem are the tasks' memory policies, nil without any.
	Mem []launch.MemPolicy
	// Notes report irregularities to the administrator.
	Notes []string

	in         Input
	cpuVerbose bool
	memVerbose bool
	list       string // SLURM_CPU_BIND_LIST
	off        bool   // nothing can be bound, and it was not asked for
}

// MakePlan places the tasks. An error says what of the request cannot be had
// here, and what there is.
func MakePlan(in Input) (*Plan, error) {
	in.CPUsPerTask = max(in.CPUsPerTask, 1)
	p := &Plan{in: in}
	p.cpuVerbose = verbose(in.Binding.CPU.Verbosity, in.Site.Verbose)
	p.memVerbose = verbose(in.Binding.Mem.Verbosity, false)
	if err := p.placeCPUs(); err != nil {
		return nil, err
	}
	p.list = p.cpuList()
	if err := p.placeMemory(); err != nil {
		return nil, err
	}
	return p, nil
}

// rank is what messages call the task with a local id.
func (p *Plan) rank(id int) int {
	if id < len(p.in.Ranks) {
		return p.in.Ranks[id]
	}
	return id
}

func verbose(asked step.Verbosity, site bool) bool {
	return asked == srunopt.Verbose || asked == srunopt.VerbosityDefault && site
}

func (p *Plan) placeCPUs() error {
	t, explicit := p.in.Topology, p.in.Binding.CPU.Kind
	if g := t.Guessed; g != "" {
		p.Notes = append(p.Notes, fmt.Sprintf("the kernel does not describe the step's CPUs: %s", g))
	}
	off := p.in.Site.Off
	if t.Missing.Len() > 0 && off == "" {
		off = fmt.Sprintf("the step has CPUs %s, which this machine has not", t.Missing)
	}
	if off != "" {
		// Without a word of the user's, a node that is configured with more CPUs than
		// it has works all the same.
		if explicit != srunopt.CPUBindAuto && explicit != srunopt.CPUBindNone {
			return fmt.Errorf("cannot bind tasks (--cpu-bind=%s): %s", explicit, off)
		}
		p.Kind = srunopt.CPUBindNone
		p.off = p.in.Binding.CPU == (step.CPUBind{})
		return nil
	}
	if t.Offline.Len() > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("CPUs %s of the step are offline", t.Offline))
	}
	if len(t.PUs) == 0 {
		return fmt.Errorf("cannot bind tasks: all CPUs of the step (%s) are offline", t.Offline)
	}
	kind, threads, err := p.choose()
	if err != nil {
		return err
	}
	p.Kind = kind
	switch kind {
	case srunopt.CPUBindNone:
		if !t.Whole {
			p.share(t.CPUs())
		}
		return nil
	case srunopt.CPUBindRank:
		return p.byRank(t.CPUs())
	case srunopt.CPUBindMap, srunopt.CPUBindMask, srunopt.CPUBindRankLdom, srunopt.CPUBindMapLdom, srunopt.CPUBindMaskLdom:
		return p.byList()
	case srunopt.CPUBindAuto:
		p.share(t.CPUs())
		return nil
	}
	return p.deal(kind, threads)
}

// share gives all tasks the same CPUs.
func (p *Plan) share(cpus CPUSet) {
	p.Kind = srunopt.CPUBindMask
	p.CPUs = make([]CPUSet, p.in.NTasks)
	for i := range p.CPUs {
		p.CPUs[i] = cpus
	}
}

// choose says which type of binding the step gets, and how many threads of a core
// it may use, 0 for all. What is said most plainly wins, as measured.
func (p *Plan) choose() (kind step.CPUBindKind, threads int, err error) {
	b, t := p.in.Binding, p.in.Topology
	threads = b.ThreadsPerCore
	if threads == 0 && b.Hint == srunopt.HintNoMultithread {
		threads = 1
	}
	if threads > t.Threads && t.Guessed == "" {
		return "", 0, fmt.Errorf("cannot use %d threads of each core (--threads-per-core): the step's cores have %d", threads, t.Threads)
	}
	cores, sockets := count(t.PUs, coreOf), count(t.PUs, socketOf)
	for _, l := range []struct {
		option           string
		limit, have      int
		singular, plural string
	}{
		{"--ntasks-per-core", b.NTasksPerCore, cores, "core", "cores"},
		{"--ntasks-per-socket", b.NTasksPerSocket, sockets, "socket", "sockets"},
	} {
		if l.limit > 0 && p.in.NTasks > l.limit*l.have && p.in.OwnJob && !p.in.Overcommit {
			return "", 0, fmt.Errorf("cannot place %d tasks (%s=%d): the step's CPUs %s are of %s; --overcommit shares them", p.in.NTasks, l.option, l.limit, t.CPUs(), number(l.have, l.singular, l.plural))
		}
	}
	switch {
	case b.CPU.Kind != srunopt.CPUBindAuto:
		return b.CPU.Kind, threads, nil
	case b.ThreadsPerCore > 0:
		return srunopt.CPUBindThreads, threads, nil
	case b.NTasksPerCore > 0:
		return srunopt.CPUBindCores, threads, nil
	case b.NTasksPerSocket > 0:
		return srunopt.CPUBindSockets, threads, nil
	case b.Hint == srunopt.HintMultithread, b.Hint == srunopt.HintNoMultithread:
		return srunopt.CPUBindThreads, threads, nil
	case b.Hint != "":
		return srunopt.CPUBindCores, threads, nil
	case p.in.Site.Default != "":
		return p.in.Site.Default, threads, nil
	}
	switch want := p.in.NTasks * p.in.CPUsPerTask; want {
	case sockets:
		return srunopt.CPUBindSockets, 0, nil
	case cores:
		return srunopt.CPUBindCores, 0, nil
	case len(t.PUs):
		return srunopt.CPUBindThreads, 0, nil
	}
	return p.in.Site.Autobind, 0, nil
}

func count(pus []PU, of func(PU) int) int {
	seen := make(map[int]bool)
	for _, p := range pus {
		seen[of(p)] = true
	}
	return len(seen)
}

func coreOf(p PU) int   { return p.Core }
func socketOf(p PU) int { return p.Socket }
func ldomOf(p PU) int   { return p.Ldom }
func boardOf(p PU) int  { return p.Board }
func cpuOf(p PU) int    { return p.CPU }

func number(n int, singular, plural string) string {
	if n == 1 {
		return "1 " + singular
	}
	return fmt.Sprintf("%d %s", n, plural)
}

// byRank binds the n-th task of the node to the n-th of the step's CPUs, by their numbers.
func (p *Plan) byRank(cpus CPUSet) error {
	all := cpus.Numbers()
	sets := make([]CPUSet, len(all))
	for i, c := range all {
		sets[i] = NewCPUSet(c)
	}
	p.cycle(sets)
	return nil
}

// cycle gives the tasks the sets in turn: a list that is too short begins again,
// and of one that is too long the end is not used.
func (p *Plan) cycle(sets []CPUSet) {
	p.CPUs = make([]CPUSet, p.in.NTasks)
	for id := range p.CPUs {
		p.CPUs[id] = sets[id%len(sets)]
	}
}

// byList binds the tasks as the user's list says, by CPU numbers or ldoms. What the
// step has not is an error and not cut off: a task that silently runs elsewhere
// than its user has written is worse than none (so does Slurm).
func (p *Plan) byList() error {
	bind := p.in.Binding.CPU
	var sets []CPUSet
	switch bind.Kind {
	case srunopt.CPUBindRankLdom:
		for i := range p.ldoms() {
			sets = append(sets, p.ldomCPUs(i))
		}
		p.cycle(sets)
		return nil
	case srunopt.CPUBindMap, srunopt.CPUBindMask, srunopt.CPUBindMapLdom, srunopt.CPUBindMaskLdom:
	}
	items, err := srunopt.CPUItems(bind)
	if err != nil {
		return fmt.Errorf("cannot bind tasks (--cpu-bind=%s): %w", bind.Kind, err)
	}
	for _, item := range items {
		if len(sets) >= p.in.NTasks {
			break
		}
		set, err := p.listed(bind.Kind, item)
		if err != nil {
			return fmt.Errorf("cannot bind task %d (--cpu-bind=%s): %w", len(sets), bind.Kind, err)
		}
		for range min(item.Times, p.in.NTasks-len(sets)) {
			sets = append(sets, set)
		}
	}
	p.cycle(sets)
	return nil
}

// listed is what one entry of the list stands for.
func (p *Plan) listed(kind step.CPUBindKind, item srunopt.BindItem) (CPUSet, error) {
	have := p.in.Topology.CPUs()
	if kind == srunopt.CPUBindMapLdom || kind == srunopt.CPUBindMaskLdom {
		var out CPUSet
		for _, n := range item.Numbers {
			i := p.ldom(n)
			if i < 0 {
				return nil, fmt.Errorf("the step has no CPU of ldom %d: its CPUs %s are of ldoms %s", n, have, NewCPUSet(p.ldoms()...))
			}
			out = out.or(p.ldomCPUs(i))
		}
		if len(item.Numbers) == 0 {
			return have, nil
		}
		return out, nil
	}
	want := NewCPUSet(item.Numbers...)
	if want.Len() == 0 {
		return have, nil // a mask of 0 is no choice, as measured
	}
	if off := want.and(p.in.Topology.Offline); off.Len() > 0 {
		return nil, fmt.Errorf("%s offline", plural(off, "CPU", "is", "are"))
	}
	if out := want.without(have); out.Len() > 0 {
		return nil, fmt.Errorf("%s not the step's: it has CPUs %s", plural(out, "CPU", "is", "are"), have)
	}
	return want, nil
}

// ldoms are the numbers of the step's ldoms: memory nodes, or sockets where the
// kernel has none.
func (p *Plan) ldoms() []int {
	t := p.in.Topology
	if t.Nodes != nil {
		return t.Nodes
	}
	all := make([]int, count(t.PUs, ldomOf))
	for i := range all {
		all[i] = i
	}
	return all
}

// ldom is the index of the ldom with the number, -1 if the step has none of it.
func (p *Plan) ldom(number int) int {
	for i, n := range p.ldoms() {
		if n == number {
			return i
		}
	}
	return -1
}

// ldomCPUs are the step's CPUs in ldom i.
func (p *Plan) ldomCPUs(i int) CPUSet {
	var s CPUSet
	for _, pu := range p.in.Topology.PUs {
		if pu.Ldom == i {
			s.add(pu.CPU)
		}
	}
	return s
}

// plural is "CPU 3 is" or "CPUs 3-4 are".
func plural(s CPUSet, noun, one, several string) string {
	if s.Len() == 1 {
		return fmt.Sprintf("%s %s %s", noun, s, one)
	}
	return fmt.Sprintf("%ss %s %s", noun, s, several)
}

// placeMemory finds each task's memory policy.
func (p *Plan) placeMemory() error {
	bind := p.in.Binding.Mem
	switch bind.Kind {
	case srunopt.MemBindUnset, srunopt.MemBindNone:
		return nil
	case srunopt.MemBindLocal:
		p.Mem = []launch.MemPolicy{{LocalID: launch.AllRanks, Mode: launch.MemLocal}}
		return nil
	case srunopt.MemBindRank:
		for id := range p.in.NTasks {
			if err := p.memory(id, []int{id}); err != nil {
				return err
			}
		}
		return nil
	case srunopt.MemBindMap, srunopt.MemBindMask:
	}
	items, err := srunopt.MemItems(bind)
	if err != nil {
		return fmt.Errorf("cannot bind memory (--mem-bind=%s): %w", bind.Kind, err)
	}
	for id := 0; id < p.in.NTasks; {
		for _, item := range items {
			for range min(item.Times, p.in.NTasks-id) {
				if err := p.memory(id, item.Numbers); err != nil {
					return err
				}
				id++
			}
		}
	}
	return nil
}

// memory gives a task the memory of the nodes.
func (p *Plan) memory(id int, nodes []int) error {
	bind, t := p.in.Binding.Mem, p.in.Topology
	fail := func(format string, args ...any) error {
		return fmt.Errorf("cannot bind the memory of task %d (--mem-bind=%s): %s", p.rank(id), bind.Kind, fmt.Sprintf(format, args...))
	}
	want := NewCPUSet(nodes...)
	switch missing := want.without(t.Memory); {
	case t.Memory.Len() == 0:
		return fail("the kernel has no memory nodes")
	case want.Len() == 0:
		return fail("the mask names no memory node: there are %s", t.Memory)
	case missing.and(t.NodesOnline).Len() > 0:
		return fail("%s without memory: %s have some", plural(missing.and(t.NodesOnline), "node", "is", "are"), t.Memory)
	case missing.Len() > 0:
		return fail("there is no memory node %s: there are %s", missing, t.Memory)
	}
	policy := launch.MemPolicy{LocalID: id, Mode: launch.MemBound, Nodes: want}
	if bind.Prefer {
		policy.Mode, policy.Nodes = launch.MemPreferred, NewCPUSet(nodes[0])
	}
	p.Mem = append(p.Mem, policy)
	return nil
}

// memoryOf is the set of nodes that a task's policy names.
func (p *Plan) memoryOf(id int) CPUSet {
	if id < len(p.Mem) && p.Mem[id].LocalID == id {
		return p.Mem[id].Nodes
	}
	return p.in.Topology.Memory
}

// Config is what a Plugin is told.
type Config struct {
	Spec *step.Spec
	// Sys is /sys.
	Sys fs.FS
	// Say sends a line to the user's stderr; Log one to the administrator.
	Say func(line string)
	Log func(text string)
}

// Plugin binds the tasks of one step; it is a task.Plugin. Its hooks are called
// after task/cgroup's, whatever slurm.conf's order is: a process that enters a cpuset loses
// the CPUs that were set for it.
type Plugin struct {
	cfg  Config
	plan *Plan
}

// New makes the plugin of a step.
func New(cfg Config) *Plugin { return &Plugin{cfg: cfg} }

// Name is slurm.conf's name for it.
func (p *Plugin) Name() string { return "task/affinity" }

// PreSetuid plans the binding: what cannot be had ends the step before anything
// of the user's has run.
func (p *Plugin) PreSetuid() error {
	in, err := InputOf(p.cfg.Spec, p.cfg.Sys)
	if err != nil {
		return err
	}
	if p.plan, err = MakePlan(in); err != nil {
		return err
	}
	for _, n := range p.plan.Notes {
		p.cfg.Log(p.Name() + ": " + n)
	}
	return nil
}

// InputOf is the input of a step's plan. A batch script is no MPI task: what its
// job asks for is for the steps in it, and it has all of the job's CPUs.
func InputOf(spec *step.Spec, sys fs.FS) (Input, error) {
	cpus, err := step.ParseCPUList(spec.CPUs)
	if err != nil {
		return Input{}, fmt.Errorf("cannot bind tasks: the step's CPUs: %w", err)
	}
	topology, err := ReadTopology(sys, cpus)
	if err != nil {
		return Input{}, err
	}
	in := Input{
		Binding: spec.Binding, NTasks: spec.LocalTasks(), Ranks: spec.LocalRanks(), CPUsPerTask: spec.CPUsPerTask, Overcommit: spec.Overcommit,
		OwnJob: spec.Request.Job == nil, Topology: topology, Decided: spec.EnvComplete,
	}
	if spec.Affinity != nil {
		in.Site = *spec.Affinity
	}
	if unbound(spec) && !in.Decided {
		in.Binding = step.Binding{CPU: step.CPUBind{Verbosity: srunopt.Quiet, Kind: srunopt.CPUBindNone}}
		in.CPUsPerTask = 1
	}
	return in, nil
}

// unbound reports whether the step only starts others, which are bound: a batch script, or
// the shell of an allocation.
func unbound(spec *step.Spec) bool {
	return spec.ID.Step == step.BatchStep || spec.ID.Step == step.InteractiveStep
}

// PreLaunch sets the tasks' variables of their binding, and gives them what each must set
// for itself.
func (p *Plugin) PreLaunch(l *launch.Launch) error {
	l.MemPolicies = append(l.MemPolicies, p.plan.Mem...)
	if !unbound(p.cfg.Spec) {
		l.CommonEnv = append(l.CommonEnv, p.plan.Env()...)
		l.Unset = append(l.Unset, p.plan.stale()...)
	}
	return nil
}

// PreLaunchPriv binds one task, while it waits at the gate. One that is gone
// already is no error of ours: its end is told with what ended it.
func (p *Plugin) PreLaunchPriv(local, pid int) error {
	if p.plan.CPUs != nil {
		err := linux.SetAffinity(pid, p.plan.CPUs[local])
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot bind task %d to CPUs %s: %w", p.plan.rank(local), p.plan.CPUs[local], err)
		}
	}
	cpu, mem := p.plan.Verbose()
	node := p.cfg.Spec.NodeName
	if cpu {
		// What the kernel has made of it: it leaves out what is not in the cpuset.
		has, err := linux.Affinity(pid)
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		if err != nil {
			return err
		}
		p.cfg.Say(p.plan.CPULine(node, local, pid, has))
	}
	if mem {
		p.cfg.Say(p.plan.MemLine(node, local, pid))
	}
	return nil
}

// PostTerm does nothing: the binding ends with the process.
func (p *Plugin) PostTerm(launch.TaskEnd) {}

// PostStep does nothing either.
func (p *Plugin) PostStep() error { return nil }
