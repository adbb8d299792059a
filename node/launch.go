package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/eventlog"
	"stepd/internal/child"
	"stepd/node/scripts"
	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

// Launch is the second half of Reserve.
func (n launcher) Launch(caller api.Peer, in *api.LaunchRequest) (*api.RunReply, error) {
	f, err := n.claim(caller, step.ID{Job: in.JobID, Step: *in.StepID})
	if err != nil {
		return nil, err
	}
	spec, err := f.launch(in.Change)
	if err != nil {
		return nil, err
	}
	return n.started(f, spec), nil
}

// launching is the way of one step from its launch to its stepd.
type launching struct {
	n      *Node
	f      *follower
	spec   *step.Spec
	res    *reservation
	listen *os.File // the socket of the step's stepd
}

// launch starts a step that the caller has claimed. A failure from here on is the step's result,
// except that the step is refused where the node is at fault before anything was run for it; a
// batch job's was accepted. change is what the client has changed since; nil is nothing. Where the
// job's prolog has to run first, launch returns as soon as the job has its container: the step's
// socket and Wait report the rest.
func (f *follower) launch(change *step.LaunchChange) (*step.Spec, error) {
	res := f.unreserve()
	l := &launching{n: f.n, f: f, spec: res.spec, res: res}
	f.update(func(rec *step.Record) {
		rec.State = step.Starting
		rec.Tasks = pendingTasks(res.spec) // not before: a reservation costs what its request has
	})
	var err error
	if change != nil {
		err = l.change(change)
	}
	if err == nil {
		// No new client may connect to a socket that will not be served: what
		// fails from here on removes it.
		l.listen, err = bindIn(f.n.spool.StepsDir(), f.n.spool.SocketName(f.id), unix.SOCK_SEQPACKET)
	}
	f.n.blame(err)
	if err == nil {
		if err = f.n.places.contain(context.Background(), f.id.Job, l.spec.User); err != nil {
			l.listen.Close()
		}
	}
	if err != nil {
		res.close(f.n.spool)
		if isFault(err) && f.id.Step != step.BatchStep {
			return nil, takeBack(f, err)
		}
		f.fail(err)
		return nil, api.NewError(api.Internal, err.Error())
	}
	told := *l.spec // run changes it
	if f.n.scripts.AwaitsProlog(f.job.scripts) {
		f.n.work.Go(func() { _ = l.run(true) })
		return &told, nil
	}
	if err := l.run(false); err != nil {
		if early, ok := errors.AsType[errCancelled](err); ok {
			return nil, api.Errorf(api.Aborted, "step %s was cancelled: %s", f.id, early.reason)
		}
		return nil, api.NewError(api.Internal, err.Error())
	}
	return &told, nil
}

// pendingTasks are the tasks of a step's record before they are started.
func pendingTasks(spec *step.Spec) []step.Task {
	ranks := spec.LocalRanks()
	tasks := make([]step.Task, len(ranks))
	for i, rank := range ranks {
		tasks[i] = step.Task{Rank: rank, LocalID: i, State: step.TaskPending}
	}
	return tasks
}

// run starts the step's stepd, or fails the step. It closes the files.
func (l *launching) run(prolog bool) error {
	defer l.res.close(l.n.spool)
	defer l.listen.Close()
	// From here on the client's going away changes nothing.
	err := l.start(prolog)
	if errors.Is(err, scripts.ErrStopping) {
		if err = l.cancelled(); err == nil {
			return scripts.ErrStopping // the next noded ends the step
		}
	}
	if err != nil {
		l.f.fail(err)
	}
	return err
}

// cancelled is the errCancelled of a step that was cancelled before it had a stepd.
func (l *launching) cancelled() error {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	if l.f.cancelled == "" {
		return nil
	}
	return errCancelled{l.f.cancelled}
}

// errCancelled ends a launch that was cancelled.
type errCancelled struct{ reason string }

func (e errCancelled) Error() string { return e.reason }

