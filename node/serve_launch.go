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
	return s.runReply(f, spec)
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
	return s.runReply(f, spec)
}

// Launch is the second half.
func (s *service) Launch(ctx context.Context, in *api.LaunchRequest) (*api.RunReply, error) {
	caller, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	ref := in.GetStep()
	if ref == nil || ref.StepId == nil {
		return nil, api.NewError(api.InvalidArgument, "step: want JOB.STEP")
	}
	change, err := decodeChange(in.GetChange())
	if err != nil {
		return nil, s.refused(caller, err)
	}
	f, err := s.n.claim(caller, step.ID{Job: ref.GetJobId(), Step: ref.GetStepId()})
	if err != nil {
		return nil, s.refused(caller, err)
	}
	spec, err := f.launch(change)
	if err != nil {
		return nil, s.refused(caller, err)
	}
	f.log.WithField("uid", spec.User.UID).WithField("ntasks", spec.NTasks).Info("step started")
	return s.runReply(f, spec)
}

func (s *service) refused(caller api.Peer, err error) error {
	ok, silent := s.n.refusals.tell(caller.UID, time.Now())
	if !ok {
		return err
	}
	log := s.n.log.WithField("uid", caller.UID)
	if silent > 0 {
		log.Infof("%d further requests were refused, and not told here", silent)
	}
	log.Infof("request refused: %v", api.MessageOf(err))
	return err
}

// clientSpec is what a client is told of the spec.
func clientSpec(spec *step.Spec) *step.Spec {
	told := *spec
	// The client has these, and they may be longer than an answer can be.
	told.Argv, told.Env, told.SpankOptions, told.JobControl, told.Script = nil, nil, nil, nil, nil
	return &told
}

func (s *service) runReply(f *follower, spec *step.Spec) (*api.RunReply, error) {
	doc, err := encode(clientSpec(spec))
	if err != nil {
		return nil, err
	}
	return &api.RunReply{
		JobId: f.id.Job, StepId: f.id.Step, Node: s.n.cfg.NodeName, Spec: doc,
		SocketDir: s.n.files.stepsDir(), SocketName: s.n.files.socketName(f.id),
	}, nil
}
