package task

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// stopWatch notices that the host is stopped: root has sent it a signal, or a plugin has raised
// one. A host for which stepd waits, in a hook or between hooks, is killed where it has not gone on
// within UnkillableStepTimeout.
type stopWatch struct {
	*linux.StopWatch
	host *hostProcess
}

func newStopWatch(h *hostProcess) *stopWatch {
	return &stopWatch{linux.NewStopWatch(h.budget.limit(), h.isStopped), h}
}

// look is Look, and says that the time begins.
func (w *stopWatch) look() {
	if w.Look() {
		w.host.messages.log(fmt.Sprintf("spankhost (pid %d) is stopped: it is killed, unless it goes on within %v (UnkillableStepTimeout)", w.host.PID(), w.host.budget.limit()))
	}
}

// kill ends a host that is stopped still.
func (w *stopWatch) kill() {
	if w.Over() {
		w.host.blame(fmt.Sprintf("was stopped, and did not go on within %v (UnkillableStepTimeout in slurm.conf)", w.host.budget.limit()))
		w.host.Kill()
	}
}

// isStopped reports whether the host's process is stopped by a signal.
func (h *hostProcess) isStopped() bool {
	h.mu.Lock()
	pid := h.pid
	h.mu.Unlock()
	return pid > 0 && linux.ChildStopped(pid)
}

// mayBeStopped is called when the host of a running step may be stopped, or have gone on. Only the
// tasks' ends make that matter, of which such a host tells nothing: they are waited for.
func (l *loop) mayBeStopped() {
	switch {
	case !l.tasks.living():
		l.stops.look()
		return
	case l.unheard != nil || !l.host.isStopped():
		return
	}
	var pidfds []int
	l.tasks.each(func(_, pidfd int) {
		// A copy: the table closes its own when it gets the end.
		if fd, err := unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			pidfds = append(pidfds, fd)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	unheard := make(chan struct{})
	l.unheard, l.halt = unheard, cancel
	l.helpers.Go(func() {
		if linux.PidfdWait(ctx, pidfds...) == nil {
			close(unheard)
		}
		for _, fd := range pidfds {
			unix.Close(fd)
		}
	})
}
