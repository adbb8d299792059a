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
	"stepd/api/stepapi"
	"stepd/internal/child"
	"stepd/internal/linux"
	"stepd/node/spool"
	"stepd/node/state"
	"stepd/step"
)

const (
	// reserveMax is how long a reservation waits for its launch.
	reserveMax = 10 * time.Minute
)

// reservation is a step that has a number and no stepd yet.
type reservation struct {
	spec *step.Spec
	size int // of the request, in bytes
	// events is the step's log, with its first lines.
	events *os.File
}

// close closes the log of a reservation that was launched, or is none any more.
func (r *reservation) close(files *spool.Spool) { files.CloseFile(r.events) }

// Reserve is the first half of Run: the step is PENDING and has a number. The reservation is
// the calling process's, which launches it, or gives it back by its end.
func (n launcher) Reserve(ctx context.Context, caller api.Peer, in *api.RunRequest) (*api.RunReply, error) {
	// Before the number: the process may end at any moment.
	client, err := openClient(caller)
	if err != nil {
		return nil, err
	}
	// Where this fails it has ended, which hold sees.
	launcher, _ := newHolder(caller.PID, client, n.boot)
	f, spec, err := n.reserveAs(ctx, caller, in.Request, order{state: step.Pending, launcher: launcher, size: in.Bytes})
	if err != nil {
		unix.Close(client)
		return nil, err
	}
	limit := n.reserveMax
	n.work.Go(func() { f.hold(client, limit) })
	f.log.WithField("uid", spec.User.UID).Info("step reserved")
	return n.reply(f, spec), nil
}

// reserveAs gives a step its number, in the order's state, for the caller to launch or to give
// back by claim. More may be known about the step than its request has; the rest of the order
// is made here.
func (n launcher) reserveAs(ctx context.Context, caller api.Peer, req *step.Request, in order) (*follower, *step.Spec, error) {
	in.received = time.Now()
	if err := n.check(req); err != nil {
		return nil, nil, err
	}
	in.req = req
	if req.Interactive {
		return n.reserveInteractive(ctx, caller, in)
	}
	return n.reserveFor(ctx, caller, in)
}

// order is a request that was read and checked.
type order struct {
	req      *step.Request
	size     int // in bytes
	state    step.State
	received time.Time
	// want is the number that the step is to have; zero for the next.
	want step.ID
	// know puts what is known beside the request into the spec; nil is nothing.
	know func(*step.Spec)
	// launcher is the process that has asked for the step, nil where none is waited for.
	launcher *state.Process
}

// reserveFor finds place for the request, and a number.
func (n launcher) reserveFor(ctx context.Context, caller api.Peer, in order) (*follower, *step.Spec, error) {
	user, err := n.userFor(ctx, caller, in.req)
	if err != nil {
		return nil, nil, err
	}
	place := *in.req
	// A program may not wait for the step that it has spawned.
	place.Overlap = place.Overlap || in.know != nil
	// The request is held from here on, and that may be long.
	if err := n.reg.users.holdRequest(caller.UID, in.size); err != nil {
		return nil, nil, err
	}
	a, err := n.reg.admit(ctx, &place, user.UID, caller.Root())
	if err != nil {
		n.reg.users.dropRequest(caller.UID, in.size)
		return nil, nil, err
	}
	return n.reserveAdmitted(caller, user, a, in)
}

// reserveAdmitted gives the request that has a place a number, or the place back. The
// caller has reserved the request's size, which goes back as well then.
func (n launcher) reserveAdmitted(caller api.Peer, user step.User, a *admission, in order) (*follower, *step.Spec, error) {
	spec := n.spec(in.req, user, a)
	if in.know != nil {
		in.know(spec)
	}
	var f *follower
	err := n.places.check(spec)
	if err == nil {
		f, err = n.number(spec, a, in)
	}
	if err != nil {
		n.reg.users.dropRequest(caller.UID, in.size)
		n.endJob(n.reg.abandon(a))
		return nil, nil, numberError(err, in.req)
	}
	f.by = caller.UID
	f.res = &reservation{spec: spec, size: in.size}
	if f.res.events, err = n.spool.BeginEvents(f.id, f.rec.Submitted, spec.CPUs); err != nil {
		n.reg.add(f)
		f.claim()
		f.unreserve()
		f.fail(err)
		return nil, nil, api.NewError(api.Internal, err.Error())
	}
	// Now it can be found, and cancelled, by its number: what the claim takes
	// over must be whole.
	if jobRuns := n.reg.add(f); !jobRuns {
		if f.claim() {
			f.giveBack(jobEnded)
		}
		return nil, nil, api.Errorf(api.NotFound, "no such job \"%d\"", f.id.Job)
	}
	return f, spec, nil
}

