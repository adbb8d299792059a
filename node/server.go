package node

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"stepd/api"
	"stepd/step"
)

// errDenied is the answer to whoever is neither owner nor root.
var errDenied = api.NewError(api.PermissionDenied, "permission denied")

// Server returns noded's service, for Serve on the listener of Listen. The
// methods' contract is in node.proto.
func (n *Node) Server() *grpc.Server {
	s := grpc.NewServer(append(clientLimits(),
		grpc.UnaryInterceptor(n.surviveUnary), grpc.StreamInterceptor(n.surviveStream),
		grpc.Creds(clientCredentials{api.Credentials(), n.clients}))...)
	api.RegisterNodeServer(s, &service{n: n})
	return s
}

// clientLimits bound what a connection costs that does nothing; what comes by it
// requestConn counts.
func clientLimits() []grpc.ServerOption {
	return []grpc.ServerOption{
		// Above the limit, so that its own words name it.
		grpc.MaxRecvMsgSize(api.RequestMax + api.RequestMax/4),
		grpc.MaxConcurrentStreams(callsMax), grpc.MaxHeaderListSize(headersMax),
		grpc.ReadBufferSize(4 << 10), grpc.WriteBufferSize(16 << 10),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: time.Hour}),
	}
}

// service maps the methods to the node. Every one begins with who asks.
type service struct {
	api.UnimplementedNodeServer
	n *Node
}

func (s *service) Show(ctx context.Context, in *api.StepRef) (*api.StepReply, error) {
	recs, err := s.own(ctx, in)
	if err != nil {
		return nil, err
	}
	return stepReply(recs)
}

func (s *service) Wait(ctx context.Context, in *api.StepRef) (*api.StepReply, error) {
	recs, err := s.own(ctx, in)
	if err != nil {
		return nil, err
	}
	// An allocation may end without a step; other jobs end with theirs.
	if j := s.n.reg.job(in.GetJobId()); in.StepId == nil && j != nil && j.Origin == step.OriginAlloc {
		if err := s.n.awaitEnd(ctx, j); err != nil {
			return nil, err
		}
		if recs, err = s.n.jobSteps(j.ID); err != nil {
			return nil, api.NewError(api.Internal, err.Error())
		}
		return stepReply(recs)
	}
	for _, rec := range recs {
		ended := s.n.endOf(rec.ID)
		if ended == nil {
			continue
		}
		select {
		case <-ended:
		case <-s.n.stopping:
			return nil, api.NewError(api.Unavailable, "noded is stopping; the step goes on")
		case <-ctx.Done():
			return nil, api.ContextError(ctx.Err())
		}
	}
	if recs, err = s.own(ctx, in); err != nil {
		return nil, err
	}
	return stepReply(recs)
}

func (s *service) List(ctx context.Context, in *api.ListRequest) (*api.ListReply, error) {
	caller, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	recs, err := s.n.list(in.GetAll())
	if err != nil {
		return nil, api.NewError(api.Internal, err.Error())
	}
	out := new(api.ListReply)
	for _, rec := range recs {
		if !mayAct(caller, rec.UID) {
			hideCommand(rec)
		}
		doc, err := encode(rec)
		if err != nil {
			return nil, err
		}
		out.Step = append(out.Step, doc)
	}
	return out, nil
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
	sig, scope := int(in.GetSignal()), in.GetScope()
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
	return s.tell(ctx, in.GetStep(), "signal", func(f liveStep) error { return f.signal(ctx, sig, scope) })
}

func (s *service) Cancel(ctx context.Context, in *api.CancelRequest) (*api.Empty, error) {
	who, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	note := in.GetReason()
	if len(note) > step.NameMax || checkWord(note) != nil {
		return nil, api.Errorf(api.InvalidArgument, "reason: longer than %d bytes, or with control characters", step.NameMax)
	}
	reason := step.CancelledBy(who.UID, note)
	if ref := in.GetStep(); ref != nil && ref.StepId == nil {
		if ended, err := s.cancelJob(ctx, ref.GetJobId(), reason); ended || err != nil {
			return &api.Empty{}, err
		}
	}
	return s.tell(ctx, in.GetStep(), "cancel", func(f liveStep) error { return f.cancel(ctx, reason) })
}