// start makes what the step needs and starts its stepd, and the follower with
// it. What it made is undone by the follower's cleanup in any case.
func (l *launching) start(prolog bool) error {
	n, f, spec := l.n, l.f, l.spec
	// Before the prolog, which may want to read it.
	if len(spec.Script) > 0 {
		if err := l.writeScript(); err != nil {
			return err
		}
	}
	if prolog {
		if err := l.prolog(); err != nil {
			return err
		}
	}
	// Not before the prolog, which is the site's, and takes as long as it takes.
	if err := l.turn(); err != nil {
		return err
	}
	ns, err := n.cfg.Containers.Join(f.id.Job)
	if err != nil {
		return err
	}
	defer ns.Close()
	plan, err := n.places.plan(spec)
	if err != nil {
		return err
	}
	// The limits hold before there is anything to limit.
	place, err := n.places.place(f, plan)
	if err != nil {
		return err
	}
	leaf := place.Leaf
	if leaf != nil {
		defer leaf.Close()
	}
	spec.Proctrack.Dir, spec.Proctrack.Tasks, spec.Confine.V1 = place.Dir, place.Tasks, place.V1
	f.update(func(rec *step.Record) {
		rec.Cgroup, rec.CgroupTasks, rec.CgroupV1 = place.Dir, place.Tasks, place.V1
	})

	l.describe(place)
	files := append([]*os.File{l.listen, l.res.events}, l.namespaces(ns)...)
	if err := l.startStepd(leaf, files); err != nil {
		return err
	}
	f.addToContainer()
	return nil
}

// turn waits until it is the user's turn to launch a step, or until the step is cancelled. The turn
// ends with the launch.
func (l *launching) turn() error {
	n, uid := l.n, l.spec.User.UID
	turn := n.turns.ask(uid, time.Now())
	select {
	case <-turn:
	case <-l.f.abandoned:
		n.turns.leave(uid, turn, time.Now())
		return l.cancelled()
	case <-n.stopping: // which must not take as long as the queue
		return nil
	}
	n.work.Go(func() {
		defer func() { n.turns.give(uid, time.Now()) }()
		most := time.NewTimer(turnMax)
		defer most.Stop()
		select {
		case <-l.f.ended:
		case <-most.C:
		}
	})
	return nil
}

// describe logs what the step is given, for DebugFlags.
func (l *launching) describe(place StepPlace) {
	c, log, spec := &l.n.cfg, l.f.log, l.spec
	c.debug(log, "Steps", "%d tasks of uid %d: CPUs %s, %d MiB", spec.NTasks, spec.User.UID, spec.CPUs, spec.MemoryMB)
	c.debug(log, "Cgroup", "place %q, tasks %q, v1 %v", place.Dir, place.Tasks, place.V1)
	for _, g := range spec.StepGres {
		c.debug(log, "Gres", "%s", g)
	}
	if !c.wants("CPU_Bind") || c.Binding == nil {
		return
	}
	words, err := c.Binding(spec)
	for _, w := range words {
		c.debug(log, "CPU_Bind", "%s", w)
	}
	if err != nil {
		c.debug(log, "CPU_Bind", "%v", err)
	}
}

// startStepd starts the step's stepd in its place, and the follower with it. files
// are what stepd inherits behind its spec and its connection to noded.
func (l *launching) startStepd(leaf *os.File, files []*os.File) error {
	n, f := l.n, l.f
	ours, theirs, err := controlPair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	doc, err := encodeSpec(l.spec)
	if err != nil {
		ours.Close()
		return err
	}
	defer doc.Close()
	f.mu.Lock()
	f.moveLocked(stepStarting) // a cancel is stepd's matter from now on
	f.mu.Unlock()
	if err := l.cancelled(); err != nil {
		ours.Close()
		return err
	}
	// The job takes further steps from here on, and not from a later moment: a batch script may
	// ask for one before this goroutine runs again.
	if f.job.Leads(f.id) {
		n.reg.open(f.job)
	}
	proc, err := n.spawn(f.id, leaf, append([]*os.File{doc, theirs}, files...)...)
	if err != nil {
		ours.Close()
		return err
	}
	f.launched = true
	f.begin(proc, ours)
	switch {
	case leaf == nil:
		// What stepd has started by then is in the step's own cgroups.
		if err := n.cfg.Tracker.AddStepd(f.id, proc.PID); err != nil {
			f.log.Errorf("%v", err)
		}
	case l.spec.Confine.PerTask || len(l.spec.Confine.V1) > 0:
		// Stepd is written into the cgroup that it is in. The first write to any cgroup.procs
		// waits for an RCU grace period (measured: 5 to 17 ms) and those that follow soon do
		// not: the tasks' are then among them, and stepd starts meanwhile. It is of no other
		// use, and may fail.
		n.work.Go(func() {
			if err := n.cfg.Tracker.AddStepd(f.id, proc.PID); err != nil {
				f.log.Debugf("%v", err)
			}
		})
	}
	return nil
}

