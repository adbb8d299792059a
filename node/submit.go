package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"stepd/api"
	"stepd/internal/linux"
	"stepd/step"
)

const (
	// userQueueMax bounds the batch jobs of one user other than root that have not ended
	// (MaxJobCount of Slurm, by user).
	userQueueMax = 10000
	// restartReason is a batch job's word for its end when it is to run again.
	restartReason = "it was requeued"
	// downDelay is when a batch job runs again whose stepd was told that the host goes
	// down, if it does not. The noded of the next boot does not wait for that.
	downDelay = 2 * time.Minute
)

// submit puts a batch job, or an array of them, into the queue. What will never fit is
// refused.
func (n *Node) submit(ctx context.Context, caller api.Peer, raw []byte) (first uint32, err error) {
	received := time.Now()
	req, err := n.decode(raw)
	if err != nil {
		return 0, err
	}
	if err = n.check(req); err != nil {
		return 0, err
	}
	if n.severalNodes(req) {
		return 0, api.NewError(api.InvalidArgument, "nnodes: a batch job is for this node alone: several nodes: use Slurm (docs/slurm.md)")
	}
	user, err := n.userFor(ctx, caller, req)
	if err != nil {
		return 0, err
	}
	array, err := n.arrayOf(req)
	if err != nil {
		return 0, err
	}
	if err := n.reg.mayQueue(req); err != nil {
		return 0, err
	}
	depends, err := n.dependOrder(ctx, req, array)
	if err != nil {
		return 0, err
	}
	n.queue.change.Lock()
	defer n.queue.change.Unlock()
	if err := n.mayHold(user.UID, len(array.Tasks), len(raw), len(array.Tasks)*len(depends.all)); err != nil {
		return 0, err
	}
	jobs, recs := make([]*queuedRecord, len(array.Tasks)), make([]*step.Record, len(array.Tasks))
	for i := range jobs {
		jobs[i] = n.queuedAs(caller, user, req, array)
		jobs[i].Submitted, jobs[i].Depends, jobs[i].AnyDepend = received, depends.of(array.Tasks[i]), depends.any
		if req.Array != "" {
			jobs[i].Array = array.Of(0, i)
		}
		recs[i] = n.pendingRecord(user, req, received)
	}
	if err := n.store.submit(raw, jobs, recs); err != nil {
		return 0, api.NewError(api.Internal, err.Error())
	}
	n.enqueue(jobs, recs)
	n.log.WithField("job", jobs[0].Job).WithField("uid", user.UID).Infof("%d batch jobs queued", len(jobs))
	return jobs[0].Job, nil
}

// enqueue lets jobs that are stored wait for their turn.
func (n *Node) enqueue(jobs []*queuedRecord, recs []*step.Record) {
	all := make([]*queued, len(jobs))
	for i := range jobs {
		all[i] = n.newQueued(*jobs[i], *recs[i])
	}
	n.queue.put(all...)
}

// arrayOf are the tasks of a request, which is one where it is of no array.
func (n *Node) arrayOf(req *step.Request) (*step.Array, error) {
	if req.Array == "" {
		return &step.Array{Tasks: []uint32{0}}, nil
	}
	array, err := step.ParseArray(req.Array, n.cfg.MaxArraySize)
	if err != nil {
		return nil, api.Errorf(api.InvalidArgument, "array: %.80q: %v", req.Array, err)
	}
	return array, nil
}

// pendingRecord is that of a batch step which nobody has looked at yet.
func (n *Node) pendingRecord(user step.User, req *step.Request, received time.Time) *step.Record {
	return &step.Record{
		Name: req.Name, UID: user.UID, User: user.Name, Node: n.cfg.NodeName, State: step.Pending, Reason: "Priority: it was not looked at yet",
		NTasks: 1, Command: shownCommand(req.Argv), Submitted: received, BootID: n.boot, TimeLimitS: req.TimeLimitS,
		Tasks: []step.Task{{State: step.TaskPending}},
	}
}

