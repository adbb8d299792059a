package step

import "time"

// Record is the STEP document of ps, show and the store: the contract of
// design §7. Numbers that are not known are null, never an invented zero.
type Record struct {
	ID
	Name      string     `json:"name"`
	UID       uint32     `json:"uid"`
	User      string     `json:"user"`
	Node      string     `json:"node"`
	State     State      `json:"state"`
	Reason    string     `json:"reason"`
	NTasks    int        `json:"ntasks"`
	ExitCode  *int       `json:"exit_code"`
	Signal    *int       `json:"signal"`
	Command   []string   `json:"command"`
	Submitted time.Time  `json:"submit_time"`
	Started   *time.Time `json:"start_time"`
	Ended     *time.Time `json:"end_time"`
	Tasks     []Task     `json:"tasks"`

	// Beyond the pinned fields.

	MPI  string `json:"mpi,omitempty"`
	CPUs string `json:"cpus,omitempty"`
	// MemoryMB is the step's memory, 0 where the node counts none. Gres is its share of the
	// node's generic resources; with GresOwn no other step of its job shares them.
	MemoryMB uint64      `json:"memory_mb,omitempty"`
	Gres     []GresAlloc `json:"gres,omitempty"`
	GresOwn  bool        `json:"gres_own,omitempty"`
	// CPUsOwn: no other step of its job shares its CPUs.
	CPUsOwn bool `json:"cpus_own,omitempty"`
	// TimeLimitS is the step's time limit in seconds, or its job's if that is less; 0 is no
	// limit.
	TimeLimitS int `json:"time_limit_s,omitempty"`
	StepdPID   int `json:"stepd_pid,omitempty"`
	// StepdStart is stepd's start time in clock ticks since boot: with StepdPID and BootID
	// it names one process for ever, since the kernel uses pids again.
	StepdStart uint64 `json:"stepd_start,omitempty"`
	// LauncherPID and LauncherStart name the client that launches the step in the same way;
	// 0 where it has none.
	LauncherPID   int    `json:"launcher_pid,omitempty"`
	LauncherStart uint64 `json:"launcher_start,omitempty"`
	BootID        string `json:"boot_id,omitempty"`
	// Cgroup is the daemons' cgroup of the step, CgroupTasks its tasks', and
	// CgroupV1 are the cgroups in v1 hierarchies, by controller.
	Cgroup      string            `json:"cgroup,omitempty"`
	CgroupTasks string            `json:"cgroup_tasks,omitempty"`
	CgroupV1    map[string]string `json:"cgroup_v1,omitempty"`
	// Suspended is the time since which the step is suspended, null while it is not; its
	// state does not change. SuspendedBy is the uid of the user who suspended it.
	// SuspendedSeconds is the length of the suspensions that are over, which the time
	// limit does not count.
	Suspended        *time.Time `json:"suspended"`
	SuspendedBy      *uint32    `json:"suspended_by,omitempty"`
	SuspendedSeconds float64    `json:"suspended_seconds,omitempty"`
	// Array is the job's place in a job array, null without one. Restarts counts the runs of
	// the job before this one. A controller sets both.
	Array    *ArrayTask `json:"array,omitempty"`
	Restarts uint32     `json:"restarts,omitempty"`
	// Survivors are the first of the processes that SIGKILL has not ended within
	// UnkillableStepTimeout, as they were then; SurvivorsTotal counts all.
	Survivors      []Survivor `json:"survivors,omitempty"`
	SurvivorsTotal int        `json:"survivors_total,omitempty"`
	// Drain says why the node should take no more jobs: the failure of a
	// required plugin's hook for which Slurm drains it. "" does not.
	Drain string `json:"drain,omitempty"`
	// StepdLost: a stepd was gone before it reported the end of its step.
	StepdLost bool `json:"stepd_lost,omitempty"`
	// HeldOpen lists the first ten streams that a process outside of the step held open
	// after the step's end.
	HeldOpen []string `json:"held_open,omitempty"`
	// OOM lists the first hundred processes that the kernel killed because memory had run
	// out.
	OOM []OOMKill `json:"oom,omitempty"`
	// Aborted: a rank of the MPI program has ended the step, or has died in the middle of
	// the program.
	Aborted bool `json:"aborted,omitempty"`
	// Parent is the step whose tasks have spawned this one, null without one.
	Parent *ID `json:"parent,omitempty"`
	// PluginCrash is the plugin whose crash ended the SPANK host, null without one.
	PluginCrash *PluginCrash `json:"plugin_crash,omitempty"`
	// Host is the activity of the SPANK host, in the answer of Stat for a running step.
	Host *Doing `json:"host,omitempty"`
	// StdoutBytes and StderrBytes count the bytes that the tasks have written to the client
	// so far; nil where the tasks have the client's own descriptor, a file or nothing, whose
	// bytes no daemon sees.
	StdoutBytes *int64 `json:"stdout_bytes"`
	StderrBytes *int64 `json:"stderr_bytes"`
	// Stdout and Stderr are the destinations of the tasks' output, shown to the owner and
	// root; nil is not known.
	Stdout *OutputPlace `json:"stdout,omitempty"`
	Stderr *OutputPlace `json:"stderr,omitempty"`
	// Usage is what the step has used; nil before its tasks run, and where it was
	// not read.
	Usage *StepUsage `json:"usage,omitempty"`
}