// tell passes a request on to the running steps that ref names.
func (s *service) tell(ctx context.Context, ref *api.StepRef, verb string, pass func(liveStep) error) (*api.Empty, error) {
	recs, err := s.own(ctx, ref)
	if err != nil {
		return nil, err
	}
	told := 0
	for _, rec := range recs {
		f := s.n.running(rec.ID)
		if f == nil {
			continue
		}
		if err := pass(f); err != nil {
			select {
			case <-f.end(): // it came to its end while it was asked
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

func (s *service) NodeStatus(ctx context.Context, _ *api.Empty) (*api.NodeStatusReply, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	doc, err := encode(s.n.status(ctx))
	if err != nil {
		return nil, err
	}
	return &api.NodeStatusReply{Node: doc}, nil
}

func (s *service) Drain(ctx context.Context, in *api.DrainRequest) (*api.Empty, error) {
	reason := in.GetReason()
	if reason == "" {
		return nil, api.NewError(api.InvalidArgument, "reason: is empty: say why the node is drained")
	}
	if len(reason) > step.NameMax || checkWord(reason) != nil {
		return nil, api.Errorf(api.InvalidArgument, "reason: longer than %d bytes, or with control characters", step.NameMax)
	}
	return s.drain(ctx, drainRecord{Drained: true, Reason: reason})
}

func (s *service) Resume(ctx context.Context, _ *api.Empty) (*api.Empty, error) {
	return s.drain(ctx, drainRecord{})
}

func (s *service) drain(ctx context.Context, d drainRecord) (*api.Empty, error) {
	caller, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if !caller.Root() {
		return nil, errDenied
	}
	if err := s.n.setDrain(d); err != nil {
		return nil, api.NewError(api.Internal, err.Error())
	}
	if !d.Drained {
		s.n.forgiveAll()
	}
	s.n.log.WithField("drained", d.Drained).WithField("reason", d.Reason).Info("drain state changed")
	return &api.Empty{}, nil
}

func (s *service) ClientConfig(ctx context.Context, _ *api.Empty) (*api.ClientConfigReply, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	c := s.n.cfg
	reply := &api.ClientConfigReply{
		Node: c.NodeName, Cpus: uint32(len(c.CPUs)), MaxTasks: uint32(c.MaxTasks),
		MpiDefault: c.MPIDefault, MpiTypes: c.MPITypes,
		Plugstack: c.Spank.Plugstack, PluginDirs: c.Spank.PluginDirs, Cluster: c.Cluster,
		AllowReleases: c.Spank.AllowReleases, HookTimeoutS: uint32(c.Spank.HookTimeoutS), SpankStrict: c.Spank.Strict, SlurmConf: c.SlurmConf,
		RequireSafe: c.Spank.RequireSafe, InteractiveStep: c.InteractiveStep,
	}
	if c.StackDigest != nil {
		digest, err := c.StackDigest()
		reply.PlugstackDigest = digest
		if err != nil {
			reply.PlugstackError = err.Error()
		}
	}
	return reply, nil
}

func stepReply(recs []*step.Record) (*api.StepReply, error) {
	out := new(api.StepReply)
	for _, rec := range recs {
		doc, err := encode(rec)
		if err != nil {
			return nil, err
		}
		out.Step = append(out.Step, doc)
	}
	return out, nil
}

func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, api.NewError(api.Internal, fmt.Sprintf("internal error: cannot encode answer: %v", err))
	}
	return b, nil
}

// A mistake in one call must not end the daemon that all steps depend on:
// gRPC lets a panic through.
func (n *Node) surviveUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (reply any, err error) {
	defer n.metered(info.FullMethod, time.Now(), &err)
	defer n.recovered(info.FullMethod, &err)
	return call(ctx, req)
}

func (n *Node) surviveStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, call grpc.StreamHandler) (err error) {
	defer n.metered(info.FullMethod, time.Now(), &err)
	defer n.recovered(info.FullMethod, &err)
	return call(srv, stream)
}

// recovered is to be deferred itself: it ends a panic and makes it an error.
func (n *Node) recovered(method string, err *error) {
	if p := recover(); p != nil {
		n.log.Errorf("internal error: %s: %v\n%s", method, p, debug.Stack())
		*err = api.Errorf(api.Internal, "internal error: %v", p)
	}
}
