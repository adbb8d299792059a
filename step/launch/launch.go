package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

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

// What is called at the end of a plugin, as a HookError names it: nothing that it does there
// changes how the step has ended.
const (
	HookFini  = "fini()"
	HookClose = "dlclose" // destructors and atexit handlers
)

// Unloading reports whether the plugin was at its end.
func (e *HookError) Unloading() bool { return e.Hook == HookFini || e.Hook == HookClose }

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
	// Exit is n where the hook of a session has called exit(n), else nil.
	Exit *int
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

// CauseFirst is HookError's text in the order for a short line: the place of a crash first, then the
// hook and the ranks, by default the text's own. The symbols at that place, and what else stands in
// brackets, are detail. Another text stays as it is.
func CauseFirst(text, ranks string) (first, detail string) {
	plugin, rest, ok := strings.Cut(strings.TrimPrefix(text, "plugin "), ": ")
	hook, how, ok2 := strings.Cut(rest, ": ")
	if !ok || !ok2 || !strings.HasPrefix(text, "plugin ") {
		return text, ""
	}
	hook, rank, _ := strings.Cut(hook, " (")
	if ranks = cmp.Or(ranks, strings.TrimSuffix(rank, ")")); ranks != "" {
		ranks = ", " + ranks
	}
	how, detail = brackets(how)
	if !strings.HasPrefix(how, "killed by ") {
		return fmt.Sprintf("%s: %s%s: %s", plugin, hook, ranks, how), detail
	}
	if detail != "" {
		detail = "there: " + detail
	}
	if strings.Contains(how, strings.Trim(plugin, `"`)+"+0x") { // the place names the plugin
		return fmt.Sprintf("%s in %s%s", how, hook, ranks), detail
	}
	return fmt.Sprintf("%s in %s: %s%s", how, plugin, hook, ranks), detail
}

