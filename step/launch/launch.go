package launch

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"stepd/step"
)

// Launch is what the tasks get beyond the Spec. task.Plan makes it, the SPANK
// host carries it out. Tasks are counted by their local ids (Spec.LocalRanks).
type Launch struct {
	Streams []TaskStream
	// Env is set in the job's environment before user_init (MPI prefork).
	Env []string
	// CommonEnv, for all tasks, and TaskEnv[id] are set after the gate and
	// before task_init, over all that plugins have set (spank-behaviour §7).
	CommonEnv []string
	TaskEnv   [][]string
	// TaskFDs[id] survive exec.
	TaskFDs [][]TaskFD
	// TaskArgv[id] is the command of a task that does not run the Spec's, nil of
	// one that does; TaskCwd[id] where it begins, relative to the Spec's, ""
	// for the Spec's. Either may be nil.
	TaskArgv [][]string
	TaskCwd  []string
	// MemPolicies are set after the gate, before task_init; a task without one keeps
	// the kernel's default.
	MemPolicies []MemPolicy
	// Scripts are run around each task, prologs and epilogs each in their order.
	Scripts []TaskScript
	// Unset lists names that are removed just before exec.
	Unset []string
	// ExitEnv is set in the job's environment for task_exit.
	ExitEnv []string
}

// TaskScript is run before each task, as its user and in its place, or after it.
type TaskScript struct {
	Epilog bool
	// Label is what it is called in messages: "TaskProlog", "--task-prolog".
	Label, Path string
	TimeoutS    int // 0: it may take any time
}

// TaskStream is one standard stream of one task, or of all (LocalID AllRanks).
type TaskStream struct {
	LocalID int
	FD      int // 0, 1, 2
	Kind    TaskStreamKind
	// Handle is the descriptor of a StreamToHandle and a StreamToTerminal, a plain number so
	// that no caller changes the blocking mode of a file that the client shares.
	Handle int
	// Path and Flags (open(2)) belong to a StreamToPath and a StreamToEarlyPath.
	Path  string
	Flags int
}

// AllRanks stands for every task that has no stream of its own.
const AllRanks = -1

// TaskStreamKind is the kind of a TaskStream.
type TaskStreamKind uint32

const (
	StreamToNull   TaskStreamKind = iota // /dev/null
	StreamToHandle                       // a descriptor
	StreamToPath                         // a file that the task opens as the user
	StreamToStdout                       // stderr: as stdout
	// StreamToEarlyPath is a file that the host opens as the user before
	// user_init: all tasks share it, and what the node says stands in it, too.
	StreamToEarlyPath
	// StreamToTerminal is a descriptor (Handle) of the terminal that becomes the one
	// task's controlling terminal: it leads a session of its own.
	StreamToTerminal
)

// Forked is one task after its fork: still before the gate.
type Forked struct {
	LocalID int
	PID     int
	// PidFD names the process for ever; Exec is the read end of a pipe that
	// the task's exec closes. The receiver closes both.
	PidFD int
	Exec  int
}

// TaskEnd is how a task ended, and what it used.
type TaskEnd struct {
	LocalID int
	Status  step.ExitStatus
	Usage   *Usage // nil where the kernel did not tell
	// Lost says that a plugin reaped the task, or the host did and died before it
	// told: the status is not known, and none is invented.
	Lost bool
}

// ErrHostGone says that the SPANK host's control channel has ended: the
// process is dead, dying, or has closed it.
var ErrHostGone = errors.New("spankhost is gone")

// LaunchError says that a task was not exec'd: the stage, the errno as a
// number, and the object (a path, "bad interpreter(/x)").
type LaunchError struct {
	Rank   int
	Stage  string
	Errno  syscall.Errno
	Object string
	// Why says in words what of the object is wrong, as the task has found it: which
	// directory on the way, whose interpreter; "" where it is not known.
	Why string
}

func (e *LaunchError) Error() string {
	return fmt.Sprintf("cannot start task %d: %s %q: %v", e.Rank, e.Stage, e.Object, e.Errno)
}

