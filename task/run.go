package task

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/step"
	"stepd/step/launch"
)

// Run launches the tasks, follows them to their ends and takes everything back.
// It returns the final record, whatever happened; it is called once. The end of
// ctx is the end of the node, or of stepd, and ends the step.
func (s *Step) Run(ctx context.Context) step.Record {
	defer context.AfterFunc(ctx, func() { s.end(cause{kind: byHost, reason: context.Cause(ctx).Error()}) })()
	s.ledger.setState(step.Starting)
	unguard := s.host.guard()
	err := (&startup{Step: s}).run(ctx)
	unguard()
	if err == nil {
		err = newLoop(s).run()
	}
	(&teardown{Step: s}).run(err)
	return s.Record()
}

// startup is the way from nothing to the open gate.
type startup struct {
	*Step
	mpi  launch.MPITasks
	hook *os.File // the plugins' standard error, nil where they have the first task's
}

// stage is one step of the launch.
type stage struct {
	name string
	do   func(context.Context) error
}

// run runs the stages.
func (l *startup) run(ctx context.Context) error {
	for _, st := range []stage{
		// The tasks' cgroup exists before the host is born in it.
		{"proctrack", l.createTracker},
		{"spankhost", l.startHost},
		// All plugins are loaded before the first init (spank-behaviour §1).
		{"load", l.loadStack},
		{"init", l.initStack},
		// Prefork may still change the environment that user_init sees.
		{"mpi_prefork", l.prefork},
		// The step's limits hold before anything runs as the user.
		{"task_pre_setuid", l.plugins.preSetuid},
		{"streams", l.handStreams},
		{"user_init", l.userInit},
		{"fork", l.fork},
		// No task execs before every task is tracked and every
		// task_post_fork has returned (lifecycle 27 to 29).
		{"track", l.trackTasks},
		{"task_pre_launch_priv", l.plugins.preLaunchPriv},
		{"task_post_fork", l.postFork},
		{"gate", l.openGate},
	} {
		if err := l.stage(ctx, st); err != nil {
			return l.explain(st.name, err)
		}
	}
	return nil
}

// stage runs one stage between its two events.
func (l *startup) stage(ctx context.Context, st stage) error {
	if c := l.causes.endedBy(); c != nil {
		return c
	}
	start := l.d.Now()
	l.messages.event(eventlog.Event{Time: start, Event: eventlog.EventStageStart, Phase: st.name})
	err := st.do(ctx)
	l.hookErrors.flush() // before what the tasks write, and what is said of the stage
	l.messages.span(st.name, start, err)
	l.host.logHooks(false)
	return err
}

// explain turns the end of a launch into its cause: a cancel, a crash of
// the host with the hook's name, or the stage's own error.
func (l *startup) explain(stage string, err error) error {
	ended := l.causes.endedBy()
	if ended != nil {
		l.messages.sayCancelled(ended)
	}
	if errors.Is(err, launch.ErrHostGone) {
		if died := l.hostDied(); ended == nil {
			return died
		}
	}
	if ended != nil {
		return ended
	}
	if hook, ok := errors.AsType[*launch.HookError](err); ok {
		if !l.messages.visible(hook.Hook) || hook.RC == nil {
			l.messages.sayError(hook.Error())
		}
		return hook
	}
	if _, ok := errors.AsType[*cause](err); ok {
		return err
	}
	err = fmt.Errorf("%s: %w", stage, err)
	l.messages.sayError(err.Error())
	return err
}

func (l *startup) createTracker(context.Context) error {
	// Undone last: the log channel ends when every process that holds it is
	// dead, a helper that a plugin has forked included.
	l.push("log", func() error {
		if l.host.Host != nil {
			l.host.Close()
		}
		return nil
	})
	if err := l.d.Tracker.Create(); err != nil {
		return err
	}
	l.push("proctrack", func() error {
		if kept, err := l.keepHelpers(); kept || err != nil {
			return err
		}
		return l.destroy()
	})
	return nil
}

