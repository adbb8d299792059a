package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"stepd/api"
	"stepd/node/selection"
	"stepd/srunopt"
	"stepd/step"
)

// A request that does not fit waits where its client wants that (Request.ImmediateS): jobs in
// one line of the node, steps in a line of their job, in the order of asking. It waits as
// long as its connection lasts, and nothing of it is stored.
//
// Steps of an allocation or of a batch job have their CPUs for themselves, as in Slurm since
// 20.11. What overlaps (--overlap, --overcommit) counts against no other step, nor does the
// batch script. In a job that was made for its first step, that step has all CPUs until the
// job ends: the others share them.

// admission is a place for one step: what it gets of the node, and the job where
// it is a running one. It ends in registry.newJob, registry.add or registry.abandon.
type admission struct {
	uid uint32
	selection.Share
	// job is nil where a job is to be made; made is what it has then.
	job  *job
	made *selection.Job
}

const (
	// admitGrace is how long a step that does not fit waits for one that is
	// ending: its client knows of the end some milliseconds before noded does.
	admitGrace = 500 * time.Millisecond
	// epilogGrace is how long it waits where only epilogs stand between.
	epilogGrace = time.Minute
)

// line is the requests that wait for the same, the first one first. The registry's lock
// guards it.
type line []*seeker

// seeker is a request of uid's that looks for a place. asRoot requests may use any job, others
// their user's jobs. Make it with registry.seek.
type seeker struct {
	r      *registry
	req    *step.Request
	uid    uint32
	user   string // uid's name
	asRoot bool
	since  time.Time
	// patient requests wait in a line; last is that the time of one is over, and that what
	// blocks it is to be said.
	patient, last bool
	// in is nil while the request has no place in a line, in which it counts as a step of
	// its user's. The registry's lock guards it.
	in *line
	// found is the place that willRun has found and not taken; nil is none.
	found *admission
}

// errTurn is the answer to a try of a seeker that waits on: many may be woken at once, and it
// is to cost little.
var errTurn = errors.New("others come first")

func (r *registry) seek(req *step.Request, user step.User, asRoot bool) *seeker {
	return &seeker{r: r, req: req, uid: user.UID, user: user.Name, asRoot: asRoot, since: time.Now()}
}

// admit finds a place for a request that waits as long as it says. Errors are answers to the
// client, and nothing is taken then.
func (r *registry) admit(ctx context.Context, req *step.Request, user step.User, asRoot bool) (*admission, error) {
	s := r.seek(req, user, asRoot)
	if req.ImmediateS == nil || *req.ImmediateS == 0 {
		return s.now(ctx)
	}
	var late <-chan time.Time
	if *req.ImmediateS != srunopt.WaitForever {
		late = time.After(time.Duration(*req.ImmediateS) * time.Second)
	}
	return s.wait(ctx, late)
}

// now is admit that waits for what is ending alone.
func (s *seeker) now(ctx context.Context) (*admission, error) {
	grace, epilogs := time.NewTimer(admitGrace), time.NewTimer(epilogGrace)
	defer grace.Stop()
	defer epilogs.Stop()
	limit := grace.C
	for {
		a, freed, err := s.try()
		if err == nil || freed == nil {
			return a, err
		}
		select {
		case <-freed:
		case <-limit:
			if limit == grace.C && s.epilogsHold() {
				limit = epilogs.C
				continue
			}
			return nil, err
		case <-ctx.Done():
			return nil, api.ContextError(ctx.Err())
		}
	}
}

// wait is admit that waits for room until late, or until ctx ends with the client.
func (s *seeker) wait(ctx context.Context, late <-chan time.Time) (*admission, error) {
	s.patient = true
	defer s.leave()
	for {
		a, freed, err := s.try()
		if err == nil || freed == nil || s.last {
			return a, err
		}
		select {
		case <-freed:
		case <-late:
			s.last = true
		case <-ctx.Done():
			return nil, api.ContextError(ctx.Err())
		}
	}
}

// epilogsHold reports whether the end of epilogs would make room for the request's CPUs.
func (s *seeker) epilogsHold() bool {
	r, want := s.r, s.req.NTasks*s.req.CPUsPerTask
	r.mu.Lock()
	defer r.mu.Unlock()
	ending := 0 // CPUs of jobs that run nothing any more but their epilog
	for _, j := range r.jobs {
		if j.phase == jobIdle {
			ending += len(j.has.CPUs)
		}
	}
	return ending > 0 && want <= r.has.Info().FreeCPUs+ending
}

// waits reports whether the request has a place in a line.
func (s *seeker) waits() bool { return s.in != nil }