// writeScript puts the batch script where the user can execute it, and makes
// it the step's command. Users can reach their own script in the directory, and
// make or remove nothing there.
func (l *launching) writeScript() error {
	spec := l.spec
	path := l.n.spool.Script(spec.ID.Job)
	script, user := spec.Script, spec.User
	err := l.n.spool.Do(func() error {
		if err := l.n.spool.MakeJobDir(spec.ID.Job, user.GID); err != nil {
			return err
		}
		return scripts.WriteBatch(filepath.Dir(path), filepath.Base(path), script, user)
	})
	if err != nil {
		l.n.blame(err)
		return fmt.Errorf("cannot write batch script %q: %w", path, err)
	}
	spec.Script = nil
	spec.Argv = append([]string{path}, spec.Argv[1:]...)
	return nil
}

// prolog runs the job's prolog, or waits for it, as a stage of this step.
func (l *launching) prolog() error {
	f, events := l.f, l.res.events
	begin := time.Now()
	if err := f.n.spool.Log(events, eventlog.Event{Time: begin, Event: eventlog.EventStageStart, Phase: eventlog.PhaseProlog}); err != nil {
		return err
	}
	err := f.n.runProlog(f.job)
	end := time.Now()
	ev := eventlog.Event{Time: end, Event: eventlog.EventStageEnd, Phase: eventlog.PhaseProlog, DurUS: new(end.Sub(begin).Microseconds())}
	if err != nil {
		ev.Text = err.Error()
	}
	return errors.Join(err, f.n.spool.Log(events, ev))
}

// addToContainer adds the step's stepd and cgroup to the job container.
func (f *follower) addToContainer() {
	rec := f.record()
	f.n.places.addPID(f.id.Job, rec.StepdPID, rec.UID)
	var st unix.Stat_t
	if rec.Cgroup == "" || unix.Stat(rec.Cgroup, &st) != nil {
		return
	}
	f.n.cfg.debug(f.log, "JobContainer", "add_cont %d (%s)", st.Ino, rec.Cgroup)
	if err := f.n.cfg.Containers.AddCont(f.id.Job, st.Ino); err != nil {
		f.log.Debugf("%v", err)
	}
}

// namespaces sets in the spec which namespaces the job's container has, and returns them as
// stepd's descriptors from FDContainer on.
func (l *launching) namespaces(ns launch.Namespaces) []*os.File {
	spec := l.spec
	spec.ContainerNS = ns.Mount != nil
	spec.EntireStepInNS = ns.EntireStep
	spec.PIDNamespace, spec.UserNamespace = ns.PID != nil, ns.User != nil
	return []*os.File{ns.Mount, nil, ns.PID, ns.User}
}

// claim returns the reservation that the caller may launch, claimed.
func (n launcher) claim(caller api.Peer, id step.ID) (*follower, error) {
	f := n.reg.follower(id)
	none := api.Errorf(api.NotFound, "no such reservation %q", id)
	if f == nil {
		return nil, none
	}
	if !caller.MayAct(f.by) {
		return nil, api.Denied(f.by)
	}
	if !f.claim() {
		return nil, none
	}
	return f, nil
}

