package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/srunopt"
	"stepd/step"
)

// right is which clients a request is for. Root may send every one.
type right int

const (
	anyone right = iota // a client with credentials
	// maker is anyone as well: the Backend decides for which user, and the refusal of such a
	// request is logged.
	maker
	owner // of the step, or of the job with all of its steps, that the request names
	// holder is the owner of the job, which must run.
	holder
	root
)

// verbs is the table of requests, by name: the client that each is for, the function that answers
// it, and what is checked of its document before anything is looked up.
func (s *Server) verbs() map[string]verb {
	return map[string]verb{
		"run":     on(maker, func(c *call, in *api.RunRequest) error { return makes(c, in, s.node.Run) }, unpack),
		"dryrun":  on(maker, func(c *call, in *api.RunRequest) error { return makes(c, in, s.node.DryRun) }, unpack),
		"willrun": on(maker, func(c *call, in *api.RunRequest) error { return makes(c, in, s.node.WillRun) }, unpack),
		"reserve": on(maker, func(c *call, in *api.RunRequest) error {
			c.vain() // until its launch
			return makes(c, in, s.node.Reserve)
		}, unpack),
		"alloc":   on(maker, func(c *call, in *api.RunRequest) error { return makes(c, in, s.node.Alloc) }, unpack),
		"launch":  on(maker, s.launch, unpackChange),
		"release": on(holder, func(c *call, in *api.ReleaseRequest) error { return c.done(s.node.Release(c.ctx, in.JobID)) }),

		"wait":   on(owner, s.wait),
		"show":   on(owner, func(c *call, _ *api.RefRequest) error { return s.records(c, c.ids, len(c.ids) > 1, c.known) }),
		"stat":   on(owner, s.stat),
		"list":   on(anyone, s.list),
		"events": on(owner, s.events, func(in *api.EventsRequest) error { return oneStep(in.StepRef, "events belong") }),
		"output": on(owner, s.output, func(in *api.RefRequest) error { return oneStep(in.StepRef, "output belongs") }),

		"signal": on(owner, func(c *call, in *api.SignalRequest) error {
			return c.noted(s.node.Signal(c.ctx, in.StepRef, in.Signal, in.Scope))
		}, checkSignal),
		"cancel": on(owner, func(c *call, in *api.CancelRequest) error {
			reason := stepapi.CancelledBy(c.peer.UID, in.Reason)
			if in.Failed {
				return c.noted(s.node.Fail(c.ctx, in.StepRef, "failed"+strings.TrimPrefix(reason, "cancelled")))
			}
			return c.noted(s.node.Cancel(c.ctx, in.StepRef, reason))
		}, func(in *api.CancelRequest) error { return checkReason(in.Reason) }),
		"suspend": on(owner, func(c *call, in *api.RefRequest) error {
			return c.done(s.node.Suspend(c.ctx, in.StepRef, c.peer.UID))
		}),
		"unsuspend": on(owner, func(c *call, in *api.RefRequest) error {
			return c.done(s.node.Unsuspend(c.ctx, in.StepRef, c.peer.UID))
		}),

		"adopt": on(root, func(c *call, in *api.AdoptRequest) error {
			out, err := s.node.Adopt(c.ctx, c.peer, in)
			return answer(c, out, err)
		}),
		"drain": on(root, func(c *call, in *api.DrainRequest) error { return c.done(s.node.Drain(c.peer, in.Reason)) }, func(in *api.DrainRequest) error {
			if in.Reason == "" {
				return api.NewError(api.InvalidArgument, "reason: is empty: say why the node is drained")
			}
			return checkReason(in.Reason)
		}),
		"resume": on(root, func(c *call, _ *api.Empty) error { return c.done(s.node.Resume()) }),
		"node": on(anyone, func(c *call, _ *api.Empty) error {
			doc, err := encode(s.node.Status(c.ctx))
			return answer(c, &api.NodeReply{Node: doc}, err)
		}),
		"config": on(anyone, func(c *call, _ *api.Empty) error { return answer(c, s.node.ClientConfig(), nil) }),
	}
}