// silent reports whether the refusal of a try is not passed on: the request waits on.
func (s *seeker) silent() bool { return s.patient && !s.last }

// ahead counts the requests that come before s.
func (l *line) ahead(s *seeker) int {
	if i := slices.Index(*l, s); i >= 0 {
		return i
	}
	return len(*l)
}

// joinLocked puts a patient request behind the others, unless it waits already.
func (s *seeker) joinLocked(l *line) {
	if s.patient && s.in == nil {
		s.in = l
		*l = append(*l, s)
		s.r.users.enter(s.uid, 1)
	}
}

// leave ends the wait, whatever came of it: the next request is first.
func (s *seeker) leave() {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.leaveLocked()
}

func (s *seeker) leaveLocked() {
	l := s.in
	if l == nil {
		return
	}
	s.in = nil
	s.r.users.leave(s.uid)
	if i := slices.Index(*l, s); i >= 0 {
		*l = slices.Delete(*l, i, i+1)
		s.r.freed.ring()
	}
}

// try is one try. A channel beside the error is closed when the answer may have changed.
func (s *seeker) try() (*admission, <-chan struct{}, error) {
	r := s.r
	r.mu.Lock()
	defer r.mu.Unlock()
	freed := r.freed.rung() // before the look at what is free
	if err := r.gate.Admits(s.req.Job == nil); err != nil {
		return nil, nil, err
	}
	if !s.waits() { // else it is counted
		if err := r.users.full(s.uid); err != nil {
			return nil, nil, err
		}
	}
	a := &admission{uid: s.uid}
	var waits bool
	var err error
	in := &r.line
	if s.req.Job == nil {
		a.Share, waits, err = s.testNode()
	} else {
		a.job = r.jobs[*s.req.Job]
		if a.job != nil && s.waits() && s.in != &a.job.line {
			a.job = nil // the next run of the job that s waits for
		}
		if err := s.mayUse(a.job); err != nil {
			return nil, nil, err
		}
		in = &a.job.line
		a.Share, waits, err = s.takeOfJob(a.job)
	}
	if err != nil {
		if !waits { // it would not fit if nothing else ran
			return nil, nil, asExhausted(err)
		}
		s.joinLocked(in)
		return nil, freed, asExhausted(err)
	}
	s.leaveLocked()
	r.users.enter(s.uid, 1)
	if a.job == nil {
		a.made = r.has.Begin(a.Share)
	}
	if a.job != nil { // the count holds the job open meanwhile
		a.job.running++
		a.job.present++
	}
	return a, nil, nil
}

// asExhausted makes an error an answer to the client, unless it is one.
func asExhausted(err error) error {
	if _, ok := api.AsError(err); ok || errors.Is(err, errTurn) {
		return err
	}
	return api.NewError(api.ResourceExhausted, err.Error())
}

// mayUse refuses a step that the job, or nil, never takes as it is asked for.
func (s *seeker) mayUse(j *job) error {
	want := s.req.NTasks * s.req.CPUsPerTask
	switch {
	case j == nil || j.phase != jobOpen:
		return api.Errorf(api.NotFound, "no such job \"%d\"", *s.req.Job)
	case j.UID != s.uid && !s.asRoot:
		return api.Denied(j.UID)
	case j.UID != s.uid:
		return api.Errorf(api.InvalidArgument, "uid: job %d is uid %d's, not %d's", j.ID, j.UID, s.uid)
	case !s.req.Overcommit && want > len(j.has.CPUs):
		return api.Errorf(api.ResourceExhausted, "%s in job %d, which has %s; --overcommit shares CPUs among tasks", selection.Needs(want), j.ID, selection.CountCPUs(len(j.has.CPUs)))
	case j.Suspended != nil && !s.silent():
		return api.Errorf(api.FailedPrecondition, "job %d is suspended since %s: it takes steps again when it is resumed", j.ID, j.Suspended.Since.Format(time.RFC3339))
	}
	return nil
}

// testNode finds the share of a job of the request's own, behind the requests that wait.
func (s *seeker) testNode() (sh selection.Share, waits bool, err error) {
	r := s.r
	ahead := r.line.ahead(s)
	if ahead == 0 {
		if sh, err = r.has.Test(s.req, selection.RunNow); err != nil {
			waits, err = true, fmt.Errorf("%w%s", err, r.whoHas(err))
		}
	} else {
		waits, err = true, fmt.Errorf("the step does not fit: %s before it", waitBefore(ahead))
	}
	if waits && !s.waits() { // one that never fits would block the line for ever
		if _, never := r.has.Test(s.req, selection.TestOnly); never != nil {
			waits, err = false, never
		}
	}
	switch {
	case err == nil:
		return sh, false, nil
	case !waits:
		return sh, false, api.NewError(api.ResourceExhausted, err.Error())
	case s.silent():
		return sh, true, errTurn
	}
	text := err.Error()
	if ahead == 0 {
		text += s.freeOn()
	}
	return sh, true, waitsFor(text, "room: "+strings.TrimPrefix(text, "the step does not fit: "))
}