// Ran is how long the step has run at the time now, without the time of its suspensions.
// ok is false where it has not begun.
func (r *Record) Ran(now time.Time) (d time.Duration, ok bool) {
	if r.Started == nil {
		return 0, false
	}
	switch {
	case r.Ended != nil:
		now = *r.Ended
	case r.Suspended != nil:
		now = *r.Suspended
	}
	return max(0, now.Sub(*r.Started)-time.Duration(r.SuspendedSeconds*float64(time.Second))), true
}

// PluginCrash is a plugin's end that is no return code: a signal, exit(), or
// the deadline of its hook.
type PluginCrash struct {
	Path     string `json:"path"`
	Hook     string `json:"hook"`
	Required bool   `json:"required,omitempty"`
}

// Task is one rank of a Record.
type Task struct {
	Rank        int       `json:"rank"`
	LocalID     int       `json:"local_id"`
	PID         *int      `json:"pid"`
	State       TaskState `json:"state"`
	ExitCode    *int      `json:"exit_code"`
	Signal      *int      `json:"signal"`
	MaxRSSBytes *int64    `json:"max_rss_bytes"`
	CPUSeconds  *float64  `json:"cpu_seconds"`

	// Status is the raw wait status, nil before the end.
	Status *ExitStatus `json:"status,omitempty"`
	// Stage, Errno and Object describe the failure of a task that was never exec'd: Object
	// is a path, Why the problem with it in words.
	Stage  string `json:"stage,omitempty"`
	Errno  int    `json:"errno,omitempty"`
	Object string `json:"object,omitempty"`
	Why    string `json:"why,omitempty"`
	// MPI is the task's progress in MPI, nil where it is unknown and where the step has ended
	// well. Doing is the activity of its process: in the answer of Stat for a running step,
	// and in the record of a step that was ended while its ranks waited for this one.
	MPI   *MPIProgress `json:"mpi,omitempty"`
	Doing *Doing       `json:"doing,omitempty"`
	// Usage has MaxRSSBytes, CPUSeconds and all other known figures.
	Usage *Used `json:"usage,omitempty"`
}

// End fills the task's end from a raw wait status: a signalled task has no
// exit code, an exited one no signal.
func (t *Task) End(s ExitStatus) {
	t.Status = &s
	t.State = TaskExited
	t.ExitCode, t.Signal = s.CodeAndSignal()
}

// CodeAndSignal splits the status for JSON: exactly one of the two is set.
func (s ExitStatus) CodeAndSignal() (code, signal *int) {
	if sig, ok := s.Signaled(); ok {
		return nil, new(int(sig))
	}
	n, _ := s.Exited()
	return &n, nil
}

// Merge copies stepd's part of told, stepd's record of the step, into noded's record. The
// step's names, owner, resources and places stay noded's; its progress and its end are
// stepd's. A new field belongs here, or to noded's fields, which the test of Merge lists.
func (r *Record) Merge(told *Record) {
	r.Reason, r.ExitCode, r.Signal, r.Ended = told.Reason, told.ExitCode, told.Signal, told.Ended
	r.Aborted, r.Drain, r.PluginCrash = told.Aborted, told.Drain, told.PluginCrash
	r.OOM, r.HeldOpen = told.OOM, told.HeldOpen
	r.Survivors, r.SurvivorsTotal = told.Survivors, told.SurvivorsTotal
	r.Suspended, r.SuspendedBy, r.SuspendedSeconds = told.Suspended, told.SuspendedBy, told.SuspendedSeconds
	if told.Started != nil {
		r.Started = told.Started
	}
	if len(told.Tasks) == len(r.Tasks) {
		r.Tasks = told.Tasks
	}
	if !told.State.Final() {
		if s, err := r.State.Move(told.State); err == nil {
			r.State = s
		} // else stepd repeats an earlier state, in a Hello after noded's restart
		return
	}
	r.State = told.State
	r.Suspended, r.SuspendedBy = nil, nil // of a stepd that was killed
	r.mergeFigures(told)
}

// MergeStat is Merge for stepd's answer to Stat: it takes the present figures as well, which
// noded does not keep in a running step's record.
func (r *Record) MergeStat(told *Record) {
	r.Merge(told)
	r.mergeFigures(told)
	r.Host = told.Host
}

func (r *Record) mergeFigures(told *Record) {
	r.Usage, r.StdoutBytes, r.StderrBytes = told.Usage, told.StdoutBytes, told.StderrBytes
}
