package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"stepd/api"
	"stepd/step"
)

// A batch job of several nodes (ADR 0013) waits in the queue of its head. When it is its
// turn, the head chooses its nodes and asks the others for their shares, under the number
// that the job has had since its submission: it has all of them, or waits on.

// batchShare is what the head tells of a batch job whose share it asks for.
type batchShare struct {
	shareRun
	NextStep uint32          `json:"next_step,omitempty"`
	Array    *step.ArrayTask `json:"array,omitempty"`
}

// batchSpan is what a batch job has of several nodes: CPUs on each.
type batchSpan struct {
	nodes []string
	cpus  []int
	run   *shareRun
}

const (
	// spanPause is how long a job that waits for other nodes pauses at least before it asks
	// them again, spanRetry at most: they tell nobody when something is released.
	spanPause = turnPause
	spanRetry = 2 * time.Second
	// spanAvoid is how long a node is left out that has refused its share for good.
	spanAvoid = time.Minute
	// spanTime bounds a look, and a start until all shares are given.
	spanTime = queueRetry
)

// spanTries is what a batch job's tries to get its nodes have come to. It is runQueue's, and
// of a job that asks other nodes just now, that asking's.
type spanTries struct {
	next  time.Time     // not before
	last  errBusy       // why not
	pause time.Duration // after the last refusal for want of room
	// avoid are nodes that have not given their share, and why.
	avoid map[string]avoided
}

type avoided struct {
	why   string
	until time.Time
	busy  bool // others will give back what it lacks
}

// pauses is why a job that has asked other nodes in vain does not ask again yet, and whether
// those behind it wait with it; "" is that it may.
func (p *pass) pauses(q *queued) string {
	if !q.tries.next.After(p.now) {
		return ""
	}
	p.later(q.tries.next)
	if !q.tries.last.aside {
		p.behind = fmt.Sprintf("Priority: behind job %d", q.job)
	}
	return q.tries.last.why
}

// waits notes that the job has asked other nodes in vain: it pauses, for a time that is not
// that of the heads of other jobs which want the same nodes.
func (q *queued) waits(why string, aside bool, pause time.Duration) error {
	pause += rand.N(max(1, pause/4))
	q.tries.next, q.tries.last = time.Now().Add(pause), errBusy{why: why, aside: aside, again: spanRetry}
	return q.tries.last
}

// avoids leaves a node out for a while. Where the job cannot do without it, it is held.
func (q *queued) avoids(req *step.Request, node, why string) error {
	words := fmt.Sprintf("BadConstraints: node %s: %s", node, why)
	if slices.Contains(req.WantNodes, node) {
		q.tries = spanTries{}
		return errBusy{why: words, aside: true, hold: true}
	}
	q.leavesOut(node, why)
	return q.waits(words, true, spanPause)
}

func (q *queued) leavesOut(node, why string) {
	if q.tries.avoid == nil {
		q.tries.avoid = make(map[string]avoided)
	}
	q.tries.avoid[node] = avoided{why: why, until: time.Now().Add(spanAvoid)}
}

// findsBusy notes that a node has not what the job needs just now. Where the job can do without
// it, others are tried first: only the CPUs that are free are known before a node is asked for
// its share.
func (q *queued) findsBusy(req *step.Request, node string, r *shareReply) error {
	if r.UserSteps {
		return q.waits(fmt.Sprintf("UserStepsMax: node %s: %s", node, r.Busy), true, spanRetry)
	}
	q.tries.pause = min(max(spanPause, 2*q.tries.pause), spanRetry)
	pause := q.tries.pause
	if !slices.Contains(req.WantNodes, node) {
		if q.tries.avoid == nil {
			q.tries.avoid = make(map[string]avoided)
		}
		q.tries.avoid[node] = avoided{why: r.Busy, until: time.Now().Add(spanRetry), busy: true}
		pause = 0
	}
	return q.waits(fmt.Sprintf("Resources: node %s: %s", node, r.Busy), false, pause)
}

// reserveSpan is reserve for a job of several nodes. It has its CPUs here before the others
// are asked for their shares.
func (q *queued) reserveSpan(rec *queuedRecord, req *step.Request, user step.User) error {
	n, own := q.n, *req
	if err := n.withThisNode(&own, "a batch job"); err != nil {
		return err
	}
	chosen, err := q.chooseNodes(&own)
	if err != nil {
		return err
	}
	in, err := q.shareRequest(rec, own, user, chosen)
	if err != nil {
		return err
	}
	place, err := n.ownShare(in.Layout, req)
	if err != nil {
		return err
	}
	a, freed, err := n.reg.tryAdmit(place, user.UID, true, nil)
	if err != nil {
		q.tries.last = errBusy{}
		return notAdmitted(freed, err)
	}
	return q.asks(true, func(ctx context.Context) error {
		return q.started(q.takeShares(ctx, in, rec, req, user, a))
	})
}

