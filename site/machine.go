package site

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/node"
	"stepd/node/selection"
	"stepd/slurmconf"
	"stepd/task/affinity"
)

// machineCPUs lists the CPUs that noded itself may run on: those that it can
// give away.
func machineCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("cannot read the CPU affinity: %w", err)
	}
	var cpus []int
	for i := 0; len(cpus) < set.Count(); i++ {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus, nil
}

// machineMemory is MemTotal of /proc/meminfo, in bytes.
func machineMemory() (uint64, error) {
	const path = "/proc/meminfo"
	size, err := linux.Value(path, "MemTotal")
	if err != nil {
		return 0, fmt.Errorf("cannot read the memory size: %w", err)
	}
	kb, err := strconv.ParseUint(strings.TrimSuffix(size, " kB"), 10, 54)
	if err != nil {
		return 0, fmt.Errorf("cannot parse MemTotal in %q: %w", path, err)
	}
	return kb << 10, nil
}

// machine is what the node has of CPUs and memory.
type machine struct {
	cpus []int
	// memory is installed, or RealMemory, in bytes; real is which of them.
	memory uint64
	real   bool
	// confined is what a cgroup above the steps allows them, file where that stands; "" is none.
	confined uint64
	file     string
	// unbindable says why nothing can be bound to the CPUs, "" if it can.
	unbindable string
}

func (m *machine) bindable() bool { return m.unbindable == "" }

// confine notes the memory limit above the steps.
func (m *machine) confine(limit uint64, file string) {
	if file != "" && limit < m.memory {
		m.confined, m.file = limit, file
	}
}

// usable is the memory that steps can have together, in bytes, MemSpecLimit included. RealMemory
// is believed, as CPUs is.
func (m *machine) usable() uint64 {
	if m.file != "" && !m.real {
		return m.confined
	}
	return m.memory
}

func (m *machine) fallbacks() (out []node.Fallback) {
	if m.file != "" && m.real {
		out = append(out, node.Fallback{What: "memory", Why: fmt.Sprintf("RealMemory is %d MB, and %s allows %d MB", m.memory>>20, m.file, m.confined>>20)})
	}
	if m.unbindable != "" {
		out = append(out, node.Fallback{What: "CPU binding", Why: m.unbindable})
	}
	return out
}

func (s *Site) machine(log *logrus.Logger) (*machine, error) {
	cpus, bindable, err := s.cpus()
	if err != nil {
		return nil, err
	}
	m := &machine{cpus: cpus, memory: s.conf.Node.RealMemory << 20, real: s.conf.Node.RealMemory > 0}
	if m.memory == 0 {
		if m.memory, err = machineMemory(); err != nil {
			return nil, err
		}
	}
	if !bindable {
		m.unbindable = fmt.Sprintf("NodeName CPUs=%d is more than the machine has", len(cpus))
		log.Warnf("fallback: no CPU binding: %s", m.unbindable)
	}
	return m, nil
}

// cpus are the node's CPU numbers. NodeName CPUs= is believed, above the
// hardware too: then the numbers are no longer the machine's, and
// nothing can be bound to them.
func (s *Site) cpus() (cpus []int, bindable bool, err error) {
	cpus, err = machineCPUs()
	want := s.conf.Node.CPUs
	switch {
	case err != nil:
		return nil, false, err
	case want == 0:
		return cpus, true, nil
	case want <= len(cpus):
		return cpus[:want], true, nil
	}
	cpus = cpus[:0]
	for i := range want {
		cpus = append(cpus, i)
	}
	return cpus, false, nil
}