// queuedAs is what every job of a submission is in the queue.
func (n *Node) queuedAs(caller api.Peer, user step.User, req *step.Request, array *step.Array) *queuedRecord {
	q := &queuedRecord{
		By: caller.UID, UID: user.UID, AtOnce: array.AtOnce, Begin: req.Begin, NoRequeue: n.cfg.NoRequeue, KillInvalid: n.cfg.KillInvalidDep,
	}
	if req.Requeue != nil {
		q.NoRequeue = !*req.Requeue
	}
	if req.KillInvalidDep != nil {
		q.KillInvalid = *req.KillInvalidDep
	}
	if req.Hold {
		q.Held = heldByUser
	}
	return q
}

// isBatch tells whether a request has a script. What is wrong with it is told later.
func (n *Node) isBatch(raw []byte) bool {
	if !bytes.Contains(raw, []byte(`"script":`)) {
		return false // as most are: it is not parsed twice
	}
	var req struct {
		Script json.RawMessage `json:"script"`
	}
	return len(raw) <= api.RequestMax && json.Unmarshal(raw, &req) == nil && len(req.Script) > 0
}

// mayQueue refuses what would not fit on the empty node either.
func (r *registry) mayQueue(req *step.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return api.NewError(api.Unavailable, "noded is stopping")
	}
	s := &registry{pool: newCPUPool(r.pool.cpus, r.pool.cores...), mem: &memPool{Memory: r.mem.Memory}, gres: r.gres.clone()}
	for i := range s.gres.items {
		s.gres.items[i].used = 0
	}
	if _, _, err := s.takeLocked(req, req.NTasks*req.CPUsPerTask); err != nil {
		return api.NewError(api.ResourceExhausted, err.Error())
	}
	return nil
}

// submitBatch answers Run of a batch job.
func (s *service) submitBatch(ctx context.Context, caller api.Peer, raw []byte) (*api.RunReply, error) {
	job, err := s.n.submit(ctx, caller, raw)
	if err != nil {
		return nil, s.refused(caller, err)
	}
	return &api.RunReply{JobId: job, StepId: step.BatchStep, Node: s.n.cfg.NodeName}, nil
}

// Requeue ends batch jobs, which are then started again.
func (s *service) Requeue(ctx context.Context, in *api.StepRef) (*api.Empty, error) {
	return s.requeue(ctx, in, false)
}

// requeue is Requeue; held jobs wait until they are let go of.
func (s *service) requeue(ctx context.Context, in *api.StepRef, held bool) (*api.Empty, error) {
	who, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	all := in != nil && in.ArrayTask == nil // the first task's job has the array's number
	if err := s.n.ofTask(ctx, in); err != nil {
		return nil, err
	}
	job := in.GetJobId()
	jobs := s.n.queue.list(func(q *queued) bool { return q.rec.Started && (q.job == job || all && ofArray(q, job)) })
	if len(jobs) == 0 {
		if _, err := s.own(ctx, in); err != nil {
			return nil, err
		}
		return nil, api.Errorf(api.FailedPrecondition, "job %d is no batch job that runs", job)
	}
	if err := mayActOn(ctx, jobs); err != nil {
		return nil, err
	}
	for _, q := range jobs {
		holder := ""
		if held {
			holder = holderOf(who, q.now().UID)
		}
		if err := s.n.requeue(ctx, q, holder); err != nil {
			return nil, err
		}
	}
	return &api.Empty{}, nil
}

func ofArray(q *queued, job uint32) bool { return q.rec.Array != nil && q.rec.Array.Job == job }

// mayActOn refuses others' jobs. The records of their steps may be forgotten.
func mayActOn(ctx context.Context, jobs []*queued) error {
	p, err := caller(ctx)
	if err != nil {
		return err
	}
	for _, q := range jobs {
		if !mayAct(p, q.now().UID) {
			return errDenied
		}
	}
	return nil
}

