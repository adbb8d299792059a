// Package child starts the programs that noded runs, and follows them by their pidfds: a
// step's stepd, which outlives noded and is found again by its record, and the site's
// scripts. What a stepd writes to its standard error comes through a socket to noded's log.
//
// It does not decide what is run, for which user or in which cgroup. Begin with Program.Start
// and Process.
package child

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/internal/printable"
	"stepd/step"
)

// SafePath is the PATH of the programs that noded starts: never a user's.
const SafePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environ is noded's own environment for the programs that it starts, with vars in the place of
// its own variables of these names. It lacks those by which systemd and noded know each other: a
// program that has them speaks for noded.
func Environ(vars ...string) []string {
	drop := []string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}
	for _, v := range vars {
		name, _, _ := strings.Cut(v, "=")
		drop = append(drop, name)
	}
	return append(slices.DeleteFunc(os.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(drop, name)
	}), vars...)
}

// Process is a process that noded follows. Its pidfd names it, whatever becomes of the
// number. The caller closes it; until then each method may be called from any goroutine.
type Process struct {
	PID   int
	Start uint64 // clock ticks since boot
	pidfd int
	ours  bool // a child of noded, which reaps it
	// stderr is nil where the process writes to a file.
	stderr *Stderr
}

// ErrGone says that a process has ended, or that its number belongs to another one.
var ErrGone = errors.New("is gone")

// Program is what Start runs.
type Program struct {
	Path string
	Argv []string // Argv[0] is the name that the process shows
	Env  []string
	Dir  string
	// Files are its descriptors, from 0; nil is /dev/null.
	Files []*os.File
	// Leaf is the directory of the cgroup in which the process is born; nil is noded's own.
	Leaf *os.File
	// Stderr is the socket whose other end is among Files; nil is none. The process owns
	// it once it was started.
	Stderr *Stderr
}

// Start runs the program in a session of its own. The kernel's own error is returned as it
// is: the caller names the program.
func (c Program) Start() (*Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	fds := make([]uintptr, len(c.Files))
	for i, f := range c.Files {
		fds[i] = cmp.Or(f, null).Fd()
	}
	pidfd := -1
	sys := &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if c.Leaf != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(c.Leaf.Fd())
	}
	pid, _, err := syscall.StartProcess(c.Path, c.Argv, &syscall.ProcAttr{Dir: c.Dir, Env: c.Env, Files: fds, Sys: sys})
	if err != nil {
		return nil, err
	}
	p := &Process{PID: pid, pidfd: pidfd, ours: true, stderr: c.Stderr}
	if pidfd < 0 {
		err := errors.New("the kernel gave no pidfd (Linux 5.2 or newer is needed)")
		return nil, errors.Join(fmt.Errorf("cannot follow process %d: %w", pid, err), syscall.Kill(pid, syscall.SIGKILL), p.Reap())
	}
	if p.Start, err = linux.StartTime(pid); err != nil {
		// A process that was not reaped has a start time: /proc is not mounted.
		return nil, errors.Join(err, syscall.Kill(pid, syscall.SIGKILL), p.Reap(), unix.Close(pidfd))
	}
	return p, nil
}

// Find opens the stepd of a record, or returns ErrGone. boot is the present boot's id.
func Find(rec *step.Record, boot string) (*Process, error) {
	pidfd, err := Open(rec.StepdPID, rec.StepdStart, rec.BootID, boot)
	if err != nil {
		return nil, err
	}
	return &Process{PID: rec.StepdPID, pidfd: pidfd, Start: rec.StepdStart, ours: isChild(pidfd)}, nil
}

// Attach follows the process that has the number pid now; the caller knows that it lives.
func Attach(pid int) (*Process, error) {
	pidfd, err := linux.PidfdOpen(pid)
	if err != nil {
		return nil, err
	}
	start, err := linux.StartTime(pid)
	if err != nil {
		unix.Close(pidfd)
		return nil, err
	}
	return &Process{PID: pid, Start: start, pidfd: pidfd}, nil
}

// isChild reports whether noded has to reap the process: a noded that was reloaded has the
// children of the noded before it.
func isChild(pidfd int) bool {
	err := linux.IgnoringEINTR(func() error {
		return unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	})
	return err == nil
}

