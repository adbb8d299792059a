package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/internal/child"
	"stepd/node/state"
	"stepd/step"
)

// Signal sends a signal to the processes, as scope has it (stepapi.Msg), of the steps that ref
// names. The notes are for the user.
func (n steps) Signal(ctx context.Context, ref api.StepRef, signal int, scope string) (notes []string, err error) {
	return n.tell(ref, "signal", func(f *follower) (note string, err error) {
		_, err = f.ask(ctx, &stepapi.Msg{Type: stepapi.TypeSignal, Signal: signal, Scope: scope})
		if errors.Is(err, errSilent) && syscall.Signal(signal) == syscall.SIGKILL {
			return endSilent(f, "killed by SIGKILL"), nil
		}
		return "", err
	})
}

// Cancel ends the steps that ref names. The end of an allocation begins with it. The notes are
// for the user.
func (n steps) Cancel(ctx context.Context, ref api.StepRef, reason string) (notes []string, err error) {
	if j := n.reg.job(ref.JobID); ref.StepID == nil && j != nil && j.Origin == step.OriginAlloc {
		n.endAlloc(j, reason)
		return nil, nil
	}
	return n.tell(ref, verbCancel, func(f *follower) (string, error) { return f.cancel(ctx, reason) })
}

// Fail is Cancel, and makes FAILED of a step that has ended well: a required plugin has failed on
// its client's side since (SpankStrict), and the client ends with 1.
func (n steps) Fail(ctx context.Context, ref api.StepRef, reason string) (notes []string, err error) {
	if ref.StepID == nil {
		return nil, api.NewError(api.InvalidArgument, "step_id: failed is for one step")
	}
	id := step.ID{Job: ref.JobID, Step: *ref.StepID}
	notes, err = n.Cancel(ctx, ref, reason)
	if api.CodeOf(err) != api.FailedPrecondition {
		return notes, err
	}
	if f := n.reg.follower(id); f != nil {
		select { // between the step's end and its storing there is nothing to change yet
		case <-f.stored:
		case <-ctx.Done():
			return nil, api.ContextError(ctx.Err())
		}
	}
	rec, err := n.store.Fail(id, reason)
	if err == nil && rec != nil {
		rec.StepdPID, rec.Usage = 0, nil // stepd has logged its own end
		err = n.spool.LogEnd(rec)
	}
	if err != nil {
		return nil, api.NewError(api.Unavailable, err.Error())
	}
	return nil, nil
}

// verbCancel is what tell does for Cancel.
const verbCancel = "cancel"

// tell passes a request on to the running steps that ref names, to all at once: a stepd that does
// not answer is waited for. It returns their notes.
func (n steps) tell(ref api.StepRef, verb string, pass func(*follower) (note string, err error)) (notes []string, err error) {
	ids, err := n.IDs(ref)
	if err != nil {
		return nil, err
	}
	told, words, errs := make([]bool, len(ids)), make([]string, len(ids)), make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		f := n.reg.follower(id)
		if f == nil || f.is(stepSettled, stepDropped) { // in ExitGrace stepd takes no request
			continue
		}
		wg.Go(func() {
			var err error
			if words[i], err = pass(f); err == nil {
				told[i] = true
			} else if f.is(stepSettled, stepDropped) { // it ended while it was asked, perhaps by that
				told[i] = verb == verbCancel && f.record().State == step.Cancelled
			} else {
				errs[i] = api.Errorf(api.Unavailable, "cannot %s step %s: %v", verb, id, err)
			}
		})
	}
	wg.Wait()
	notes = slices.DeleteFunc(words, func(note string) bool { return note == "" })
	switch err = cmp.Or(errs...); {
	case err != nil || slices.Contains(told, true):
		return notes, err
	case len(ids) == 0:
		return nil, api.Errorf(api.FailedPrecondition, "job %d has no step", ref.JobID)
	}
	return nil, api.Errorf(api.FailedPrecondition, "step %s has ended", ids[0])
}

