package node

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/internal/child"
	"stepd/internal/linux"
	"stepd/node/scripts"
	"stepd/node/state"
	"stepd/step"
)

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
	return &api.AllocReply{JobID: j.ID, Node: n.cfg.NodeName, CPUs: len(j.cpus), CPUList: j.CPUs, Partition: n.cfg.Site.Partition}, nil
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
	a, err := n.reg.admit(ctx, req, user.UID, caller.Root())
	n.reg.users.dropRequest(caller.UID, size)
	if err != nil {
		return nil, err
	}
	rec := n.jobOf(n.spec(req, user, a))
	rec.Origin, rec.Holder = step.OriginAlloc, h
	if err := n.numberJob((&order{req: req}).wants(a), &rec, req.JobControl, nil); err != nil {
		n.reg.abandon(a)
		return nil, numberError(err, req)
	}
	n.reg.newJob(a, rec)
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
