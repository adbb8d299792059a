package linux

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Inotify reports that something has happened to files or directories
// (inotify(7)). What it was is not kept: the caller looks again. Watch and Wait
// may be called at the same time, Wait by one goroutine only.
type Inotify struct {
	f *os.File
}

// NewInotify makes one that watches nothing yet. EMFILE: the user's limit
// (fs.inotify.max_user_instances) is reached.
func NewInotify() (*Inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot create an inotify instance: %w", err)
	}
	return &Inotify{f: os.NewFile(uintptr(fd), "inotify")}, nil
}

// Watch adds path to what is watched, for the events of mask (unix.IN_…). A
// path that is watched already gets the new mask. ENOENT: it does not exist.
// ENOSPC: the user's limit (fs.inotify.max_user_watches) is reached.
func (i *Inotify) Watch(path string, mask uint32) error {
	conn, err := i.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot watch %q: %w", path, err)
	}
	var failed error
	err = conn.Control(func(fd uintptr) { _, failed = unix.InotifyAddWatch(int(fd), path, mask) })
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("cannot watch %q: %w", path, err)
	}
	return nil
}

// Wait returns when something has happened since the last call, or with
// os.ErrDeadlineExceeded at the deadline; the zero time is none. After Close it
// returns os.ErrClosed.
func (i *Inotify) Wait(deadline time.Time) error {
	if err := i.f.SetReadDeadline(deadline); err != nil {
		// The one cause for a file that has deadlines at all; its own error for
		// it is not exported.
		return fmt.Errorf("cannot wait for inotify: %w", os.ErrClosed)
	}
	// Room for many events: each call takes all that there are at once.
	buf := make([]byte, 16<<10)
	if _, err := i.f.Read(buf); err != nil {
		return fmt.Errorf("cannot read inotify: %w", err)
	}
	return nil
}

// Close ends the watches, and a Wait that is under way.
func (i *Inotify) Close() error { return i.f.Close() }