// cancel ends the step wherever it is on its way. Of a step that has no stepd
// yet it does not wait for the end. The note is for the user.
func (f *follower) cancel(ctx context.Context, reason string) (note string, err error) {
	reason = cmp.Or(reason, "cancelled")
	if f.claim() {
		f.n.work.Go(func() { f.giveBack(reason) })
		return "", nil
	}
	f.mu.Lock()
	if f.phase == stepLaunching || f.phase == stepDropped {
		if f.cancelled == "" {
			f.cancelled = reason // the launch looks at it before it starts stepd
			close(f.abandoned)
		}
		f.mu.Unlock()
		return "", nil
	}
	f.mu.Unlock()
	_, err = f.ask(ctx, &stepapi.Msg{Type: stepapi.TypeCancel, Text: reason})
	if errors.Is(err, errSilent) {
		return endSilent(f, reason), nil
	}
	return "", err
}

// askMax bounds the wait for a stepd's answer to Signal and Cancel.
const askMax = 10 * time.Second

// ask connects to the step's socket as a tool, on behalf of a client that
// was authorised, and sends one request. It returns stepd's answer.
func (f *follower) ask(ctx context.Context, m *stepapi.Msg) (*stepapi.Msg, error) {
	return askWithin(ctx, f, m, f.n.askMax)
}

// askWithin is ask that waits for so long.
func askWithin(ctx context.Context, f *follower, m *stepapi.Msg, patience time.Duration) (*stepapi.Msg, error) {
	if !f.hasStepd() {
		return nil, errors.New("the step was not started yet")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%w within %v: it is stopped, frozen or stuck, and `stepctl cancel %s` kills it with its step", errSilent, patience, f.id))
	defer cancel()
	c, err := stepapi.DialDir(ctx, f.n.spool.StepsDir(), f.n.spool.SocketName(f.id))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer func() {
		if stop() {
			c.Close()
		}
	}()
	reply, err := converse(c, m)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) {
		return nil, errors.New("stepd ended before it answered")
	}
	return reply, err
}

// converse returns stepd's answer to m. A Hello is answered by stepd's own.
func converse(c *stepapi.Conn, m *stepapi.Msg) (*stepapi.Msg, error) {
	if m.Type == stepapi.TypeHello {
		return c.Hear()
	}
	if err := c.Send(&stepapi.Msg{Type: stepapi.TypeHello, Version: stepapi.Version, Role: stepapi.RoleTool}); err != nil {
		return nil, err
	}
	m.Seq = 1
	if err := c.Send(m); err != nil {
		return nil, err
	}
	for {
		got, err := c.Hear()
		if err != nil {
			return nil, err
		}
		switch {
		case got.Type == stepapi.TypeHello && got.Version != stepapi.Version:
			return nil, fmt.Errorf("stepd speaks version %d of its protocol, noded %d", got.Version, stepapi.Version)
		case got.Type == stepapi.TypeReply && got.Seq == m.Seq && got.Error != "":
			return nil, errors.New(got.Error)
		case got.Type == stepapi.TypeReply && got.Seq == m.Seq:
			return got, nil
		}
	}
}

// endingGrace is how long the end of a step may take to be heard whose stepd
// takes no request any more.
const endingGrace = 5 * time.Second

// cancelLater asks a step to end, without waiting for the answer: a loop that
// owns another step calls it.
func (n *Node) cancelLater(f *follower, reason string) {
	n.work.Go(func() {
		ctx, stop := child.Until(context.Background(), context.Canceled, n.stopping, f.ended)
		defer stop()
		_, err := f.cancel(ctx, reason)
		if err == nil {
			return
		}
		// A stepd that has just ended by itself refuses, and its end will be heard.
		select {
		case <-ctx.Done():
		case <-time.After(endingGrace):
			f.log.Errorf("cannot cancel step: %v", err)
		}
	})
}

// Release ends a job of Alloc's, and returns when nothing is left of it.
func (n steps) Release(ctx context.Context, job uint32) error {
	j := n.reg.job(job)
	switch {
	case j == nil:
		return api.Errorf(api.NotFound, "no such job \"%d\"", job)
	case j.Origin != step.OriginAlloc:
		return api.Errorf(api.FailedPrecondition, "job %d was not made by alloc: cancel its steps", j.ID)
	}
	n.endAlloc(j, "the job was released")
	return n.awaitEnd(ctx, j.ended, "job")
}

