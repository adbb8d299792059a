package archive

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// follower reads an event log as it grows, until its daemon has closed it.
type follower struct {
	f       *os.File
	changes *linux.Inotify
	ended   bool
}

// lookAgain is how often the daemon's lock is looked at: a daemon that is killed writes nothing.
const lookAgain = time.Second

func newFollower(f *os.File) (*follower, error) {
	changes, err := linux.NewInotify()
	if err != nil {
		return nil, fmt.Errorf("cannot follow %q: %w", f.Name(), err)
	}
	if err := changes.Watch(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.IN_MODIFY|unix.IN_CLOSE_WRITE); err != nil {
		changes.Close()
		return nil, fmt.Errorf("cannot follow %q: %w", f.Name(), err)
	}
	return &follower{f: f, changes: changes}, nil
}

func (w *follower) close() { w.changes.Close() }

func (w *follower) Read(b []byte) (int, error) {
	for {
		// The look comes before the read: what is written last is read.
		ended := w.ended
		if n, err := w.f.Read(b); n > 0 || !errors.Is(err, io.EOF) || ended {
			return n, err
		}
		var err error
		if w.ended, err = w.unlocked(); err != nil {
			return 0, err
		}
		if w.ended {
			continue
		}
		if err := w.changes.Wait(time.Now().Add(lookAgain)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
	}
}

// unlocked reports whether no daemon has the log.
func (w *follower) unlocked() (bool, error) {
	err := unix.Flock(int(w.f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