// takeShares makes the job that has its CPUs here a running one, when others have given
// theirs.
func (q *queued) takeShares(ctx context.Context, in *partRequest, rec *queuedRecord, req *step.Request, user step.User, a *admission) (*follower, *step.Spec, error) {
	n := q.n
	span, given, err := q.askShares(ctx, in, req, len(a.cpus))
	if err != nil {
		n.reg.abandon(a)
		n.giveUpShares(in, given)
		return nil, nil, err
	}
	if rec.Restarts > 0 {
		n.forget([]step.ID{q.batchID()}) // of its last run
	}
	f, spec, err := n.reserveAdmitted(api.Peer{UID: rec.By}, user, a, order{
		req: req, state: step.Starting, received: rec.Submitted, queued: rec, span: span,
	})
	if err != nil {
		n.giveUpShares(in, given)
		return nil, nil, cannotStart(err)
	}
	return f, spec, nil
}

// shareRequest says what each of the job's nodes is asked for. own is its request, which has
// this node among those that it wants.
func (q *queued) shareRequest(rec *queuedRecord, own step.Request, user step.User, chosen []candidate) (*partRequest, error) {
	n := q.n
	layout, err := n.dealTo(&own, chosen, nil)
	if err != nil {
		return nil, err
	}
	// The script is this node's, and the rest is its queue's.
	own.Script, own.Array, own.Begin, own.Requeue = nil, "", nil, nil
	own.Hold, own.Dependency, own.KillInvalidDep = false, "", nil
	raw, err := encodeRequest(&own)
	if err != nil {
		return nil, err
	}
	in := &partRequest{
		ID: step.ID{Job: q.job}, Head: n.cfg.NodeName, By: rec.By, User: user, Request: raw, Layout: layout,
		Batch: &batchShare{shareRun: shareRun{Submitted: rec.Submitted, Restarts: rec.Restarts, Asked: time.Now().Round(0)}, NextStep: rec.NextStep, Array: rec.Array},
	}
	for _, c := range chosen {
		in.JobNodes = append(in.JobNodes, c.name)
	}
	return in, nil
}

// chooseNodes picks the job's nodes. Others are asked what they have only where this one has
// room; those behind the job wait with it only for what others will give back.
func (q *queued) chooseNodes(req *step.Request) ([]candidate, error) {
	n := q.n
	names, err := n.mayGet(req)
	if err != nil { // the files may be mended
		return nil, q.waits("BadConstraints: "+api.MessageOf(err), true, spanRetry)
	}
	mine := candidate{name: n.cfg.NodeName}
	mine.cpus, mine.free, mine.why = n.reg.room(nil)
	if req.Overcommit {
		mine.free = mine.cpus
	}
	switch {
	case mine.why != "":
		return nil, errBusy{why: "node is " + mine.why, all: true}
	case mine.room(req) < 1:
		q.tries.last = errBusy{} // who comes behind it is not to have what it lacks
		return nil, errBusy{why: fmt.Sprintf("Resources: node %s: %d CPUs are free", mine.name, mine.free)}
	}
	if n.queue.asker() != nil {
		return nil, q.waitsTurn()
	}
	cands, ok := n.queue.known(names)
	if !ok {
		return nil, q.asks(false, func(ctx context.Context) error {
			if _, err := n.look(ctx, names); err != nil {
				return q.waits("noded cannot ask other nodes: "+err.Error(), true, spanRetry)
			}
			return nil
		})
	}
	for i, c := range cands {
		if c.name == mine.name { // as it is now
			cands[i] = mine
		}
		if req.Overcommit {
			cands[i].free = c.cpus
		}
	}
	all := slices.Clone(cands) // with those that are busy
	for i, c := range cands {
		if a, ok := q.tries.avoid[c.name]; ok && a.until.After(time.Now()) {
			if cands[i].why = a.why; !a.busy {
				all[i].why = a.why
			}
		}
	}
	chosen, err := choose(req, cands)
	if err == nil {
		return chosen, nil
	}
	why := api.MessageOf(err)
	if fitsAlone(req, all) {
		return nil, q.waits("Resources: "+why, false, spanPause)
	}
	return nil, q.waits("ReqNodeNotAvail: "+why, true, spanPause)
}

