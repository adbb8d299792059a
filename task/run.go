package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// Deps are a step's neighbours.
type Deps struct {
	Tracker Tracker
	MPI     MPI // nil without one
	// Peers is nil where the step has one node, and Job where its job has no services: both
	// are the MPI plugin's.
	Peers   step.Peers
	Job     step.MPIServices
	Spawned Spawned // nil where nothing can be
	Output  Output  // nil where there are neither terminals nor those who watch
	Plugins []Plugin
	// Accounting is nil where nothing is accounted for.
	Accounting Accounting
	Audience   Audience
	// Streams is nil where stepd passes nothing on.
	Streams Streams
	// StartHost runs spankhost, born in the cgroup cgroupFD (-1: in ours).
	StartHost func(cgroupFD int) (Host, error)
	// NoChildren returns a channel that is closed when stepd has no children
	// left: no process of the step is then alive or unreaped.
	NoChildren func() <-chan struct{}
	// Namespaces are those of the job's container.
	Namespaces step.Namespaces
	// Now is the clock.
	Now func() time.Time
}

// Step is one step on this node. Make it with New, then call Run once. The
// other methods may be called from any goroutine.
type Step struct {
	plan *Plan
	d    Deps

	host Host
	gate *os.File // the write end; only stepd holds it
	undo []undo

	// What the launch has reached.
	initDone bool // the plugins' exit hooks are owed
	plugged  int  // as many task plugins are owed their PostStep
	gateOpen bool
	tasks    []task // by local id
	alive    int
	onTheWay int   // the local ids below have exec'd or ended
	untold   bool  // tasks have exec'd, or failed to, and noded has not heard of it
	monoBase int64 // wall clock minus CLOCK_MONOTONIC, ns

	attachments
	control
	suspension
	killing  killing
	eviction eviction
	children

	hostDead  bool
	hostBusy  bool // it has not answered wait
	childless bool // the reaper has said once that there are no children
	ends      chan step.TaskEnd
	execs     chan []int
	escaped   map[int]bool // told of

	mu    sync.Mutex
	rec   step.Record              // guarded by mu
	fails map[int]step.LaunchError // guarded by mu: why a task was not exec'd, by local id
	// oomKills counts the processes killed for want of memory.
	oomKills int // guarded by mu
	// launched: every task has exec'd, or will not any more.
	launched bool // guarded by mu
	// toldLaunched: who has spawned this step knows.
	toldLaunched bool
	// progressKept: the ranks' progress and what they did is as it was when the
	// step's end began.
	progressKept bool        // guarded by mu
	stall        *time.Timer // guarded by mu: runs while ranks come further
	stallTold    time.Time   // guarded by mu: when noded was told last
	floor        int         // guarded by mu: the least exit code, where SpankStrict asks for one
	why          string      // guarded by mu: why stepd killed the host in a hook
}

// task is what Run knows of one task.
type task struct {
	pid    int
	pidfd  int
	execed bool
	ended  bool
	// hookExeced: a plugin's hook exec'd another program by itself.
	hookExeced bool
	cause      string // why stepd killed it in a hook
}

// undo takes one thing back that a stage has made.
type undo struct {
	name string
	do   func() error
}

// stage is one step of the launch.
type stage struct {
	name string
	do   func(context.Context) error
}

// New makes the step of a plan.
func New(p *Plan, d Deps) *Step {
	s := &Step{plan: p, d: d}
	n := len(p.Ranks)
	s.ends = make(chan step.TaskEnd)
	s.execs = make(chan []int)
	s.fails = make(map[int]step.LaunchError)
	s.control.init()
	s.suspension.grace = stopGrace
	s.attachments.init()
	s.children.init(n)
	s.rec = newRecord(p.Spec, p.Ranks, d.Now())
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) == nil {
		s.monoBase = d.Now().UnixNano() - ts.Nano()
	}
	return s
}

// rank is that of the task with a local id: what others are told.
func (s *Step) rank(id int) int { return s.plan.Ranks[id] }

// Run launches the tasks, follows them to their ends and takes everything back.
// It returns the final record, whatever happened; it is called once. The end of
// ctx is that of the host, or of stepd, and ends the step.
func (s *Step) Run(ctx context.Context) step.Record {
	defer context.AfterFunc(ctx, func() { s.hostDown(context.Cause(ctx).Error()) })()
	s.setState(step.Starting)
	unguard := s.guard()
	err := s.launch(ctx)
	unguard()
	if err == nil {
		err = s.follow()
	}
	s.finish(err)
	return s.Record()
}

