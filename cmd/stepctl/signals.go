package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"stepd/api/stepapi"
	"stepd/step"
)

// twice is how close the second Ctrl-C must be to end the step (srun(1)).
const twice = time.Second

// catchSignals acts on the signals that the client gets, as srun does: Ctrl-C
// shows the tasks' states, a second one within a second ends the step; TERM
// and HUP end it; the others are forwarded. The returned function ends that.
func (l *launch) catchSignals(conn orderer) (stop func()) {
	c := make(chan os.Signal, 16) // a burst of signals must not be lost
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM)
	if l.screen == nil { // else they are those of the client's terminal
		signal.Notify(c, syscall.SIGHUP, syscall.SIGCONT)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		var last time.Time
		var seq atomic.Uint32
		cancel := func(why string) {
			conn.Send(&stepapi.Msg{Type: stepapi.TypeCancel, Seq: seq.Add(1), Reason: why})
		}
		for {
			select {
			case <-done:
				return
			case sig := <-c:
				switch sig {
				case syscall.SIGINT:
					if l.opt.quitOnInterrupt || time.Since(last) < twice {
						say("sending Ctrl-C to StepId=%s", l.id)
						cancel("interrupted")
						continue
					}
					last = time.Now()
					say("interrupt (one more within 1 sec to abort)")
					say("StepId=%s %s", l.id, l.states())
				case syscall.SIGTERM, syscall.SIGHUP:
					cancel(fmt.Sprintf("the client got %v", sig))
				default:
					conn.Send(&stepapi.Msg{Type: stepapi.TypeSignal, Seq: seq.Add(1), Signal: int(sig.(syscall.Signal)), Scope: "tasks"})
				}
			}
		}
	})
	return func() { signal.Stop(c); close(done); wg.Wait() }
}

// states is "tasks 0-1: running; task 2: exited".
func (l *launch) states() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var running, ended []int
	for rank := range l.ntasks {
		if l.told[rank] {
			ended = append(ended, rank)
		} else {
			running = append(running, rank)
		}
	}
	state := "starting"
	if l.state == step.Running {
		state = "running"
	}
	var parts []string
	for _, p := range []struct {
		ranks []int
		state string
	}{{running, state}, {ended, "exited"}} {
		if len(p.ranks) > 0 {
			parts = append(parts, fmt.Sprintf("tasks %s: %s", rankList(p.ranks), p.state))
		}
	}
	return strings.Join(parts, "; ")
}
