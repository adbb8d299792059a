package node

import (
	"context"
	"errors"
	"fmt"

	"stepd/api/stepapi"
	"stepd/internal/child"
)

// errSilent is wrapped where stepd does not answer.
var errSilent = errors.New("stepd does not answer")

// endSilent ends a step whose stepd does not answer a request to end it: it is stopped, frozen or
// stuck. noded asks on for as long as processes may take to die (UnkillableStepTimeout), and then
// kills stepd: the rest is as with any stepd that was killed. Only the first call does so.
func endSilent(f *follower, reason string) {
	f.mu.Lock()
	begun := f.silent
	f.silent = true
	f.mu.Unlock()
	if begun {
		return
	}
	patience := f.n.cfg.unkillable
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
		f.silent = false
		f.mu.Unlock()
	})
}
