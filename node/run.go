package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"stepd/api"
	"stepd/internal/lookup"
	"stepd/node/selection"
	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

// Run is the path of a request: the client, the request, its user, room, a
// number, a stepd. A refused request leaves nothing and spends no number; from
// the number on, the step exists and a failure is its result. Of a batch job the client
// is told no more than the number.
func (n launcher) Run(ctx context.Context, caller api.Peer, in *api.RunRequest) (*api.RunReply, error) {
	f, spec, err := n.reserveAs(ctx, caller, in.Request, order{state: step.Starting, size: in.Bytes})
	if err != nil {
		return nil, err
	}
	if !f.claim() {
		return nil, api.Errorf(api.Aborted, "step %s was cancelled before its launch", f.id)
	}
	if f.id.Step == step.BatchStep {
		accepted := *spec
		n.work.Go(func() { _, _ = f.launch(nil) })
		spec = &accepted
	} else if spec, err = f.launch(nil); err != nil {
		return nil, err
	}
	return n.started(f, spec), nil
}

// started logs that the step was started, and returns the client's answer.
func (n launcher) started(f *follower, spec *step.Spec) *api.RunReply {
	f.log.WithField("uid", spec.User.UID).WithField("ntasks", spec.NTasks).Info("step started")
	return n.reply(f, spec)
}

// reply is the answer to a client whose step has a number.
func (n launcher) reply(f *follower, spec *step.Spec) *api.RunReply {
	told := *spec
	// The client has these, and they may be longer than an answer can be.
	told.Argv, told.Env, told.SpankOptions, told.JobControl, told.Script = nil, nil, nil, nil, nil
	return &api.RunReply{
		JobID: f.id.Job, StepID: f.id.Step, ID: f.id.Name(), Node: n.cfg.NodeName, Spec: &told,
		SocketDir: n.spool.StepsDir(), SocketName: n.spool.SocketName(f.id),
	}
}

// decode reads a request that a stepd passes on. Unknown fields are an error: what the
// user asked for must not be dropped silently by an older noded.
func (n launcher) decode(raw []byte) (*step.Request, error) {
	req := new(step.Request)
	if err := api.Decode(raw, req); err != nil {
		return nil, api.Errorf(api.InvalidArgument, "cannot parse request: %v", err)
	}
	if err := req.Unpack(); err != nil {
		return nil, api.NewError(api.InvalidArgument, err.Error())
	}
	return req, nil
}

// check is what can be said of a request before anything is looked up. It puts
// the node's defaults where the request has none.
func (n launcher) check(req *step.Request) error {
	if err := srunopt.Validate(req); err != nil {
		return api.NewError(api.InvalidArgument, err.Error())
	}
	var err error
	switch {
	case req.NNodes != 1:
		err = &step.FieldError{Field: "nnodes", Problem: fmt.Sprintf("%d nodes, and this noded has one: several nodes: use Slurm (docs/slurm.md)", req.NNodes)}
	case req.NTasks > n.cfg.MaxTasks:
		err = &step.FieldError{Field: "ntasks", Problem: fmt.Sprintf("%d tasks: the limit is %d (MaxTasksPerNode)", req.NTasks, n.cfg.MaxTasks)}
	}
	req.MPI = srunopt.MPIType(cmp.Or(req.MPI, n.cfg.MPIDefault))
	if err == nil {
		err = n.checkFrequency(req)
	}
	if err == nil && len(req.Script) > 0 {
		err = checkBatch(req)
	}
	if err == nil && !slices.Contains(n.cfg.MPITypes, req.MPI) {
		err = &step.FieldError{Field: "mpi", Problem: fmt.Sprintf("no type %q here: there are %s", req.MPI, strings.Join(n.cfg.MPITypes, ", "))}
	}
	if err != nil {
		return api.NewError(api.InvalidArgument, err.Error())
	}
	return nil
}

// checkFrequency: a user may not look away from what OverMemoryKill looks at.
func (n launcher) checkFrequency(req *step.Request) error {
	site := n.cfg.Site.Acct
	if req.AcctgFreq == nil || !site.OverMemoryKill || site.FrequencyS == 0 {
		return nil
	}
	if f := *req.AcctgFreq; f == 0 || f > site.FrequencyS {
		return &step.FieldError{Field: "acctg_freq", Problem: fmt.Sprintf(
			"%d s: the site samples memory at least every %d s to enforce limits (JobAcctGatherFrequency, OverMemoryKill)", f, site.FrequencyS)}
	}
	return nil
}

// checkBatch refuses what a batch step cannot have: no client waits for it.
func checkBatch(req *step.Request) error {
	if req.Job != nil {
		return &step.FieldError{Field: "script", Problem: fmt.Sprintf("job %d runs already: a batch job is a job of its own", *req.Job)}
	}
	for _, s := range []struct {
		field string
		kind  step.StreamKind
	}{{"stdin", req.Stdin.Kind}, {"stdout", req.Stdout.Kind}, {"stderr", req.Stderr.Kind}} {
		if s.kind == step.StreamClient {
			return &step.FieldError{Field: s.field, Problem: "a batch script has no client to stream to"}
		}
	}
	return nil
}

