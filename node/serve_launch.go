package node

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/step"
)

func (s *service) Run(ctx context.Context, in *api.RunRequest) (*api.RunReply, error) {
	caller, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	f, spec, err := s.n.run(ctx, caller, in)
	if err != nil {
		return nil, s.refused(caller, err)
	}
	f.log.WithField("uid", spec.User.UID).WithField("ntasks", spec.NTasks).Info("step started")
	return s.runReply(f, spec), nil
}

// Reserve is the first half of Run. The reservation is the calling process's.
func (s *service) Reserve(ctx context.Context, in *api.RunRequest) (*api.RunReply, error) {
	caller, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	// Before the number: the process may end at any moment.
	client, err := openClient(caller)
	if err != nil {
		return nil, s.refused(caller, err)
	}
	// Where this fails it has ended, which hold sees.
	launcher, _ := newHolder(caller.PID, client, s.n.boot)
	f, spec, err := s.n.reserve(ctx, caller, in, step.Pending, launcher)
	if err != nil {
		unix.Close(client)
		return nil, s.refused(caller, err)
	}
	limit := s.n.reserveMax
	s.n.work.Go(func() { f.hold(client, limit) })
	f.log.WithField("uid", spec.User.UID).Info("step reserved")
	return s.runReply(f, spec), nil
}

// Launch is the second half.
func (s *service) Launch(ctx context.Context, in *api.LaunchRequest) (*api.RunReply, error) {
	caller, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if in.StepID == nil {
		return nil, api.NewError(api.InvalidArgument, "step_id: is missing: a reservation is of one step")
	}
	id := step.ID{Job: in.JobID, Step: *in.StepID}
	change, err := checkChange(in.Change)
	if err != nil {
		return nil, s.refused(caller, err)
	}
	f, err := s.n.claim(caller, id)
	if err != nil {
		return nil, s.refused(caller, err)
	}
	spec, err := f.launch(change)
	if err != nil {
		return nil, s.refused(caller, err)
	}
	f.log.WithField("uid", spec.User.UID).WithField("ntasks", spec.NTasks).Info("step started")
	return s.runReply(f, spec), nil
}

// refused logs a refusal.
func (s *service) refused(caller api.Peer, err error) error {
	s.n.logRefused(caller.UID, "request refused: "+api.MessageOf(err))
	return err
}

// logRefused logs a line about a user's requests, if that may come.
func (n *Node) logRefused(uid uint32, line string) {
	ok, silent := n.refusals.tell(uid, time.Now())
	if !ok {
		return
	}
	log := n.log.WithField("uid", uid)
	if silent > 0 {
		log.Infof("%d further requests were refused, and not told here", silent)
	}
	log.Info(line)
}

// clientSpec is the part of the spec for a client.
func clientSpec(spec *step.Spec) *step.Spec {
	told := *spec
	// The client has these, and they may be longer than an answer can be.
	told.Argv, told.Env, told.SpankOptions, told.JobControl, told.Script = nil, nil, nil, nil, nil
	return &told
}

func (s *service) runReply(f *follower, spec *step.Spec) *api.RunReply {
	return &api.RunReply{
		JobID: f.id.Job, StepID: f.id.Step, Node: s.n.cfg.NodeName, Spec: clientSpec(spec),
		SocketDir: s.n.files.stepsDir(), SocketName: s.n.files.socketName(f.id),
	}
}