func waitBefore(n int) string {
	if n == 1 {
		return "1 request waits"
	}
	return fmt.Sprintf("%d requests wait", n)
}

// waitsFor is the answer to a request that would be met if it waited; what completes
// "waiting for".
func waitsFor(text, what string) error {
	return &api.Error{Code: api.ResourceExhausted, Message: text, Waits: what}
}

// aloneIn reports whether the step has its CPUs of the job for itself.
func (s *seeker) aloneIn(j *job) bool {
	return j.exclusive() && !s.req.Overlap && !s.req.Overcommit
}

// takeOfJob takes a step's share of its job: CPUs that its other steps have not, or
// use least; all memory and generic resources unless it asks for some.
func (s *seeker) takeOfJob(j *job) (sh selection.Share, waits bool, err error) {
	sh.Alone = s.aloneIn(j)
	if j.Suspended != nil || sh.Alone && j.line.ahead(s) > 0 {
		err = selection.ErrBusy
	} else {
		sh, err = j.has.StepPick(s.req, sh.Alone)
	}
	if errors.Is(err, selection.ErrBusy) && !s.waits() { // one that never fits would block the line for ever
		if never := j.has.Never(s.req, s.aloneIn(j)); never != nil {
			err = never
		}
	}
	waits = selection.MayWait(err)
	switch {
	case err == nil:
		return sh, false, nil
	case waits && s.silent():
		return sh, true, errTurn
	case errors.Is(err, selection.ErrBusy):
		return sh, true, s.busyIn(j)
	case selection.IsGres(err):
		err = fmt.Errorf("the step does not fit in job %d: %w%s", j.ID, err, s.r.whoHasIn(j, err))
	}
	if waits {
		err = waitsFor(err.Error(), fmt.Sprintf("%s of job %d%s", srunopt.FormatGres(s.req.Gres), j.ID, s.freeIn(j)))
	}
	return sh, waits, err
}

// waitingLocked lists the requests that wait, those for jobs of their own first.
func (r *registry) waitingLocked() []api.NodeWaiting {
	docs := []api.NodeWaiting{}
	for i, s := range r.line {
		docs = append(docs, s.doc(i))
	}
	for _, id := range slices.Sorted(maps.Keys(r.jobs)) {
		for i, s := range r.jobs[id].line {
			docs = append(docs, s.doc(i))
		}
	}
	return docs
}

// doc describes a request that waits, so many others before it.
func (s *seeker) doc(ahead int) api.NodeWaiting {
	d := api.NodeWaiting{UID: s.uid, User: s.user, Name: s.req.Name, NTasks: s.req.NTasks, JobID: s.req.Job, Since: s.since}
	switch {
	case ahead > 0:
		d.For = fmt.Sprintf("its turn: %s before it", waitBefore(ahead))
	case s.req.Job == nil:
		if _, err := s.r.has.Test(s.req, selection.RunNow); err != nil {
			d.For = "room: " + strings.TrimPrefix(err.Error(), "the step does not fit: ") + s.freeOn()
		}
	case s.r.jobs[*s.req.Job].Suspended != nil:
		d.For = fmt.Sprintf("the resume of job %d", *s.req.Job)
	default:
		j := s.r.jobs[*s.req.Job]
		want := j.has.Wanted(s.req)
		what := selection.CountCPUs(want)
		if gres := srunopt.FormatGres(s.req.Gres); want <= j.has.FreeAlone() && gres != "" {
			what = gres
		}
		d.For = fmt.Sprintf("%s of job %d%s", what, j.ID, s.freeIn(j))
	}
	return d
}

// busyIn refuses a step that would fit in its job if it waited, and says what for.
func (s *seeker) busyIn(j *job) error {
	want, free := j.has.Wanted(s.req), j.has.FreeAlone()
	what := fmt.Sprintf("%s of job %d", selection.CountCPUs(want), j.ID)
	text := fmt.Sprintf("the step does not fit beside the others of job %d: it needs %s, and of %s %d are free", j.ID, selection.CountCPUs(want), selection.CountCPUs(len(j.has.CPUs)), free)
	if n := j.line.ahead(s); n > 0 {
		text += fmt.Sprintf("; %s before it", waitBefore(n))
	} else {
		what += s.freeIn(j)
	}
	return waitsFor(text+"; --overlap shares CPUs with other steps", what)
}

