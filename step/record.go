package step

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Record is the STEP document of ps, show and the store: the contract of
// design §7. Numbers that are not known are null, never an invented zero.
type Record struct {
	ID
	// IDName is ID.Name, for what prints the document: SetID sets both.
	IDName    string     `json:"id,omitempty"`
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
	// MPISilent: the step has ended, and none of its several tasks has spoken to its MPI plugin.
	MPISilent bool `json:"mpi_silent,omitempty"`
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

// SetID gives the record its step.
func (r *Record) SetID(id ID) { r.ID, r.IDName = id, id.Name() }

// NoTaskRan reports whether the step has COMPLETED before its tasks ran: so ends a step of run
// whose plugin fails in a hook of which spank(8) has exit code 0. Reason names both.
func (r *Record) NoTaskRan() bool { return r.State == Completed && r.Started == nil && r.Reason != "" }

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
	// Cause is all of it in words, with the rank and the place in the code: `plugin "x.so":
	// slurm_spank_user_init: killed by SIGSEGV at x.so+0x1119 (slurm_spank_user_init+0x15)`.
	Cause string `json:"cause,omitempty"`
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

// EndWords says how the task has ended, or why it never ran, in words for a step's reason; "" before
// the end.
func (t *Task) EndWords() string {
	switch {
	case t.State == TaskFailed && t.Errno != 0 && t.Object != "":
		return fmt.Sprintf("task %d never ran: %s: %q", t.Rank, syscall.Errno(t.Errno), t.Object)
	case t.Status != nil:
		return fmt.Sprintf("task %d: %s", t.Rank, t.Status.Describe())
	case t.State == TaskFailed:
		return fmt.Sprintf("task %d never ran its command", t.Rank)
	}
	return ""
}

// CodeAndSignal splits the status for JSON: exactly one of the two is set.
func (s ExitStatus) CodeAndSignal() (code, signal *int) {
	if sig, ok := s.Signaled(); ok {
		return nil, new(int(sig))
	}
	n, _ := s.Exited()
	return &n, nil
}

// OwnEnd reports whether the step has ended as its tasks have, whatever their exit codes are: it
// was neither aborted nor ended by a user, a limit or a plugin, and no task was lost.
func (r *Record) OwnEnd() bool {
	lost := func(t Task) bool { return t.Status == nil && t.State != TaskFailed } // a task of a lost node, say
	return r.State == Completed ||
		r.State == Failed && !r.Aborted && r.PluginCrash == nil && !slices.ContainsFunc(r.Tasks, lost)
}

// Merge copies stepd's part of told, stepd's record of the step, into noded's record. The
// step's names, owner, resources and places stay noded's; its progress and its end are
// stepd's. A new field belongs here, or to noded's fields, which the test of Merge lists.
func (r *Record) Merge(told *Record) {
	r.Reason, r.ExitCode, r.Signal, r.Ended = told.Reason, told.ExitCode, told.Signal, told.Ended
	r.Aborted, r.Drain, r.PluginCrash, r.MPISilent = told.Aborted, told.Drain, told.PluginCrash, told.MPISilent
	r.OOM, r.HeldOpen = told.OOM, told.HeldOpen
	r.Survivors, r.SurvivorsTotal = told.Survivors, told.SurvivorsTotal
	r.Suspended, r.SuspendedBy, r.SuspendedSeconds = told.Suspended, told.SuspendedBy, told.SuspendedSeconds
	if told.Started != nil {
		r.Started = told.Started
	}
	if len(r.Tasks) == 0 || len(told.Tasks) == len(r.Tasks) { // noded's has none before the launch
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

// Used is what a task, or a whole step, has used: so far, or in all when it has ended. A
// figure that is not known is nil, never 0. docs/accounting.md names the source of each figure
// on each layout of cgroups. Of two sources, each of which can only miss something, the larger
// figure counts.
type Used struct {
	// CPUSeconds is user and system time: wait4's, or cpu.stat's (v1
	// cpuacct.usage) where accounting is by cgroup. UserSeconds and SystemSeconds
	// are its parts, by the same source.
	CPUSeconds    *float64 `json:"cpu_seconds,omitempty"`
	UserSeconds   *float64 `json:"user_seconds,omitempty"`
	SystemSeconds *float64 `json:"system_seconds,omitempty"`
	// MaxRSSBytes is the resident memory: of a task the larger of wait4's
	// ru_maxrss, which covers its largest process alone, and the highest sum over
	// its processes in one sample. A step has its largest task's.
	MaxRSSBytes *int64 `json:"max_rss_bytes,omitempty"`
	// RSSBytes is the sum over its processes in the last sample, Processes their number. Both
	// are known only while it runs.
	RSSBytes  *int64 `json:"rss_bytes,omitempty"`
	Processes *int   `json:"processes,omitempty"`
	// PeakMemoryBytes is the kernel's own peak of the cgroup, with page cache and kernel
	// memory: memory.peak (v1 memory.max_usage_in_bytes).
	PeakMemoryBytes *int64 `json:"peak_memory_bytes,omitempty"`
	// MaxVMSizeBytes is the highest sum of virtual sizes in one sample.
	MaxVMSizeBytes *int64 `json:"max_vm_size_bytes,omitempty"`
	MinorFaults    *int64 `json:"minor_faults,omitempty"`
	MajorFaults    *int64 `json:"major_faults,omitempty"`
	// ReadBytes and WrittenBytes passed through read(2), write(2) and their kin:
	// files, pipes and sockets (rchar and wchar of /proc/PID/io; Slurm's
	// AveDiskRead and AveDiskWrite).
	ReadBytes    *int64 `json:"read_bytes,omitempty"`
	WrittenBytes *int64 `json:"written_bytes,omitempty"`
	// DiskReadBytes and DiskWrittenBytes came from and went to storage:
	// read_bytes and write_bytes of /proc/PID/io, and io.stat (v1
	// blkio.throttle.io_service_bytes_recursive).
	DiskReadBytes    *int64 `json:"disk_read_bytes,omitempty"`
	DiskWrittenBytes *int64 `json:"disk_written_bytes,omitempty"`
	// CPUStallUS, MemoryStallUS and IOStallUS are the microseconds in which some thread waited
	// for the resource: "some" of cpu.pressure, memory.pressure and io.pressure of the cgroup
	// (psi(8)).
	CPUStallUS    *int64 `json:"cpu_stall_us,omitempty"`
	MemoryStallUS *int64 `json:"memory_stall_us,omitempty"`
	IOStallUS     *int64 `json:"io_stall_us,omitempty"`
}

// StepUsage is the accounting of a step.
type StepUsage struct {
	Used
	// Gather is JobAcctGatherType: "none", "linux" or "cgroup".
	Gather string `json:"gather"`
	// Time is when it was read. Final says that no process was left then.
	Time  time.Time `json:"time"`
	Final bool      `json:"final"`
	// FrequencyS is the time between samples, 0 for none; Samples were taken, and
	// took stepd SamplingUS microseconds in all.
	FrequencyS int   `json:"frequency_s"`
	Samples    int   `json:"samples"`
	SamplingUS int64 `json:"sampling_us"`
	// Pressure are the pressure files whole; nil where there are none.
	Pressure *Pressure `json:"pressure,omitempty"`
	// Sources names the source of each figure of the step that has several
	// sources, by their JSON names.
	Sources map[string]string `json:"sources,omitempty"`
}

// Sampled reports whether the figures of running tasks were read from time to time.
func (u *StepUsage) Sampled() bool { return u.FrequencyS > 0 && u.Gather != "none" }

// Pressure is how long the tasks of a step have waited for a resource: cpu.pressure,
// memory.pressure and io.pressure of its cgroup (psi(8)).
type Pressure struct {
	CPU    *Stalls `json:"cpu,omitempty"`
	Memory *Stalls `json:"memory,omitempty"`
	IO     *Stalls `json:"io,omitempty"`
}

// Stalls are the two lines of a pressure file: some task waited, or all did.
type Stalls struct {
	Some Stall  `json:"some"`
	Full *Stall `json:"full,omitempty"` // not of CPU before Linux 5.13
}

// Stall is a total of microseconds, and percentages of the last 10, 60 and 300 s.
type Stall struct {
	TotalUS int64   `json:"total_us"`
	Avg10   float64 `json:"avg10"`
	Avg60   float64 `json:"avg60"`
	Avg300  float64 `json:"avg300"`
}

// OOMKill is one process of a step that the kernel killed because memory had run out. A
// field is nil or empty where its fact is not known.
type OOMKill struct {
	Time time.Time `json:"time"`
	Rank *int      `json:"rank"` // nil: a process of no known task
	PID  int       `json:"pid,omitempty"`
	// Command is the process's name (/proc/PID/comm), which the user chooses.
	Command string `json:"command,omitempty"`
	// Level is the limit that was reached: "task", "step", "job", "parent"
	// (a cgroup above the job), "machine"; "" is not known.
	Level string `json:"level,omitempty"`
	// LimitBytes is the level's limit, PeakBytes its peak of memory, and SwapBytes its
	// swap.
	LimitBytes *uint64 `json:"limit_bytes"`
	PeakBytes  *uint64 `json:"peak_bytes"`
	SwapBytes  *uint64 `json:"swap_bytes"`
}

// String is the line for the user: the task, the event, its cause, and the remedy.
func (k OOMKill) String() string {
	var b strings.Builder
	if k.Rank != nil {
		fmt.Fprintf(&b, "task %d: ", *k.Rank)
	}
	b.WriteString("Out Of Memory: the kernel killed ")
	switch {
	case k.PID == 0:
		b.WriteString("a process")
	case k.Command == "":
		fmt.Fprintf(&b, "process %d", k.PID)
	default:
		fmt.Fprintf(&b, "process %d (%q)", k.PID, k.Command)
	}
	switch k.Level {
	case "":
	case "machine":
		b.WriteString(": the machine has no memory left")
	case "parent":
		b.WriteString(": the limit of a cgroup above the job is reached")
	default:
		fmt.Fprintf(&b, ": the memory limit of the %s is reached", k.Level)
	}
	var facts []string
	for _, f := range []struct {
		name  string
		bytes *uint64
	}{{"limit", k.LimitBytes}, {"peak", k.PeakBytes}, {"swap", k.SwapBytes}} {
		if f.bytes != nil {
			facts = append(facts, f.name+" "+mebibytes(*f.bytes))
		}
	}
	if len(facts) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(facts, ", "))
	}
	if k.Level == "task" || k.Level == "step" || k.Level == "job" {
		b.WriteString("; --mem or --mem-per-cpu asks for more")
	}
	return b.String()
}

// mebibytes writes a size as Slurm's options take it.
func mebibytes(n uint64) string {
	if n != 0 && n < 1<<20 {
		return fmt.Sprintf("%dK", n>>10)
	}
	return fmt.Sprintf("%.4gM", float64(n)/(1<<20))
}

// State is where a step stands in its life. The legal moves are one table,
// stateMoves; Move is the only way to make one.
type State string

// The states that users see (the contract of ps and show).
const (
	Pending     State = "PENDING"
	Starting    State = "STARTING"
	Running     State = "RUNNING"
	Completing  State = "COMPLETING"
	Completed   State = "COMPLETED"
	Failed      State = "FAILED"
	Cancelled   State = "CANCELLED"
	Timeout     State = "TIMEOUT"
	OutOfMemory State = "OUT_OF_MEMORY"
	NodeFail    State = "NODE_FAIL"
)

var stateMoves = map[State][]State{
	Pending:    {Starting, Failed, Cancelled},
	Starting:   {Running, Completing, Failed, Cancelled, Timeout, NodeFail},
	Running:    {Completing, Completed, Failed, Cancelled, Timeout, OutOfMemory, NodeFail},
	Completing: {Completed, Failed, Cancelled, Timeout, OutOfMemory, NodeFail},
}

// Final reports whether no move leads out of s.
func (s State) Final() bool { return len(stateMoves[s]) == 0 }

// Move returns to, or an error that names both states when the move is illegal.
func (s State) Move(to State) (State, error) {
	for _, legal := range stateMoves[s] {
		if legal == to {
			return to, nil
		}
	}
	return s, fmt.Errorf("internal error: step cannot go from %s to %s", s, to)
}

// TaskState is where one task stands. FAILED means that it was never exec'd.
type TaskState string

const (
	TaskPending  TaskState = "PENDING"
	TaskStarting TaskState = "STARTING"
	TaskRunning  TaskState = "RUNNING"
	TaskExited   TaskState = "EXITED"
	TaskFailed   TaskState = "FAILED"
)