// launch runs the stages, from nothing to the open gate.
func (s *Step) launch(ctx context.Context) error {
	for _, st := range []stage{
		// The tasks' cgroup exists before the host is born in it.
		{"proctrack", s.createTracker},
		{"spankhost", s.startHost},
		// All plugins are loaded before the first init (spank-behaviour §1).
		{"load", s.loadStack},
		{"init", s.initStack},
		// Prefork may still change the environment that user_init sees.
		{"mpi_prefork", s.prefork},
		// The step's limits hold before anything runs as the user.
		{"task_pre_setuid", s.preSetuid},
		{"streams", s.handStreams},
		{"user_init", s.userInit},
		{"fork", s.fork},
		// No task execs before every task is tracked and every
		// task_post_fork has returned (lifecycle 27 to 29).
		{"track", s.trackTasks},
		{"task_pre_launch_priv", s.preLaunchPriv},
		{"task_post_fork", s.postFork},
		{"gate", s.openGate},
	} {
		if err := s.stage(ctx, st); err != nil {
			return s.explainLaunch(st.name, err)
		}
	}
	return nil
}

// stage runs one stage between its two events.
func (s *Step) stage(ctx context.Context, st stage) error {
	if c := s.endedBy(); c != nil {
		return c
	}
	start := s.d.Now()
	s.d.Audience.Event(step.Event{Time: start, Event: step.EventStageStart, Phase: st.name})
	err := st.do(ctx)
	end := s.d.Now()
	us := end.Sub(start).Microseconds()
	ev := step.Event{Time: end, Event: step.EventStageEnd, Phase: st.name, DurUS: &us}
	if err != nil {
		ev.Text = err.Error()
	}
	s.d.Audience.Event(ev)
	s.tellHooks(false)
	return err
}

func (s *Step) createTracker(context.Context) error {
	// Undone last: the log channel ends when every process that holds it is
	// dead, a helper that a plugin has forked included.
	s.push("log", func() error {
		if s.host != nil {
			s.host.Close()
		}
		return nil
	})
	if err := s.d.Tracker.Create(); err != nil {
		return err
	}
	s.push("proctrack", func() error {
		ctx, cancel := s.killContext()
		defer cancel()
		return s.killed(s.d.Tracker.Destroy(ctx))
	})
	return nil
}

func (s *Step) startHost(context.Context) error {
	cgroup, inside := s.d.Tracker.HostCgroup()
	h, err := s.d.StartHost(cgroup)
	if err != nil {
		return err
	}
	s.host = h
	s.hostStarted(h.PID())
	s.push("spankhost", func() error {
		h.Kill()
		err := s.waitHost()
		s.tellHooks(true)
		return err
	})
	switch {
	case inside: // it leaves when the tasks run (follow)
	case cgroup >= 0:
		s.hostIsOut()
	default:
		// Now, since what plugins fork in it is to be there as well.
		s.hostIsOut()
		return s.d.Tracker.EvictHost(h.PID())
	}
	return nil
}

func (s *Step) loadStack(context.Context) error {
	gateRead, gateWrite, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot make the gate's pipe: %w", err)
	}
	defer gateRead.Close()
	s.gate = gateWrite
	s.push("gate", func() error { s.closeGate(); return nil })
	helpers, err := s.d.Tracker.Helpers()
	if err != nil {
		return err
	}
	if helpers != nil {
		defer helpers.Close()
	}
	problems, err := s.host.Setup(step.HostSetup{
		Spec: s.plan.Spec, Env: s.plan.Env, HostEnv: s.plan.HostEnv,
		Gate: gateRead, Helpers: helpers, Namespaces: s.d.Namespaces,
	}, s.hear)
	s.sayProblems(problems)
	if err != nil {
		return errLoad{err}
	}
	s.hostIsSetUp()
	problems, err = s.host.LoadStack()
	s.sayProblems(problems)
	if err != nil {
		return errLoad{err}
	}
	return nil
}

func (s *Step) initStack(context.Context) error {
	if err := s.host.Init(); err != nil {
		return err // slurm_spank_exit is not called after it (spank-behaviour §5)
	}
	s.initDone = true
	return nil
}

func (s *Step) prefork(ctx context.Context) error {
	if s.d.MPI == nil {
		return nil
	}
	s.push("mpi", s.d.MPI.Close)
	tasks, err := s.d.MPI.Prefork(ctx, step.MPIJob{
		Spec:     s.plan.Spec,
		Abort:    s.mpiAbort,
		Log:      func(text string) { s.d.Audience.Log(step.LogInfo, text) },
		Progress: s.progress,
		Tasks:    s.mpiTable,
		Signal:   s.signalRanks,
		Cancel:   func(reason string) { _ = s.Cancel(reason) }, // it has no error
		Peers:    s.d.Peers,
		Job:      s.d.Job,
	})
	if err != nil {
		return err
	}
	s.mpiTasks = tasks
	return nil
}

