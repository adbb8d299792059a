package node

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"stepd/api"
	"stepd/internal/linux"
	"stepd/step"
)

// Batch jobs wait in a queue, which outlives noded, and start in its order: one that does
// not fit holds up those behind it. Steps and allocations do not wait in it, nor for it.

// queue is the batch jobs that have not ended for good.
type queue struct {
	mu   sync.Mutex
	all  map[uint32]*queued // guarded by mu
	runs sync.WaitGroup     // runQueue, and watchClock
	// wake says that something may be started; size 1: one word is enough.
	wake chan struct{}
	// change is held while what is stored of jobs is changed. Who holds mu does not ask
	// for it.
	change sync.Mutex
}

// queued is one of them.
type queued struct {
	n   *Node
	job uint32 // its number
	// rec changes under the queue's lock, as do all of these.
	rec  queuedRecord
	step step.Record // of its batch step, while it waits
	// starting: its start is under way, or the end of the run after which it was put back.
	// cancelled is why it is to end then, "" if not; owed that its end could not be stored.
	starting  bool
	cancelled string
	owed      bool
	changed   bool // what it waits for is to be stored
	// runEnd is how its run has ended, "" while that is not known.
	runEnd step.State
	// ended is closed when its batch step has ended and is not to run again.
	ended chan struct{}
	over  func() // closes ended
}

func (n *Node) newQueued(rec queuedRecord, first step.Record) *queued {
	ended := make(chan struct{})
	return &queued{n: n, job: rec.Job, rec: rec, step: first, ended: ended, over: sync.OnceFunc(func() { close(ended) })}
}

// get returns a batch job; nil is none.
func (qs *queue) get(job uint32) *queued {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return qs.all[job]
}

// waiting returns the batch job of a step that waits for its start; nil is none.
func (qs *queue) waiting(id step.ID) *queued {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if q := qs.all[id.Job]; q != nil && id.Step == step.BatchStep && !q.rec.Started {
		return q
	}
	return nil
}

// list returns the jobs for which keep is true, by number.
func (qs *queue) list(keep func(*queued) bool) (out []*queued) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, q := range qs.all {
		if keep(q) {
			out = append(out, q)
		}
	}
	slices.SortFunc(out, func(a, b *queued) int { return cmp.Compare(a.job, b.job) })
	return out
}

func (qs *queue) put(jobs ...*queued) {
	qs.mu.Lock()
	for _, q := range jobs {
		qs.all[q.job] = q
	}
	qs.mu.Unlock()
	qs.kick()
}

func (qs *queue) remove(job uint32) {
	qs.mu.Lock()
	delete(qs.all, job)
	qs.mu.Unlock()
	qs.kick()
}

// kick lets the queue look again.
func (qs *queue) kick() {
	select {
	case qs.wake <- struct{}{}:
	default:
	}
}

// mayHold refuses more jobs of a user, whose one request is of size bytes and which wait for
// so many others in all, than the queue takes. Its caller holds change until they
// are in it: without, the answer is only of now.
func (n *Node) mayHold(uid uint32, more, size, depends int) error {
	if uid == 0 {
		return nil
	}
	jobs, bytes, waits := n.queue.count(uid)
	if jobs+more > userQueueMax {
		return api.Errorf(api.ResourceExhausted, "uid %d has %d batch jobs on this node that have not ended, and %d is the limit", uid, jobs, userQueueMax)
	}
	if depends > 0 && waits+depends > dependsMax {
		return api.Errorf(api.ResourceExhausted, "uid %d has batch jobs on this node that wait for %d others in all, and %d is the limit: let one job wait for many, and the others for that", uid, waits, dependsMax)
	}
	bytes += waits * dependBytes
	size += depends * dependBytes
	if most := n.reg.perUser.RequestBytes; bytes+size > most {
		return api.Errorf(api.ResourceExhausted, "uid %d has batch jobs on this node with requests of %d bytes, and %d is the limit (UserRequestBytes)", uid, bytes, most)
	}
	return nil
}

// count counts the jobs of a user, the bytes of their requests, of which an array has one,
// and the jobs that they wait for.
func (qs *queue) count(uid uint32) (jobs, bytes, depends int) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	seen := make(map[uint32]bool)
	for _, q := range qs.all {
		if q.rec.UID != uid {
			continue
		}
		jobs++
		if !seen[q.rec.Request] {
			seen[q.rec.Request] = true
			bytes += q.rec.size
		}
		depends += len(q.rec.Depends)
	}
	return jobs, bytes, depends
}

