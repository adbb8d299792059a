package task

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
	"stepd/step/launch"
)

// hookErrors passes on what plugins write to standard error, where the first task's is a file
// that the user has chosen: the host, which is root, writes into a pipe, and stepd writes into the
// file as the user. Some files act by the rights of the process that writes to them, as many in
// /proc do. A pipe has no such rights: the host has the client's, or the relay's, by itself.
//
// A daemon that a plugin has left with the pipe keeps no step from its end: it is read up to
// what is in there, and not to its end.
type hookErrors struct {
	user linux.User
	pipe *os.File // nil: there is none

	mu    sync.Mutex // held while text is passed on, so that it stays in order
	to    *os.File   // guarded by mu: nil until it is open
	stuck bool       // Run's goroutine's: the file does not take it
}

// hookErrorsMax bounds a wait for a file that does not take what plugins write: a file server
// may be gone.
const hookErrorsMax = 5 * time.Second

// begin makes the pipe where the first task's standard error is no pipe, and returns the end
// for the host, which the caller closes; else it returns nil.
func (e *hookErrors) begin(user step.User, streams []launch.TaskStream) (*os.File, error) {
	s := firstStderr(streams)
	switch s.Kind {
	case launch.StreamToEarlyPath:
	case launch.StreamToHandle:
		var st unix.Stat_t
		if err := unix.Fstat(s.Handle, &st); err != nil {
			return nil, fmt.Errorf("cannot look at the first task's standard error: fstat: %w", err)
		}
		if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFIFO || kind == unix.S_IFSOCK {
			return nil, nil
		}
		fd, err := unix.FcntlInt(uintptr(s.Handle), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, fmt.Errorf("cannot keep the first task's standard error: %w", err)
		}
		e.to = os.NewFile(uintptr(fd), "standard error")
	default:
		return nil, nil
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("cannot make a pipe for the plugins' standard error: %w", err)
	}
	host := os.NewFile(uintptr(p[1]), "the plugins' standard error")
	// Plugins open /dev/stderr as the user, too.
	err := errors.Join(unix.SetNonblock(p[0], true), unix.Fchown(p[1], int(user.UID), -1))
	if err != nil {
		unix.Close(p[0])
		host.Close()
		return nil, fmt.Errorf("cannot make a pipe for the plugins' standard error: %w", err)
	}
	e.user = linux.User{UID: user.UID, GID: user.GID, Groups: user.Groups}
	e.pipe = os.NewFile(uintptr(p[0]), "the plugins' standard error")
	if e.to != nil {
		go e.run() // ends with the process, or with the last writer
	}
	return host, nil
}

// firstStderr is the first task's standard error.
func firstStderr(streams []launch.TaskStream) launch.TaskStream {
	of := func(fd int) (found launch.TaskStream) {
		own := false
		for _, s := range streams {
			if s.FD == fd && (s.LocalID == 0 || s.LocalID == launch.AllRanks && !own) {
				found, own = s, s.LocalID == 0
			}
		}
		return found
	}
	s := of(2)
	if s.Kind == launch.StreamToStdout {
		s = of(1)
	}
	return s
}

// opened gives it the file of a batch job, which stays the caller's.
func (e *hookErrors) opened(f *os.File) {
	if e.pipe == nil {
		return
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return // what plugins write is lost
	}
	e.mu.Lock()
	e.to = os.NewFile(uintptr(fd), f.Name())
	e.mu.Unlock()
	go e.run()
}

// run passes on what comes.
func (e *hookErrors) run() {
	raw, err := e.pipe.SyscallConn()
	if err == nil {
		_ = raw.Read(func(fd uintptr) bool { return e.pass(int(fd)) }) // which fails with the pipe alone
	}
}

// pass passes on what is in the pipe, and reports whether it has ended.
func (e *hookErrors) pass(fd int) (ended bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.to == nil {
		return false
	}
	var buf [4096]byte
	for {
		n, err := linux.Uninterrupted(func() (int, error) { return unix.Read(fd, buf[:]) })
		if n <= 0 {
			return !errors.Is(err, unix.EAGAIN)
		}
		// What the file does not take is lost: a full disk is the user's.
		_ = linux.OnThread(func() error {
			if err := e.user.Become(); err != nil {
				return err
			}
			_, err := e.to.Write(buf[:n])
			return err
		})
	}
}

// flush returns when what plugins have written so far is in its file, or the file does not take
// it. Run's goroutine calls it.
func (e *hookErrors) flush() {
	if e.pipe == nil || e.stuck {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := e.pipe.SyscallConn()
		if err == nil {
			_ = raw.Control(func(fd uintptr) { e.pass(int(fd)) })
		}
	}()
	select {
	case <-done:
	case <-time.After(hookErrorsMax):
		e.stuck = true
	}
}
