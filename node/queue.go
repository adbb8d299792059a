package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stepd/api"
	"stepd/step"
)

// Batch jobs wait in a queue, which outlives noded, and start in its order: one that does
// not fit holds up those behind it. Steps and allocations do not wait in it, nor for it.

// queue is the batch jobs that have not ended for good.
type queue struct {
	mu   sync.Mutex
	all  map[uint32]*queued // guarded by mu
	runs sync.WaitGroup     // runQueue
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

// mayHold refuses more jobs of a user, whose one request is of size bytes, than the queue
// takes. The caller holds change until they are in it.
func (n *Node) mayHold(uid uint32, more, size int) error {
	if uid == 0 {
		return nil
	}
	jobs, bytes := n.queue.count(uid)
	if jobs+more > userQueueMax {
		return status.Errorf(codes.ResourceExhausted, "uid %d has %d batch jobs on this node that have not ended, and %d is the limit", uid, jobs, userQueueMax)
	}
	if most := n.reg.perUser.RequestBytes; bytes+size > most {
		return status.Errorf(codes.ResourceExhausted, "uid %d has batch jobs on this node with requests of %d bytes, and %d is the limit (UserRequestBytes)", uid, bytes, most)
	}
	return nil
}

// count counts the jobs of a user, and the bytes of their requests, of which an array has
// one.
func (qs *queue) count(uid uint32) (jobs, bytes int) {
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
	}
	return jobs, bytes
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
		waits[rec.batchID()] = !rec.Started
		n.queue.all[rec.Job] = q
	}
	return waits, nil
}

// runQueue starts what can be started, until noded stops.
func (n *Node) runQueue() {
	for {
		freed := n.reg.freedNow()
		var timer <-chan time.Time
		if next := n.startWaiting(); !next.IsZero() {
			timer = time.After(time.Until(next))
		}
		select {
		case <-freed:
		case <-n.queue.wake:
		case <-timer:
		case <-n.stopping:
			return
		}
	}
}

// freedNow is closed when something was released since.
func (r *registry) freedNow() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.freed
}

// queueRetry is when a start is tried again that has failed for want of something that
// nobody tells of, such as the name service.
const queueRetry = 10 * time.Second

// startWaiting starts the jobs that can be started, in order, and says why the others wait.
// It returns when to look again at the latest; zero is when something changes.
func (n *Node) startWaiting() (next time.Time) {
	now := time.Now()
	later := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	running := make(map[uint32]int) // of an array
	for _, q := range n.queue.list(func(q *queued) bool { return q.rec.Started && q.rec.Array != nil }) {
		running[q.now().Array.Job]++
	}
	behind := ""                      // why nobody else starts
	byUser := make(map[uint32]string) // nor anybody of this user
	for _, q := range n.queue.list(func(q *queued) bool { return !q.rec.Started && !q.starting }) {
		select {
		case <-n.stopping:
			return next
		default:
		}
		rec := q.now()
		switch {
		case rec.Begin != nil && rec.Begin.After(now):
			q.waitFor("BeginTime: not before " + rec.Begin.Local().Format("2006-01-02T15:04:05"))
			later(*rec.Begin)
			continue
		case rec.Array != nil && rec.AtOnce > 0 && running[rec.Array.Job] >= rec.AtOnce:
			q.waitFor(fmt.Sprintf("JobArrayTaskLimit: %d of its array run", running[rec.Array.Job]))
			continue
		case behind != "":
			q.waitFor(behind)
			continue
		case byUser[rec.UID] != "":
			q.waitFor(byUser[rec.UID])
			continue
		}
		err := q.start()
		busy, ok := errors.AsType[errBusy](err)
		switch {
		case err == nil:
			if rec.Array != nil {
				running[rec.Array.Job]++
			}
		case ok && busy.user:
			q.waitFor(busy.Error())
			byUser[rec.UID] = busy.Error()
		case ok:
			q.waitFor(busy.Error())
			if behind = fmt.Sprintf("Priority: behind job %d", q.job); busy.all {
				behind = busy.Error()
			}
			if busy.retry {
				later(now.Add(queueRetry))
			}
		default:
			if !q.fail(err) {
				later(now.Add(queueRetry))
			}
		}
	}
	return next
}

// errBusy is why a job cannot be started yet.
type errBusy struct {
	why   string
	all   bool // for no job
	user  bool // for no job of its user
	retry bool // nobody tells when it can
}

func (e errBusy) Error() string { return e.why }

func (q *queued) waitFor(why string) {
	q.n.queue.mu.Lock()
	defer q.n.queue.mu.Unlock()
	q.step.Reason = why
}

