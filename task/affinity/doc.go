// Package affinity is Slurm's task/affinity: it decides which CPUs and which
// memory each task of a step gets on its node, and binds the tasks to them.
//
// ReadTopology asks the kernel for the machine, MakePlan decides, as a pure
// function of what the user and the site want, and Plugin carries the plan out at
// Slurm's points of a launch. Begin with MakePlan. It limits nothing: a task may
// leave its CPUs unless task/cgroup confines it, too. docs/binding.md has the
// rules, and says where they are measured at Slurm and where they differ.
package affinity
