package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
)

// process is one stepd: a pidfd names it, whatever becomes of the number.
type process struct {
	pid   int
	start uint64 // clock ticks since boot
	pidfd int
	child bool // ours to reap
	// words is what stepd writes to its standard error; nil where it goes to a file.
	words *words
}

// errGone is returned by findProcess for a process that is no more.
var errGone = errors.New("is gone")

// findProcess opens the stepd of a record: the process that has its pid, start
// time and boot id, for pids come again.
func findProcess(rec *step.Record, boot string) (*process, error) {
	pidfd, start, err := openProcess(rec.StepdPID, rec.BootID, boot)
	if err != nil {
		return nil, err
	}
	if start != rec.StepdStart {
		unix.Close(pidfd)
		return nil, errGone
	}
	return &process{pid: rec.StepdPID, pidfd: pidfd, start: start, child: isChild(pidfd)}, nil
}

// isChild tells whether the process is ours to reap: a noded that was reloaded has the
// children of the one that it was.
func isChild(pidfd int) bool {
	err := linux.IgnoringEINTR(func() error {
		return unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	})
	return err == nil
}

// openProcess opens what has the number pid now, and tells when that started;
// of is the boot in which the number was noted, boot is this one. A zombie
// counts as gone: not every PID 1 reaps at once.
func openProcess(pid int, of, boot string) (pidfd int, start uint64, err error) {
	if pid <= 0 || !linux.SameBoot(of, boot) {
		return -1, 0, errGone
	}
	pidfd, err = linux.PidfdOpen(pid)
	if linux.IsGone(err) {
		return -1, 0, errGone
	}
	if err != nil {
		return -1, 0, err
	}
	// The pidfd comes first: if the number still has the right start time now,
	// the pidfd is that process's.
	exited, err := linux.PidfdExited(pidfd)
	if err == nil && !exited {
		if start, err = linux.StartTime(pid); err == nil {
			return pidfd, start, nil
		}
	}
	if exited {
		// Of those that are not our children there is nothing to reap.
		_ = unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED|unix.WNOHANG, nil)
	}
	unix.Close(pidfd)
	return -1, 0, errGone
}

// wait returns nil when the process has ended, or ctx's cause.
func (p *process) wait(ctx context.Context) error { return linux.PidfdWait(ctx, p.pidfd) }

// kill ends the process at once.
func (p *process) kill() error {
	err := linux.PidfdSignal(p.pidfd, syscall.SIGKILL)
	if linux.IsGone(err) {
		return nil
	}
	return err
}

// ending says in words how the process, which has ended, came to its end, and
// reaps it. Of a process that is not our child nobody tells the status, and
// none is made up.
func (p *process) ending() string {
	who := fmt.Sprintf("stepd (pid %d) ", p.pid)
	if !p.child {
		return who + "is gone"
	}
	var ws unix.WaitStatus
	err := linux.IgnoringEINTR(func() error {
		_, err := unix.Wait4(p.pid, &ws, 0, nil)
		return err
	})
	switch {
	case err != nil:
		return who + "is gone"
	case ws.Signaled():
		return who + "was killed by " + signalName(ws.Signal())
	}
	text := who + fmt.Sprintf("exited with code %d and left no result", ws.ExitStatus())
	if p.words == nil {
		return text
	}
	if said := p.words.finish(); said != "" {
		text += ": " + said
	}
	return text
}

func (p *process) reap() error {
	_, err := unix.Wait4(p.pid, nil, 0, nil)
	return err
}

func (p *process) close() {
	unix.Close(p.pidfd)
	if p.words != nil {
		p.words.close()
	}
}

// signalName is the name that users know: SIGKILL, SIGRTMIN+1.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); strings.HasPrefix(name, "SIG") {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}
