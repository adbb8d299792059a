package socket

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/slurm/wire"
	"stepd/step"
)

// Numbers that slurmctld sends as signals and that are none (slurm.h: SIG_TERM_KILL and
// others).
const (
	sigTermKill  = 991 // SIGTERM, and later SIGKILL
	sigMemory    = 992 // an uncorrectable error of the memory
	sigRequeued  = 993
	sigPreempted = 994
	sigDebugWake = 995 // for a task that waits for a debugger
	sigTimeLimit = 996
	sigAbort     = 997
	sigNodeFail  = 998
	sigFailure   = 999
)

// announces are the signals of which the user reads, and what: "%s ON %s" stand for the step
// and its node. Other texts than SIGTERM's and SIGKILL's tell why these two follow.
var announces = map[int32]string{
	int32(unix.SIGTERM): "*** %s ON %s CANCELLED AT %s ***",
	int32(unix.SIGKILL): "*** %s ON %s CANCELLED AT %s ***",
	sigTermKill:         "*** %s ON %s CANCELLED AT %s ***",
	sigMemory:           "*** %s ON %s UNCORRECTABLE MEMORY ERROR AT %s ***",
	sigRequeued:         "*** %s ON %s CANCELLED AT %s DUE TO JOB REQUEUE ***",
	sigPreempted:        "*** %s ON %s CANCELLED AT %s DUE TO PREEMPTION ***",
	sigTimeLimit:        "*** %s ON %s CANCELLED AT %s DUE TO TIME LIMIT ***",
	sigNodeFail:         "*** %s ON %s CANCELLED AT %s DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
	sigFailure:          "*** %s ON %s FAILED (non-zero exit code or other failure mode) ***",
}

// announcesNow are the texts that a later release has changed: seen in 26.05, and not in
// 24.11.
var announcesNow = map[int32]string{
	int32(unix.SIGTERM): "*** %s ON %s CANCELLED AT %s DUE to SIGNAL Terminated ***",
	int32(unix.SIGKILL): "*** %s ON %s CANCELLED AT %s DUE to SIGNAL Killed ***",
	sigTermKill:         "*** %s ON %s CANCELLED AT %s DUE TO TASK FAILURE ***",
}

// Announcement is what a user reads when a signal, or a number that slurmctld sends as one,
// comes for the step, which is named as in Config.Name: "" for most. now is in the zone that the
// user is to read.
func Announcement(v wire.Release, name, node string, sig int32, now time.Time) string {
	text, ok := announces[sig]
	if newer, changed := announcesNow[sig]; changed && v >= wire.V2505 {
		text = newer
	}
	if !ok {
		return ""
	}
	if job, batch := strings.CutSuffix(name, ".batch"); batch {
		name = "JOB " + job
	} else {
		name = "STEP " + name
	}
	if strings.Count(text, "%s") == 2 {
		return fmt.Sprintf(text, name, node)
	}
	return fmt.Sprintf(text, name, node, now.Format("2006-01-02T15:04:05"))
}

// Announces reports whether a step's node says why the step is cancelled: the first one, or
// the one that SLURM_STEP_KILLED_MSG_NODE_ID in the step's environment names (srun(1)).
func Announces(env []string, nodeID uint32) bool {
	const name = "SLURM_STEP_KILLED_MSG_NODE_ID="
	at := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, name) })
	if at < 0 {
		return nodeID == 0
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(env[at], name), 10, 32)
	return err == nil && uint32(n) == nodeID
}

// announce says a signal to the step's user, the end of the step once: the first reason is
// the one that counts.
func (s *Server) announce(q request) {
	text := Announcement(s.conf.Release, s.conf.Name, s.conf.Node, q.signal, time.Now())
	if text == "" || !s.conf.Announces {
		return
	}
	if q.signal != sigMemory {
		s.mu.Lock()
		again := s.announced
		s.announced = true
		s.mu.Unlock()
		if again {
			return
		}
	}
	s.handler.Say(text)
	if q.text != "" {
		s.handler.Say("*** REASON: " + q.text + " ***")
	}
}

// signal is reqSignal, of a user who may. A step that starts takes at once what ends it, and
// needs no SIGCONT: slurmd's next request waits behind this one.
func (s *Server) signal(q request) error {
	state := s.handler.State()
	if q.signal != 0 && (state == Ending || state == NotRunning) {
		if q.signal == int32(unix.SIGTERM) || q.signal == int32(unix.SIGKILL) {
			s.handler.Late()
		}
		return ErrNotRunning
	}
	s.announce(q)
	sig := unix.Signal(q.signal)
	switch q.signal {
	case 0, sigMemory, sigRequeued, sigPreempted, sigDebugWake, sigTimeLimit, sigNodeFail, sigFailure:
		return nil
	case sigTermKill:
		s.handler.Cancel()
		return nil
	case sigAbort:
		s.handler.Abort()
		return nil
	}
	if sig < 1 || sig > 64 {
		return nil // as Slurm, which sends it to none
	}
	if state == Starting && sig != unix.SIGTERM && sig != unix.SIGKILL {
		if sig == unix.SIGCONT {
			return nil
		}
		if err := s.untilRunning(); err != nil {
			return err
		}
	}
	return s.handler.Signal(sig, scope(s.conf.ID, q.flags))
}

// untilRunning waits for the tasks.
func (s *Server) untilRunning() error {
	select {
	case <-s.conf.Running:
	case <-s.closing:
	case <-time.After(runningMax):
	}
	if s.handler.State() != Running {
		return ErrNotRunning
	}
	return nil
}

// scope is what a signal's flags mean for the step.
func scope(id step.ID, flags uint32) Scope {
	switch {
	case id.Step != step.BatchStep:
		return All
	case flags&flagBatch != 0:
		return Leader
	case flags&flagFullJob != 0:
		return Group
	}
	return All
}
