package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"stepd/api/stepapi"
	"stepd/internal/child"
)

// errSilent is wrapped where stepd does not answer.
var errSilent = errors.New("stepd does not answer")

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
			f.doomed <- fmt.Sprintf("%s; stepd (pid %d) did not answer for %v and was killed", reason, f.record().StepdPID, patience)
			return
		}
		f.mu.Lock()
		f.silent = time.Time{}
		f.mu.Unlock()
	})
	return note
}