// brackets takes what stands in brackets out of a text.
func brackets(text string) (rest, in string) {
	var all []string
	for {
		before, after, ok := strings.Cut(text, " (")
		inside, after, closed := strings.Cut(after, ")")
		if !ok || !closed {
			return rest + text, strings.Join(all, ", called at ")
		}
		rest, text, all = rest+before, after, append(all, inside)
	}
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

// MPIJob is what an MPI plugin may know and do (seeds: MPI plugin API). The
// functions may be called from any goroutine, until the plugin was closed.
type MPIJob struct {
	Spec *step.Spec
	// HostPID is the SPANK host: what it sees of the file systems, which its plugins may have
	// changed, a task sees that joins no container. 0 is not known.
	HostPID int
	// Abort ends the step because a rank asked for it; code is the exit code. Rank -1
	// is none: the server of the ranks is at fault.
	Abort func(rank, code int, text string)
	// Log writes a line for the administrator.
	Log func(text string)
	// Progress notes how far a rank has come, for explain; nil notes nothing.
	Progress func(rank int, p step.MPIProgress)
	// Tasks returns the present state of the tasks of this node, by local id, and
	// Signal sends a signal to the running tasks with these ranks; Cancel ends the step as its
	// user's cancel does. nil where they are not available.
	Tasks  func() []MPITask
	Signal func(ranks []int, sig syscall.Signal) error
	Cancel func(reason string)
	// Peers are the step's stepds on other nodes; nil for a step of one node.
	Peers Peers
	// Job is what the steps of a job share; nil where it is not provided.
	Job MPIServices
}

// MPITasks is what prefork hands to the tasks. All of it may be nil. What is
// counted by task is counted by local id (Spec.LocalRanks).
type MPITasks struct {
	// Env is set for every task, TaskEnv[i] for one ("NAME=VALUE").
	Env     []string
	TaskEnv [][]string
	// TaskFDs[i] are descriptors that survive exec.
	TaskFDs [][]TaskFD
}

// TaskFD is one descriptor for one task. Var is the variable by which the task
// finds its number. The receiver of a TaskFD closes File.
type TaskFD struct {
	File *os.File
	Var  string
}

// MPITask is one task of this node.
type MPITask struct {
	Rank  int
	State step.TaskState
	// PID is its process, 0 before the fork. Program is the file that the process
	// runs, "" where it is not known, as after the task's end.
	PID     int
	Program string
	// Status is nil before the end.
	Status *step.ExitStatus
}

// Peers are the stepds of one step, which find each other by the step's Layout.
// Methods may be called from several goroutines. They fail when a node is lost or
// the step ends.
type Peers interface {
	// Allgather gives each stepd of the nodes the data of all of them: one entry for
	// each node, in the order of nodes (ascending node ids; nil are all nodes).
	// Calls of one name with the same nodes meet in their order. The error is a
	// *MissingError where ctx's deadline passes first.
	Allgather(ctx context.Context, name string, nodes []int, data []byte) ([][]byte, error)
	// Call asks one node's handler of that name for an answer.
	Call(ctx context.Context, node int, name string, data []byte) ([]byte, error)
	// Handle sets the function that answers Call for a name. Several goroutines may
	// call answer at once; it must not wait for a call of its own to the same node.
	Handle(name string, answer func(ctx context.Context, from int, data []byte) ([]byte, error))
}

// MissingError names the nodes that were missing in an Allgather.
type MissingError struct {
	Name  string
	Nodes []int
	Cause error
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("node %s did not come to %q: %v", step.FormatCPUList(e.Nodes), e.Name, e.Cause)
}

func (e *MissingError) Unwrap() error { return e.Cause }

// MPIServices are the names and meetings that noded keeps for the steps of a job.
type MPIServices interface {
	// Spawn starts another step of the job and returns when its tasks are about to
	// be started.
	Spawn(ctx context.Context, r SpawnRequest) (step.ID, error)
	// Publish, Lookup and Unpublish keep the job's names (MPI_Publish_name). Lookup
	// of a name that is not published returns found=false.
	Publish(ctx context.Context, name, port string) error
	Lookup(ctx context.Context, name string) (port string, found bool, err error)
	Unpublish(ctx context.Context, name string) error
	// Await is a Lookup that waits for the name as long as ctx lasts; found=false says
	// that the name was not published in that time.
	Await(ctx context.Context, name string) (port string, found bool, err error)
	// Meet gives each party the data of all, by party. Each party is one step of the
	// job; all name the same parties in the same order.
	Meet(ctx context.Context, name string, parties []string, me string, data []byte) (map[string][]byte, error)
}

// SpawnAppsMax bounds the commands of one MPI_Comm_spawn_multiple.
const SpawnAppsMax = 1024

// SpawnRequest is a call of MPI_Comm_spawn or MPI_Comm_spawn_multiple.
type SpawnRequest struct {
	// Rank is the caller's: the new tasks write to its standard output and error.
	Rank int `json:"rank"`
	// Apps are the commands, whose ranks follow each other.
	Apps []SpawnApp `json:"apps"`
	// Preput are keys that the new ranks find in their key value space, in pairs.
	Preput []step.KeyValue `json:"preput,omitempty"`
	// MPI is the MPI type of the new step, the same as the spawning step's.
	MPI string `json:"mpi"`
}

// SpawnApp is one command of a SpawnRequest.
type SpawnApp struct {
	Argv   []string `json:"argv"`
	NTasks int      `json:"ntasks"`
	Env    []string `json:"env,omitempty"` // set over the environment of the spawning step
	Cwd    string   `json:"cwd,omitempty"` // "" is the spawning step's
	// Info are the program's hints that have a meaning here (wdir, path, host, soft).
	Info []step.KeyValue `json:"info,omitempty"`
}

// SpawnError says that a step was made whose tasks could not all be started; it
// is being ended. The error of Spawn may be one.
type SpawnError struct {
	ID step.ID
	// Failed are the ranks that were not started, with the cause of each.
	Failed map[int]string
	Cause  string
}

func (e *SpawnError) Error() string {
	ranks := slices.Sorted(maps.Keys(e.Failed))
	return fmt.Sprintf("cannot start the tasks of step %s (rank %s): %s", e.ID, step.FormatCPUList(ranks), e.Cause)
}