// HostSetup is what the SPANK host is told before anything is loaded.
type HostSetup struct {
	Spec *step.Spec
	// Env is the job's environment as the plugins see it at init; HostEnv is
	// the host's own environ.
	Env, HostEnv []string
	// Gate is the read end of the pipe at which the tasks wait.
	Gate *os.File
	// Helpers is the cgroup.procs into which a process that a plugin forks in
	// the host writes itself; nil where it stays where it is born.
	Helpers *os.File
	// Namespaces are the namespaces of the job's container.
	Namespaces Namespaces
}

// FaultError is a failure for which the node is not what its files say: the node is drained,
// before it fails one job after the other.
type FaultError struct{ Err error }

func (e *FaultError) Error() string { return e.Err.Error() }
func (e *FaultError) Unwrap() error { return e.Err }

// ErrInitGone ends the use of a job's pid namespace: no process can be born in it.
var ErrInitGone = errors.New("process 1 of its pid namespace has ended: it was killed")

// Namespaces are the namespaces of a job's container; a nil file is the node's own.
type Namespaces struct {
	Mount *os.File // what its processes see of the file systems; nil: no container
	PID   *os.File // in which the tasks are born
	User  *os.File // which they enter as they become the user
	// EntireStep says that the SPANK host joins Mount as well, before init.
	EntireStep bool
}

// Close closes the files.
func (n Namespaces) Close() {
	for _, f := range []*os.File{n.Mount, n.PID, n.User} {
		if f != nil {
			f.Close()
		}
	}
}

// HostPlace says where the host or a task child is, or was last.
type HostPlace struct {
	Stage   string
	AtExec  bool // at execve, or past it
	Errno   int
	Plugin  int    // index in the stack, -1 outside of a hook
	Hook    string // "" outside of a hook
	SinceNS uint64 // CLOCK_MONOTONIC when the place was entered
}

// InHook reports that a plugin's function was entered and has not returned.
func (p HostPlace) InHook() bool { return p.Hook != "" }

// HookTime is one call of a hook.
type HookTime struct {
	Plugin         int // index in the stack
	Hook           string
	LocalID        int    // -1 in the host
	StartNS, EndNS uint64 // CLOCK_MONOTONIC; EndNS 0 if it never returned
	RC             int
}

// LogLevel is the level of a plugin's log call, as in host/protocol.h.
type LogLevel uint32

const (
	LogError   LogLevel = 1 // slurm_error: to the user, with the node's prefix
	LogInfo    LogLevel = 2
	LogVerbose LogLevel = 3
	LogDebug   LogLevel = 4
	LogDebug2  LogLevel = 5
	LogDebug3  LogLevel = 6
	LogSpank   LogLevel = 7 // slurm_spank_log: to the user as it is
	LogWarning LogLevel = 8 // an optional plugin has failed: to the user in every hook, once
)

// HostRecord is one record of the host's log channel. A task child may have
// written it as the user: it is told, never acted on as root.
type HostRecord struct {
	Level   LogLevel
	LocalID int // -1 for the host
	Plugin  string
	Hook    string
	Text    string
	// Fail is set where a task reported why it is not exec'd, Limit where a limit is lower
	// than the user passes it on.
	Fail  *LaunchError
	Limit *LimitCut
}

// Line is Text as logs have it: with the plugin before it where it is a plugin's.
func (r *HostRecord) Line() string {
	if r.Plugin == "" {
		return r.Text
	}
	return r.Plugin + ": " + r.Text
}

// LimitCut is a resource limit (setrlimit(2)) that tasks have lower than the user has
// passed it on: no more than the node's hard limit. nil is unlimited.
type LimitCut struct {
	Name        string // "NOFILE"
	Wanted, Had *uint64
}

// String is the limit in words.
func (l *LimitCut) String() string {
	word := func(v *uint64) string {
		if v == nil {
			return "unlimited"
		}
		return strconv.FormatUint(*v, 10)
	}
	return fmt.Sprintf("the limit %s is %s and not %s, as it was passed on: the node's hard limit is lower", l.Name, word(l.Had), word(l.Wanted))
}

// Escape is a living process of a step that is not in the step's cgroups: root
// has moved it, as logind does where a task starts a session of its own.
type Escape struct {
	PID int
	// Comm is under the user's control.
	Comm string
	// Cgroup is where it is, as /proc/PID/cgroup has it.
	Cgroup string
}

func (e Escape) String() string {
	return fmt.Sprintf("process %d (%q) was moved out of the step's cgroup to %q", e.PID, e.Comm, e.Cgroup)
}

