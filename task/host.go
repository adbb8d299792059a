package task

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// explainLaunch turns the end of a launch into its cause: a cancel, a crash of
// the host with the hook's name, or the stage's own error.
func (s *Step) explainLaunch(stage string, err error) error {
	ended := s.endedBy()
	if ended != nil {
		s.sayCancelled(ended)
	}
	if errors.Is(err, step.ErrHostGone) {
		if died := s.hostDied(); ended == nil {
			return died
		}
	}
	if ended != nil {
		return ended
	}
	var hook *step.HookError
	if errors.As(err, &hook) {
		if !s.visible(hook.Hook) || hook.RC == nil {
			s.sayError(hook.Error())
		}
		return hook
	}
	if _, ok := errors.AsType[*cause](err); ok {
		return err
	}
	err = fmt.Errorf("%s: %w", stage, err)
	s.sayError(err.Error())
	return err
}

// dyingTime is how long a host may take from the end of its channel to its own.
const dyingTime = 2 * time.Second

// hostDied is called once the host is dead or has closed its control channel.
// It says who did it and returns nil only where the tasks may run on: an
// optional plugin died after the gate.
func (s *Step) hostDied() error {
	t := time.NewTimer(dyingTime)
	defer t.Stop()
	select {
	case <-s.hostGone:
	case <-t.C:
		s.setHostCause("closed its control channel")
		s.host.Kill()
		if err := s.waitHost(); err != nil {
			s.setHostCause(err.Error())
		}
	}
	s.hostDead = true
	err := s.hostDeath(s.hostStatus())
	var hook *step.HookError
	if errors.As(err, &hook) {
		s.mu.Lock()
		s.noteCrash(hook)
		s.mu.Unlock()
	}
	if s.gateOpen && hook != nil && !hook.Required {
		text := err.Error()
		if s.alive > 0 {
			text += "; the plugin is optional: the tasks run on, without further hooks"
		}
		s.sayError(text)
		s.mu.Lock()
		s.noteReason(err.Error())
		s.mu.Unlock()
		return nil
	}
	s.sayError(err.Error())
	return err
}

// waitHost waits for the end of a host that was killed. One that sleeps in the
// kernel (state D, a file server that is gone) does not die: then nobody is
// helped by a stepd that waits for it for ever.
func (s *Step) waitHost() error {
	ctx, cancel := s.killContext()
	defer cancel()
	select {
	case <-s.hostGone:
		return s.killed(nil)
	case <-ctx.Done():
		return fmt.Errorf("cannot kill spankhost (pid %d): it is %w", s.host.PID(), context.Cause(ctx))
	}
}

// hostDeath words the host's end.
func (s *Step) hostDeath(status step.ExitStatus) error {
	cause := hookEnd(status, s.hostCause())
	if hook, ok := s.host.Crash(-1, cause); ok {
		return hook
	}
	return fmt.Errorf("spankhost (pid %d): %s", s.host.PID(), cause)
}

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

// overdue tells since when the host or a task is in a hook beyond the limit.
// still is for how long it may have stood still in there.
func (w *hookWatch) overdue(p step.HostPlace, still time.Duration) bool {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil || !p.InHook() {
		return false
	}
	return now.Nano()-int64(p.SinceNS)-int64(still) > int64(w.limit)
}

// checkHost kills the host if it is in a hook for too long.
func (s *Step) checkHost(w *hookWatch) {
	if h := s.setUpHost(); h != nil && w.overdue(h.Where(-1), 0) {
		s.setHostCause(w.cause())
		h.Kill()
	}
}

// checkTasks kills the tasks that are in a hook for too long.
func (s *Step) checkTasks(w *hookWatch) {
	still, suspended := s.stoodStill()
	if suspended {
		return
	}
	for id := range s.tasks {
		t := &s.tasks[id]
		if t.ended || t.hookExeced || !w.overdue(s.host.Where(id), still) {
			continue
		}
		t.cause = w.cause()
		s.eachPidfd(func(i, pidfd int) {
			if i == id {
				unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
			}
		})
	}
}

func (w *hookWatch) cause() string {
	return fmt.Sprintf("did not return within %v %s", w.limit, w.why)
}

// guard watches the host while Run waits for its answer outside of follow's
// loop: HookTimeout bounds its hooks, and after a cancel KillWait does, since
// nothing else can end a hook. The returned function ends the watch.
func (s *Step) guard() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		w := newHookWatch(s.plan.Spec.Spank.HookTimeoutS)
		defer func() { w.stop() }()
		cancelled := s.cancelled
		var late <-chan time.Time
		for {
			select {
			case <-done:
				return
			case <-w.c:
				s.checkHost(w)
			case <-cancelled:
				cancelled = nil
				wait := max(1, s.plan.Spec.KillWaitS)
				w.bound(wait)
				w.why = afterCancel
				late = time.After(time.Duration(wait) * time.Second)
			case <-late:
				s.killIdle(w)
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// killIdle kills a host that owes an answer and is in no hook: it is stopped,
// or waits for something in the kernel. In a hook the board tells since when.
func (s *Step) killIdle(w *hookWatch) {
	if h := s.setUpHost(); h != nil && !h.Where(-1).InHook() {
		s.setHostCause("did not answer " + w.why)
		h.Kill()
	}
}

func (s *Step) setHostCause(cause string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = cause
}

func (s *Step) hostCause() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}
