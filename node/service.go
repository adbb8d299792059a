package node

import (
	"context"
	"slices"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/node/state"
	"stepd/srunopt"
	"stepd/step"
)

// errDenied is the answer to a client that is neither owner nor root.
var errDenied = api.NewError(api.PermissionDenied, "permission denied")

// service maps the requests to the node. Every method begins with the caller.
type service struct {
	n *Node
}

// verbs are the requests that are served, by name (docs/api.md).
func (s *service) verbs() map[string]verb {
	return map[string]verb{
		"run": unary(s.Run), "dryrun": unary(s.DryRun), "reserve": unary(s.Reserve), "launch": unary(s.Launch),
		"alloc": unary(s.Alloc), "release": unary(s.Release),
		"wait": records(s.Wait), "show": records(s.Show), "stat": records(s.Stat), "list": records(s.List),
		"signal": unary(s.Signal), "cancel": unary(s.Cancel), "suspend": unary(s.Suspend), "unsuspend": unary(s.Unsuspend),
		"adopt": unary(s.Adopt), "events": s.events, "output": s.output,
		"node": unary(s.Node), "drain": unary(s.Drain), "resume": unary(s.Resume), "config": unary(s.Config),
	}
}

// Show writes the records of a step, or of a job's steps.
func (s *service) Show(ctx context.Context, in *api.RefRequest, out recordWriter) error {
	ids, err := s.ownIDs(ctx, in.StepRef)
	if err != nil {
		return err
	}
	return s.writeOwn(ctx, ids, out)
}

// Wait does so when they have ended.
func (s *service) Wait(ctx context.Context, in *api.RefRequest, out recordWriter) error {
	ids, err := s.ownIDs(ctx, in.StepRef)
	if err != nil {
		return err
	}
	// An allocation may end without a step; other jobs end with theirs.
	if j := s.n.reg.job(in.JobID); in.StepID == nil && j != nil && j.Origin == step.OriginAlloc {
		if err := s.n.awaitEnd(ctx, j); err != nil {
			return err
		}
		if ids, err = s.n.idsOf(in.StepRef); err != nil && api.CodeOf(err) != api.NotFound {
			return err
		}
		return s.writeOwn(ctx, ids, out)
	}
	for _, id := range ids {
		f := s.n.reg.follower(id)
		if f == nil {
			continue
		}
		select {
		case <-f.ended:
		case <-s.n.stopping:
			return api.NewError(api.Unavailable, "noded is stopping; the step goes on")
		case <-ctx.Done():
			return api.ContextError(ctx.Err())
		}
	}
	if ids, err = s.ownIDs(ctx, in.StepRef); err != nil {
		return err
	}
	return s.writeOwn(ctx, ids, out)
}