// LimitPlan is what confines a step and its job. noded decides it before it writes
// anything, so that --dry-run can show it, and carries it out before the step's stepd
// starts.
type LimitPlan struct {
	// Writes are the writes for job and step in their order. The writes for
	// single tasks are TaskWrites, with %t for the rank.
	Writes     []step.CgroupWrite
	TaskWrites []step.CgroupWrite
	// V1 are the v1 controllers in which the step needs directories.
	V1 []string
	// Confine is the part that stepd carries out.
	Confine step.Confinement
	// Notes name the limits of the configuration that this node cannot enforce.
	Notes []string
}

// WritesOf are the writes of a level, "job" or "step".
func (p *LimitPlan) WritesOf(level string) []step.CgroupWrite {
	var out []step.CgroupWrite
	for _, w := range p.Writes {
		if w.Level == level {
			out = append(out, w)
		}
	}
	return out
}

// TaskName is the name of a task's own cgroup below the step's.
func TaskName(rank int) string { return taskPrefix + strconv.Itoa(rank) }

const taskPrefix = "task_"

// TaskRank is the opposite of TaskName. ok is false for a name that is not a task's.
func TaskRank(name string) (rank int, ok bool) {
	digits, ok := strings.CutPrefix(name, taskPrefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	return int(n), err == nil && strconv.FormatUint(n, 10) == digits
}

// Held is a stream of the tasks that a process has kept open when all processes of
// the step had ended.
type Held struct {
	// FD is 1 or 2, Rank the task's, or AllRanks.
	FD, Rank int
	// PID is the holder, 0 where none could be found; Command is its command line,
	// or its name; UID is its user.
	PID     int
	Command string
	UID     uint32
}

func (h Held) String() string {
	name := map[int]string{1: "stdout", 2: "stderr"}[h.FD]
	if h.Rank != AllRanks {
		name = fmt.Sprintf("%s of task %d", name, h.Rank)
	}
	if h.PID == 0 {
		return name + " held open by a process that is not in /proc (or its reader stands in the kernel)"
	}
	return fmt.Sprintf("%s held open by pid %d (%s) of uid %d", name, h.PID, h.Command, h.UID)
}

// Usage is what the kernel reports about a process at its end: of itself and of the
// children that it waited for (getrusage(2)).
type Usage struct {
	User, System          time.Duration
	MaxRSSBytes           int64 // the largest of these processes, not their sum
	MinorFaults           int64
	MajorFaults           int64
	BlocksRead, BlocksOut int64 // of 512 bytes, from and to storage
	// IO is /proc/PID/io, read before the process was reaped; "" where it was not read.
	IO string
}

// MemMode is how the kernel takes memory for a task, as set_mempolicy(2) numbers it.
type MemMode uint32

const (
	MemPreferred MemMode = 1 // of the node, and of others where it has none
	MemBound     MemMode = 2 // of the nodes, and of no others
	MemLocal     MemMode = 4 // of the node on which the task runs
)

// MemPolicy is the memory policy of one task, or of all (LocalID AllRanks).
type MemPolicy struct {
	LocalID int
	Mode    MemMode
	// Nodes are the memory nodes as the kernel's bit mask; empty for MemLocal.
	Nodes []uint64
}

// SurvivorsError names the processes that were left when the wait for their end
// was given up. errors.Is sees Cause, which is the context's.
type SurvivorsError struct {
	// Where is the place that was to be emptied: `cgroup "/…"`, or "the step of stepd 12".
	Where     string
	Survivors []step.Survivor
	// Total counts them all; Survivors has the first of them.
	Total int
	Cause error
}

// Error is one line.
func (e *SurvivorsError) Error() string {
	text := fmt.Sprintf("cannot kill all processes of %s: %s", e.Where, e.Left())
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *SurvivorsError) Unwrap() error { return e.Cause }

// Left names the processes that are left, in one line. Where Survivors lists fewer than
// Total, the line says so.
func (e *SurvivorsError) Left() string {
	text := fmt.Sprintf("%d left", max(e.Total, len(e.Survivors)))
	for i, s := range e.Survivors {
		sep := ", "
		if i == 0 {
			sep = ": "
		}
		text += sep + s.String()
	}
	if len(e.Survivors) > 0 && e.Total > len(e.Survivors) {
		text += ", ..."
	}
	return text
}