func (l *startup) startHost(context.Context) error {
	cgroup, inside := l.d.Tracker.HostCgroup()
	h, err := l.d.StartHost(cgroup)
	if err != nil {
		return err
	}
	l.host.start(h)
	l.push("spankhost", func() error {
		h.Kill()
		err := l.host.wait()
		l.hookErrors.flush()
		l.host.logHooks(true)
		return err
	})
	switch {
	case inside: // it leaves when the tasks run (loop)
		l.host.inside.Store(true)
	case cgroup >= 0:
		l.host.isOutside()
	default:
		// Now, since what plugins fork in it is to be outside as well.
		l.host.isOutside()
		return l.d.Tracker.EvictHost(h.PID())
	}
	return nil
}

func (l *startup) loadStack(context.Context) error {
	gateRead, gateWrite, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot make the gate's pipe: %w", err)
	}
	defer gateRead.Close()
	l.gate.pipe = gateWrite
	l.push("gate", func() error { l.gate.close(); return nil })
	helpers, err := l.d.Tracker.Helpers()
	if err != nil {
		return err
	}
	if helpers != nil {
		defer helpers.Close()
	}
	problems, err := l.host.Setup(launch.HostSetup{
		Spec: l.plan.Spec, Env: l.plan.Env, HostEnv: l.plan.HostEnv,
		Gate: gateRead, Helpers: helpers, Namespaces: l.d.Namespaces,
	}, l.host.hear)
	l.messages.sayProblems(problems)
	if err != nil {
		return errLoad{err}
	}
	l.host.move(hostSetUp)
	problems, err = l.host.LoadStack()
	l.messages.sayProblems(problems)
	if err != nil {
		return errLoad{err}
	}
	return nil
}

func (l *startup) initStack(context.Context) error {
	if err := l.host.Init(); err != nil {
		return err // slurm_spank_exit is not called after it (spank-behaviour §5)
	}
	l.host.move(hostInitialised)
	return nil
}

// handStreams waits for the client's descriptors and sends the host all that
// the tasks get.
func (l *startup) handStreams(context.Context) error {
	if err := l.clientStreams.wait(); err != nil {
		return err
	}
	defer l.clientStreams.close() // the tasks have them; ours would keep pipes open
	terminal, err := l.openTerminal()
	if err != nil {
		return err
	}
	all := &launch.Launch{
		Streams:   slices.Concat(l.plan.Streams, l.clientStreams.take(), terminal),
		Env:       l.mpi.Env,
		CommonEnv: l.plan.CommonEnv,
		TaskEnv:   make([][]string, len(l.plan.Ranks)),
		TaskFDs:   l.mpi.TaskFDs,
		ExitEnv:   exitEnv(l.plan.Spec),
	}
	for id := range all.TaskEnv {
		all.TaskEnv[id] = l.plan.TaskEnv[id]
		if id < len(l.mpi.TaskEnv) {
			all.TaskEnv[id] = append(all.TaskEnv[id], l.mpi.TaskEnv[id]...)
		}
	}
	if l.hook, err = l.hookErrors.begin(l.plan.Spec.User, all.Streams); err != nil {
		return err
	}
	err = launchApps(l.plan.Spec, all)
	all.Scripts = taskScripts(l.plan.Spec)
	if err = errors.Join(err, l.plugins.preLaunch(all)); err == nil {
		err = l.host.Launch(all)
	}
	for _, fds := range all.TaskFDs {
		for _, f := range fds {
			f.File.Close()
		}
	}
	return err
}

// openTerminal makes the terminal of rank 0 its three streams, where it has one here.
func (l *startup) openTerminal() ([]launch.TaskStream, error) {
	id, ours := l.plan.localID(0)
	if l.plan.Spec.Terminal == nil || !ours {
		return nil, nil
	}
	fd, err := l.d.Output.OpenTerminal()
	if err != nil {
		return nil, err
	}
	streams := make([]launch.TaskStream, 3)
	for i := range streams {
		streams[i] = launch.TaskStream{LocalID: id, FD: i, Kind: launch.StreamToTerminal, Handle: fd}
	}
	return streams, nil
}