// ServeHTTP answers one request. Without the kernel's word on its connection no request is
// served.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	conn, ok := r.Context().Value(peerKey{}).(*clientConn)
	if !ok {
		newCall(s, w, r, api.Peer{}, unknownUsers).refuse(api.NewError(api.Unauthenticated, "internal error: a request without a peer"))
		return
	}
	s.serve(newCall(s, w, r, conn.peer, conn.payer), conn.refusal)
}

// ServePeer answers one request of the client p; refusal is the answer where the client has too
// many connections, else "".
func (s *Server) ServePeer(w http.ResponseWriter, r *http.Request, p api.Peer, refusal string) {
	s.serve(newCall(s, w, r, p, p.UID), refusal)
}

func (s *Server) serve(c *call, refusal string) {
	name, serve, err := s.verbOf(c.r)
	if err != nil {
		name = "unknown" // what the client has written is no label
	} else if refusal != "" {
		name, err = "connect", api.NewError(api.ResourceExhausted, refusal)
	}
	if err != nil {
		s.Meter.Request(name, string(api.CodeOf(err)), 0)
		c.refuse(err)
		return
	}
	s.answer(c, name, serve)
}

// answer serves a known verb. A mistake in one request must not end the daemon that all
// steps depend on.
func (s *Server) answer(c *call, name string, serve verb) {
	var err error
	defer func(begin time.Time) { s.Meter.Request(name, string(api.CodeOf(err)), time.Since(begin)-c.waited) }(time.Now())
	defer func() {
		if p := recover(); p != nil {
			s.Log.Errorf("internal error: %s: %v\n%s", name, p, debug.Stack())
			err = api.Errorf(api.Internal, "internal error: %v", p)
		}
		defer c.uncount(&c.counted) // finish may panic
		c.finish(name, err)
	}()
	if err = c.count(callBytes, &c.counted); err == nil {
		err = serve(c)
	}
}

// verbOf finds the verb of a request, and refuses other versions of the API.
func (s *Server) verbOf(r *http.Request) (string, verb, error) {
	version, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if v := r.Header.Get(api.VersionHeader); v != "" && v != strconv.Itoa(api.Schema) || version != "v"+strconv.Itoa(api.Schema) {
		who := cmp.Or(r.UserAgent(), "the client")
		if v == "" {
			v = strings.TrimPrefix(version, "v")
		}
		return "", nil, api.Errorf(api.FailedPrecondition, "noded is %s and speaks version %d of its API, %.80q speaks version %.20q: use the programs of one release", s.Version, api.Schema, who, v)
	}
	serve := s.table[name]
	switch {
	case serve == nil:
		return "", nil, api.Errorf(api.Unimplemented, "noded %s has no request %.40q: it has %s", s.Version, name, strings.Join(s.Verbs(), ", "))
	case r.Method != http.MethodPost:
		return "", nil, api.Errorf(api.InvalidArgument, "the method is %.20q: want POST", r.Method)
	}
	return name, serve, nil
}

// verb answers one request.
type verb func(c *call) error

// document is a request's document, of type In.
type document[In any] interface {
	*In
	Version() int
}

// on is the verb of requests with documents of type In: they are read, checked, and answered by
// serve where the client may have that.
func on[In any, P document[In]](may right, serve func(*call, *In) error, checks ...func(*In) error) verb {
	return func(c *call) (err error) {
		in := new(In)
		if err := c.decode(P(in)); err != nil {
			return err
		}
		defer func() {
			if err != nil && may == maker {
				c.s.logRefused(c.payer, c.peer.UID, "request refused: %s", api.MessageOf(err))
			}
		}()
		for _, check := range checks {
			if err := check(in); err != nil {
				return err
			}
		}
		if err := c.allow(may, in); err != nil {
			return err
		}
		return serve(c, in)
	}
}

// allow decides whether the client may send the request: this is the only place, beside what a
// Launcher decides. It finds the steps that the request names.
func (c *call) allow(may right, in any) (err error) {
	switch may {
	case owner:
		if c.ids, err = c.own(in.(interface{ Ref() api.StepRef }).Ref()); err == nil {
			err = c.count(len(c.ids)*idBytes, &c.counted)
		}
		return err
	case holder:
		job := in.(*api.ReleaseRequest).JobID
		uid, runs := c.s.node.Owner(job)
		if !runs {
			return api.Errorf(api.NotFound, "no such job \"%d\"", job)
		}
		return c.allowUser(uid)
	case root:
		return c.allowUser(0)
	}
	return nil
}

