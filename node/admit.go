package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"stepd/api"
	"stepd/node/selection"
	"stepd/srunopt"
	"stepd/step"
)

// admission is a place for one step: what it gets of the node, and the job where
// it is a running one. It ends in registry.start or registry.abandon.
type admission struct {
	uid uint32
	selection.Share
	job *job // nil: a job is to be made, whose share is the same
}

// admitGrace is how long a step that does not fit waits for one that is
// ending: its client knows of the end some milliseconds before noded does.
const admitGrace = 500 * time.Millisecond

// epilogGrace is how long it waits where only epilogs stand between.
const epilogGrace = time.Minute

// admit finds place for a step of uid, whose CPUs are want. asRoot callers
// may use any job, others their own. Errors are gRPC statuses, and nothing is
// taken then.
func (r *registry) admit(ctx context.Context, req *step.Request, uid uint32, asRoot bool) (*admission, error) {
	grace, epilogs := time.NewTimer(admitGrace), time.NewTimer(epilogGrace)
	defer grace.Stop()
	defer epilogs.Stop()
	limit := grace.C
	for {
		a, freed, err := r.tryAdmit(req, uid, asRoot, nil)
		if err == nil || freed == nil {
			return a, err
		}
		select {
		case <-freed:
		case <-limit:
			if limit == grace.C && r.epilogsHold(req.NTasks*req.CPUsPerTask) {
				limit = epilogs.C
				continue
			}
			return nil, err
		case <-ctx.Done():
			return nil, api.ContextError(ctx.Err())
		}
	}
}

// epilogsHold reports whether the end of epilogs would make room for want CPUs.
func (r *registry) epilogsHold(want int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	ending := r.endingLocked()
	return ending > 0 && want <= r.has.FreeCPUs()+ending
}

// tryAdmit is one try, of w where the request waits for its turn. A channel beside the
// error says that the release of CPUs may change the answer.
func (r *registry) tryAdmit(req *step.Request, uid uint32, asRoot bool, w *waiter) (*admission, <-chan struct{}, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	drained := r.drainLocked()
	switch {
	case r.closing:
		return nil, nil, api.NewError(api.Unavailable, "noded is stopping")
	case drained.Drained && req.Job == nil: // jobs that run go on
		return nil, nil, api.Errorf(api.FailedPrecondition, "node is drained: %s", drained.Reason)
	case uid != 0 && !w.waits() && r.byUser[uid] >= r.perUser.Steps: // a request in a line is counted
		return nil, nil, errUserSteps{uid, r.perUser.Steps}
	}
	if req.Job == nil {
		sh, waits, err := r.takeInTurnLocked(req, w)
		if err != nil {
			var freed <-chan struct{}
			if waits { // else it would not fit on the empty node either
				r.joinLocked(&r.line, w)
				freed = r.freed
			}
			return nil, freed, err
		}
		r.leaveLine(w)
		r.byUser[uid]++
		return &admission{uid: uid, Share: sh}, nil, nil
	}
	j := r.jobs[*req.Job]
	if j != nil && w.waits() && w.in != &j.line {
		j = nil // the next run of the job that w waits for
	}
	if err := j.takes(req, uid, asRoot); err != nil {
		return nil, nil, err
	}
	switch {
	case j.Suspended != nil && w.silent(): // it keeps its place in the line
		r.joinLocked(&j.line, w)
		return nil, r.freed, errTurn
	case j.Suspended != nil:
		return nil, nil, api.Errorf(api.FailedPrecondition, "job %d is suspended since %s: it takes steps again when it is resumed", j.ID, j.Suspended.Since.Format(time.RFC3339))
	}
	sh, waits, err := r.takeInLocked(j, req, w)
	if err != nil {
		var freed <-chan struct{}
		if waits {
			r.joinLocked(&j.line, w)
			freed = r.freed
		}
		if _, ok := api.AsError(err); ok {
			return nil, freed, err
		}
		return nil, freed, api.NewError(api.ResourceExhausted, err.Error())
	}
	// The count holds the job open meanwhile.
	r.leaveLine(w)
	j.running++
	j.present++
	r.byUser[uid]++
	return &admission{uid: uid, Share: sh, job: j}, nil, nil
}

