package node

import (
	"time"

	"stepd/api"
	"stepd/step"
)

// What becomes of a batch job of several nodes that has all of its shares: its other nodes
// are made ready for its steps, then its script starts; who ends its share ends the job.

// openBatch starts the job whose batch step is f, when the other nodes are ready for its
// steps: with PrologFlags=Alloc, when their prologs have ended.
func (q *queued) openBatch(f *follower, spec *step.Spec) {
	n, j := q.n, f.job
	if n.cfg.Scripts.AtAlloc && !n.cfg.Scripts.NoHold && n.awaitsProlog(j) && n.reg.keep(j) {
		// Beside theirs. What comes of it is the launch's to tell.
		n.work.Go(func() { _ = n.prologAlone(j, spec.User) })
	}
	refused, err := n.openOthers(j, spec.User)
	released := n.reg.opened(j, api.CodeOf(err) == api.Aborted)
	select {
	case <-n.stopping:
		if f.claim() { // the next noded ends this run, of which nothing has begun
			n.requeueLost(j.ID)
		}
		return
	default:
	}
	switch {
	case err == nil && released == "":
	case !f.claim(): // somebody has ended it
		return
	case api.CodeOf(err) == api.Aborted: // a prolog
		why := api.MessageOf(err)
		if n.cfg.Scripts.Requeue {
			n.requeueHeld(j.ID, "launch failed requeued held: "+why)
		}
		f.failOpening(why, step.Failed, prologExitCode)
		return
	case released != "":
		n.queue.lastRun(q)
		f.giveBack(released)
		return
	default: // a node is lost, and nothing of the job has run
		q.opensLater(refused, api.MessageOf(err))
		n.requeueLost(j.ID)
		f.failOpening(api.MessageOf(err), step.Failed, 1)
		return
	}
	n.work.Go(func() { n.watchShares(j) })
	if !f.claim() {
		return
	}
	// What fails from here on is the step's result.
	if _, err := f.launch(nil); err == nil {
		f.log.WithField("uid", j.UID).Infof("batch job of %d nodes started: %s", len(j.Nodes), n.cfg.Others.List(j.Nodes))
	}
}

// opensLater puts off the next run of a job, which nodes have refused to open, and leaves
// these out: it would come to the same end, as often as it can be started. Its caller has
// claimed the batch step: until that ends, the tries are not runQueue's.
func (q *queued) opensLater(refused map[string]string, why string) {
	for node, why := range refused {
		q.leavesOut(node, why)
	}
	_ = q.waits("ReqNodeNotAvail: "+why, true, spanRetry) // told when it waits
}

// openOthers lets the job take steps on its other nodes. refused are those that do not, for
// what need not pass, and why.
func (n *Node) openOthers(j *job, user step.User) (refused map[string]string, err error) {
	ctx, cancel := n.untilStopped()
	defer cancel()
	go func() { // ends with ctx, which ends with this call
		select {
		case <-j.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	limit := time.Duration(0) // as long as the job lasts
	if most := n.cfg.Scripts.Timeout; most > 0 {
		limit = most + fanTimeout
	}
	answers, err := n.fanWithin(ctx, limit, "open", openRequest{ID: step.ID{Job: j.ID}, User: user, NodeCPUs: n.reg.nodeCPUs(j), Run: j.Run}, partsOf(n.others(&j.jobRecord)))
	if err != nil {
		return nil, api.NewError(api.Internal, err.Error())
	}
	refused = make(map[string]string)
	for _, a := range answers {
		switch api.CodeOf(a.err) {
		case api.OK:
			continue
		case api.Unavailable, api.DeadlineExceeded, api.Canceled, api.Aborted:
		default:
			refused[a.node] = api.MessageOf(a.err)
		}
		if e := api.Errorf(api.CodeOf(a.err), "node %s: %s", a.node, api.MessageOf(a.err)); err == nil || api.CodeOf(e) == api.Aborted {
			err = e
		}
	}
	return refused, err
}

// failOpening ends a job that could not be started on another node; its caller has claimed
// its batch step.
func (f *follower) failOpening(why string, state step.State, code int) {
	f.log.Errorf("cannot start the job: %s", why)
	f.unreserve().close(f.n.store.gate)
	f.dieWith(why, state, code)
	f.cleanup()
}

// opens says that the other nodes of a batch job are not ready yet, opened that they are, or
// will not be. Where a prolog has failed, its node says so by the end of its share as well,
// maybe later: the end of the job stays openBatch's. opened returns why a node has ended
// the job meanwhile, "" where none has.
func (r *registry) opens(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	j.opening = true
}

func (r *registry) opened(j *job, failed bool) (why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	j.opening = failed
	return j.endWhy
}

// endsOpening leaves the end of a job to openBatch; false is that this is over.
func (r *registry) endsOpening(j *job, why string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if j.opening && j.endWhy == "" {
		j.endWhy = why
	}
	return j.opening
}

// endsShare notes why this node ends its share of a batch job.
func (r *registry) endsShare(j *job, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !j.shut {
		j.endWhy = why
	}
}

// endsHere tells whether this node has ended its share by itself.
func (r *registry) endsHere(j *job) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return j.OfBatch && j.endWhy != ""
}

// endBatch ends a batch job for good whose share another node has ended.
func (n *Node) endBatch(j *job, reason string) {
	if n.reg.endsOpening(j, reason) {
		return
	}
	if q := n.queue.get(j.ID); q != nil {
		n.queue.lastRun(q)
	}
	n.cancelScript(j, reason)
}

// cancelScript ends a job's batch step, and the job with it.
func (n *Node) cancelScript(j *job, reason string) {
	if f := n.reg.follower(step.ID{Job: j.ID, Step: step.BatchStep}); f != nil {
		n.cancelLater(f, reason)
	}
}

// loseShare ends a job that has lost a node. A batch job runs again, as after the loss of
// its own node, unless it may not.
func (n *Node) loseShare(j *job, why string) {
	if !j.leadsBatch() {
		n.endAlloc(j, why)
		return
	}
	f := n.reg.follower(step.ID{Job: j.ID, Step: step.BatchStep})
	if f == nil || n.reg.isShut(j) || isEnding(f, f.record()) {
		return // its end has begun
	}
	n.log.WithField("job", j.ID).Warnf("ending the batch job: %s", why)
	n.requeueLost(j.ID)
	n.cancelScript(j, why)
}

// tellTime is how long a batch job's end waits for its other nodes.
const tellTime = 5 * time.Second

// leaveNodes waits until a batch job's other nodes have heard of its end, for its next run
// may need them; of a share that this node has ended, until its head has. It returns false where
// noded stops before that: then the next one ends the share, and tells the head why.
func (n *Node) leaveNodes(j *job) bool {
	limit := time.Duration(tellTime)
	switch {
	case j.leadsBatch():
		n.tellEnd(j, jobEnded)
	case n.reg.endsHere(j):
		limit += n.cfg.Others.NodeTimeout
	default:
		return true
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-j.told: // or it is given up
	case <-n.stopping:
	case <-late.C:
	}
	select {
	case <-n.stopping:
		return !n.reg.endsHere(j)
	default:
		return true
	}
}