// whoHas says which jobs have what is missing: ": job 3 has gpu:2(IDX:0-1)".
func (r *registry) whoHas(err error) string {
	var words []string
	for _, j := range r.jobs {
		if j.phase != jobFreed {
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
			words = append(words, holds("step "+id.Name(), f.share.Held, err)...)
		}
	}
	return sentence(words)
}

func holds(who string, list []step.GresAlloc, err error) []string {
	if of := selection.Missing(err, list); len(of) > 0 {
		return []string{who + " has " + srunopt.FormatAllocs(of)}
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

// When something comes free at the latest is known from the time limits of the jobs
// that hold it: a limit may be overrun by KillWait, and by the time of a suspend.

// byTime says when, in words that end a sentence: ": free at 12:03 at the latest".
func byTime(t, now time.Time) string {
	t = now.Add(t.Sub(now))                                        // by the clock as it is set now
	t = t.Add(time.Minute - time.Nanosecond).Truncate(time.Minute) // never too early
	layout := "15:04"
	if y, d := t.Local().Year(), t.Local().YearDay(); y != now.Local().Year() || d != now.Local().YearDay() {
		layout = "2006-01-02T15:04"
	}
	return "free at " + t.Local().Format(layout) + " at the latest"
}

// until is when a job gives back what it has, nil where it has no limit.
func (j *job) until(killWait time.Duration) *time.Time {
	if j.Deadline == nil || j.Suspended != nil {
		return nil
	}
	return new(j.Deadline.Add(killWait + timeGrace))
}

// stepUntil is when a step gives back its share of a job; nil is not known.
func stepUntil(f *follower, killWait time.Duration) *time.Time {
	end := f.job.until(killWait)
	rec := f.record()
	if rec.TimeLimitS == 0 || rec.Suspended != nil {
		return end
	}
	began := rec.Submitted
	if rec.Started != nil {
		began = *rec.Started
	}
	t := began.Add(time.Duration(rec.TimeLimitS)*time.Second + time.Duration(rec.SuspendedSeconds*float64(time.Second)) + killWait)
	if end == nil || t.Before(*end) {
		return &t
	}
	return end
}

// freeOn says when the request fits that does not fit now, as the node's jobs are.
func (s *seeker) freeOn() string {
	w := s.r.has.WillRun(s.req, endOf(s.r))
	n := len(w.Holders)
	if n == 0 {
		return ""
	}
	if w.At != nil {
		return "; " + byTime(*w.At, time.Now())
	}
	why := "a job is being started"
	if j := s.r.jobs[w.Holders[n-1].ID]; j != nil && j.Suspended != nil {
		why = fmt.Sprintf("job %d is suspended", j.ID)
	} else if j != nil {
		why = fmt.Sprintf("job %d has no time limit", j.ID)
	}
	return "; when is not known: " + why
}

// endOf is when a job gives back what it has at the latest, nil where that is not known.
func endOf(r *registry) func(*selection.Job) *time.Time {
	return func(has *selection.Job) *time.Time {
		if j := r.jobs[has.ID]; j != nil && j.has == has {
			return j.until(r.killWait)
		}
		return nil // it has no number yet
	}
}

// freeIn says when the request's share of the job comes free, as its steps are: ": free at 12:03 at
// the latest", or nothing where that is not known.
func (s *seeker) freeIn(j *job) string {
	ends := s.holdersIn(j)
	if n := len(ends); n > 0 && ends[n-1].until != nil {
		return ": " + byTime(*ends[n-1].until, time.Now())
	}
	return ""
}

// stepEnd is a step and when it ends at the latest, nil where that is not known.
type stepEnd struct {
	*follower
	until *time.Time
}

// holdersIn are the steps of the job that have to end before the request gets its share, in the
// order of their ends.
func (s *seeker) holdersIn(j *job) (must []stepEnd) {
	var all []stepEnd
	for id, f := range s.r.steps {
		if id.Job == j.ID && (f.share.Alone || len(f.share.Held) > 0) {
			all = append(all, stepEnd{f, stepUntil(f, s.r.killWait)})
		}
	}
	slices.SortFunc(all, func(a, b stepEnd) int {
		return cmp.Or(selection.CompareEnds(a.until, b.until), cmp.Compare(a.id.Step, b.id.Step))
	})
	shares := make([]selection.Share, len(all))
	for i, e := range all {
		shares[i] = e.share
	}
	for _, i := range j.has.WillRun(s.req, s.aloneIn(j), shares) {
		must = append(must, all[i])
	}
	return must
}