// Open returns a pidfd of the process that had the number pid, the start time and the boot
// id of when they were noted; the caller closes it. boot is the present boot's id. A process that
// has ended is ErrGone; a zombie, too, since not every process 1 reaps at once.
func Open(pid int, start uint64, of, boot string) (pidfd int, err error) {
	if pid <= 0 || !linux.SameBoot(of, boot) {
		return -1, ErrGone
	}
	pidfd, err = linux.PidfdOpen(pid)
	if linux.IsGone(err) {
		return -1, ErrGone
	}
	if err != nil {
		return -1, err
	}
	// The pidfd comes first: if the number still has the right start time now,
	// the pidfd is that process's.
	exited, err := linux.PidfdExited(pidfd)
	if err == nil && !exited {
		if now, err := linux.StartTime(pid); err == nil && now == start {
			return pidfd, nil
		}
	}
	if exited {
		// This fails for a process that is not a child of noded, which has none to reap.
		_ = unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED|unix.WNOHANG, nil)
	}
	unix.Close(pidfd)
	return -1, ErrGone
}

// Until returns a context for waiting, which ends with ctx, or with cause as soon as one of the
// channels is closed. The caller calls stop when it waits no more.
func Until(ctx context.Context, cause error, ends ...<-chan struct{}) (until context.Context, stop func()) {
	until, cancel := context.WithCancelCause(ctx)
	for _, end := range ends {
		go func() { // ends with until
			select {
			case <-end:
				cancel(cause)
			case <-until.Done():
			}
		}()
	}
	return until, func() { cancel(nil) }
}

// Wait returns nil when the process has ended, or ctx's cause.
func (p *Process) Wait(ctx context.Context) error { return linux.PidfdWait(ctx, p.pidfd) }

// Kill sends SIGKILL. A process that has ended is no error.
func (p *Process) Kill() error {
	err := linux.PidfdSignal(p.pidfd, syscall.SIGKILL)
	if linux.IsGone(err) {
		return nil
	}
	return err
}

// Ending describes how a stepd, which has ended without a result, ended, and reaps it. The
// kernel keeps the status of a process that is not noded's child from noded, and none is
// made up.
func (p *Process) Ending() string {
	who := fmt.Sprintf("stepd (pid %d) ", p.PID)
	ws, err := p.status()
	switch {
	case !p.ours || err != nil:
		return who + "is gone"
	case ws.Signaled():
		return who + "was killed by " + signalName(ws.Signal())
	}
	text := who + fmt.Sprintf("exited with code %d and left no result", ws.ExitStatus())
	if p.stderr == nil {
		return text
	}
	if last := p.stderr.Finish(); last != "" {
		text += ": " + last
	}
	return text
}

// Run waits for the end of a child and reaps it. When ctx ends first, the process group
// that the child leads is killed, and the error is ctx's cause.
func (p *Process) Run(ctx context.Context) error {
	err := p.Wait(ctx)
	if err != nil {
		// The child was not reaped yet, so that the number is still its group's.
		if kerr := syscall.Kill(-p.PID, syscall.SIGKILL); kerr != nil && !errors.Is(kerr, syscall.ESRCH) {
			err = printable.JoinErrors(err, fmt.Errorf("cannot kill process group %d: %w", p.PID, kerr))
		}
		err = printable.JoinErrors(err, p.Wait(context.Background()))
	}
	ws, werr := p.status()
	switch {
	case err != nil:
		return err
	case werr != nil:
		return fmt.Errorf("cannot wait for process %d: %w", p.PID, werr)
	case ws.Signaled():
		return fmt.Errorf("was killed by %s", signalName(ws.Signal()))
	case ws.ExitStatus() != 0:
		return fmt.Errorf("exited with code %d", ws.ExitStatus())
	}
	return nil
}

// Reap takes the status of a child that has ended, and drops it.
func (p *Process) Reap() error {
	_, err := p.status()
	return err
}

// status reaps the process where it is a child of noded.
func (p *Process) status() (ws unix.WaitStatus, err error) {
	if p.ours {
		err = linux.IgnoringEINTR(func() error {
			_, err := unix.Wait4(p.PID, &ws, 0, nil)
			return err
		})
	}
	return ws, err
}

// Close releases what the Process holds; the process goes on.
func (p *Process) Close() {
	unix.Close(p.pidfd)
	if p.stderr != nil {
		p.stderr.Close()
	}
}

// signalName is the name that users know: SIGKILL, SIGRTMIN+1.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); strings.HasPrefix(name, "SIG") {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}