// requeue ends a job that runs, and lets it be put back at its end, held by somebody or,
// with "", by nobody.
func (n *Node) requeue(ctx context.Context, q *queued, held string) error {
	f := n.reg.follower(q.batchID())
	switch {
	case f == nil || f.record().State.Final() || q.now().Cancelled:
		return api.Errorf(api.FailedPrecondition, "job %d is ending", q.job)
	case q.now().NoRequeue:
		return api.Errorf(api.FailedPrecondition, "job %d is not to be run again (--no-requeue, or JobRequeue=0 of slurm.conf)", q.job)
	}
	if err := n.queue.setAgain(q, held); err != nil {
		return api.NewError(api.Internal, err.Error())
	}
	if err := f.cancel(ctx, restartReason); err != nil {
		return api.Errorf(api.Unavailable, "cannot end job %d, which is put back into the queue at its end: %v", q.job, err)
	}
	return nil
}

// setAgain says, for ever, that the job is to be put back at its end, and who holds it
// then; "" changes nothing of that.
func (qs *queue) setAgain(q *queued, held string) error {
	qs.change.Lock()
	defer qs.change.Unlock()
	rec := q.now()
	if qs.get(q.job) != q || !rec.Started || rec.Cancelled {
		return nil // meanwhile
	}
	rec.Again = true
	if held != "" && rec.Held != heldByRoot {
		rec.Held = held
	}
	return qs.set(q, rec)
}

// set stores what has changed of a job. The caller holds change.
func (qs *queue) set(q *queued, rec queuedRecord) error {
	if err := q.n.store.setQueued(&rec, q.now()); err != nil {
		return err
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q.rec = rec
	return nil
}

// lastRun says, for ever, that jobs which run are not to run again. kept tells that
// one was to. Where that cannot be stored, it holds until noded's end.
func (qs *queue) lastRun(jobs ...*queued) (kept bool) {
	qs.change.Lock()
	defer qs.change.Unlock()
	for _, q := range jobs {
		rec := q.now()
		if qs.get(q.job) != q || !rec.Started || rec.Cancelled {
			continue
		}
		kept = kept || rec.Again
		rec.Again, rec.Cancelled = false, true
		if err := q.n.store.setQueued(&rec); err != nil {
			q.n.log.WithField("job", q.job).Errorf("%v", err)
		}
		qs.mu.Lock()
		q.rec = rec
		qs.mu.Unlock()
	}
	return kept
}

// requeueLost lets a job run again that the node's end has ended.
func (n *Node) requeueLost(job uint32) {
	q := n.queue.get(job)
	if q == nil || q.now().NoRequeue {
		return
	}
	if err := n.queue.setAgain(q, ""); err != nil {
		n.log.WithField("job", job).Errorf("%v", err)
	}
}

// batchOver is what tells those who wait for a batch job that it has ended; it tells nobody
// where the job is to run again.
func (n *Node) batchOver(id step.ID) func() {
	if q := n.queue.get(id.Job); q != nil && id.Step == step.BatchStep && !n.queue.again(q) {
		return q.over
	}
	return func() {}
}

func (qs *queue) again(q *queued) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return q.rec.Again
}

// forgetJob stores a job's end, or puts it back into the queue. done is to be called when
// its number is free for its next start. Where it could not be stored, forgetJob is to be
// called again.
func (n *Node) forgetJob(job uint32) (done func(), err error) {
	q := n.queue.get(job)
	if q == nil {
		return func() {}, n.store.endJob(job)
	}
	n.queue.change.Lock()
	defer n.queue.change.Unlock()
	if !n.queue.again(q) {
		err := n.store.endJob(job)
		n.queue.tellFailed(q.now().Array, n.runEnd(q))
		n.queue.remove(job) // now, so that nobody stores it again
		return q.over, err
	}
	rec := q.now()
	rec.Started, rec.Again, rec.Begin = false, false, nil
	rec.Restarts++
	old, err := n.store.step(q.batchID())
	if err != nil {
		return func() {}, err
	}
	if old.State == step.NodeFail && linux.SameBoot(old.BootID, n.boot) {
		later := time.Now().Add(downDelay) // it would only be ended again
		rec.Begin = &later
	}
	first := step.Record{
		ID: old.ID, Name: old.Name, UID: old.UID, User: old.User, Node: old.Node, State: step.Pending, NTasks: old.NTasks, Command: old.Command,
		Reason: fmt.Sprintf("Requeued: run %d waits", rec.Restarts+1), Submitted: old.Submitted, Array: old.Array, Restarts: rec.Restarts,
		Tasks: []step.Task{{State: step.TaskPending}}, BootID: n.boot,
	}
	if err := n.store.putBack(&rec, &first); err != nil {
		return func() {}, err
	}
	n.forget([]step.ID{{Job: job, Step: step.ExternStep}}) // the next run has its own
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	// From here on it waits, and can be cancelled; done lets it start.
	q.rec, q.step, q.runEnd, q.starting = rec, first, "", true
	return q.mayStart, nil
}