// selection is what jobs may have of the node.
func (s *Site) selection(has *machine, gres []selection.Gres, log *logrus.Logger) (selection.Config, error) {
	cfg := selection.Config{
		Type: s.conf.SelectType, Policy: selection.Policy{Unit: selection.Unit(s.conf.Unit()), OneTaskPerCore: s.conf.OneTaskPerCore(), WholeCores: s.conf.Node.ThreadsPerCore > 1},
		CPUs: has.cpus, Cores: nodeCores(log, has.cpus, has.bindable()), Memory: s.memory(has.usable()), Gres: gres,
	}
	if !has.bindable() {
		cfg.Cores = believedCores(has.cpus, &s.conf.Node)
	}
	for i, g := range s.conf.Gres {
		cfg.Gres[i].CPUs = cpusOfCores(&cfg, g.Cores)
	}
	cfg.Spec = specCPUs(&cfg, &s.conf.Node)
	if len(cfg.Spec) == len(cfg.CPUs) {
		return cfg, fmt.Errorf("cannot keep %d CPUs from jobs (CoreSpecCount, CpuSpecList): the node has no other", len(cfg.Spec))
	}
	isSpec := func(cpu int) bool { return slices.Contains(cfg.Spec, cpu) }
	cfg.CPUs = slices.DeleteFunc(slices.Clone(cfg.CPUs), isSpec)
	for i := range cfg.Gres {
		cfg.Gres[i].CPUs = slices.DeleteFunc(cfg.Gres[i].CPUs, isSpec)
	}
	cfg.Cores = slices.DeleteFunc(slices.Clone(cfg.Cores), func(c selection.Core) bool { return isSpec(c.CPUs[0]) })
	return cfg, nil
}

// believedCores are the cores of a node that has more CPUs than the machine, by its NodeName
// line; nil where that does not say how many.
func believedCores(cpus []int, n *slurmconf.Node) (cores []selection.Core) {
	threads, perSocket := max(n.ThreadsPerCore, 1), max(n.CoresPerSocket, 1)
	if max(n.Boards, 1)*max(n.Sockets, 1)*perSocket*threads != len(cpus) {
		return nil
	}
	for i := 0; i < len(cpus); i += threads {
		cores = append(cores, selection.Core{Socket: i / threads / perSocket, CPUs: cpus[i : i+threads]})
	}
	return cores
}

// coresOf are the node's cores; each CPU counts as one where they are not known.
func coresOf(cfg *selection.Config) []selection.Core {
	if cfg.Cores != nil {
		return cfg.Cores
	}
	var cores []selection.Core
	for _, cpu := range cfg.CPUs {
		cores = append(cores, selection.Core{CPUs: []int{cpu}})
	}
	return cores
}

// cpusOfCores are the CPUs of the cores of these numbers, as far as the node has them.
func cpusOfCores(cfg *selection.Config, numbers []int) (cpus []int) {
	cores := coresOf(cfg)
	for _, i := range numbers {
		if i < len(cores) {
			cpus = append(cpus, cores[i].CPUs...)
		}
	}
	slices.Sort(cpus)
	return cpus
}

// specCPUs are the CPUs that no job gets: with CpuSpecList the cores of its CPUs, with CoreSpecCount
// so many cores, as in Slurm the last one of each socket in turn, from the last socket on.
func specCPUs(cfg *selection.Config, n *slurmconf.Node) (spec []int) {
	cores := coresOf(cfg)
	first := 0 // abstract number of the core's first CPU
	for _, c := range cores {
		if slices.ContainsFunc(n.CPUSpecList, func(cpu int) bool { return cpu >= first && cpu < first+len(c.CPUs) }) {
			spec = append(spec, c.CPUs...)
		}
		first += len(c.CPUs)
	}
	left := make(map[int][]selection.Core) // of each socket
	for _, c := range cores {
		left[c.Socket] = append(left[c.Socket], c)
	}
	sockets := slices.Sorted(maps.Keys(left))
	slices.Reverse(sockets)
	for taken := 0; taken < min(n.CoreSpecCount, len(cores)); {
		for _, socket := range sockets {
			if last := len(left[socket]) - 1; last >= 0 && taken < n.CoreSpecCount {
				spec = append(spec, left[socket][last].CPUs...)
				left[socket] = left[socket][:last]
				taken++
			}
		}
	}
	slices.Sort(spec)
	return spec
}

// nodeCores are the cores of the node's CPUs, for what requests say of them; nil
// where the kernel does not tell.
func nodeCores(log *logrus.Logger, cpus []int, bindable bool) (cores []selection.Core) {
	if !bindable {
		return nil
	}
	t, err := affinity.ReadTopology(os.DirFS("/sys"), cpus)
	if err != nil {
		log.Warnf("what steps say of cores is not heeded: %v", err)
		return nil
	}
	last := -1
	for _, p := range t.PUs {
		if p.Core != last {
			cores = append(cores, selection.Core{Socket: p.Socket})
			last = p.Core
		}
		c := &cores[len(cores)-1]
		c.CPUs = append(c.CPUs, p.CPU)
	}
	return cores
}
