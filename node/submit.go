package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stepd/api"
	"stepd/step"
)

const (
	// userQueueMax bounds the batch jobs of one user other than root that have not ended
	// (MaxJobCount of Slurm, by user).
	userQueueMax = 10000
	// restartReason is a batch job's word for its end when it is to run again.
	restartReason = "it was requeued"
)

// submit puts a batch job, or an array of them, into the queue. What will never fit is
// refused.
func (n *Node) submit(ctx context.Context, caller api.Peer, raw []byte) (first uint32, err error) {
	received := time.Now()
	req, err := n.decode(raw)
	if err != nil {
		return 0, err
	}
	if err := n.oneNode(req, "a batch job"); err != nil {
		return 0, err
	}
	if err := n.check(req); err != nil {
		return 0, err
	}
	user, err := n.userFor(ctx, caller, req)
	if err != nil {
		return 0, err
	}
	array := &step.Array{Tasks: []uint32{0}}
	if req.Array != "" {
		if array, err = step.ParseArray(req.Array, n.cfg.MaxArraySize); err != nil {
			return 0, status.Errorf(codes.InvalidArgument, "array: %.80q: %v", req.Array, err)
		}
	}
	if err := n.reg.mayQueue(req); err != nil {
		return 0, err
	}
	if has := n.queue.count(user.UID); user.UID != 0 && has+len(array.Tasks) > userQueueMax {
		return 0, status.Errorf(codes.ResourceExhausted, "uid %d has %d batch jobs on this node that have not ended, and %d is the limit", user.UID, has, userQueueMax)
	}
	jobs, recs := make([]*queuedRecord, len(array.Tasks)), make([]*step.Record, len(array.Tasks))
	for i := range jobs {
		jobs[i] = &queuedRecord{
			By: caller.UID, UID: user.UID, Submitted: received, AtOnce: array.AtOnce, Begin: req.Begin, NoRequeue: n.cfg.NoRequeue,
		}
		if req.Requeue != nil {
			jobs[i].NoRequeue = !*req.Requeue
		}
		if req.Array != "" {
			jobs[i].Array = array.Of(0, i)
		}
		recs[i] = &step.Record{
			Name: req.Name, UID: user.UID, User: user.Name, Node: n.cfg.NodeName, State: step.Pending, Reason: "Priority: it was not looked at yet",
			NTasks: 1, Command: shownCommand(req.Argv), Submitted: received, BootID: n.boot, TimeLimitS: req.TimeLimitS,
			Tasks: []step.Task{{State: step.TaskPending}},
		}
	}
	if err := n.store.submit(raw, jobs, recs); err != nil {
		return 0, status.Error(codes.Internal, err.Error())
	}
	all := make([]*queued, len(jobs))
	for i := range jobs {
		all[i] = n.newQueued(*jobs[i], *recs[i])
	}
	n.queue.put(all...)
	n.log.WithField("job", jobs[0].Job).WithField("uid", user.UID).Infof("%d batch jobs queued", len(jobs))
	return jobs[0].Job, nil
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
		return status.Error(codes.Unavailable, "noded is stopping")
	}
	s := &registry{pool: newCPUPool(r.pool.cpus, r.pool.cores...), mem: &memPool{Memory: r.mem.Memory}, gres: r.gres.clone()}
	for i := range s.gres.items {
		s.gres.items[i].used = 0
	}
	if _, _, err := s.takeLocked(req, req.NTasks*req.CPUsPerTask); err != nil {
		return status.Error(codes.ResourceExhausted, err.Error())
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
	if _, err := s.own(ctx, in); err != nil {
		return nil, err
	}
	job := in.GetJobId()
	jobs := s.n.queue.list(func(q *queued) bool { return q.rec.Started && (q.job == job || ofArray(q, job)) })
	if len(jobs) == 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "job %d is no batch job that runs", job)
	}
	for _, q := range jobs {
		if err := s.n.requeue(ctx, q); err != nil {
			return nil, err
		}
	}
	return &api.Empty{}, nil
}

func ofArray(q *queued, job uint32) bool { return q.rec.Array != nil && q.rec.Array.Job == job }