// numberError returns the error for the client of req where its step gets no number.
func numberError(err error, req *step.Request) error {
	if taken, ok := errors.AsType[state.TakenError](err); ok && req.As == nil {
		return err
	} else if ok {
		return api.Errorf(api.FailedPrecondition, "id: %v", taken)
	}
	if had, ok := errors.AsType[state.HadError](err); ok {
		return had
	}
	if _, ok := api.AsError(err); ok {
		return err
	}
	return api.NewError(api.Internal, err.Error())
}

// jobEnded is why a step ends that its job has left behind.
const jobEnded = "its job has ended"

// number gives the step its number, durably, and makes its follower.
func (n launcher) number(spec *step.Spec, a *admission, in order) (*follower, error) {
	ranks := spec.LocalRanks()
	rec := step.Record{
		Name: spec.Name, UID: spec.User.UID, User: spec.User.Name, Node: n.cfg.NodeName,
		State: in.state, NTasks: spec.NTasks, Command: shownCommand(spec.Argv), Submitted: in.received,
		Tasks: make([]step.Task, len(ranks)), MPI: spec.MPI, CPUs: spec.CPUs, BootID: n.boot,
		MemoryMB: spec.MemoryMB, Gres: spec.StepGres, GresOwn: len(a.Held) > 0, CPUsOwn: a.Alone, TimeLimitS: spec.TimeLimitS,
		Parent: spec.Parent, Array: spec.Array, Restarts: spec.RestartCount,
	}
	if in.launcher != nil { // durable with the number: the next noded may find a stepd that waits for it
		rec.LauncherPID, rec.LauncherStart = in.launcher.PID, in.launcher.Start
	}
	rec.Stdout, rec.Stderr = spec.OutputPlaces()
	for i := range rec.Tasks {
		rec.Tasks[i] = step.Task{Rank: ranks[i], LocalID: i, State: step.TaskPending}
	}
	want := in.wants(a)
	if a.job == nil {
		job := n.implicitJob(spec, want)
		if err := n.numberJob(want, &job, spec.JobControl, &rec); err != nil {
			return nil, err
		}
		n.reg.newJob(a, job)
		spec.Spank = n.stackOf(spec.Spank, job.Stack)
	} else if err := n.store.NewStepAs(want, a.job.ID, &rec); err != nil {
		return nil, err
	}
	spec.ID = rec.ID
	if a.job.Origin != "" { // else an older noded made the job
		spec.Origin, spec.JobNTasks, spec.JobName = a.job.Origin, a.job.NTasks, a.job.Name
	}
	spec.ResultFile = n.spool.Result(rec.ID)
	spec.OutputFile = n.spool.Output(rec.ID)
	f := newFollower(n.Node, a.job, rec, stepReserved)
	f.share = a.Share
	f.replay = n.reg.users.keepReplay(rec.UID, n.cfg.Site.ReplayBytes)
	spec.ReplayBytes = f.replay
	return f, nil
}

// numberJob gives the job, and its first step unless rec is nil, their numbers: want's,
// or the next ones.
func (n launcher) numberJob(want step.ID, job *state.Job, control [][]byte, rec *step.Record) error {
	forgotten, err := n.store.NewJobAs(want, job, control, rec)
	n.spool.Forget(forgotten)
	return err
}

// wants returns the number that the step of the order is to have, zero for the next one.
func (in *order) wants(a *admission) step.ID {
	as := in.req.As
	if as == nil || a.job != nil && as.Step == nil {
		return in.want
	}
	want := step.ID{Job: as.Job, Step: in.want.Step}
	if as.Step != nil {
		want.Step = *as.Step
	}
	return want
}

// implicitJob returns the record of the job that is made for the step of spec.
func (n launcher) implicitJob(spec *step.Spec, want step.ID) state.Job {
	job := n.jobOf(spec)
	job.Implicit = true
	job.First = want.Step
	return job
}