// userInit hands the audience a batch job's output as soon as it is open: what
// the hook says is to stand in it.
func (l *startup) userInit(context.Context) error {
	same := l.plan.Spec.Stderr.Kind == step.StreamSame
	if l.hook != nil {
		defer l.hook.Close() // the host has its own
	}
	return l.host.UserInit(l.hook, func(fd int, f *os.File) {
		if fd == 2 || same {
			l.hookErrors.opened(f)
			l.d.Audience.SayTo(f)
		} else {
			f.Close()
		}
	})
}

func (l *startup) fork(context.Context) error {
	l.setPriority()
	forked, err := l.host.Fork()
	watch := newExecWatch()
	ferr := l.tasks.fill(forked, watch)
	l.push("tasks", l.tasks.close)
	l.push("exec watch", watch.close)
	if err = cmp.Or(err, ferr); err != nil {
		return err
	}
	l.tasks.publish()
	l.ledger.write(func(rec *step.Record) {
		for id, pid := range l.tasks.pids() {
			rec.Tasks[id].PID = &pid
			rec.Tasks[id].State = step.TaskStarting
		}
	})
	for id, pid := range l.tasks.pids() {
		l.messages.event(eventlog.Event{Event: eventlog.EventTaskFork, Rank: &l.plan.Ranks[id], PID: pid})
	}
	if err := watch.start(l.tasks.execs); err != nil {
		return err
	}
	l.tasks.watch.Store(watch)
	return nil
}

func (l *startup) trackTasks(context.Context) error {
	_, inside := l.d.Tracker.HostCgroup()
	defer l.d.Accounting.Begin(l.host.PID(), inside, l.tasks.pids())
	if inside {
		return nil // born there
	}
	for id, rank := range l.plan.Ranks {
		if err := l.d.Tracker.Add(rank, l.tasks.list[id].pid); err != nil {
			return fmt.Errorf("cannot track task %d: %w", rank, err)
		}
	}
	return nil
}

func (l *startup) postFork(context.Context) error { return l.host.PostFork() }

// openGate starts every task: by a byte that each sees and none takes.
func (l *startup) openGate(context.Context) error {
	err := l.passGate(func() error {
		_, err := l.gate.pipe.Write([]byte{1})
		if err != nil && !errors.Is(err, unix.EPIPE) { // EPIPE: none of them lived to see the gate
			return fmt.Errorf("cannot open the gate for %d tasks: %w", len(l.tasks.list), err)
		}
		return nil
	})
	l.gate.opened = err == nil
	return err
}

// hostDied is called once the host is dead or has closed its control channel.
// It reports who did it and returns nil only where the tasks may run on: an
// optional plugin died after the gate.
func (s *Step) hostDied() error {
	s.hookErrors.flush()
	plugin, err := s.host.died()
	if plugin != nil {
		s.messages.noteCrash(plugin)
	}
	if !s.gate.opened || plugin == nil || plugin.Required {
		s.messages.sayError(err.Error())
		return err
	}
	if plugin.Unloading() {
		s.messages.sayError(err.Error())
		return err
	}
	text := err.Error()
	if s.tasks.alive > 0 {
		text += "; the plugin is optional: the tasks run on, without further hooks"
	}
	s.messages.sayError(text)
	s.ledger.noteReason(err.Error())
	return nil
}

// appWordsMax bounds what the command lines and environments of all tasks of a node
// may take where they differ by the task, in bytes: each task's are sent to the host.
const appWordsMax = 48 << 20