// start starts the job's batch step. The error is an errBusy where it has to wait.
func (q *queued) start() error {
	qs := &q.n.queue
	qs.mu.Lock()
	if cancelled := q.cancelled; cancelled != "" {
		owed := q.owed
		qs.mu.Unlock()
		if owed {
			return q.endCancelled(cancelled)
		}
		return nil
	}
	q.starting = true
	qs.mu.Unlock()
	f, err := q.reserve()
	qs.mu.Lock()
	q.starting = false
	cancelled := q.cancelled
	// It may have been numbered, and have failed: then that is its end.
	started := err == nil || qs.all[q.job] != q || q.n.reg.job(q.job) != nil
	q.rec.Started = started
	qs.mu.Unlock()
	if err != nil && started {
		return nil
	}
	if err != nil {
		if cancelled != "" {
			return q.endCancelled(cancelled)
		}
		return err
	}
	if cancelled != "" {
		if f.claim() {
			f.giveBack(cancelled)
		}
		return nil
	}
	if f.claim() {
		// What fails from here on is the step's result.
		if _, err := f.launch(nil); err == nil {
			f.log.WithField("uid", q.rec.UID).Info("batch job started")
		}
	}
	return nil
}

// reserve finds place for the job, and makes it a running one.
func (q *queued) reserve() (*follower, error) {
	n, rec := q.n, q.now()
	raw, err := n.store.request(rec.Request)
	if err != nil && !errors.Is(err, errUnknown) {
		return nil, errBusy{why: "noded cannot start jobs: " + err.Error(), all: true, retry: true}
	}
	if err != nil {
		return nil, err
	}
	req, err := n.decode(raw)
	if err == nil {
		err = n.check(req)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), queueRetry)
	defer cancel()
	who := api.Peer{UID: rec.By}
	user, err := n.userFor(ctx, who, req)
	if status.Code(err) == codes.Unavailable {
		return nil, errBusy{why: "the name service does not answer: " + status.Convert(err).Message(), all: true, retry: true}
	}
	if err != nil {
		return nil, err
	}
	a, freed, err := n.reg.tryAdmit(req, user.UID, true, nil)
	switch {
	case err == nil:
	case status.Code(err) == codes.FailedPrecondition: // drained
		return nil, errBusy{why: status.Convert(err).Message(), all: true}
	case status.Code(err) == codes.Unavailable:
		return nil, errBusy{why: "noded is stopping", all: true}
	case errors.As(err, new(errUserSteps)):
		return nil, errBusy{why: "UserStepsMax: " + status.Convert(err).Message(), user: true}
	case freed != nil:
		return nil, errBusy{why: "Resources: " + status.Convert(err).Message()}
	default:
		return nil, err
	}
	if rec.Restarts > 0 {
		n.forget([]step.ID{q.batchID()}) // of its last run
	}
	f, _, err := n.reserveAdmitted(who, user, a, order{
		req: req, state: step.Starting, received: rec.Submitted, queued: &rec,
	})
	if status.Code(err) == codes.Internal { // the spool is full, say
		return nil, errBusy{why: "noded cannot start jobs: " + status.Convert(err).Message(), all: true, retry: true}
	}
	return f, err
}

// fail ends a job that will never start. It returns false where that could not be stored.
func (q *queued) fail(cause error) bool {
	log := q.n.log.WithField("job", q.job)
	log.Errorf("cannot start the batch job: %v", cause)
	if err := q.n.endWaiting(message("cannot start the job: "+status.Convert(cause).Message()), step.Failed, q); err != nil {
		log.Errorf("%v", err)
		return false
	}
	return true
}

// endCancelled ends a job that was cancelled while it could not end at once. Where that
// cannot be stored, its next start does it.
func (q *queued) endCancelled(reason string) error {
	err := q.n.endWaiting(reason, step.Cancelled, q)
	if err == nil {
		return nil
	}
	q.n.queue.mu.Lock()
	defer q.n.queue.mu.Unlock()
	q.owed = true
	return errBusy{why: "its end cannot be stored: " + err.Error(), all: true, retry: true}
}

// endWaiting ends jobs that wait: their batch steps never ran.
func (n *Node) endWaiting(why string, state step.State, jobs ...*queued) error {
	now := time.Now()
	recs := make([]*step.Record, len(jobs))
	for i, q := range jobs {
		recs[i] = q.record()
		deadRecord(recs[i], why, state, now)
	}
	forgotten, err := n.store.endQueued(recs, now)
	if err != nil {
		return err
	}
	for _, q := range jobs {
		n.queue.remove(q.job)
		q.over()
	}
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
