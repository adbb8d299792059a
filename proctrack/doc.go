// Package proctrack holds the processes of a job step together, so that none
// escapes or outlives it. It is Slurm's proctrack: cgroup (v2, also on a
// hybrid host, and v1), linuxproc and pgid.
//
// stepd makes a Cgroup, LinuxProc or PGID for its own step: a task.Tracker. noded makes a Root,
// and in it the cgroups of each step; it kills and removes what a dead stepd
// left. What the node can do is found out by package detect, which only noded
// needs.
//
// In the tracker's hierarchy, v2 or v1's freezer, the tree is
//
//	ROOT/job_N/step_S/stepd          the stepd process; made by noded
//	ROOT/job_N/step_S/host           the SPANK host and its helpers; made by stepd
//	ROOT/job_N/tasks                 the job's limits; made by noded
//	ROOT/job_N/tasks/step_S          the step's limits, and its tasks; made by noded
//	ROOT/job_N/tasks/step_S/task_R   one task, where each has its own; made by stepd
//
// and only leaves hold processes; in the freezer "tasks" is called "all_tasks",
// since each cgroup of v1 has a file of that name. What the daemons use is not the job's. In the
// v1 hierarchies of other controllers, where limits are asked for, it is
//
//	ROOT/job_N/step_S
//
// The package limits no resource: it makes the places where limits are written.
//
// Slurm's plugin of this kind is found here as
//
//	proctrack_p_create           Root.MakeStep (noded), Create of a tracker (stepd)
//	proctrack_p_add              Add; Root.AddStepd
//	proctrack_p_signal           Signal; Kill, Freeze and Thaw besides
//	proctrack_p_destroy          Destroy, Root.KillStep
//	proctrack_p_get_pids         PIDs; Root.Processes of the daemons
package proctrack

// The kinds of tracker: the values of step.Proctrack.Kind and of node status.
const (
	KindCgroupV2     = "cgroup/v2"
	KindCgroupHybrid = "cgroup/hybrid" // the v2 mount of a host with v1 controllers
	KindCgroupV1     = "cgroup/v1"     // the freezer of a host without v2
	KindLinuxProc    = "linuxproc"
	KindPGID         = "pgid"
)

// Reaper reports to a tracker without cgroups that no descendant of stepd is left;
// *linux.Reaper is one.
type Reaper interface {
	// NoChildren returns a channel that is closed as soon as the process has
	// no children.
	NoChildren() <-chan struct{}
}