// jobOf is the record of the job that spec asks for.
func (n launcher) jobOf(spec *step.Spec) state.Job {
	j := state.Job{
		UID: spec.User.UID, User: spec.User.Name, GID: spec.User.GID, CPUs: spec.CPUs,
		MemoryMB: spec.JobMemoryMB, Gres: spec.JobGres,
		Origin: spec.Origin, Name: spec.Name, NTasks: spec.JobNTasks, WorkDir: spec.Cwd,
		Array: spec.Array, Restarts: spec.RestartCount, Stack: machine{n.Node}.keepStack(),
		Started: spec.JobStarted, LimitS: spec.JobLimitS, CPUsPerTask: spec.CPUsPerTask, SubmitHost: spec.SubmitHost,
	}
	if spec.TimeLimitS > 0 {
		j.Limit(time.Duration(spec.TimeLimitS)*time.Second, n.cfg.clock, n.boot)
		j.Warn = spec.Warn
	}
	if j.Origin == step.OriginBatch {
		j.Stdin, j.Stdout = streamPath(spec.Stdin, spec.Cwd), streamPath(spec.Stdout, spec.Cwd)
	}
	return j
}

// streamPath is a batch job's stream as its prolog gets it: the pattern
// is not expanded, as measured.
func streamPath(s step.Stream, cwd string) string {
	switch {
	case s.Kind != step.StreamFile:
		return os.DevNull
	case filepath.IsAbs(s.Pattern):
		return s.Pattern
	}
	return filepath.Join(cwd, s.Pattern)
}

// claim makes the caller the one who launches the step, or gives it back. It
// returns false where another one has done so.
func (f *follower) claim() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.phase != stepReserved {
		return false
	}
	f.moveLocked(stepLaunching)
	close(f.claimed)
	return true
}

// hold keeps a reservation for the process of pidfd, which it closes: the step
// is given back when that ends, or after limit. Of one that was launched it tells
// stepd as long as that may wait for the process.
func (f *follower) hold(pidfd int, limit time.Duration) {
	defer unix.Close(pidfd)
	why := f.n.awaitLaunch(f.claimed, pidfd, limit)
	if why != "" && f.claim() {
		f.giveBack(why)
		return
	}
	f.watchLauncher(pidfd) // it may have ended by now
}

// AwaitLaunches waits until every reservation there is was launched or given back, or
// until ctx ends.
func (n *Node) AwaitLaunches(ctx context.Context) {
	for _, f := range n.reg.followers() {
		if !f.is(stepReserved) {
			continue
		}
		select {
		case <-f.claimed:
		case <-ctx.Done():
			return
		}
	}
}

// watchLauncher tells stepd when the process that has launched the step ends while it
// starts: it may have done so before it was connected to stepd, which then waits for it
// in vain.
func (f *follower) watchLauncher(pidfd int) {
	ctx, stop := child.Until(context.Background(), context.Canceled, f.moved, f.n.stopping)
	defer stop()
	if linux.PidfdWait(ctx, pidfd) != nil {
		return
	}
	f.mu.Lock()
	followed := f.phase == stepFollowed
	f.orphaned = true
	f.mu.Unlock()
	if followed {
		f.link.send(&stepapi.Msg{Type: stepapi.TypeLauncherLost})
	}
}

// awaitLaunch waits until a reservation is claimed, and returns why it is to be
// given back: the process of pidfd has ended, or limit is over. "" is that it was
// claimed, or that noded is stopping: the next one gives it back.
func (n *Node) awaitLaunch(claimed <-chan struct{}, pidfd int, limit time.Duration) (why string) {
	late := fmt.Errorf("it was not launched within %v", limit)
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, late)
	defer cancel()
	ctx, stop := child.Until(ctx, errLaunched, claimed, n.stopping)
	defer stop()
	switch err := linux.PidfdWait(ctx, pidfd); {
	case errors.Is(err, errLaunched):
		return ""
	case err != nil:
		return err.Error()
	}
	return "the client that reserved it is gone"
}

var errLaunched = errors.New("the reservation was claimed, or noded is stopping")

// giveBack ends a step that was not launched; it was claimed by the caller.
func (f *follower) giveBack(why string) {
	f.log.Infof("giving the reservation back: %s", why)
	f.unreserve().close(f.n.spool)
	rec := f.record()
	deadRecord(rec, why, step.Cancelled, time.Now())
	if err := f.n.spool.LogEnd(rec); err != nil {
		f.log.Warnf("%v", err)
	}
	f.settle(rec)
	f.cleanup()
}

// unreserve ends the reservation as such and returns it.
func (f *follower) unreserve() *reservation {
	res := f.res
	f.res = nil
	f.n.reg.users.dropRequest(f.by, res.size)
	return res
}