// askShares asks the other nodes for their shares. given are those that have given one, or
// may have. mine are this node's CPUs.
func (q *queued) askShares(ctx context.Context, in *partRequest, req *step.Request, mine int) (span *batchSpan, given []string, err error) {
	n := q.n
	n.queue.unsee() // they have less from here on
	others := slices.DeleteFunc(slices.Clone(in.JobNodes), func(name string) bool { return name == n.cfg.NodeName })
	answers, err := n.fan(ctx, "allocate", in, partsOf(others))
	if err != nil {
		return nil, nil, q.waits("noded cannot ask other nodes: "+err.Error(), true, spanRetry)
	}
	span = &batchSpan{nodes: in.JobNodes, cpus: make([]int, len(in.JobNodes)), run: &in.Batch.shareRun}
	span.cpus[slices.Index(in.JobNodes, n.cfg.NodeName)] = mine
	var first error // what is told, and done
	for _, a := range answers {
		var r shareReply
		if a.err == nil {
			if jerr := json.Unmarshal(a.body, &r); jerr != nil {
				a.err = api.Errorf(api.Internal, "its answer cannot be parsed: %v", jerr)
			}
		}
		var why error
		switch {
		case a.err == nil && r.Taken == nil && r.Busy == "":
			span.cpus[slices.Index(in.JobNodes, a.node)] = r.CPUs
			given = append(given, a.node)
			continue
		case r.Taken != nil:
			why = q.avoids(req, a.node, fmt.Sprintf("another job has the number %d there, since it could not be told of this one", q.job))
		case r.Busy != "":
			why = q.findsBusy(req, a.node, &r)
		case passes(a.err):
			given = append(given, a.node) // perhaps
			why = q.waits(fmt.Sprintf("ReqNodeNotAvail: node %s: %s", a.node, api.MessageOf(a.err)), true, spanRetry)
		default:
			why = q.avoids(req, a.node, api.MessageOf(a.err))
		}
		if busy, ok := errors.AsType[errBusy](why); first == nil || ok && busy.hold {
			first = why
		}
	}
	return span, given, first
}

// passes tells whether a node has refused its share for what may pass by itself.
func passes(err error) bool {
	switch api.CodeOf(err) {
	case api.Unavailable, api.DeadlineExceeded, api.Canceled, api.Internal, api.Unknown, api.FailedPrecondition:
		return true
	}
	return false
}

// giveUpShares lets go of what nodes have given to a job that waits on. Who does not hear of
// it asks this node for the job.
func (n *Node) giveUpShares(in *partRequest, given []string) {
	if len(given) == 0 {
		return
	}
	ctx, stop := n.untilStopped()
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, spanTime)
	defer cancel()
	answers, err := n.fan(ctx, "release", stepRequest{ID: in.ID, Reason: "another node did not give its share", Run: &in.Batch.shareRun}, partsOf(given))
	if err != nil {
		n.log.WithField("job", in.ID.Job).Errorf("%v", err)
	}
	for _, a := range answers {
		if a.err != nil {
			n.log.WithField("job", in.ID.Job).Warnf("cannot take back the share of node %s, which will ask for the job: %s", a.node, api.MessageOf(a.err))
		}
	}
}

// asks tells whether this node may be about to ask others for their shares of a job.
func (qs *queue) asks(job uint32) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.all[job]
	return q != nil && q.starting
}

// lendShare gives this node's share to a batch job of another one's queue.
func (n *Node) lendShare(in *partRequest, req *step.Request, user step.User) (any, error) {
	if in.ID.Job == 0 || in.ID.Job >= jobsEnd {
		return nil, api.Errorf(api.InvalidArgument, "%d is no job number: want 1 to %d", in.ID.Job, uint32(jobsEnd-1))
	}
	if j := n.reg.job(in.ID.Job); j != nil && j.OfBatch && j.Head == in.Head {
		if in.Batch.follows(j.Run) { // else who asks has no part of it, or has asked late
			n.releaseJob(j, "its head asks for it anew")
		}
		return shareReply{Busy: "the share that it had before has not ended yet"}, nil
	}
	place, err := n.ownShare(in.Layout, req)
	if err != nil {
		return nil, err
	}
	a, freed, err := n.reg.tryAdmit(place, user.UID, in.By == 0, nil)
	switch {
	case errors.As(err, new(errUserSteps)):
		return shareReply{Busy: api.MessageOf(err), UserSteps: true}, nil
	case freed != nil:
		return shareReply{Busy: api.MessageOf(err)}, nil
	case err != nil:
		return nil, err
	}
	rec := n.jobOf(n.spec(req, user, a))
	rec.ID, rec.Origin, rec.OfBatch, rec.Nodes, rec.Head, rec.NoKill = in.ID.Job, step.OriginAlloc, true, in.JobNodes, in.Head, req.NoKill
	rec.Array, rec.Restarts, rec.Run = in.Batch.Array, in.Batch.Restarts, &in.Batch.shareRun
	again, err := n.store.lend(&rec, req.JobControl, lentRecord{Head: in.Head, Submitted: in.Batch.Submitted, NextStep: in.Batch.NextStep})
	if err != nil {
		n.reg.abandon(a)
		if taken, ok := errors.AsType[errTaken](err); ok {
			return shareReply{Taken: &taken.next}, nil
		}
		if errors.Is(err, errLent) { // to an earlier request, which the spool has held up
			return shareReply{Busy: err.Error()}, nil
		}
		return nil, api.NewError(api.Internal, err.Error())
	}
	if again {
		n.forget([]step.ID{{Job: rec.ID, Step: step.ExternStep}})
	}
	n.reg.newJob(a, rec)
	j := a.job
	n.work.Go(func() { n.watchHead(j) })
	n.log.WithField("job", j.ID).WithField("uid", j.UID).Infof("share of a batch job of %d nodes given to %s", len(j.Nodes), in.Head)
	return shareReply{CPUs: len(j.cpus)}, nil
}
