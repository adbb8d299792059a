package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"stepd/eventlog"
	"stepd/step"
	"stepd/step/launch"
)

// Tracker holds every process of the step, so that none escapes or outlives
// it. stepd makes one per step; *proctrack.Cgroup and *proctrack.LinuxProc are
// such trackers. Methods may be called from several goroutines.
type Tracker interface {
	// Create makes what the tracker needs below the step's directory.
	Create() error
	// HostCgroup is a directory descriptor for CLONE_INTO_CGROUP, in which the
	// host is to be born, -1 without one. inside says that it is the tasks' own,
	// so that its children are born there, too; else Add moves each of them.
	HostCgroup() (fd int, inside bool)
	// Add tracks the process of a task that was not born inside; its cgroup, where
	// each task has its own, is called by the rank.
	Add(rank, pid int) error
	// EvictHost moves the host to a cgroup of its own, once, where it was not born
	// there: what kills or freezes the tasks must not hit it. It may take 30 ms.
	EvictHost(pid int) error
	// Helpers opens the cgroup.procs of the processes that plugins fork in the
	// host: they are no tasks. nil where there is none. The caller closes it.
	Helpers() (*os.File, error)
	// PIDs lists the tasks' processes, and a host that is still among them.
	PIDs() ([]int, error)
	// Escaped finds living processes that were moved out of the step's cgroups:
	// of these tasks, and of what descends from stepd. Nothing, where there are no
	// cgroups to be moved out of.
	Escaped(tasks []int) ([]launch.Escape, error)
	// Signal sends sig to every process of the tasks, but for a host that is still among
	// them, 0 of one that is not. An error of SIGKILL beside a host may be that processes are
	// left for which the host has to be moved first.
	Signal(sig syscall.Signal, host int) error
	// Kill kills every process of the tasks and returns when none is left, or
	// with ctx's cause and the survivors in the error.
	Kill(ctx context.Context) error
	// Freeze makes the tasks' processes stand still, whatever they do, and returns
	// when they do; where the kernel has no freezer it is SIGSTOP. When ctx ends
	// first, they stop as soon as they can. Thaw undoes it.
	Freeze(ctx context.Context) error
	Thaw() error
	// KeepHelpers kills, without waiting for it, what is left of the step but the
	// processes that have started since, in clock ticks since boot
	// (proc_pid_stat(5)); kept counts these. The host has ended.
	KeepHelpers(since uint64) (kept int, err error)
	// Destroy kills what is left, the host and its helpers included, and
	// removes everything that Create made. It is idempotent.
	Destroy(ctx context.Context) error
}

// Plugin is a plugin of Slurm's kind task: *affinity.Plugin is one. The
// methods are called in this order by the goroutine of Step.Run. An error of the
// first three ends the launch.
type Plugin interface {
	// Name is slurm.conf's name for it: "task/affinity".
	Name() string
	// PreSetuid runs as root, once, before anything runs as the user.
	PreSetuid() error
	// PreLaunch adds what the tasks do to themselves, as the user, before their
	// task_init: such as their memory policy.
	PreLaunch(l *launch.Launch) error
	// PreLaunchPriv runs as root for each task, which is tracked and waits at the
	// gate, before its task_post_fork.
	PreLaunchPriv(localID, pid int) error
	// PostTerm is called at a task's end.
	PostTerm(end launch.TaskEnd)
	// PostStep runs as root when no process of the tasks is left, before their
	// cgroups are removed. It follows every PreSetuid, failed ones included.
	PostStep() error
}

// Accounting measures what the tasks use: *acct.Gatherer does. Begin and Finish are
// called once, by the goroutine of Step.Run, the others by any.
type Accounting interface {
	// Begin: tasks are the processes, by local id, and wait at the gate. inside tells
	// that the host lives among them.
	Begin(host int, inside bool, tasks []int)
	// HostMoved says that it does not any more.
	HostMoved()
	// TaskEnded and OrphanEnded report how a task ended, and any other process of the
	// step that stepd has reaped.
	TaskEnded(end launch.TaskEnd)
	OrphanEnded(pid int, usage *launch.Usage)
	// Sample looks at what runs now.
	Sample()
	// Finish reads what goes with the tasks' cgroups: no process of theirs is left.
	Finish()
	// Fill writes what is known into the record.
	Fill(rec *step.Record)
}

// MPI is one MPI plugin, seen from stepd: *pmi2.Plugin is one (seeds: MPI plugin API).
type MPI interface {
	// Prefork runs as root, once, before the first fork.
	Prefork(ctx context.Context, job launch.MPIJob) (launch.MPITasks, error)
	// TaskExited reports that the task ended.
	TaskExited(rank int, status step.ExitStatus)
	// Close ends the plugin's servers; it waits for their goroutines.
	Close() error
}