// Suspend makes a step, or a job with all of its steps, stand still. The CPUs of a job that stands
// still are free for other jobs.
func (n steps) Suspend(ctx context.Context, ref api.StepRef, by uint32) error {
	if ref.StepID != nil {
		return failed(n.eachStep(ref, func(f *follower) error { return f.suspend(ctx, by) }))
	}
	// The job first: then no step begins that is not suspended below.
	j := n.reg.job(ref.JobID)
	if j == nil {
		return api.Errorf(api.FailedPrecondition, "job %d has ended", ref.JobID)
	}
	j.standing.Lock()
	defer j.standing.Unlock()
	rec, err := n.setSuspended(j, by)
	if err != nil {
		return api.NewError(api.Internal, err.Error())
	}
	// Steps that were numbered meanwhile are among them; ending steps need no
	// report.
	if err := n.allOf(j, "suspended", func(f *follower) error { return f.suspend(ctx, by) }); err != nil {
		return err
	}
	if err := n.freeCPUs(j, rec); err != nil {
		return api.NewError(api.Internal, err.Error())
	}
	return nil
}

// allOf asks all steps of a job that was suspended or resumed, as is says. One that goes on by
// itself, or does not run any more, needs no word.
func (n steps) allOf(j *job, is string, ask func(*follower) error) error {
	_, err := n.eachStep(api.StepRef{JobID: j.ID}, func(f *follower) error {
		err := ask(f)
		if rec := f.record(); isEnding(f, rec) || rec.Suspended == nil && is == "resumed" {
			return nil
		}
		return err
	})
	if _, none := errors.AsType[errNoStep](err); err != nil && !none {
		return api.Errorf(api.FailedPrecondition, "job %d is %s, but not all of its steps: %v", j.ID, is, err)
	}
	return nil
}

// Unsuspend undoes it. What root has suspended is root's to resume.
func (n steps) Unsuspend(ctx context.Context, ref api.StepRef, by uint32) error {
	resume := func(f *follower) error { return f.unsuspend(ctx, by) }
	j := n.reg.job(ref.JobID)
	if j == nil {
		return failed(n.eachStep(ref, resume))
	}
	j.standing.Lock()
	defer j.standing.Unlock()
	was := n.reg.suspended(j)
	if was != nil && was.By == 0 && by != 0 {
		return api.Errorf(api.PermissionDenied, "permission denied: job %d was suspended by root", j.ID)
	}
	if ref.StepID != nil {
		if was != nil && n.mayResume(ref, by) { // the step needs the CPUs, and the job still takes no further ones
			if err := n.takeCPUsBack(j, &state.Suspension{Since: was.Since, By: was.By}); err != nil {
				return err
			}
		}
		return failed(n.eachStep(ref, resume))
	}
	if was == nil {
		told, err := n.eachStep(ref, resume)
		if told > 0 { // some were, and those that were not need no word
			return nil
		}
		return failed(told, err)
	}
	// The job first: no step is added to it then that stands still.
	if err := n.takeCPUsBack(j, nil); err != nil {
		return err
	}
	return n.allOf(j, "resumed", resume)
}

// mayResume reports whether by may resume the step of a suspended job, and it has not ended.
func (n steps) mayResume(ref api.StepRef, by uint32) bool {
	f := n.reg.follower(step.ID{Job: ref.JobID, Step: *ref.StepID})
	if f == nil {
		return false
	}
	rec := f.record()
	return !isEnding(f, rec) && (by == 0 || rec.SuspendedBy == nil || *rec.SuspendedBy != 0)
}

// isEnding reports whether the step has nothing left that could stand still.
func isEnding(f *follower, rec *step.Record) bool {
	select {
	case <-f.ended:
		return true
	default:
		return rec.State == step.Completing || rec.State.Final()
	}
}

// errNoStep is eachStep's error where none of the steps that were named runs.
type errNoStep api.StepRef

func (e errNoStep) Error() string {
	if e.StepID == nil {
		return fmt.Sprintf("job %d has ended", e.JobID)
	}
	return fmt.Sprintf("step %s has ended", step.ID{Job: e.JobID, Step: *e.StepID}.Name())
}

