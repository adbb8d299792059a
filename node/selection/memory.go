package selection

import (
	"fmt"

	"stepd/srunopt"
	"stepd/step"
)

// Memory is what the site says of memory as a resource, in MB.
type Memory struct {
	// MB is what steps may have: RealMemory without MemSpecLimit.
	MB uint64
	// Consumable: what one job has another cannot have (CR_*_Memory).
	Consumable bool
	// DefPerCPU and DefPerNode are given to a job that asks for none, where memory
	// is consumable; at most one is not 0. MaxPerCPU and MaxPerNode bound what
	// may be asked for; 0 is no bound.
	DefPerCPU, DefPerNode, MaxPerCPU, MaxPerNode uint64
}

// memPool counts the memory that jobs have. The caller's lock guards it.
type memPool struct {
	Memory
	used uint64
}

// forJob is what a job with ncpus gets: 0 is no share of the memory, and no
// limit but cgroup.conf's MaxRAMPercent. Slurm would give the whole node to a job
// that asks for nothing and has no default; a node that runs without a
// controller would then take one job at a time.
func (p *memPool) forJob(req *step.Request, ncpus int) (mb uint64, err error) {
	n := uint64(ncpus)
	switch {
	case req.Mem != nil && *req.Mem == 0, req.MemPerCPU != nil && *req.MemPerCPU == 0:
		mb = p.MB
	case req.Mem != nil:
		mb = *req.Mem
	case req.MemPerCPU != nil:
		mb = *req.MemPerCPU * n
	case p.Consumable && p.DefPerCPU > 0:
		return min(p.DefPerCPU*n, p.MB), nil
	case p.Consumable:
		return min(p.DefPerNode, p.MB), nil
	}
	switch {
	case mb > p.MB:
		return 0, fmt.Errorf("the step does not fit: it needs %s of memory on this node, which has %s", srunopt.FormatMB(mb), srunopt.FormatMB(p.MB))
	case p.MaxPerNode > 0 && mb > p.MaxPerNode:
		return 0, fmt.Errorf("it asks for %s of memory, and %s is the limit (MaxMemPerNode)", srunopt.FormatMB(mb), srunopt.FormatMB(p.MaxPerNode))
	case p.MaxPerCPU > 0 && mb > p.MaxPerCPU*n:
		return 0, fmt.Errorf("it asks for %s of memory with %s, and %s a CPU is the limit (MaxMemPerCPU): ask for more CPUs", srunopt.FormatMB(mb), CountCPUs(ncpus), srunopt.FormatMB(p.MaxPerCPU))
	}
	return mb, nil
}

// forStep is what a step of a job that has jobMB gets: all of it where it asks for
// nothing. Steps of one job share its memory.
func (p *memPool) forStep(req *step.Request, ncpus int, job uint32, jobMB uint64) (mb uint64, err error) {
	switch {
	case req.Mem != nil && *req.Mem > 0:
		mb = *req.Mem
	case req.MemPerCPU != nil && *req.MemPerCPU > 0:
		mb = *req.MemPerCPU * uint64(ncpus)
	default:
		return jobMB, nil
	}
	switch {
	case jobMB > 0 && mb > jobMB:
		return 0, fmt.Errorf("the step does not fit: it needs %s of memory in job %d, which has %s", srunopt.FormatMB(mb), job, srunopt.FormatMB(jobMB))
	case mb > p.MB:
		return 0, fmt.Errorf("the step does not fit: it needs %s of memory on this node, which has %s", srunopt.FormatMB(mb), srunopt.FormatMB(p.MB))
	}
	return mb, nil
}

// fits reports why a job cannot have so much memory now.
func (p *memPool) fits(mb uint64) error {
	if p.Consumable && p.used+mb > p.MB && mb > 0 {
		return fmt.Errorf("the step does not fit: it needs %s of memory on this node: of its %s %s are free", srunopt.FormatMB(mb), srunopt.FormatMB(p.MB), srunopt.FormatMB(p.MB-min(p.used, p.MB)))
	}
	return nil
}

// hold counts the memory of a job that runs already.
func (p *memPool) hold(mb uint64) { p.used += mb }

func (p *memPool) release(mb uint64) { p.used -= min(mb, p.used) }
