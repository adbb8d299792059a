// Package acct measures what the tasks of a step use: CPU time, memory, page
// faults, bytes, and for how long they waited for what was short. It is Slurm's
// plugin kind jobacct_gather: none, linux (by /proc) and cgroup.
//
// Its figures come from three places: what the kernel reports about a process
// at its end, which costs nothing and is exact; the files of the step's cgroups, read
// when its last process is dead and before they are removed, so that a step of
// 5 ms has true figures; and samples of the living, for what the first two do not
// have. Each can only miss something, so where two report the same figure, the
// larger is taken. A figure that no source reports is nil, never 0.
//
// It reads and decides nothing; it moves no process and makes no cgroup. Begin
// with New. ReadCgroups is for a step whose stepd is dead.
package acct