// handStreams waits for the client's descriptors and tells the host all that
// the tasks get.
func (s *Step) handStreams(context.Context) error {
	if err := s.waitAttached(); err != nil {
		return err
	}
	defer s.closeAttached() // the tasks have them; ours would keep pipes open
	terminal, err := s.openTerminal()
	if err != nil {
		return err
	}
	l := &step.Launch{
		Streams:   slices.Concat(s.plan.Streams, s.attachedStreams(s.plan), terminal),
		Env:       s.mpiTasks.Env,
		CommonEnv: s.plan.CommonEnv,
		TaskEnv:   make([][]string, len(s.plan.Ranks)),
		TaskFDs:   s.mpiTasks.TaskFDs,
		ExitEnv:   exitEnv(s.plan.Spec),
	}
	for id := range l.TaskEnv {
		l.TaskEnv[id] = s.plan.TaskEnv[id]
		if id < len(s.mpiTasks.TaskEnv) {
			l.TaskEnv[id] = append(l.TaskEnv[id], s.mpiTasks.TaskEnv[id]...)
		}
	}
	err = launchApps(s.plan.Spec, l)
	l.Scripts = taskScripts(s.plan.Spec)
	for _, p := range s.d.Plugins {
		err = errors.Join(err, pluginError(p, p.PreLaunch(l)))
	}
	if err == nil {
		err = s.host.Launch(l)
	}
	for _, fds := range l.TaskFDs {
		for _, f := range fds {
			f.File.Close()
		}
	}
	return err
}

// openTerminal makes the terminal of rank 0 its three streams, where it has one here.
func (s *Step) openTerminal() ([]step.TaskStream, error) {
	id, ours := s.plan.localID(0)
	if s.plan.Spec.Terminal == nil || !ours {
		return nil, nil
	}
	if s.d.Output == nil {
		return nil, errors.New("internal error: this stepd makes no terminals")
	}
	fd, err := s.d.Output.OpenTerminal()
	if err != nil {
		return nil, err
	}
	streams := make([]step.TaskStream, 3)
	for i := range streams {
		streams[i] = step.TaskStream{LocalID: id, FD: i, Kind: step.StreamToTerminal, Handle: fd}
	}
	return streams, nil
}

// userInit hands the audience a batch job's output as soon as it is open: what
// the hook says is to stand in it.
func (s *Step) userInit(context.Context) error {
	same := s.plan.Spec.Stderr.Kind == step.StreamSame
	return s.host.UserInit(func(fd int, f *os.File) {
		if fd == 2 || same {
			s.d.Audience.SayTo(f)
		} else {
			f.Close()
		}
	})
}

func (s *Step) fork(context.Context) error {
	s.setPriority()
	forked, err := s.host.Fork()
	s.tasks = make([]task, len(s.plan.Ranks))
	for i := range s.tasks {
		s.tasks[i].pidfd = -1
	}
	watch, werr := newExecWatch()
	if werr != nil {
		for _, f := range forked {
			unix.Close(f.PidFD)
			unix.Close(f.Exec)
		}
		return errors.Join(err, werr)
	}
	for _, f := range forked {
		if f.LocalID >= len(s.tasks) || s.tasks[f.LocalID].pid != 0 {
			unix.Close(f.PidFD)
			unix.Close(f.Exec)
			err = errors.Join(err, fmt.Errorf("internal error: spankhost told task %d twice or beyond %d tasks", f.LocalID, len(s.tasks)))
			continue
		}
		s.tasks[f.LocalID] = task{pid: f.PID, pidfd: f.PidFD}
		err = errors.Join(err, watch.add(f.Exec, f.LocalID))
	}
	s.push("tasks", func() error { s.closeTasks(); return nil })
	s.push("exec watch", watch.close)
	if err != nil {
		return err
	}
	if len(forked) != len(s.tasks) {
		return fmt.Errorf("internal error: spankhost forked %d of %d tasks", len(forked), len(s.tasks))
	}
	s.forkedTasks()
	watch.start(s.execs)
	return nil
}

func (s *Step) trackTasks(context.Context) error {
	defer s.beginAccounting()
	if _, inside := s.d.Tracker.HostCgroup(); inside {
		return nil // born there
	}
	for id, rank := range s.plan.Ranks {
		if err := s.d.Tracker.Add(rank, s.tasks[id].pid); err != nil {
			return fmt.Errorf("cannot track task %d: %w", rank, err)
		}
	}
	return nil
}

func (s *Step) postFork(context.Context) error { return s.host.PostFork() }

// openGate lets every task go: by a byte that each sees and none takes.
func (s *Step) openGate(context.Context) error {
	err := s.passGate(func() error {
		_, err := s.gate.Write([]byte{1})
		if err != nil && !errors.Is(err, unix.EPIPE) { // EPIPE: none of them lived to see the gate
			return fmt.Errorf("cannot open the gate for %d tasks: %w", len(s.tasks), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.gateOpen = true
	s.alive = len(s.tasks)
	return nil
}

func (s *Step) closeGate() {
	if s.gate != nil {
		s.gate.Close()
		s.gate = nil
	}
}

func (s *Step) push(name string, do func() error) { s.undo = append(s.undo, undo{name, do}) }
