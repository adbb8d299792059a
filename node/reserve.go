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
	"stepd/eventlog"
	"stepd/internal/child"
	"stepd/internal/linux"
	"stepd/node/scripts"
	"stepd/node/spool"
	"stepd/node/state"
	"stepd/step"
)

// reserveMax is how long a reservation waits for its launch.
const reserveMax = 10 * time.Minute

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
		in, err := n.interactive(caller, in)
		if err != nil {
			return nil, nil, err
		}
		return n.reserveOnly(ctx, caller, in)
	}
	return n.reserveFor(ctx, caller, in)
}

// order is a request that was read and checked.
type order struct {
	req      *step.Request
	size     int // in bytes
	state    step.State
	received time.Time
	// want is the number that the step is to have; zero for the next. had is the error where the job
	// has, or had, a step of that number.
	want step.ID
	had  error
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
	place := in.place()
	// The request is held from here on, and that may be long.
	if err := n.reg.users.holdRequest(caller.UID, in.size); err != nil {
		return nil, nil, err
	}
	a, err := n.reg.admit(ctx, place, user, caller.Root())
	if err != nil {
		n.reg.users.dropRequest(caller.UID, in.size)
		return nil, nil, err
	}
	return n.reserveAdmitted(caller, user, a, in)
}

// place is the request as a place is sought for it.
func (in *order) place() *step.Request {
	req := *in.req
	// A program may not wait for the step that it has spawned.
	req.Overlap = req.Overlap || in.know != nil
	return &req
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
		err = n.helpers(spec.MPI)
	}
	if err == nil {
		f, err = n.number(spec, a, in)
	}
	if err != nil {
		n.reg.users.dropRequest(caller.UID, in.size)
		n.endJob(n.reg.abandon(a))
		n.blame(err)
		return nil, nil, numberError(err, in.req)
	}
	f.by = caller.UID
	f.res = &reservation{spec: spec, size: in.size}
	if f.res.events, err = n.spool.BeginEvents(f.id, f.rec.Submitted, spec.CPUs); err != nil {
		return nil, nil, n.refuse(f, err)
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
	rec := step.Record{
		Name: spec.Name, UID: spec.User.UID, User: spec.User.Name, Node: n.cfg.NodeName,
		State: in.state, NTasks: spec.NTasks, Command: shownCommand(spec.Argv), Submitted: in.received,
		Tasks: []step.Task{}, MPI: spec.MPI, CPUs: spec.CPUs, BootID: n.boot,
		MemoryMB: spec.MemoryMB, Gres: spec.StepGres, GresOwn: len(a.Held) > 0, CPUsOwn: a.Alone, TimeLimitS: spec.TimeLimitS,
		Parent: spec.Parent, Array: spec.Array, Restarts: spec.RestartCount,
	}
	if in.launcher != nil { // durable with the number: the next noded may find a stepd that waits for it
		rec.LauncherPID, rec.LauncherStart = in.launcher.PID, in.launcher.Start
	}
	rec.Stdout, rec.Stderr = spec.OutputPlaces()
	want := in.wants(a)
	if a.job == nil {
		job := n.implicitJob(spec, want)
		if err := n.numberJob(want, &job, spec.JobControl, &rec); err != nil {
			return nil, err
		}
		n.reg.newJob(a, job)
		machine(n).tellStack(job.Stack)
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
		MemoryMB: spec.JobMemoryMB, Gres: spec.JobGres, Shared: spec.Overcommit,
		Origin: spec.Origin, Name: spec.Name, NTasks: spec.JobNTasks, WorkDir: spec.Cwd,
		Array: spec.Array, Restarts: spec.RestartCount, Stack: machine(n).keepStack(),
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
	now := time.Now()
	eventlog.LoseTasks(rec, nil, now)
	deadRecord(rec, why, step.Cancelled, now)
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

// Alloc makes a job without a step, for the life of the client's process.
func (n launcher) Alloc(ctx context.Context, caller api.Peer, in *api.RunRequest) (*api.AllocReply, error) {
	req := in.Request
	null := step.Stream{Kind: step.StreamNull} // a step's fields are ignored
	req.Argv, req.Stdin, req.Stdout, req.Stderr = []string{"-"}, null, null, null
	if err := n.check(req); err != nil {
		return nil, err
	}
	if req.Job != nil || req.Script != nil {
		return nil, api.NewError(api.InvalidArgument, "job: an allocation is a job of its own, and has no script")
	}
	if req.As != nil && req.As.Step != nil {
		return nil, api.NewError(api.InvalidArgument, "id: an allocation has no step")
	}
	user, err := n.userFor(ctx, caller, req)
	if err != nil {
		return nil, err
	}
	client, err := openClient(caller)
	if err != nil {
		return nil, err
	}
	j, err := n.admitAlloc(ctx, caller, client, req, in.Bytes, user)
	if err != nil {
		unix.Close(client)
		return nil, err
	}
	n.work.Go(func() { n.holdJob(j, client) })
	if err := n.openAlloc(j, user); err != nil {
		return nil, err
	}
	return &api.AllocReply{JobID: j.ID, Node: n.cfg.NodeName, CPUs: len(j.has.CPUs), CPUList: j.CPUs, Partition: n.cfg.Site.Partition}, nil
}

// openAlloc lets an allocation take steps on this node: with PrologFlags=Alloc when its
// prolog has ended. One whose end has begun has no prolog any more.
func (n *Node) openAlloc(j *job, user step.User) error {
	switch {
	case !n.cfg.Scripts.AtAlloc || !n.scripts.AwaitsProlog(j.scripts) || !n.reg.keep(j):
	case n.cfg.Scripts.NoHold:
		n.work.Go(func() {
			if err := n.prologAlone(j, user); err != nil && !errors.Is(err, scripts.ErrStopping) {
				n.endAlloc(j, err.Error())
			}
		})
	default:
		// A client that goes away meanwhile ends the job, and its prolog is
		// run to the end all the same.
		err := n.prologAlone(j, user)
		if err != nil {
			n.endAlloc(j, err.Error())
			return api.NewError(api.Aborted, err.Error())
		}
	}
	n.reg.open(j)
	return nil
}

// prologAlone makes the job's container and runs its prolog before there is a step that
// holds the job: the caller has kept it, and it is released here. So its end waits for
// the prolog, which killed would drain the node, and the epilog comes after it.
func (n *Node) prologAlone(j *job, user step.User) error {
	defer func() {
		if ended := n.reg.unkeep(j); ended != nil {
			n.work.Go(func() { n.endJob(ended) })
		}
	}()
	if err := n.places.contain(context.Background(), j.ID, user); err != nil {
		return err
	}
	return n.runProlog(j)
}

// admitAlloc finds place for the job and numbers it, durably.
func (n launcher) admitAlloc(ctx context.Context, caller api.Peer, client int, req *step.Request, size int, user step.User) (*job, error) {
	h, err := newHolder(caller.PID, client, n.boot)
	if err != nil {
		return nil, api.NewError(api.FailedPrecondition, err.Error())
	}
	if err := n.reg.users.holdRequest(caller.UID, size); err != nil {
		return nil, err
	}
	a, err := n.reg.admit(ctx, req, user, caller.Root())
	n.reg.users.dropRequest(caller.UID, size)
	if err != nil {
		return nil, err
	}
	rec := n.jobOf(n.spec(req, user, a))
	rec.Origin, rec.Holder = step.OriginAlloc, h
	if err := n.numberJob((&order{req: req}).wants(a), &rec, req.JobControl, nil); err != nil {
		n.reg.abandon(a)
		n.blame(err)
		return nil, numberError(err, req)
	}
	n.reg.newJob(a, rec)
	machine(n).tellStack(rec.Stack)
	n.log.WithField("job", rec.ID).WithField("uid", rec.UID).Infof("job allocated for process %d", h.PID)
	return a.job, nil
}

// holdJob ends the allocation with the process of pidfd, which it closes.
func (n *Node) holdJob(j *job, pidfd int) {
	defer unix.Close(pidfd)
	ctx, stop := child.Until(context.Background(), errLetGo, j.ended, n.stopping)
	defer stop()
	ctx, cancel := j.untilOver(ctx)
	defer cancel()
	switch err := linux.PidfdWait(ctx, pidfd); {
	case errors.Is(err, errLetGo):
		return // or noded is stopping: the next one finds the client again
	case errors.Is(err, errTime):
		n.endAlloc(j, err.Error())
		return
	case err != nil:
		n.log.WithField("job", j.ID).Errorf("cannot follow the client: %v", err)
	}
	n.endWithShell(j, clientGone)
}

const clientGone = "the client that asked for the job is gone"

var errLetGo = errors.New("the allocation has ended, or noded is stopping")

// endAlloc begins the end of an allocation: its steps are cancelled, and when
// the last one is gone, the job is. It may be called more than once.
func (n *Node) endAlloc(j *job, reason string) {
	steps, first := n.reg.shut(j)
	if !first {
		return
	}
	n.log.WithField("job", j.ID).Infof("ending the allocation: %s", reason)
	for _, f := range steps {
		n.cancelLater(f, reason)
	}
	ended, idle := n.reg.release(j)
	if idle && !n.scripts.OwesEpilog(j.scripts) {
		n.reg.free(j)
	}
	if ended != nil {
		n.work.Go(func() { n.endJob(ended) })
	}
}

// openClient returns a pidfd of the process that asks; the caller closes it.
func openClient(caller api.Peer) (int, error) {
	pidfd, err := caller.OpenProcess()
	if err != nil {
		return -1, api.Errorf(api.FailedPrecondition, "cannot follow the client: %v", err)
	}
	return pidfd, nil
}

// newHolder describes the process of pidfd, whose number is pid.
func newHolder(pid int32, pidfd int, boot string) (*state.Process, error) {
	if pid == 0 {
		return nil, errors.New("cannot follow the client: it has no number in the pid namespace of noded's container; run stepctl in there")
	}
	h := &state.Process{PID: int(pid), BootID: boot}
	var err error
	if h.Start, err = linux.StartTime(h.PID); err != nil {
		return nil, err
	}
	// It lives, so that the number was its own when the time was read.
	if exited, err := linux.PidfdExited(pidfd); err != nil || exited {
		return nil, errors.Join(fmt.Errorf("cannot follow the client: process %d %w", pid, child.ErrGone), err)
	}
	return h, nil
}

// openHolder finds the process again, or returns child.ErrGone.
func openHolder(h *state.Process, boot string) (int, error) {
	if h == nil {
		return -1, child.ErrGone
	}
	return child.Open(h.PID, h.Start, h.BootID, boot)
}