// now is a copy of what is stored of the job.
func (q *queued) now() queuedRecord {
	q.n.queue.mu.Lock()
	defer q.n.queue.mu.Unlock()
	return q.rec
}

func (q *queued) batchID() step.ID { return step.ID{Job: q.job, Step: step.BatchStep} }

// recoverQueue takes back what an earlier noded left. waits are the batch steps that have
// not been started.
func (n *Node) recoverQueue() (waits map[step.ID]bool, err error) {
	recs, err := n.store.queue()
	if err != nil {
		return nil, err
	}
	waits = make(map[step.ID]bool)
	for _, rec := range recs {
		q := n.newQueued(*rec, step.Record{})
		if first, err := n.store.step(rec.batchID()); err == nil {
			q.step = *first
		} else if !rec.Started {
			return nil, err
		}
		if !rec.Started && rec.Restarts > 0 && !linux.SameBoot(q.step.BootID, n.boot) {
			q.rec.Begin = nil // it was downDelay
		}
		waits[rec.batchID()] = !rec.Started
		n.queue.all[rec.Job] = q
	}
	return waits, nil
}

// endWaiting ends jobs that wait: their batch steps never ran.
func (n *Node) endWaiting(why string, state step.State, jobs ...*queued) error {
	now := time.Now()
	recs := make([]*step.Record, len(jobs))
	for i, q := range jobs {
		recs[i] = q.record()
		deadRecord(recs[i], why, state, now)
	}
	ended := func() {
		for i, q := range jobs {
			n.queue.tellFailed(recs[i].Array, state)
			n.queue.remove(q.job)
			q.over()
		}
	}
	// Where that is refused, and comes true when the spool answers again, they have ended.
	forgotten, err := n.store.endQueued(recs, n.store.now(), ended)
	if err != nil {
		return err
	}
	ended()
	n.forget(forgotten)
	return nil
}

// A job that waits is a step as its user sees it.
var _ liveStep = (*queued)(nil)

func (q *queued) record() *step.Record {
	q.n.queue.mu.Lock()
	defer q.n.queue.mu.Unlock()
	rec := q.step
	rec.Tasks = slices.Clone(rec.Tasks)
	return &rec
}

func (q *queued) end() <-chan struct{} { return q.ended }

var errWaits = errors.New("it waits for its start in the queue: only cancel means anything to it")

func (q *queued) signal(context.Context, int, string) error     { return errWaits }
func (q *queued) suspend(context.Context, uint32) error         { return errWaits }
func (q *queued) unsuspend(context.Context, uint32) error       { return errWaits }
func (q *queued) cancel(_ context.Context, reason string) error { return q.n.cancelWaiting(reason, q) }

// cancelWaiting ends jobs that wait. One whose start is under way ends with that.
func (n *Node) cancelWaiting(reason string, jobs ...*queued) error {
	reason = cmp.Or(reason, "cancelled")
	n.queue.mu.Lock()
	var now []*queued
	for _, q := range jobs {
		if q.rec.Started || q.cancelled != "" {
			continue
		}
		q.cancelled = reason // so that nobody starts it
		if !q.starting {
			now = append(now, q)
		}
	}
	n.queue.mu.Unlock()
	if len(now) == 0 {
		return nil
	}
	err := n.endWaiting(reason, step.Cancelled, now...)
	if err == nil {
		return nil
	}
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	for _, q := range now {
		q.cancelled = ""
	}
	return err
}

// withWaiting puts the records of jobs that wait beside others.
func (n *Node) withWaiting(recs []*step.Record) []*step.Record {
	waiting := n.queue.list(func(q *queued) bool { return !q.rec.Started })
	if len(waiting) == 0 {
		return recs
	}
	for _, q := range waiting {
		recs = append(recs, q.record())
	}
	slices.SortFunc(recs, func(a, b *step.Record) int {
		return cmp.Or(cmp.Compare(a.ID.Job, b.ID.Job), cmp.Compare(a.ID.Step, b.ID.Step))
	})
	return recs
}