// change puts what the client has changed since the reservation over the
// request. What its plugins have set for prolog and epilog counts where the
// step is the job's first one: of a job of its own it replaces the job's; in an
// allocation, whose own command has set some too, it is put over that.
func (l *launching) change(c *step.LaunchChange) error {
	f, spec := l.f, l.spec
	spec.Env = f.n.taskEnv(c.Env)
	spec.JobControl = c.JobControl
	first := f.job.Leads(f.id) || (f.job.Origin == step.OriginAlloc && f.id.Step == 0)
	if !first {
		return nil
	}
	old, err := f.n.store.JobControl(f.id.Job)
	if err != nil {
		return err
	}
	control := c.JobControl
	if !f.job.Leads(f.id) {
		control = overlay(old, control, c.JobControlUnset)
	}
	if slices.EqualFunc(old, control, bytes.Equal) {
		return nil
	}
	return f.n.store.SetJobControl(f.id.Job, control)
}

// overlay is env without the names of unset, with what over has of the same names and beside them.
func overlay(env, over, unset [][]byte) [][]byte {
	names := make(map[string]bool, len(over))
	for _, e := range slices.Concat(over, unset) {
		name, _, _ := bytes.Cut(e, []byte{'='})
		names[string(name)] = true
	}
	out := make([][]byte, 0, len(env)+len(over))
	for _, e := range env {
		if name, _, _ := bytes.Cut(e, []byte{'='}); !names[string(name)] {
			out = append(out, e)
		}
	}
	return append(out, over...)
}

// controlPair makes the connection between noded and one stepd.
func controlPair() (ours *stepapi.Conn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot create control socket: %w", err)
	}
	ours, err = stepapi.FromFD(fds[0], "control")
	if err != nil {
		unix.Close(fds[1])
		return nil, nil, err
	}
	return ours, os.NewFile(uintptr(fds[1]), "stepd's control"), nil
}

func encodeSpec(spec *step.Spec) (*os.File, error) {
	if err := srunopt.ValidateSpec(spec); err != nil {
		return nil, fmt.Errorf("internal error: step %s: %w", spec.ID, err)
	}
	packed := *spec
	packed.Pack()
	doc, err := json.Marshal(packed)
	if err != nil {
		return nil, fmt.Errorf("cannot encode spec of step %s: %w", spec.ID, err)
	}
	return stepapi.SealedMemfd("spec", doc)
}

// spawn starts stepd in a session of its own, so that it survives noded, and
// in the step's cgroup from its first instruction. files become its
// descriptors from stepapi.FDSpec on, in that order.
func (n *Node) spawn(id step.ID, leaf *os.File, files ...*os.File) (*child.Process, error) {
	log, stderr, err := n.stepdLog()
	if err != nil {
		return nil, err
	}
	if log != nil {
		defer stderr.Close()
	}
	p, err := child.Program{
		Path: n.cfg.StepdPath, Argv: []string{fmt.Sprintf("stepd: [%s]", id.Name())}, Env: n.stepdEnv(), Dir: "/",
		Files: append([]*os.File{nil, nil, stderr}, files...), Leaf: leaf, Stderr: log,
	}.Start()
	if err != nil {
		if log != nil {
			log.Close()
		}
		return nil, fmt.Errorf("cannot start %q: %w", n.cfg.StepdPath, err)
	}
	return p, nil
}

// stepdEnv is the environment of every stepd: noded's own, which the plugins' host has from
// stepd. It travels in no Spec, since those are kept: the site may have secrets in it.
func (n *Node) stepdEnv() []string {
	vars := []string{"SLURMD_NODENAME=" + n.cfg.NodeName, "GOMAXPROCS=1"}
	if n.cfg.Site.SlurmConf != "" {
		vars = append(vars, "SLURM_CONF="+n.cfg.Site.SlurmConf)
	}
	return child.Environ(vars...)
}

// stepdLog is where a stepd's standard error goes: the site's log file, or
// through noded, which then has the other end.
func (n *Node) stepdLog() (*child.Stderr, *os.File, error) {
	if n.cfg.StepdLog != nil {
		return nil, n.cfg.StepdLog, nil
	}
	return child.NewStderr(n.log.Out, n.cfg.Site.Spank.JSONLog)
}