// allowUser refuses a client that may not act for a user.
func (c *call) allowUser(uid uint32) error {
	if !c.peer.MayAct(uid) {
		return api.Denied(uid)
	}
	return nil
}

// own returns the steps that ref names, where the client may act on them: all steps of a job
// are its user's.
func (c *call) own(ref api.StepRef) ([]step.ID, error) {
	if uid, runs := c.s.node.Owner(ref.JobID); ref.StepID == nil && runs { // it may have no steps
		if err := c.allowUser(uid); err != nil {
			return nil, err
		}
		return c.s.node.IDs(ref)
	}
	ids, err := c.s.node.IDs(ref)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	_, err = c.ownRecord(c.s.node.Step(ids[0]))
	return ids, err
}

// ownRecord refuses a record that the client may not act on: a number may have been given to
// another run of its job since the steps were looked up.
func (c *call) ownRecord(rec *step.Record, err error) (*step.Record, error) {
	if err == nil {
		err = c.allowUser(rec.UID)
	}
	if err != nil {
		return nil, err
	}
	return rec, nil
}

// unpack puts a request for a step into the form that it is used in.
func unpack(in *api.RunRequest) error {
	if in.Request == nil {
		return api.NewError(api.InvalidArgument, "request: is missing")
	}
	if err := in.Request.Unpack(); err != nil {
		return api.NewError(api.InvalidArgument, err.Error())
	}
	return nil
}

// unpackChange does the same for a launch.
func unpackChange(in *api.LaunchRequest) error {
	if in.StepID == nil {
		return api.NewError(api.InvalidArgument, "step_id: is missing: a reservation is of one step")
	}
	if in.Change == nil {
		return api.NewError(api.InvalidArgument, "change: is missing")
	}
	err := in.Change.Unpack()
	if err == nil {
		err = srunopt.ValidateChange(in.Change)
	}
	if err != nil {
		return api.Errorf(api.InvalidArgument, "change: %v", err)
	}
	return nil
}

func oneStep(ref api.StepRef, what string) error {
	if ref.StepID == nil {
		return api.Errorf(api.InvalidArgument, "step_id: is missing: %s to one step", what)
	}
	return nil
}

// checkSignal refuses an unknown signal or scope, and puts the default scope in.
func checkSignal(in *api.SignalRequest) error {
	if in.Signal < 1 || in.Signal > 64 {
		return api.Errorf(api.InvalidArgument, "signal: there is no signal %d", in.Signal)
	}
	switch in.Scope {
	case "":
		in.Scope = step.ScopeTasks
	case step.ScopeLeader, step.ScopeTasks, step.ScopeCgroup, "all":
	default:
		return api.Errorf(api.InvalidArgument, "scope: %.40q is none of %q, %q and %q", in.Scope, step.ScopeLeader, step.ScopeTasks, step.ScopeCgroup)
	}
	return nil
}

// checkReason refuses a reason that would forge lines in logs and listings.
func checkReason(text string) error {
	if len(text) > srunopt.NameMax || strings.IndexFunc(text, unicode.IsControl) >= 0 {
		return api.Errorf(api.InvalidArgument, "reason: longer than %d bytes, or with control characters", srunopt.NameMax)
	}
	return nil
}

// answer replies with a document, or returns the error.
func answer[Out any, P interface {
	*Out
	Stamp()
}](c *call, out *Out, err error) error {
	if err != nil {
		return err
	}
	P(out).Stamp()
	return c.reply(out)
}

// done replies that a request is met, or returns the error.
func (c *call) done(err error) error { return answer(c, &api.Empty{}, err) }

func (c *call) noted(notes []string, err error) error {
	return answer(c, &api.EndReply{Notes: notes}, err)
}

// makes answers a request for a step or job, which ends with its client while it waits for room.
func makes[Out any, P interface {
	*Out
	Stamp()
}](c *call, in *api.RunRequest, method func(context.Context, api.Peer, *api.RunRequest) (*Out, error)) error {
	in.Bytes = c.bodyBytes
	ctx := c.ctx
	if wait := in.Request.ImmediateS; wait != nil && *wait != 0 {
		var stop func()
		ctx, stop = whileConnected(ctx)
		defer stop()
	}
	out, err := method(ctx, c.peer, in)
	return answer[Out, P](c, out, err)
}

