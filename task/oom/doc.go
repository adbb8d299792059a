// Package oom finds out which process of a step the kernel has killed for want
// of memory, at whose limit, and how much was used.
//
// There are two sources. The kernel's log names victim, its cgroup and the
// cgroup that was full (mm/oom_kill.c, dump_oom_victim); it is not available in
// some containers, and its detail is limited to some ten a few seconds. The counters
// of the memory cgroups (memory.events, memory.oom_control) are always right,
// and know nothing but a cgroup. So the log tells as it happens, and at a task's
// end and the step's the counters show what the log did not.
//
// A Watch is a task plugin (task.Plugin); stepd makes one for each step.
package oom
