package task

import (
	"slices"
	"strconv"
	"strings"

	"stepd/step"
)

// keepLimits leaves of the caller's resource limits those that the site passes on,
// where the user has not chosen himself (--propagate).
func keepLimits(env *envList, s *step.Spec) {
	if s.OwnLimits || s.Propagate == nil {
		return
	}
	for _, name := range step.ResourceLimits() {
		if !slices.Contains(s.Propagate, name) {
			env.unset(step.LimitPrefix + name)
		}
	}
}

// tellResources tells what the step has of memory and of generic resources
// (srun(1), sbatch(1)); what the client's own environment says of those is not
// the step's.
func tellResources(env *envList, s *step.Spec) {
	const perNode, perCPU = "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"
	switch {
	case s.MemPerCPU != nil && *s.MemPerCPU > 0:
		env.set(perCPU, strconv.FormatUint(*s.MemPerCPU, 10))
		env.unset(perNode)
	case s.MemoryMB > 0:
		env.set(perNode, strconv.FormatUint(s.MemoryMB, 10))
		env.unset(perCPU)
	default:
		env.unset(perNode)
		env.unset(perCPU)
	}
	for _, name := range s.GresUnset {
		env.unset(name)
	}
	for _, e := range s.GresEnv {
		name, value, _ := strings.Cut(e, "=")
		env.set(name, value)
	}
}