func (s *Server) launch(c *call, in *api.LaunchRequest) error {
	out, err := s.node.Launch(c.peer, in)
	if err == nil {
		s.pace.undo(c.payer)
	}
	return answer(c, out, err)
}

// wait answers with the records when the steps have ended.
func (s *Server) wait(c *call, in *api.RefRequest) error {
	ids, err := s.node.Await(c.ctx, in.StepRef)
	if err != nil {
		return err
	}
	return s.records(c, ids, len(ids) > 1, c.known)
}

// stat answers with the records; running steps have their present usage.
func (s *Server) stat(c *call, _ *api.RefRequest) error {
	for _, id := range c.ids {
		rec, err := c.ownRecord(s.node.Stat(c.ctx, id))
		if len(c.ids) > 1 && api.CodeOf(err) == api.NotFound { // it was forgotten meanwhile
			continue
		}
		if err == nil {
			err = c.record(func() (*step.Record, error) { return rec, nil })
		}
		if err != nil {
			return err
		}
	}
	return c.end()
}

// list answers with the records of all steps, one in memory at a time.
func (s *Server) list(c *call, in *api.ListRequest) error {
	load := func(id step.ID) (*step.Record, error) {
		rec, err := s.node.Step(id)
		switch {
		case err != nil:
			return nil, err
		case !in.All && rec.State.Final(): // it has ended meanwhile
			return nil, nil
		case !c.peer.MayAct(rec.UID):
			hideCommand(rec)
		}
		if in.NoTasks {
			rec.Tasks = []step.Task{}
		}
		return rec, nil
	}
	var behind step.ID
	next := func() []step.ID {
		defer s.clients.inFlight.turn(c.payer)() // a list of all numbers is made
		return s.node.List(in.All, behind)
	}
	for ids := next(); len(ids) > 0; ids = next() {
		if err := s.lines(c, ids, true, load); err != nil {
			return err
		}
		behind = ids[len(ids)-1]
	}
	return c.end()
}

// known is the record of a step that the client may act on.
func (c *call) known(id step.ID) (*step.Record, error) { return c.ownRecord(c.s.node.Step(id)) }

// records answers with the records of steps; of several, those that were forgotten meanwhile are
// left out.
func (s *Server) records(c *call, ids []step.ID, several bool, get func(step.ID) (*step.Record, error)) error {
	if err := s.lines(c, ids, several, get); err != nil {
		return err
	}
	return c.end()
}

// lines is records without the end of the reply.
func (s *Server) lines(c *call, ids []step.ID, several bool, get func(step.ID) (*step.Record, error)) error {
	for _, id := range ids {
		err := c.record(func() (*step.Record, error) {
			rec, err := get(id)
			if several && api.CodeOf(err) == api.NotFound {
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

// hideCommand leaves out what other users are not to see of a step.
func hideCommand(rec *step.Record) {
	rec.Command, rec.Stdout, rec.Stderr = []string{}, nil, nil
	if slices.ContainsFunc(rec.Tasks, func(t step.Task) bool { return t.Doing != nil }) {
		rec.Tasks = slices.Clone(rec.Tasks)
		for i := range rec.Tasks {
			rec.Tasks[i].Doing = nil
		}
	}
}

// events answers with the step's event log.
func (s *Server) events(c *call, in *api.EventsRequest) error {
	if in.Follow {
		if _, ok := s.follows.add(c.payer, 1, followsMax); !ok {
			return api.Errorf(api.ResourceExhausted, "uid %d follows %d event logs, the limit", c.peer.UID, followsMax)
		}
		defer s.follows.drop(c.payer, 1)
	}
	if err := s.node.Events(c.ctx, c.ids[0], in.Follow, c.event); err != nil {
		return err
	}
	return c.end()
}

// output answers with the bytes that are kept of a step's output.
func (s *Server) output(c *call, _ *api.RefRequest) error {
	f, size, err := s.node.Output(c.ids[0])
	if err != nil {
		return err
	}
	defer f.Close()
	return c.file(f, size)
}

// encode is the JSON of a document.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, api.NewError(api.Internal, fmt.Sprintf("internal error: cannot encode answer: %v", err))
	}
	return b, nil
}
