package client

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"stepd/api/stepapi"
	"stepd/client/options"
	"stepd/client/terminal"
	"stepd/step"
)

// twice is how close the second Ctrl-C must be to end the step (srun(1)).
const twice = time.Second

// abortGrace is the wait beyond KillWait, as srun announces it.
const abortGrace = 2

// catchSignals acts on the signals that the client gets, and on --wait, as srun
// does: Ctrl-C shows the tasks' states, a second one within a second ends the step,
// the next ends the client; TERM, HUP and QUIT end the step; the others are
// forwarded. The returned function ends that.
func (l *launch) catchSignals(conn *stepapi.Conn) (stop func()) {
	c := make(chan syscall.Signal, 16) // a burst of signals must not be lost
	l.signals.lead(func(sig syscall.Signal) {
		if l.screen != nil && (sig == syscall.SIGHUP || sig == syscall.SIGCONT) {
			return // they are the client's terminal's
		}
		select {
		case c <- sig:
		default:
		}
	}, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGCONT)
	done := make(chan struct{})
	h := &handler{l: l, conn: conn}
	var wg sync.WaitGroup
	wg.Go(func() {
		first := l.firstExit
		var late <-chan time.Time
		for {
			select {
			case <-done:
				return
			case sig := <-c:
				h.signal(sig)
			case <-first:
				first = nil
				if wait := l.opt.Programs.Wait; wait > 0 {
					late = time.After(time.Duration(wait) * time.Second)
				}
			case <-late:
				h.waitOver()
			}
		}
	})
	return func() { l.signals.lead(nil); close(done); wg.Wait() }
}

// handler is what signals have done. One goroutine uses it.
type handler struct {
	l       *launch
	conn    *stepapi.Conn
	seq     uint32
	last    time.Time // of the last Ctrl-C
	aborted bool      // by Ctrl-C
}

func (h *handler) send(m stepapi.Msg) {
	h.seq++
	m.Seq = h.seq
	// A step that is gone needs no order.
	_ = h.conn.Send(&m)
}

func (h *handler) forward(sig syscall.Signal) {
	h.send(stepapi.Msg{Type: stepapi.TypeSignal, Signal: int(sig), Scope: step.ScopeTasks})
}

func (h *handler) cancel(why string) {
	h.send(stepapi.Msg{Type: stepapi.TypeCancel, Reason: why})
	if wait := h.l.killWait; wait > 0 {
		terminal.Say("Job step aborted: Waiting up to %d seconds for job step to finish.", wait+abortGrace)
	}
}

func (h *handler) signal(sig syscall.Signal) {
	switch sig {
	case syscall.SIGINT:
		h.interrupt()
	case syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		terminal.Say("forcing job termination")
		h.cancel(fmt.Sprintf("the client got %v", sig))
	default:
		h.forward(sig)
	}
}

func (h *handler) interrupt() {
	l := h.l
	if h.aborted {
		// srun(1): the third ends the client, whatever has become of the tasks.
		terminal.Say("error: leaving StepId=%s, which is being ended", l.id)
		if l.screen != nil {
			l.screen.Restore()
		}
		os.Exit(step.SignaledBy(syscall.SIGINT).Code())
	}
	if l.opt.DisableStatus && !l.opt.QuitOnInterrupt {
		h.forward(syscall.SIGINT)
		return
	}
	if l.opt.QuitOnInterrupt || time.Since(h.last) < twice {
		h.aborted = true
		if h.last.IsZero() {
			l.tellLaunch()
		}
		terminal.Say("sending Ctrl-C to StepId=%s", l.id)
		h.forward(syscall.SIGINT)
		h.cancel("interrupted")
		return
	}
	terminal.Say("interrupt (one more within 1 sec to abort)")
	l.tellStates()
	l.tellLaunch()
	h.last = time.Now() // noded may have let tellLaunch wait
}

// tellLaunch says what a launch that is not over waits for, which a signal interrupts.
func (l *launch) tellLaunch() {
	if words, _ := l.launchStage(); words != "" {
		terminal.Say("%s", words)
	}
}

// waitOver is --wait: the first task has ended that long ago.
func (h *handler) waitOver() {
	l := h.l
	if l.allEnded() {
		return
	}
	terminal.Say("First task exited %ds ago", l.opt.Programs.Wait)
	l.tellStates()
	terminal.Say("Terminating StepId=%s", l.id)
	h.cancel(fmt.Sprintf("the first task has ended %d s before (--wait)", l.opt.Programs.Wait))
}

func (l *launch) allEnded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ended) >= l.ntasks
}

// tellStates says how the tasks are, a line for each state: "StepId=3.0 tasks
// 0-1: running".
func (l *launch) tellStates() {
	l.mu.Lock()
	defer l.mu.Unlock()
	var running, ended, badly []int
	for rank := range l.ntasks {
		switch bad, over := l.ended[rank]; {
		case !over:
			running = append(running, rank)
		case bad:
			badly = append(badly, rank)
		default:
			ended = append(ended, rank)
		}
	}
	state := "starting"
	if l.state == step.Running {
		state = "running"
	}
	for _, p := range []struct {
		ranks []int
		state string
	}{{running, state}, {ended, "exited"}, {badly, "exited abnormally"}} {
		if len(p.ranks) > 0 {
			terminal.Say("StepId=%s %s: %s", l.id, options.Tasks(p.ranks), p.state)
		}
	}
}