// userFor decides who the tasks run as. Groups come from the name service, and
// never from the client.
func (n launcher) userFor(ctx context.Context, caller api.Peer, req *step.Request) (step.User, error) {
	uid := caller.UID
	if req.UID != nil {
		uid = *req.UID
	}
	if uid != caller.UID && !caller.Root() {
		return step.User{}, api.Errorf(api.PermissionDenied, "permission denied: uid: only root may run as uid %d", uid)
	}
	switch { // prolog and epilog, as root, believe a job's variables
	case caller.Root():
	case req.As != nil:
		return step.User{}, api.NewError(api.PermissionDenied, "permission denied: id: only root may choose the numbers of a job")
	case req.Array != nil:
		return step.User{}, api.NewError(api.PermissionDenied, "permission denied: array_task: only root may give a job its place in an array")
	case req.RestartCount != 0:
		return step.User{}, api.NewError(api.PermissionDenied, "permission denied: restart_count: only root may count the runs of a job")
	}
	user, err := n.cfg.Users.ByUID(ctx, uid)
	switch {
	case errors.Is(err, lookup.ErrNoUser) && caller.Root() && req.GID != nil:
		return step.User{Name: fmt.Sprint(uid), UID: uid, GID: *req.GID, Groups: []uint32{*req.GID}}, nil
	case errors.Is(err, lookup.ErrNoUser) && caller.Root():
		return step.User{}, api.Errorf(api.InvalidArgument, "uid: there is no user %d; --gid is needed to run as a bare number", uid)
	case errors.Is(err, lookup.ErrNoUser):
		return step.User{}, api.Errorf(api.PermissionDenied, "permission denied: there is no user %d", uid)
	case err != nil:
		return step.User{}, api.NewError(api.Unavailable, err.Error())
	}
	if req.GID == nil || *req.GID == user.GID {
		return user, nil
	}
	if !caller.Root() {
		return step.User{}, api.Errorf(api.PermissionDenied, "permission denied: gid: only root may run as gid %d", *req.GID)
	}
	user.GID = *req.GID
	if !slices.Contains(user.Groups, user.GID) {
		user.Groups = append([]uint32{user.GID}, user.Groups...)
	}
	return user, nil
}

// KnowsUser reports whether the name service knows a user.
func (n *Node) KnowsUser(ctx context.Context, uid uint32) (bool, error) {
	_, err := n.cfg.Users.ByUID(ctx, uid)
	if errors.Is(err, lookup.ErrNoUser) {
		return false, nil
	}
	return true, err
}

// spec puts what was decided beside what was asked for. Its id comes later.
func (n launcher) spec(req *step.Request, user step.User, a *admission) *step.Spec {
	s := &step.Spec{
		Request: *req, Site: n.cfg.Site, User: user,
		NodeName: n.cfg.NodeName, NodeList: n.cfg.NodeName,
		CPUs: step.FormatCPUList(a.CPUs), NCPUs: len(a.CPUs),
		Proctrack: step.Proctrack{Kind: n.cfg.Tracker.Kind()}, Container: n.cfg.ContainerType, RunDir: n.spool.Run,
		Origin: step.OriginRun, JobNTasks: req.NTasks, JobStarted: n.cfg.clock.Now(), JobLimitS: req.TimeLimitS,
	}
	s.ImmediateS, s.As = nil, nil // which noded alone has had to know
	if len(req.Script) > 0 {
		// The task count is the job's: its batch step is one task.
		s.Origin, s.NTasks = step.OriginBatch, 1
	}
	if req.AcctgFreq != nil {
		s.Acct.FrequencyS = *req.AcctgFreq
	}
	s.MemoryMB, s.StepGres = a.MB, a.Gres
	s.JobMemoryMB, s.JobGres, s.JobCPUs = a.MB, a.Gres, s.CPUs
	if a.job != nil {
		s.Array, s.RestartCount, s.JobStarted, s.JobLimitS = a.job.Array, a.job.Restarts, a.job.Started, a.job.LimitS
		s.JobMemoryMB, s.JobGres, s.JobCPUs = a.job.MemoryMB, a.job.Gres, a.job.CPUs
		s.Spank = n.stackOf(s.Spank, a.job.Stack)
		a.job.limitTime(s, n.cfg.clock.Now())
	}
	s.GresEnv, s.GresUnset = selection.GresEnv(n.cfg.Select.Gres, s.StepGres, selection.GresScope{Batch: s.Origin == step.OriginBatch && a.job == nil, Local: n.places.localGres()})
	s.Spank.Quarantined = n.health.Plugins.List()
	s.NoNewPrivs = s.NoNewPrivs || n.cfg.NoNewPrivs
	s.Env = n.taskEnv(s.Env)
	return s
}