// List writes the records of all steps, one in memory at a time.
func (s *service) List(ctx context.Context, in *api.ListRequest, out recordWriter) error {
	p, err := caller(ctx)
	if err != nil {
		return err
	}
	for _, id := range s.n.allIDs(in.All) {
		err := out(func() (*step.Record, error) {
			rec, err := s.n.findStep(id)
			switch {
			case api.CodeOf(err) == api.NotFound: // it was forgotten meanwhile
				return nil, nil
			case err != nil:
				return nil, err
			case !in.All && rec.State.Final(): // it has ended meanwhile
				return nil, nil
			case !mayAct(p, rec.UID):
				hideCommand(rec)
			}
			return rec, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// writeOwn writes the records of steps that the caller may act on.
func (s *service) writeOwn(ctx context.Context, ids []step.ID, out recordWriter) error {
	for _, id := range ids {
		err := out(func() (*step.Record, error) {
			rec, err := s.ownStep(ctx, id)
			if len(ids) > 1 && api.CodeOf(err) == api.NotFound { // it was forgotten meanwhile
				return nil, nil
			}
			return rec, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// hideCommand: what others run is not everybody's.
func hideCommand(rec *step.Record) {
	rec.Command, rec.Stdout, rec.Stderr = []string{}, nil, nil
	if slices.ContainsFunc(rec.Tasks, func(t step.Task) bool { return t.Doing != nil }) {
		rec.Tasks = slices.Clone(rec.Tasks)
		for i := range rec.Tasks {
			rec.Tasks[i].Doing = nil
		}
	}
}

func (s *service) Signal(ctx context.Context, in *api.SignalRequest) (*api.Empty, error) {
	sig, scope := in.Signal, in.Scope
	if scope == "" {
		scope = step.ScopeTasks
	}
	if sig < 1 || sig > 64 {
		return nil, api.Errorf(api.InvalidArgument, "signal: there is no signal %d", sig)
	}
	switch scope {
	case step.ScopeLeader, step.ScopeTasks, step.ScopeCgroup, "all":
	default:
		return nil, api.Errorf(api.InvalidArgument, "scope: %.40q is none of %q, %q and %q", scope, step.ScopeLeader, step.ScopeTasks, step.ScopeCgroup)
	}
	return s.tell(ctx, in.StepRef, "signal", func(f *follower) error { return f.signal(ctx, sig, scope) })
}

func (s *service) Cancel(ctx context.Context, in *api.CancelRequest) (*api.Empty, error) {
	who, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	note := in.Reason
	if len(note) > srunopt.NameMax || checkWord(note) != nil {
		return nil, api.Errorf(api.InvalidArgument, "reason: longer than %d bytes, or with control characters", srunopt.NameMax)
	}
	reason := stepapi.CancelledBy(who.UID, note)
	if in.StepID == nil {
		if ended, err := s.cancelJob(ctx, in.JobID, reason); ended || err != nil {
			return &api.Empty{}, err
		}
	}
	return s.tell(ctx, in.StepRef, "cancel", func(f *follower) error { return f.cancel(ctx, reason) })
}

// tell passes a request on to the running steps that ref names.
func (s *service) tell(ctx context.Context, ref api.StepRef, verb string, pass func(*follower) error) (*api.Empty, error) {
	recs, err := s.own(ctx, ref)
	if err != nil {
		return nil, err
	}
	told := 0
	for _, rec := range recs {
		f := s.n.reg.follower(rec.ID)
		if f == nil {
			continue
		}
		if err := pass(f); err != nil {
			select {
			case <-f.ended: // it ended while it was asked
				continue
			default:
			}
			return nil, api.Errorf(api.Unavailable, "cannot %s step %s: %v", verb, rec.ID, err)
		}
		told++
	}
	if told == 0 {
		return nil, api.Errorf(api.FailedPrecondition, "step %s has ended", recs[0].ID)
	}
	return &api.Empty{}, nil
}

// Node answers with the node's document.
func (s *service) Node(ctx context.Context, _ *api.Empty) (*api.NodeReply, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	doc, err := encode(s.n.status(ctx))
	if err != nil {
		return nil, err
	}
	return &api.NodeReply{Node: doc}, nil
}

func (s *service) Drain(ctx context.Context, in *api.DrainRequest) (*api.Empty, error) {
	reason := in.Reason
	if reason == "" {
		return nil, api.NewError(api.InvalidArgument, "reason: is empty: say why the node is drained")
	}
	if len(reason) > srunopt.NameMax || checkWord(reason) != nil {
		return nil, api.Errorf(api.InvalidArgument, "reason: longer than %d bytes, or with control characters", srunopt.NameMax)
	}
	return s.drain(ctx, state.Drain{Drained: true, Reason: reason})
}

func (s *service) Resume(ctx context.Context, _ *api.Empty) (*api.Empty, error) {
	return s.drain(ctx, state.Drain{})
}

func (s *service) drain(ctx context.Context, d state.Drain) (*api.Empty, error) {
	caller, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if !caller.Root() {
		return nil, errDenied
	}
	if err := s.n.health.SetDrain(d); err != nil {
		return nil, api.NewError(api.Internal, err.Error())
	}
	if !d.Drained {
		s.n.health.Plugins.Forgive()
	}
	s.n.log.WithField("drained", d.Drained).WithField("reason", d.Reason).Info("drain state changed")
	return &api.Empty{}, nil
}

// Config answers with what a client takes from the configuration.
func (s *service) Config(ctx context.Context, _ *api.Empty) (*api.ConfigReply, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	c := s.n.cfg
	reply := &api.ConfigReply{
		Node: c.NodeName, CPUs: len(c.CPUs), MaxTasks: c.MaxTasks, MPIDefault: c.MPIDefault, MPITypes: c.MPITypes,
		Plugstack: c.Spank.Plugstack, PluginDirs: c.Spank.PluginDirs, Cluster: c.Cluster,
		AllowReleases: c.Spank.AllowReleases, HookTimeoutS: c.Spank.HookTimeoutS, SpankStrict: c.Spank.Strict, SlurmConf: c.SlurmConf,
		RequireSafe: c.Spank.RequireSafe, InteractiveStep: c.InteractiveStep,
	}
	if c.StackDigest != nil {
		digest, err := c.StackDigest()
		reply.PlugstackDigest = digest
		if err != nil {
			reply.PlugstackError = err.Error()
		}
	}
	s.n.published.put(reply)
	return reply, nil
}
