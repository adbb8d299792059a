package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/eventlog"
	"stepd/node/scripts"
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
	return f.started(spec), nil
}

// launch starts a step that the caller has claimed. A failure from here on is
// the step's result. change is what the client has changed since; nil is
// nothing. Where the job's prolog has to run first, launch returns as soon as
// the step has its socket: the rest is told on that, and by Wait.
func (f *follower) launch(change *step.LaunchChange) (*step.Spec, error) {
	res := f.unreserve()
	spec := res.spec
	f.update(func(rec *step.Record) { rec.State = step.Starting })
	var err error
	if change != nil {
		err = f.change(spec, change)
	}
	var listen *os.File
	if err == nil {
		// No new client may connect to a socket that will not be served: what
		// fails from here on removes it.
		listen, err = bindIn(f.n.spool.StepsDir(), f.n.spool.SocketName(f.id), unix.SOCK_SEQPACKET)
	}
	if err != nil {
		res.close(f.n.spool)
		f.fail(err)
		return nil, api.NewError(api.Internal, err.Error())
	}
	told := *spec // start changes it
	if f.n.scripts.AwaitsProlog(f.job.scripts) {
		f.n.work.Go(func() { _ = f.start(spec, res, listen, true) })
		return &told, nil
	}
	if err := f.start(spec, res, listen, false); err != nil {
		if early, ok := errors.AsType[errCancelled](err); ok {
			return nil, api.Errorf(api.Aborted, "step %s was cancelled: %s", f.id, early.reason)
		}
		return nil, api.NewError(api.Internal, err.Error())
	}
	return &told, nil
}

// start starts the step's stepd, or fails the step. It closes the files.
func (f *follower) start(spec *step.Spec, res *reservation, listen *os.File, prolog bool) error {
	defer res.close(f.n.spool)
	defer listen.Close()
	// From here on the client's going away changes nothing.
	err := f.n.start(context.Background(), f, spec, res, listen, prolog)
	if errors.Is(err, scripts.ErrStopping) {
		if err = f.cancelledEarly(); err == nil {
			return scripts.ErrStopping // the next noded ends the step
		}
	}
	if err != nil {
		f.fail(err)
	}
	return err
}

// cancelledEarly is the errCancelled of a step that was cancelled before it had a stepd.
func (f *follower) cancelledEarly() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cancelled == "" {
		return nil
	}
	return errCancelled{f.cancelled}
}

// errCancelled ends a launch that was cancelled.
type errCancelled struct{ reason string }

func (e errCancelled) Error() string { return e.reason }

// follows says that a stepd is about to be there: a cancel is its matter from now
// on. It returns the reason of one that came before.
func (f *follower) follows() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.moveLocked(stepStarting)
	if f.cancelled != "" {
		return errCancelled{f.cancelled}
	}
	return nil
}

