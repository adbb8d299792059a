package node

import (
	"context"
	"fmt"

	"stepd/api"
)

// Who holds a job.
const (
	heldByUser = "user" // its user, or root for him
	heldByRoot = "root"
)

// heldWords is why a job is held, in Slurm's words.
func (r *queuedRecord) heldWords() string {
	switch {
	case r.Held == heldByRoot && r.HeldWhy != "": // it was put back first
		return fmt.Sprintf("JobHeldAdmin: root holds it (%s)", r.HeldWhy)
	case r.Held == heldByRoot:
		return "JobHeldAdmin: root holds it"
	case r.HeldWhy != "":
		return fmt.Sprintf("%s: `stepctl release %d` lets it start", r.HeldWhy, r.Job)
	}
	return fmt.Sprintf("JobHeldUser: `stepctl release %d` lets it start", r.Job)
}

// Hold keeps batch jobs that wait from their start, or lets go of them.
func (s *service) Hold(ctx context.Context, in *api.HoldRequest) (*api.Empty, error) {
	ref := in.GetJob()
	switch {
	case in.GetRequeue() && in.GetRelease():
		return nil, api.NewError(api.InvalidArgument, "requeue and release exclude each other")
	case in.GetRequeue():
		return s.requeue(ctx, ref, true)
	}
	all := ref != nil && ref.ArrayTask == nil // the first task's job has the array's number
	who, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.n.ofTask(ctx, ref); err != nil {
		return nil, err
	}
	job := ref.GetJobId()
	jobs := s.n.queue.list(func(q *queued) bool { return q.job == job || all && ofArray(q, job) })
	if len(jobs) == 0 {
		if _, err := s.own(ctx, ref); err != nil {
			return nil, err
		}
		return nil, api.Errorf(api.FailedPrecondition, "job %d is no batch job that waits", job)
	}
	if err := mayActOn(ctx, jobs); err != nil {
		return nil, err
	}
	done, err := s.n.queue.hold(jobs, who, in.GetRelease())
	switch {
	case err != nil:
		return nil, err
	case !done && in.GetRelease():
		return nil, api.Errorf(api.FailedPrecondition, "job %d is not held", job)
	case !done:
		return nil, api.Errorf(api.FailedPrecondition, "job %d has been started", job)
	}
	s.n.queue.kick()
	return &api.Empty{}, nil
}

// holderOf is who holds a job of uid's that who has asked to be held.
func holderOf(who api.Peer, uid uint32) string {
	if who.Root() && uid != 0 {
		return heldByRoot
	}
	return heldByUser
}

// hold changes who holds jobs, of those that wait. done tells that there was one.
func (qs *queue) hold(jobs []*queued, who api.Peer, release bool) (done bool, err error) {
	qs.change.Lock()
	defer qs.change.Unlock()
	var of []*queued
	var recs, old []queuedRecord
	qs.mu.Lock()
	for _, q := range jobs {
		switch rec := q.rec; {
		case qs.all[q.job] != q || rec.Started || q.starting || q.cancelled != "" || release && rec.Held == "":
			continue
		case release && rec.Held == heldByRoot && !who.Root():
			qs.mu.Unlock()
			return false, api.Errorf(api.PermissionDenied, "permission denied: root holds job %d", q.job)
		case release:
			rec.Held, rec.HeldWhy = "", ""
			of, recs, old = append(of, q), append(recs, rec), append(old, q.rec)
		default:
			if rec.Held != heldByRoot {
				rec.Held = holderOf(who, rec.UID)
			}
			of, recs, old = append(of, q), append(recs, rec), append(old, q.rec)
		}
	}
	for i, q := range of { // now, so that nobody starts it meanwhile
		if !release {
			q.rec.Held = recs[i].Held
		}
	}
	qs.mu.Unlock()
	if len(of) == 0 {
		return false, nil
	}
	err = of[0].n.store.setWaiting(recs, old)
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for i, q := range of {
		kept := &recs[i]
		if err != nil {
			kept = &old[i]
		}
		q.rec.Held, q.rec.HeldWhy = kept.Held, kept.HeldWhy
		if q.rec.Held != "" {
			q.step.Reason = q.rec.heldWords()
		} else {
			q.step.Reason = "Priority: it was not looked at yet"
		}
	}
	if err != nil {
		return false, api.NewError(api.Internal, err.Error())
	}
	return true, nil
}

// requeueHeld lets a job that could not be started wait again, held, whether it may be run
// again or not.
func (n *Node) requeueHeld(job uint32, why string) {
	q := n.queue.get(job)
	if q == nil {
		return
	}
	qs := &n.queue
	qs.change.Lock()
	defer qs.change.Unlock()
	rec := q.now()
	if qs.get(job) != q || !rec.Started || rec.Cancelled {
		return // meanwhile
	}
	rec.Again, rec.Held, rec.HeldWhy = true, heldByUser, why
	if err := qs.set(q, rec); err != nil {
		n.log.WithField("job", job).Errorf("%v", err)
	}
}

// holdFor holds a job that waits, with the reason why it cannot be started. It returns false
// where that could not be stored.
func (q *queued) holdFor(why string) bool {
	qs := &q.n.queue
	qs.change.Lock()
	defer qs.change.Unlock()
	qs.mu.Lock()
	rec, old, gone := q.rec, q.rec, qs.all[q.job] != q || q.rec.Held != "" || q.cancelled != ""
	qs.mu.Unlock()
	if gone {
		return true // meanwhile
	}
	rec.Held, rec.HeldWhy = heldByUser, why
	if err := q.n.store.setWaiting([]queuedRecord{rec}, []queuedRecord{old}); err != nil {
		q.n.log.WithField("job", q.job).Errorf("%v", err)
		return false
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q.rec.Held, q.rec.HeldWhy = rec.Held, rec.HeldWhy
	q.step.Reason = q.rec.heldWords()
	return true
}