// requeue ends a job that runs, and lets it be put back at its end.
func (n *Node) requeue(ctx context.Context, q *queued) error {
	f := n.reg.follower(q.batchID())
	switch {
	case f == nil || f.record().State.Final():
		return status.Errorf(codes.FailedPrecondition, "job %d is ending", q.job)
	case q.now().NoRequeue:
		return status.Errorf(codes.FailedPrecondition, "job %d is not to be run again (--no-requeue, or JobRequeue=0 of slurm.conf)", q.job)
	}
	if err := n.queue.setAgain(q, true); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if err := f.cancel(ctx, restartReason); err != nil {
		return status.Errorf(codes.Unavailable, "cannot end job %d, which is put back into the queue at its end: %v", q.job, err)
	}
	return nil
}

// setAgain says, for ever, that the job is to be put back at its end.
func (qs *queue) setAgain(q *queued, again bool) error {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	rec := q.rec
	rec.Again = again
	if err := q.n.store.setQueued(&rec); err != nil {
		return err
	}
	q.rec = rec
	return nil
}

// requeueLost lets a job run again that the node's end has ended.
func (n *Node) requeueLost(job uint32) {
	q := n.queue.get(job)
	if q == nil || q.now().NoRequeue {
		return
	}
	if err := n.queue.setAgain(q, true); err != nil {
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
// its number is free for its next start.
func (n *Node) forgetJob(job uint32) (done func(), err error) {
	q := n.queue.get(job)
	if q == nil {
		return func() {}, n.store.endJob(job)
	}
	if !n.queue.again(q) {
		return func() { q.over(); n.queue.remove(job) }, n.store.endJob(job)
	}
	rec := q.now()
	rec.Started, rec.Again, rec.Begin = false, false, nil
	rec.Restarts++
	old, err := n.store.step(q.batchID())
	if err != nil {
		return func() {}, err
	}
	first := step.Record{
		ID: old.ID, Name: old.Name, UID: old.UID, User: old.User, Node: old.Node, State: step.Pending, NTasks: old.NTasks, Command: old.Command,
		Reason: fmt.Sprintf("Requeued: run %d waits", rec.Restarts+1), Submitted: old.Submitted, Array: old.Array, Restarts: rec.Restarts,
		Tasks: []step.Task{{State: step.TaskPending}}, BootID: n.boot,
	}
	if err := n.store.putBack(&rec, &first); err != nil {
		return func() {}, err
	}
	return func() {
		n.queue.mu.Lock()
		q.rec, q.step, q.cancelled = rec, first, ""
		n.queue.mu.Unlock()
		n.queue.kick()
	}, nil
}

// cancelArray ends the jobs of an array, if job is one: those that wait at once.
func (s *service) cancelArray(ctx context.Context, ref *api.StepRef, reason string) (told bool, err error) {
	jobs := s.n.queue.list(func(q *queued) bool { return ofArray(q, ref.GetJobId()) })
	if len(jobs) == 0 {
		return false, nil
	}
	if _, err := s.own(ctx, ref); err != nil { // of its first job, which has the same owner
		return false, err
	}
	if err := s.n.cancelWaiting(reason, jobs...); err != nil {
		return true, status.Error(codes.Internal, err.Error())
	}
	for _, q := range jobs {
		if f := s.n.reg.follower(q.batchID()); f != nil {
			err = errors.Join(err, f.cancel(ctx, reason))
		}
	}
	if err != nil {
		return true, status.Errorf(codes.Unavailable, "cannot cancel all of the array: %v", err)
	}
	return true, nil
}

// ofTask puts the job of an array's task in the place of the array's.
func (n *Node) ofTask(ref *api.StepRef) error {
	if ref == nil || ref.ArrayTask == nil {
		return nil
	}
	array, task := ref.GetJobId(), ref.GetArrayTask()
	ref.ArrayTask = nil
	// Its jobs follow each other in the order of their tasks.
	for i := range min(task, step.ArrayMax) + 1 {
		rec, err := n.store.step(step.ID{Job: array + i, Step: step.BatchStep})
		if err == nil && rec.Array != nil && rec.Array.Job == array && rec.Array.Task == task {
			ref.JobId = rec.Job
			return nil
		}
	}
	return status.Errorf(codes.NotFound, "no such job \"%d_%d\"", array, task)
}