// runEnd is how the job's run has ended, "" where that is not known.
func (n *Node) runEnd(q *queued) step.State {
	n.queue.mu.Lock()
	state := q.runEnd
	n.queue.mu.Unlock()
	if state != "" {
		return state
	}
	// It ended while an earlier noded ran.
	if rec, err := n.store.step(q.batchID()); err == nil && isFinal(rec.State) {
		return rec.State
	}
	return ""
}

// ran notes how a batch job's run has ended, whatever of it can be stored.
func (qs *queue) ran(id step.ID, state step.State) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if q := qs.all[id.Job]; q != nil && id.Step == step.BatchStep {
		q.runEnd = state
	}
}

// mayStart lets a job start that was put back, or ends it where it was cancelled since.
func (q *queued) mayStart() {
	qs := &q.n.queue
	qs.mu.Lock()
	q.starting = false
	cancelled := q.cancelled
	qs.mu.Unlock()
	if cancelled != "" {
		if err := q.endCancelled(cancelled); err != nil {
			q.n.log.WithField("job", q.job).Errorf("%v", err)
		}
	}
	qs.kick()
}

// cancelBatch ends a batch job for good: it is not put back at its end. kept tells that it
// was to be.
func (s *service) cancelBatch(ctx context.Context, ref *api.StepRef) (kept bool, err error) {
	q := s.n.queue.get(ref.GetJobId())
	if q == nil || ref.StepId != nil && *ref.StepId != step.BatchStep {
		return false, nil
	}
	if err := mayActOn(ctx, []*queued{q}); err != nil {
		return false, err
	}
	return s.n.queue.lastRun(q), nil
}

// cancelArray ends the jobs of an array, if job is one: those that wait at once.
func (s *service) cancelArray(ctx context.Context, ref *api.StepRef, reason string) (told bool, err error) {
	jobs := s.n.queue.list(func(q *queued) bool { return ofArray(q, ref.GetJobId()) })
	if len(jobs) == 0 {
		return false, nil
	}
	if err := mayActOn(ctx, jobs); err != nil {
		return false, err
	}
	s.n.queue.lastRun(jobs...)
	if err := s.n.cancelWaiting(reason, jobs...); err != nil {
		return true, api.NewError(api.Internal, err.Error())
	}
	for _, q := range jobs {
		if f := s.n.reg.follower(q.batchID()); f != nil {
			err = errors.Join(err, f.cancel(ctx, reason))
		}
	}
	if err != nil {
		return true, api.Errorf(api.Unavailable, "cannot cancel all of the array: %v", err)
	}
	return true, nil
}

// ofTask puts the job of an array's task in the place of the array's.
func (n *Node) ofTask(ctx context.Context, ref *api.StepRef) error {
	if ref == nil || ref.ArrayTask == nil {
		return nil
	}
	array, task := ref.GetJobId(), ref.GetArrayTask()
	ref.ArrayTask = nil
	job, err := n.store.arrayTask(ctx, array, task)
	switch {
	case ctx.Err() != nil:
		return api.ContextError(ctx.Err())
	case err != nil:
		return api.NewError(api.Internal, err.Error())
	case job == 0:
		return api.Errorf(api.NotFound, "no such job \"%d_%d\"", array, task)
	}
	ref.JobId = job
	return nil
}
