package launch

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

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

// HookError says that a SPANK hook failed: by its return code, or by what
// happened to the process while it ran.
type HookError struct {
	Plugin   string // base name of the file
	Path     string // the file, "" where it is not known
	Hook     string // "slurm_spank_task_init"
	Rank     *int   // nil in the host itself
	Required bool
	// RC is the hook's return code where it returned.
	RC *int
	// Cause says what happened where it did not return: "killed by SIGSEGV".
	Cause string
}

func (e *HookError) Error() string {
	where := fmt.Sprintf("plugin %q: %s", e.Plugin, e.Hook)
	if e.Rank != nil {
		where += fmt.Sprintf(" (rank %d)", *e.Rank)
	}
	if e.RC != nil {
		return fmt.Sprintf("%s: failed with rc=%d", where, *e.RC)
	}
	return where + ": " + e.Cause
}

// lookupStatus is ld.so's exit status where it cannot bind a call.
const lookupStatus = 127

// HookEnd says how a process has ended inside a hook, for HookError.Cause.
func HookEnd(st step.ExitStatus) string {
	if sig, ok := st.Signaled(); ok {
		return "killed by " + cmp.Or(unix.SignalName(sig), fmt.Sprintf("signal %d", int(sig)))
	}
	code, _ := st.Exited()
	text := fmt.Sprintf("called exit(%d)", code)
	if code == lookupStatus {
		text += ", as ld.so does where a function is missing"
	}
	return text
}

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

// Namespaces are the namespaces of a job's container; a nil file is the node's own.
type Namespaces struct {
	Mount *os.File // what its processes see of the file systems; nil: no container
	PID   *os.File // in which the tasks are born
	User  *os.File // which they enter as they become the user
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