// Streams are the tasks' streams that stepd passes on: *relay.Relay has them.
type Streams interface {
	// Drain returns when the last byte of the tasks was passed on, once no process of
	// the step is left. A stream that another process keeps open is closed after limit,
	// and reported. It is called once.
	Drain(limit time.Duration) []launch.Held
	// Fill writes into the record what has passed so far, and Used reports whether there
	// are such streams at all; any goroutine may call them.
	Fill(rec *step.Record)
	Used() bool
}

// Spawned are the steps that the tasks have started: *spawn.Services has them.
type Spawned interface {
	// Running counts the spawned steps that have not ended; Cancel ends them, without waiting;
	// Close waits for their ends.
	Running() int
	Cancel(reason string)
	Close()
}

// Output is what others than the launcher see of the tasks' streams, and the terminal
// of rank 0: *live.Live. Its methods are called once, by the goroutine of Step.Run.
type Output interface {
	// OpenTerminal makes the terminal of rank 0, and returns the descriptor that is
	// to be its controlling terminal. It stays open here.
	OpenTerminal() (fd int, err error)
	// Drain passes on the rest of what the tasks wrote: no process of theirs is left.
	// It follows in any case, and bounds its wait itself. Used reports whether there may
	// be something to wait for.
	Drain()
	Used() bool
}

// Host is spankhost: *spank.Host. Its calls are made by the goroutine of
// Step.Run, in this order; Kill, Where and PID by any.
type Host interface {
	PID() int
	Setup(cfg launch.HostSetup, sink func(launch.HostRecord)) (problems []string, err error)
	LoadStack() (problems []string, err error)
	Init() error
	Launch(l *launch.Launch) error
	UserInit(stderr *os.File, opened func(fd int, f *os.File)) error
	Fork() ([]launch.Forked, error)
	PostFork() error
	Wait(ended func(launch.TaskEnd), track func(localID, pid int) error) error
	Exit() error

	// Where and Crash return what the host (local id -1) or a task did last.
	Where(localID int) launch.HostPlace
	Crash(localID int, cause string) (*launch.HookError, bool)
	// Hooks returns the hooks that ended since the last call.
	Hooks(last bool) []launch.HookTime
	PluginName(i int) string
	// Required reports whether plugstack.conf says so of a plugin.
	Required(i int) bool
	// Kill ends the host wherever it is; Close waits for its log to end.
	Kill()
	Close()
}

// Audience receives the step's news: clients and noded. None of its methods
// blocks.
type Audience interface {
	// Say sends a line to the user's stderr. SayTask does so for a line that concerns one
	// task: where each task has a stderr of its own, the line goes there.
	Say(line string)
	SayTask(rank int, line string)
	// SayTo sends all past and future text of Say to f as well, which becomes its
	// own: a batch job's output.
	SayTo(f *os.File)
	// TaskExited reports how a rank ended.
	TaskExited(rank int, status step.ExitStatus)
	// State reports a change of the step's state.
	State(rec step.Record)
	// Progress tells noded alone how far the tasks have come: which have exec'd, and
	// where they are in MPI.
	Progress(rec step.Record)
	// Event writes a line of the step's event log.
	Event(e eventlog.Event)
	// Hooks writes calls of hooks into it.
	Hooks(h eventlog.HookCalls)
	// Log writes a line for the administrator.
	Log(level launch.LogLevel, text string)
}

// pluginChain are the task plugins of the step. Only Run's goroutine uses it.
type pluginChain struct {
	list  []Plugin
	tasks *taskTable
	owed  int // as many of the list are owed their PostStep
}

// preSetuid lets the task plugins limit the step. Their PostStep is owed from
// here on.
func (c *pluginChain) preSetuid(context.Context) error {
	for _, p := range c.list {
		c.owed++
		if err := p.PreSetuid(); err != nil {
			return pluginError(p, err)
		}
	}
	return nil
}

// preLaunch lets them add what the tasks do to themselves.
func (c *pluginChain) preLaunch(l *launch.Launch) error {
	var errs []error
	for _, p := range c.list {
		errs = append(errs, pluginError(p, p.PreLaunch(l)))
	}
	return errors.Join(errs...)
}

// preLaunchPriv lets them act on each task, which waits at the gate.
func (c *pluginChain) preLaunchPriv(context.Context) error {
	for _, p := range c.list {
		for id := range c.tasks.list {
			if err := p.PreLaunchPriv(id, c.tasks.list[id].pid); err != nil {
				return pluginError(p, err)
			}
		}
	}
	return nil
}

func (c *pluginChain) postTerm(e launch.TaskEnd) {
	for _, p := range c.list {
		p.PostTerm(e)
	}
}

// postStep lets them take back what PreSetuid made, the last first.
func (c *pluginChain) postStep() error {
	var errs []error
	for ; c.owed > 0; c.owed-- {
		p := c.list[c.owed-1]
		errs = append(errs, pluginError(p, p.PostStep()))
	}
	return errors.Join(errs...)
}

func pluginError(p Plugin, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", p.Name(), err)
}