// launchApps gives each task its own of a step's several commands. What a user has
// written once may be repeated for each of many tasks: it is refused before it is made.
func launchApps(spec *step.Spec, l *launch.Launch) error {
	if len(spec.Apps) == 0 {
		return nil
	}
	ranks := spec.LocalRanks()
	l.TaskArgv, l.TaskCwd = make([][]string, len(ranks)), make([]string, len(ranks))
	at, first, size := -1, 0, 0 // the app of the rank, and its first rank: ranks ascend
	var argv, env []string
	for i, rank := range ranks {
		for at < 0 || rank-first >= spec.Apps[at].NTasks {
			if at >= 0 {
				first += spec.Apps[at].NTasks
			}
			at++
			argv, env = nil, nil
		}
		app := &spec.Apps[at]
		if argv == nil {
			argv, env = step.Words(app.Argv), step.Words(app.Env)
		}
		l.TaskArgv[i], l.TaskCwd[i] = app.Words(argv, rank, rank-first), string(app.Cwd)
		if i < len(l.TaskEnv) && len(env) > 0 {
			// What names the task stays the last word.
			l.TaskEnv[i] = append(env[:len(env):len(env)], l.TaskEnv[i]...)
		}
		if size += wordsSize(l.TaskArgv[i]) + wordsSize(env); size > appWordsMax {
			return fmt.Errorf("cannot describe the commands of %d tasks: those up to rank %d come to more than %d MiB",
				len(ranks), rank, appWordsMax>>20)
		}
	}
	return nil
}

// wordsSize is what words take where they are passed on.
func wordsSize(words []string) int {
	size := 0
	for _, w := range words {
		size += len(w) + 16
	}
	return size
}

const (
	// userEpilogS bounds a user's --task-epilog in seconds, as in Slurm.
	userEpilogS = 5
	// siteEpilogS bounds TaskEpilog where PrologEpilogTimeout says nothing: a step
	// must end.
	siteEpilogS = 60
)

// taskScripts are those around each task, in Slurm's order: the site's prolog
// before the user's, the user's epilog before the site's. A batch script has the
// site's alone.
func taskScripts(spec *step.Spec) (scripts []launch.TaskScript) {
	epilogS := cmp.Or(spec.Scripts.TimeoutS, siteEpilogS)
	for _, s := range []launch.TaskScript{
		{Label: "TaskProlog", Path: spec.Scripts.Prolog, TimeoutS: spec.Scripts.TimeoutS},
		{Label: "--task-prolog", Path: spec.TaskProlog, TimeoutS: spec.Scripts.TimeoutS},
		{Epilog: true, Label: "--task-epilog", Path: spec.TaskEpilog, TimeoutS: userEpilogS},
		{Epilog: true, Label: "TaskEpilog", Path: spec.Scripts.Epilog, TimeoutS: epilogS},
	} {
		if s.Path != "" {
			scripts = append(scripts, s)
		}
	}
	return scripts
}

// prioVariable has the nice value of the client (srun, sbatch).
const prioVariable = "SLURM_PRIO_PROCESS"

// The values of PropagatePrioProcess (slurm.conf(5)): the tasks have the daemons' nice
// value, the value of the command that has started them, or the larger of that value and
// one more than the daemons'.
const (
	prioOff   = 0
	prioOn    = 1
	prioNicer = 2
)

// setPriority gives the plugins' host, whose children the tasks are, the nice value that
// PropagatePrioProcess asks for. As in Slurm it does not end the step where it fails.
func (l *startup) setPriority() {
	spec := l.plan.Spec
	if spec.PropagatePrio == prioOff {
		return
	}
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		l.messages.log(fmt.Sprintf("cannot read stepd's nice value: %v: the tasks keep it (PropagatePrioProcess=%d)", err, spec.PropagatePrio))
		return
	}
	own := 20 - raw // the system call answers 1 to 40 (getpriority(2))
	nice := niceOf(spec, own)
	if nice == own {
		return
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, l.host.PID(), nice); err != nil {
		l.messages.log(fmt.Sprintf("cannot give the tasks the nice value %d (PropagatePrioProcess=%d): %v", nice, spec.PropagatePrio, err))
	}
}

// niceOf is the nice value of the tasks, where the daemons have own. What a client says
// of itself is taken from any user, so that only root's tasks come before the daemons.
func niceOf(s *step.Spec, own int) int {
	nice := 0
	for _, e := range s.Env {
		if text, ok := strings.CutPrefix(e, prioVariable+"="); ok {
			nice, _ = strconv.Atoi(text) // 0 as with Slurm's atoi
		}
	}
	switch {
	case s.PropagatePrio == prioNicer:
		nice = max(nice, own+1)
	case s.User.UID != 0:
		nice = max(nice, own)
	}
	return min(max(nice, -20), 19)
}
