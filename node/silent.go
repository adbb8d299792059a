package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"stepd/api/stepapi"
	"stepd/internal/child"
	"stepd/internal/linux"
	"stepd/step"
)

// errSilent is wrapped where stepd does not answer.
var errSilent = errors.New("stepd does not answer")

// unanswered is the end of a step whose stepd was killed since it did not answer.
type unanswered struct {
	state  step.State
	reason string
}

// doom has the loop kill stepd, which has not answered for so long.
func doom(f *follower, state step.State, reason string, silent time.Duration) {
	f.doomed <- unanswered{state, fmt.Sprintf("%s; stepd (pid %d) did not answer for %v and was killed", reason, f.record().StepdPID, silent)}
}

// endSilent ends a step whose stepd does not answer a request to end it: it is stopped, frozen or
// stuck. noded asks on for as long as processes may take to die (UnkillableStepTimeout), and then
// kills stepd: the rest is as with any stepd that was killed. Only the first call does so. The
// note says when, for the user.
func endSilent(f *follower, reason string) (note string) {
	patience := f.n.cfg.unkillable
	f.mu.Lock()
	begun := !f.silent.IsZero()
	if !begun {
		f.silent = time.Now().Add(patience)
	}
	note = fmt.Sprintf("stepd of step %s (pid %d) does not answer: it is killed with its step at %s (UnkillableStepTimeout), unless it answers before", f.id, f.rec.StepdPID, f.silent.Format(time.RFC3339))
	f.mu.Unlock()
	if begun {
		return note
	}
	f.log.Warnf("stepd does not answer: it is killed with its step, unless it answers within %v (UnkillableStepTimeout)", patience)
	f.n.work.Go(func() {
		ctx, stop := child.Until(context.Background(), context.Canceled, f.ended, f.n.stopping)
		defer stop()
		_, err := askWithin(ctx, f, &stepapi.Msg{Type: stepapi.TypeCancel, Text: reason}, patience)
		if errors.Is(err, errSilent) {
			doom(f, step.Cancelled, reason, patience)
			return
		}
		f.mu.Lock()
		f.silent = time.Time{}
		f.mu.Unlock()
	})
	return note
}

// watchLimit ends a step that has outlived its time limit where its stepd, which counts it, does
// not greet noded. It asks when a stepd that works must have ended the step, and again after each
// such time where it answers, in a plugin's hook perhaps, or where noded's spool does not answer:
// stepd's end of a step waits for that, too. The time counts from the start of stepd's process, and
// of the tasks where that is later, by the clock that is never set.
func watchLimit(f *follower) {
	ctx, stop := child.Until(context.Background(), context.Canceled, f.ended, f.n.stopping)
	defer stop()
	rec := f.record()
	limit, grace := time.Duration(rec.TimeLimitS)*time.Second, f.n.reg.killWait+f.n.cfg.unkillable
	began, suspended, moved := time.Now().Add(-age(f.proc)), 0.0, f.moved
	for left := time.Until(began.Add(limit + grace)); ; {
		select {
		case <-ctx.Done():
			return
		case <-moved: // the tasks have been started: their time counts
			moved, rec = nil, f.record()
			ran, _ := rec.Ran(time.Now()) // too long where the clock was set forward
			if started := time.Now().Add(-ran); started.After(began) {
				began = started
			}
			suspended = rec.SuspendedSeconds
		case <-time.After(left):
			rec = f.record()
		}
		left = limit + grace - time.Since(began) + time.Duration((rec.SuspendedSeconds-suspended)*float64(time.Second))
		if rec.Suspended != nil {
			left = max(left, grace)
		}
		if left > 0 {
			continue
		}
		if greets(ctx, f) || f.n.silence() != nil {
			left = grace
			continue
		}
		f.log.Warnf("stepd does not answer after the step's time limit of %v: it is killed with its step", limit)
		doom(f, step.Timeout, fmt.Sprintf("its time limit of %v has come (--time)", limit), f.n.askMax)
		return
	}
}

// greets reports whether stepd greets a new connection, or takes none, at its end. All else that it
// answers may wait for its event log, and so for the spool.
func greets(ctx context.Context, f *follower) bool {
	_, err := f.ask(ctx, &stepapi.Msg{Type: stepapi.TypeHello})
	return !errors.Is(err, errSilent)
}

// age is how long a process has run, or less: its start counts the time in which the machine was
// suspended, and Uptime does not.
func age(p *child.Process) time.Duration {
	return max(0, linux.Uptime()-time.Duration(p.Start)*linux.Tick)
}