// start makes what the step needs and starts its stepd, and the follower with
// it. What it made is undone by the follower's cleanup in any case.
func (n *Node) start(ctx context.Context, f *follower, spec *step.Spec, res *reservation, listen *os.File, prolog bool) error {
	events := res.events
	if err := n.cfg.Containers.Create(ctx, f.id.Job, spec.User); err != nil {
		return err
	}
	if prolog {
		if err := f.prolog(events); err != nil {
			return err
		}
	}
	if len(spec.Script) > 0 {
		if err := n.writeScript(spec); err != nil {
			return err
		}
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

	files := append([]*os.File{listen, events}, n.namespaces(ns, spec)...)
	if err := n.startStepd(f, spec, leaf, files); err != nil {
		return err
	}
	f.addToContainer()
	return nil
}

// startStepd starts the step's stepd in its place, and the follower with it. files
// are what stepd inherits behind its spec and its connection to noded.
func (n *Node) startStepd(f *follower, spec *step.Spec, leaf *os.File, files []*os.File) error {
	ours, theirs, err := controlPair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	doc, err := encodeSpec(spec)
	if err != nil {
		ours.Close()
		return err
	}
	defer doc.Close()
	if err := f.follows(); err != nil {
		ours.Close()
		return err
	}
	proc, err := n.spawn(f.id, leaf, append([]*os.File{doc, theirs}, files...)...)
	if err != nil {
		ours.Close()
		return err
	}
	f.launched = true
	f.begin(proc, ours)
	if leaf != nil && (spec.Confine.PerTask || len(spec.Confine.V1) > 0) {
		n.work.Go(func() { n.warmUp(f.id, proc.PID) })
	}
	if leaf == nil {
		// What stepd has started by then is in the step's own cgroups.
		if err := n.cfg.Tracker.AddStepd(f.id, proc.PID); err != nil {
			f.log.Errorf("%v", err)
		}
	}
	return nil
}

// writeScript puts the batch script where the user can execute it, and makes
// it the step's command. Users can reach their own script in the directory, and
// make or remove nothing there.
func (n *Node) writeScript(spec *step.Spec) error {
	path := n.spool.Script(spec.ID.Job)
	script, user := spec.Script, spec.User
	err := n.spool.Do(func() error {
		return scripts.WriteBatch(filepath.Dir(path), filepath.Base(path), script, user)
	})
	if err != nil {
		return fmt.Errorf("cannot write batch script %q: %w", path, err)
	}
	spec.Script = nil
	spec.Argv = append([]string{path}, spec.Argv[1:]...)
	return nil
}

// warmUp writes stepd into the cgroup that it is in. The first write to any
// cgroup.procs waits for an RCU grace period (measured: 5 to 17 ms) and those
// that follow soon do not: the tasks' are then among them, and stepd starts
// meanwhile. It is of no other use, and may fail.
func (n *Node) warmUp(id step.ID, stepd int) {
	if err := n.cfg.Tracker.AddStepd(id, stepd); err != nil {
		n.log.WithField("step", id.String()).Debugf("%v", err)
	}
}

// prologStage is the stage of a launch that noded writes of.
const prologStage = "prolog"

// prolog runs the job's prolog, or waits for it, as a stage of this step.
func (f *follower) prolog(events *os.File) error {
	begin := time.Now()
	if err := f.n.spool.Log(events, eventlog.Event{Time: begin, Event: eventlog.EventStageStart, Phase: prologStage}); err != nil {
		return err
	}
	err := f.n.runProlog(f.job)
	end := time.Now()
	ev := eventlog.Event{Time: end, Event: eventlog.EventStageEnd, Phase: prologStage, DurUS: new(end.Sub(begin).Microseconds())}
	if err != nil {
		ev.Text = err.Error()
	}
	return errors.Join(err, f.n.spool.Log(events, ev))
}

// addToContainer adds the step's stepd and cgroup to the job container. That is for its
// messages: nothing depends on it.
func (f *follower) addToContainer() {
	rec := f.record()
	if f.n.cfg.ContainerType == "none" {
		return
	}
	if err := f.n.cfg.Containers.AddPID(f.id.Job, rec.StepdPID); err != nil {
		f.log.Debugf("%v", err) // stepd may have ended already
	}
	var st unix.Stat_t
	if rec.Cgroup == "" || unix.Stat(rec.Cgroup, &st) != nil {
		return
	}
	if err := f.n.cfg.Containers.AddCont(f.id.Job, st.Ino); err != nil {
		f.log.Debugf("%v", err)
	}
}

// namespaces sets in the spec which namespaces the job's container has, and returns them as
// stepd's descriptors from FDContainer on.
func (n *Node) namespaces(ns launch.Namespaces, spec *step.Spec) []*os.File {
	spec.ContainerNS = ns.Mount != nil
	spec.EntireStepInNS = spec.ContainerNS && n.cfg.Containers.EntireStepInNS()
	spec.PIDNamespace, spec.UserNamespace = ns.PID != nil, ns.User != nil
	return []*os.File{ns.Mount, nil, ns.PID, ns.User}
}
