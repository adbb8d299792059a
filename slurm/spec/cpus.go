package spec

import (
	"math/big"
	"slices"
	"strings"

	"stepd/slurm/wire"
	"stepd/slurmconf"
	"stepd/srunopt"
	"stepd/step"
)

// The bits of --cpu-bind and --mem-bind as srun and slurmd write them (slurm.h).
const (
	cpuVerbose = 0x1
	cpuThreads = 0x2
	cpuCores   = 0x4
	cpuSockets = 0x8
	cpuLdoms   = 0x10
	cpuNone    = 0x20
	cpuRank    = 0x40
	cpuMap     = 0x80
	cpuMask    = 0x100
	cpuRankLd  = 0x200
	cpuMapLd   = 0x400
	cpuMaskLd  = 0x800

	memVerbose = 0x1
	memNone    = 0x2
	memRank    = 0x4
	memMap     = 0x8
	memMask    = 0x10
	memLocal   = 0x20
	memSort    = 0x40
	memPrefer  = 0x80
)

// cpuKinds are in the order in which a bit counts: slurmd turns what it decides into a mask.
var cpuKinds = []struct {
	bit  uint16
	kind step.CPUBindKind
}{
	{cpuMask, srunopt.CPUBindMask}, {cpuMap, srunopt.CPUBindMap}, {cpuMaskLd, srunopt.CPUBindMaskLdom}, {cpuMapLd, srunopt.CPUBindMapLdom},
	{cpuRank, srunopt.CPUBindRank}, {cpuRankLd, srunopt.CPUBindRankLdom}, {cpuNone, srunopt.CPUBindNone},
	{cpuSockets, srunopt.CPUBindSockets}, {cpuCores, srunopt.CPUBindCores}, {cpuThreads, srunopt.CPUBindThreads}, {cpuLdoms, srunopt.CPUBindLdoms},
}

var memKinds = []struct {
	bit  uint16
	kind step.MemBindKind
}{
	{memMask, srunopt.MemBindMask}, {memMap, srunopt.MemBindMap}, {memRank, srunopt.MemBindRank}, {memLocal, srunopt.MemBindLocal}, {memNone, srunopt.MemBindNone},
}

// bind applies the binding that slurmd's task/affinity has decided. Without one the tasks are
// not bound: slurm.conf has no such plugin.
func bind(out *step.Spec, l *wire.Launch) {
	bindCPUs(out, l.CPUBindFlags, l.CPUBind)
	mem := &out.Binding.Mem
	for _, k := range memKinds {
		if l.MemBindFlags&k.bit != 0 {
			mem.Kind, mem.List = k.kind, l.MemBind
			break
		}
	}
	mem.Sort, mem.Prefer = l.MemBindFlags&memSort != 0, l.MemBindFlags&memPrefer != 0
	if l.MemBindFlags != 0 { // else the tasks get no variables of it
		mem.Verbosity = verbosity(l.MemBindFlags & memVerbose)
	}
}

func bindCPUs(out *step.Spec, flags uint16, list string) {
	cpu := &out.Binding.CPU
	for _, k := range cpuKinds {
		if flags&k.bit != 0 {
			cpu.Kind, cpu.List = k.kind, list
			break
		}
	}
	cpu.Verbosity = verbosity(flags & cpuVerbose)
}

func verbosity(bit uint16) step.Verbosity {
	if bit != 0 {
		return srunopt.Verbose
	}
	return srunopt.Quiet
}

// cpus are the machine's CPUs of job and step on this node.
func cpus(out *step.Spec, conf *wire.Conf, cred *wire.Cred) {
	first, cores := slice(cred.Shape, JobNode(conf, cred))
	threads := max(1, int(conf.Threads))
	job, step_ := machineCPUs(cred.JobCores, first, cores, threads, conf.BlockMap), machineCPUs(cred.StepCores, first, cores, threads, conf.BlockMap)
	if len(step_) == 0 {
		step_ = job
	}
	out.JobCPUs, out.CPUs, out.NCPUs = step.FormatCPUList(job), step.FormatCPUList(step_), len(step_)
	for _, allocated := range cred.JobCores { // of all nodes
		if allocated {
			out.JobAllCPUs += threads
		}
	}
}

// JobNode is this node's place among the job's.
func JobNode(conf *wire.Conf, cred *wire.Cred) int {
	hosts, err := slurmconf.ExpandHosts(cred.JobHosts)
	if err != nil {
		return 0
	}
	return max(0, slices.Index(hosts, conf.Node))
}

// TaskCPUs are the CPUs that a task is bound to, by its local id, as slurmd has decided it; nil
// is all of the step's.
func TaskCPUs(s *step.Spec, local int) (cpus []int) {
	b := &s.Binding.CPU
	list := strings.Split(b.List, ",")
	if s.Affinity == nil || b.List == "" {
		return nil
	}
	text, base := list[local%len(list)], 10
	if digits, ok := strings.CutPrefix(text, "0x"); ok || b.Kind == srunopt.CPUBindMask {
		text, base = digits, 16
	}
	var n big.Int
	if len(text) > machineMax/4 {
		return nil
	}
	if _, ok := n.SetString(text, base); !ok || n.Sign() < 0 {
		return nil
	}
	switch b.Kind {
	case srunopt.CPUBindMap:
		if n.BitLen() > 31 { // no int everywhere, and no CPU
			return nil
		}
		return []int{int(n.Int64())}
	case srunopt.CPUBindMask:
		for cpu := range n.BitLen() {
			if n.Bit(cpu) != 0 {
				cpus = append(cpus, cpu)
			}
		}
	}
	return cpus
}

// machineMax is the most CPUs of a machine (NR_CPUS of Linux is below).
const machineMax = 1 << 16

// slice is where in a credential's list of cores a node's begin, and how many they are.
func slice(shape wire.Shape, node int) (first, cores int) {
	for _, s := range shape {
		for range s.Nodes {
			cores = int(s.Cores) * int(s.Sockets)
			if node == 0 {
				return first, cores
			}
			node--
			first += cores
		}
	}
	return 0, 0
}

// machineCPUs are the numbers of the kernel of a node's cores. Slurm counts CPUs by core;
// blockMap has the machine's number of each, and where slurm.conf has more CPUs than the
// machine, none for the rest.
func machineCPUs(bits []bool, first, cores, threads int, blockMap []uint16) (list []int) {
	for core := range cores {
		if first+core >= len(bits) || !bits[first+core] {
			continue
		}
		for t := range threads {
			if cpu := core*threads + t; cpu < len(blockMap) {
				list = append(list, int(blockMap[cpu]))
			} else {
				list = append(list, cpu)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
