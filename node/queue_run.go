package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"stepd/api"
	"stepd/step"
)

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

// pass is one look at all jobs that wait.
type pass struct {
	n   *Node
	now time.Time
	// next is when to look again at the latest; zero is when something changes.
	next    time.Time
	running map[uint32]int    // of an array
	behind  string            // why nobody else starts
	byUser  map[uint32]string // nor anybody of this user
	ends    *ends             // what jobs wait for
}

// startWaiting starts the jobs that can be started, in order, and says why the others wait.
// It returns when to look again at the latest; zero is when something changes.
func (n *Node) startWaiting() (next time.Time) {
	p := &pass{n: n, now: time.Now(), running: make(map[uint32]int), byUser: make(map[uint32]string), ends: newEnds(n)}
	for _, q := range n.queue.list(func(q *queued) bool { return q.rec.Array != nil && q.rec.Started }) {
		p.running[q.now().Array.Job]++
	}
	for _, q := range n.queue.list(func(q *queued) bool { return !q.rec.Started && !q.starting }) {
		select {
		case <-n.stopping:
			return p.next
		default:
		}
		rec := q.now()
		if why := p.keeps(q, &rec); why != "" {
			q.waitFor(why)
			continue
		}
		p.came(q, &rec, q.start())
	}
	if err := n.queue.storeDepends(); err != nil { // they are found out again
		n.log.Errorf("%v", err)
	}
	return p.next
}

// later says that there is something to do then.
func (p *pass) later(t time.Time) {
	if p.next.IsZero() || t.Before(p.next) {
		p.next = t
	}
}

// keeps is why a job is not to be started now; "" is nothing that is known.
func (p *pass) keeps(q *queued, rec *queuedRecord) string {
	why := p.depends(q, rec) // of a held job, too: what it waits for may be forgotten before its release
	switch {
	case rec.Held != "":
		return rec.heldWords()
	case why != "":
		return why
	case rec.Begin != nil && rec.Begin.After(p.now):
		p.later(*rec.Begin)
		return "BeginTime: not before " + rec.Begin.Local().Format("2006-01-02T15:04:05")
	case rec.Array != nil && rec.AtOnce > 0 && p.running[rec.Array.Job] >= rec.AtOnce:
		return fmt.Sprintf("JobArrayTaskLimit: %d of its array run", p.running[rec.Array.Job])
	case p.behind != "":
		return p.behind
	}
	return p.byUser[rec.UID]
}

// came is what has come of a job's start: what it has to wait for, and who waits behind it.
func (p *pass) came(q *queued, rec *queuedRecord, err error) {
	busy, ok := errors.AsType[errBusy](err)
	switch {
	case err == nil:
		if rec.Array != nil {
			p.running[rec.Array.Job]++
			p.ends.queued = nil
		}
	case ok && busy.user:
		q.waitFor(busy.Error())
		p.byUser[rec.UID] = busy.Error()
	case ok:
		q.waitFor(busy.Error())
		if p.behind = fmt.Sprintf("Priority: behind job %d", q.job); busy.all {
			p.behind = busy.Error()
		}
		if busy.retry {
			p.later(p.now.Add(queueRetry))
		}
	default:
		if !q.fail(err) {
			p.later(p.now.Add(queueRetry))
		}
	}
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
	if q.rec.Held != "" { // just now
		qs.mu.Unlock()
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
	if q.rec.Started = started; started {
		now := time.Now()
		q.rec.StartedAt = &now
	}
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
	n, rec, now := q.n, q.now(), time.Now()
	rec.StartedAt = &now
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
	if api.CodeOf(err) == api.Unavailable {
		return nil, errBusy{why: "the name service does not answer: " + api.MessageOf(err), all: true, retry: true}
	}
	if err != nil {
		return nil, err
	}
	a, freed, err := n.reg.tryAdmit(req, user.UID, true, nil)
	if err != nil {
		return nil, notAdmitted(freed, err)
	}
	if rec.Restarts > 0 {
		n.forget([]step.ID{q.batchID()}) // of its last run
	}
	f, _, err := n.reserveAdmitted(who, user, a, order{
		req: req, state: step.Starting, received: rec.Submitted, queued: &rec,
	})
	return f, cannotStart(err)
}

// notAdmitted is what a job waits for that tryAdmit has refused, or why it never fits.
func notAdmitted(freed <-chan struct{}, err error) error {
	switch {
	case api.CodeOf(err) == api.FailedPrecondition: // drained
		return errBusy{why: api.MessageOf(err), all: true}
	case api.CodeOf(err) == api.Unavailable:
		return errBusy{why: "noded is stopping", all: true}
	case errors.As(err, new(errUserSteps)):
		return errBusy{why: "UserStepsMax: " + api.MessageOf(err), user: true}
	case freed != nil:
		return errBusy{why: "Resources: " + api.MessageOf(err)}
	}
	return err
}

// cannotStart is err of a job that has its place, and waits on where the node is at fault.
func cannotStart(err error) error {
	if api.CodeOf(err) == api.Internal { // the spool is full, say
		return errBusy{why: "noded cannot start jobs: " + api.MessageOf(err), all: true, retry: true}
	}
	return err
}

// fail ends a job that will never start. It returns false where that could not be stored.
func (q *queued) fail(cause error) bool {
	log := q.n.log.WithField("job", q.job)
	log.Errorf("cannot start the batch job: %v", cause)
	if err := q.n.endWaiting(message("cannot start the job: "+api.MessageOf(cause)), step.Failed, q); err != nil {
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