// takes refuses a step that the job, or nil, never takes as it is asked for.
func (j *job) takes(req *step.Request, uid uint32, asRoot bool) error {
	want := req.NTasks * req.CPUsPerTask
	switch {
	case j == nil || !j.open:
		return api.Errorf(api.NotFound, "no such job \"%d\"", *req.Job)
	case j.UID != uid && !asRoot:
		return errDenied
	case j.UID != uid:
		return api.Errorf(api.InvalidArgument, "uid: job %d is uid %d's, not %d's", j.ID, j.UID, uid)
	case !req.Overcommit && want > len(j.cpus):
		return api.Errorf(api.ResourceExhausted, "%s in job %d, which has %s; --overcommit shares CPUs among tasks", selection.Needs(want), j.ID, selection.CountCPUs(len(j.cpus)))
	}
	return nil
}

// errUserSteps is that a user has as many steps as it may have.
type errUserSteps struct {
	uid  uint32
	most int
}

func (e errUserSteps) Error() string {
	return fmt.Sprintf("uid %d has %d steps on this node already, the limit (UserStepsMax)", e.uid, e.most)
}

// Unwrap is the code that a client is told.
func (e errUserSteps) Unwrap() error { return api.NewError(api.ResourceExhausted, e.Error()) }

// takeInTurnLocked takes a job's share for a request that comes behind the waiting ones. Its
// errors are answers to the client.
func (r *registry) takeInTurnLocked(req *step.Request, w *waiter) (sh selection.Share, waits bool, err error) {
	ahead := r.line.ahead(w)
	if ahead == 0 {
		if sh, waits, err = r.has.Take(req); err != nil {
			err = fmt.Errorf("%w%s", err, r.whoHas(err))
		}
	} else {
		waits, err = true, fmt.Errorf("the step does not fit: %s before it", waitBefore(ahead))
	}
	if waits && !w.waits() { // one that never fits would block the line for ever
		if never := r.has.NeverFits(req); never != nil {
			waits, err = false, never
		}
	}
	switch {
	case err == nil:
		return sh, false, nil
	case !waits:
		return selection.Share{}, false, api.NewError(api.ResourceExhausted, err.Error())
	case w.silent():
		return selection.Share{}, true, errTurn
	}
	text := err.Error()
	if ahead == 0 {
		text += r.freeOn(req)
	}
	return selection.Share{}, true, waitsFor(text, "room: "+strings.TrimPrefix(text, "the step does not fit: "))
}

func waitBefore(n int) string {
	if n == 1 {
		return "1 request waits"
	}
	return fmt.Sprintf("%d requests wait", n)
}

// takeInLocked takes a step's share of its job: CPUs that its other steps have not, or
// use least; all memory and generic resources unless it asks for some.
func (r *registry) takeInLocked(j *job, req *step.Request, w *waiter) (sh selection.Share, waits bool, err error) {
	sh.Alone = j.exclusive() && !req.Overlap && !req.Overcommit
	busy := sh.Alone && j.line.ahead(w) > 0
	if !busy {
		var ok bool
		if sh.CPUs, ok, err = j.left.TakeCPUs(req, sh.Alone); err != nil {
			return selection.Share{}, false, err
		}
		busy = !ok
	}
	switch {
	case busy && w.silent():
		return selection.Share{}, true, errTurn
	case busy:
		return selection.Share{}, true, r.busyIn(j, req, w)
	}
	waits, err = j.left.TakeMore(req, j.ID, &sh)
	switch {
	case err == nil:
		return sh, false, nil
	case waits && w.silent():
		return selection.Share{}, true, errTurn
	case selection.IsGres(err):
		err = fmt.Errorf("the step does not fit in job %d: %w%s", j.ID, err, r.whoHasIn(j, err))
	}
	if waits {
		err = waitsFor(err.Error(), fmt.Sprintf("%s of job %d", srunopt.FormatGres(req.Gres), j.ID))
	}
	return selection.Share{}, waits, err
}

// whoHas says which jobs have what is missing: ": job 3 has gpu:2(IDX:0-1)".
func (r *registry) whoHas(err error) string {
	var words []string
	for _, j := range r.jobs {
		if !j.freed {
			words = append(words, holds("job "+fmt.Sprint(j.ID), j.Gres, err)...)
		}
	}
	return sentence(words)
}

// whoHasIn says which steps of the job have it.
func (r *registry) whoHasIn(j *job, err error) string {
	var words []string
	for id, f := range r.steps {
		if id.Job == j.ID {
			words = append(words, holds("step "+id.String(), f.share.Held, err)...)
		}
	}
	return sentence(words)
}

func holds(who string, list []step.GresAlloc, err error) []string {
	if of := selection.Missing(err, list); len(of) > 0 {
		return []string{who + " has " + step.FormatAllocs(of)}
	}
	return nil
}

func sentence(words []string) string {
	if len(words) == 0 {
		return ""
	}
	slices.Sort(words)
	return ": " + strings.Join(words, ", ")
}
