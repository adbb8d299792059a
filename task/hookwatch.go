package task

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step/launch"
)

// hookWatch bounds the hooks by HookTimeout. A hook begins without a system
// call, so nothing in the kernel can tell: the board is looked at, four times
// within the bound, and only where a bound was configured.
type hookWatch struct {
	limit time.Duration
	why   string // which bound it is
	tick  *time.Ticker
	c     <-chan time.Time
}

// afterCancel is why a hook is ended when its step was.
const afterCancel = "after the step was cancelled (KillWait in slurm.conf)"

func newHookWatch(seconds int) *hookWatch {
	w := &hookWatch{why: "(HookTimeout in stepd.conf)"}
	w.bound(seconds)
	return w
}

// bound sets the limit unless a shorter one is set already; 0 sets none.
func (w *hookWatch) bound(seconds int) {
	limit := time.Duration(seconds) * time.Second
	if limit <= 0 || (w.limit > 0 && w.limit <= limit) {
		return
	}
	w.stop()
	w.limit = limit
	w.tick = time.NewTicker(limit / 4)
	w.c = w.tick.C
}

func (w *hookWatch) stop() {
	if w.tick != nil {
		w.tick.Stop()
	}
}

// overdue reports whether the host or a task is in a hook beyond the limit.
// still is for how long it may have stood still in there.
func (w *hookWatch) overdue(p launch.HostPlace, still time.Duration) bool {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil || !p.InHook() {
		return false
	}
	return now.Nano()-int64(p.SinceNS)-int64(still) > int64(w.limit)
}

func (w *hookWatch) cause() string {
	return fmt.Sprintf("did not return within %v %s", w.limit, w.why)
}

// checkHost kills the host if it is in a hook for too long.
func (w *hookWatch) checkHost(h *hostProcess) {
	if board := h.board(); board != nil && w.overdue(board.Where(-1), 0) {
		h.blame(w.cause())
		board.Kill()
	}
}

// killIdle kills a host that owes an answer and is in no hook: it is stopped,
// or waits for something in the kernel. Of a hook the board has the beginning.
func (w *hookWatch) killIdle(h *hostProcess) {
	if board := h.board(); board != nil && !board.Where(-1).InHook() {
		h.blame("did not answer " + w.why)
		board.Kill()
	}
}

// guard watches the host while Run waits for its answer outside of the
// loop: HookTimeout bounds its hooks, and after a cancel KillWait does, since
// nothing else can end a hook. The returned function ends the watch.
func (h *hostProcess) guard() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		w := newHookWatch(h.plan.Spec.Spank.HookTimeoutS)
		defer func() { w.stop() }()
		cancelled := h.causes.cancelled
		var late <-chan time.Time
		for {
			select {
			case <-done:
				return
			case <-w.c:
				w.checkHost(h)
			case <-cancelled:
				cancelled = nil
				wait := max(1, h.plan.Spec.KillWaitS)
				w.bound(wait)
				w.why = afterCancel
				late = time.After(time.Duration(wait) * time.Second)
			case <-late:
				w.killIdle(h)
			}
		}
	})
	return func() { close(done); wg.Wait() }
}