// eachStep asks all running steps that ref names at once: each takes two seconds. told
// counts the steps that did it; the error joins the others' errors.
func (n steps) eachStep(ref api.StepRef, ask func(*follower) error) (told int, err error) {
	ids, err := n.IDs(ref)
	if err != nil {
		return 0, err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, id := range ids {
		f := n.reg.follower(id)
		if f == nil {
			continue
		}
		wg.Go(func() {
			ferr := ask(f)
			mu.Lock()
			defer mu.Unlock()
			if ferr == nil {
				told++
			} else {
				err = errors.Join(err, fmt.Errorf("step %s: %w", id, ferr))
			}
		})
	}
	wg.Wait()
	if told == 0 && err == nil {
		err = errNoStep(ref)
	}
	return told, err
}

// failed is the client's error of eachStep.
func failed(_ int, err error) error {
	if err != nil {
		return api.NewError(api.FailedPrecondition, err.Error())
	}
	return nil
}

// setSuspended suspends a job for ever, and then for the next request. What root has suspended
// stays root's. The caller holds j.standing, as callers of freeCPUs and takeCPUsBack do.
func (n steps) setSuspended(j *job, by uint32) (*state.Suspension, error) {
	rec := &state.Suspension{Since: time.Now(), By: by}
	if was := n.reg.suspended(j); was != nil {
		rec.Since, rec.CPUsFree = was.Since, was.CPUsFree
		if was.By == 0 {
			rec.By = 0
		}
	}
	if err := n.store.SetSuspended(j.ID, rec); err != nil {
		return nil, err
	}
	n.reg.setSuspended(j, rec)
	return rec, nil
}

// freeCPUs lets other jobs have the CPUs of a job that stands still since rec. One that ends keeps
// them, for its epilog.
func (n steps) freeCPUs(j *job, rec *state.Suspension) error {
	n.reg.mu.Lock()
	ends := j.ends()
	n.reg.mu.Unlock()
	if rec.CPUsFree || ends {
		return nil
	}
	free := *rec
	free.CPUsFree = true
	if err := n.store.SetSuspended(j.ID, &free); err != nil {
		return err
	}
	n.reg.setSuspended(j, &free)
	return nil
}

// takeCPUsBack gives a job the CPUs that freeCPUs has freed. rec is its suspension from then on, nil
// where it is resumed.
func (n steps) takeCPUsBack(j *job, rec *state.Suspension) error {
	if err := n.reg.takeCPUsBack(j); err != nil {
		return api.Errorf(api.FailedPrecondition, "cannot resume job %d: %v: resume it when they have ended", j.ID, err)
	}
	if err := n.store.SetSuspended(j.ID, rec); err != nil {
		n.reg.setSuspended(j, n.reg.suspended(j)) // as it was
		return api.NewError(api.Internal, err.Error())
	}
	n.reg.setSuspended(j, rec)
	return nil
}

// suspend asks the step's stepd. A step whose stepd is not followed yet is suspended as soon
// as it is.
func (f *follower) suspend(ctx context.Context, by uint32) error {
	f.mu.Lock()
	if !f.hearsLocked() {
		defer f.mu.Unlock()
		f.suspendBy = &by
		return nil
	}
	f.mu.Unlock()
	return f.stand(ctx, &stepapi.Msg{Type: stepapi.TypeSuspend, By: &by})
}

func (f *follower) unsuspend(ctx context.Context, by uint32) error {
	f.mu.Lock()
	if !f.hearsLocked() {
		defer f.mu.Unlock()
		was := f.suspendBy
		switch {
		case was == nil:
			return errors.New("cannot resume the step: it is not suspended")
		case *was == 0 && by != 0:
			return errors.New("permission denied: the step was suspended by root")
		}
		f.suspendBy = nil
		return nil
	}
	f.mu.Unlock()
	return f.stand(ctx, &stepapi.Msg{Type: stepapi.TypeResume, By: &by})
}

// hearsLocked reports whether a suspension is passed on to stepd: until then it is kept.
func (f *follower) hearsLocked() bool { return f.phase == stepFollowed || f.phase == stepSettled }

// stand asks stepd to suspend or to resume the step, after what was asked before it was followed.
func (f *follower) stand(ctx context.Context, m *stepapi.Msg) error {
	if f.is(stepFollowed) {
		select {
		case <-f.caughtUp:
		case <-ctx.Done():
			return api.ContextError(ctx.Err())
		}
	}
	_, err := f.ask(ctx, m)
	return err
}

// suspendLate suspends a step whose stepd has just started.
func (f *follower) suspendLate(by uint32) {
	if _, err := f.ask(context.Background(), &stepapi.Msg{Type: stepapi.TypeSuspend, By: &by}); err != nil {
		select {
		case <-f.ended:
		default:
			f.log.Errorf("cannot suspend the step: %v", err)
		}
	}
}