// taskEnv is a step's environment as the client wants it, with the name of the
// node that it runs on, for stepctl in a task.
func (n *Node) taskEnv(env []string) []string {
	const name = "NODED_SOCKET="
	others := slices.DeleteFunc(slices.Clone(env), func(e string) bool { return strings.HasPrefix(e, name) })
	return append(others, name+n.spool.Socket())
}

// commandMax bounds what is kept of a command, in bytes: a listing of a
// thousand steps must stay readable, and a user must not fill the store.
const commandMax = 8 << 10

// shownCommand is the command as listings show it. A cut is marked by "...".
func shownCommand(argv []string) []string {
	room := commandMax
	shown := make([]string, 0, min(len(argv), 64))
	for _, a := range argv {
		if room -= len(a) + 1; room < 0 {
			return append(shown, "...")
		}
		shown = append(shown, a)
	}
	return shown
}

// DryRun returns what Run would do. It goes the way of Run up to the number, with the same
// plan, and gives the place back.
func (n launcher) DryRun(ctx context.Context, caller api.Peer, in *api.RunRequest) (*api.DryRunReply, error) {
	req := in.Request
	if err := n.check(req); err != nil {
		return nil, err
	}
	user, err := n.userFor(ctx, caller, req)
	if err != nil {
		return nil, err
	}
	a, err := n.reg.seek(req, user, caller.Root()).now(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { n.endJob(n.reg.abandon(a)) }()
	spec := n.spec(req, user, a)
	want := (&order{req: req}).wants(a)
	job := n.implicitJob(spec, want)
	if a.job != nil {
		job.ID = a.job.ID
	}
	if spec.ID, err = n.store.NextID(want, &job, a.job != nil); err != nil {
		return nil, numberError(err, req)
	}
	plan, err := n.places.plan(spec)
	if err != nil {
		return nil, api.NewError(api.ResourceExhausted, err.Error())
	}
	d, err := n.dryRunOf(ctx, spec, plan)
	if err != nil {
		return nil, err
	}
	return &api.DryRunReply{Plan: d}, nil
}

// WillRun returns when Run would start the request, and takes nothing.
func (n launcher) WillRun(ctx context.Context, caller api.Peer, in *api.RunRequest) (*api.WillRunReply, error) {
	o := order{req: in.Request}
	err := n.check(o.req)
	if err == nil && o.req.Interactive {
		o, err = n.interactive(caller, o)
	}
	if err != nil {
		return nil, err
	}
	user, err := n.userFor(ctx, caller, o.req)
	if err != nil {
		return nil, err
	}
	s := n.reg.seek(o.place(), user, caller.Root())
	reply, err := s.willRun()
	if err != nil || s.found == nil {
		return reply, err
	}
	spec := n.spec(o.req, user, s.found)
	if o.know != nil {
		o.know(spec)
	}
	if _, err := n.places.plan(spec); err != nil {
		return nil, api.NewError(api.ResourceExhausted, err.Error())
	}
	if err := n.helpers(); err != nil {
		return nil, numberError(err, o.req)
	}
	return reply, nil
}

func (n launcher) dryRunOf(ctx context.Context, spec *step.Spec, plan *launch.LimitPlan) (*api.DryRun, error) {
	d := &api.DryRun{
		Schema: step.Schema, ID: spec.ID, IDName: spec.ID.Name(), User: spec.User.Name, UID: spec.User.UID, Node: spec.NodeName,
		Argv: spec.Argv, Cwd: spec.Cwd, NTasks: spec.NTasks, CPUs: spec.CPUs,
		Gres:     append([]step.GresAlloc{}, spec.StepGres...),
		GresEnv:  append([]string{}, spec.GresEnv...),
		Binding:  []string{},
		OOMGroup: plan.Confine.OOMGroup, Memory: append([]step.MemoryLevel{}, plan.Confine.Memory...),
		Writes:  append(append([]step.CgroupWrite{}, plan.Writes...), plan.TaskWrites...),
		Notes:   append([]string{}, plan.Notes...),
		TaskEnv: []string{}, Environment: []api.EnvChange{}, ResourceLimits: []api.ResourceLimit{}, Mounts: []string{}, Plugins: []api.DryPlugin{},
	}
	if mb := spec.MemoryMB; mb > 0 {
		d.MemoryMB = &mb
	}
	if n.cfg.Binding != nil {
		lines, err := n.cfg.Binding(spec)
		if err != nil {
			return nil, api.NewError(api.InvalidArgument, err.Error())
		}
		d.Binding = append(d.Binding, lines...)
	}
	if n.cfg.Preview != nil {
		if err := n.cfg.Preview(spec, d); err != nil {
			return nil, api.NewError(api.InvalidArgument, err.Error())
		}
	}
	if n.cfg.Plugins == nil {
		return d, nil
	}
	for _, p := range n.cfg.Plugins(ctx) {
		if p.Path != p.File { // else a finding that is no plugin
			d.Plugins = append(d.Plugins, api.DryPlugin{Path: p.Path, Required: p.Required, State: p.State, Problem: p.Problem, Options: []string{}})
		}
	}
	return d, nil
}
