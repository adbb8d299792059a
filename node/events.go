package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/eventlog"
	"stepd/internal/child"
	"stepd/internal/linux"
	"stepd/step"
)

// lineMax bounds one line of an event log. A longer one is skipped: it is no event.
const lineMax = 1 << 20

// Events hands each event of the step's log to send, with follow until the step has ended.
func (n steps) Events(ctx context.Context, id step.ID, follow bool, send func([]byte) error) error {
	err := n.events(ctx, id, follow, func(line []byte) error { return eventlog.ExpandEvent(line, send) })
	if errors.Is(err, os.ErrNotExist) {
		return api.Errorf(api.NotFound, "no such step %q", id)
	}
	if _, ours := api.AsError(err); err != nil && !ours {
		return api.NewError(api.Internal, err.Error())
	}
	return err
}

// events sends the lines of the log. A follower's end is a change too: the
// last lines are read after it.
func (n steps) events(ctx context.Context, id step.ID, follow bool, send func([]byte) error) error {
	path := n.spool.Events(id)
	file, err := n.spool.Open(path)
	if err != nil {
		return fmt.Errorf("cannot open event log: %w", err)
	}
	defer file.Close()
	tail := &tail{r: file}
	f := n.reg.follower(id)
	if !follow || f == nil {
		return tail.send(send)
	}
	ctx, ended := child.Until(ctx, errEnded, f.ended)
	defer ended()
	ctx, stopped := child.Until(ctx, api.NewError(api.Unavailable, "noded is stopping; the step goes on"), n.stopping)
	defer stopped()
	err = watch(ctx, path, func() error { return tail.send(send) })
	if errors.Is(err, errEnded) {
		return tail.send(send)
	}
	return err
}

var errEnded = errors.New("the step has ended")

// watch calls changed once, and again after each write to the file, until it
// fails or ctx ends; it returns that error or ctx's cause.
func watch(ctx context.Context, path string, changed func() error) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("cannot watch %q: %w", path, err)
	}
	defer unix.Close(fd)
	// The watch comes before the first read: a write between the two is told.
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_MODIFY); err != nil {
		return fmt.Errorf("cannot watch %q: %w", path, err)
	}
	p, err := linux.NewPoller(unix.EPOLLIN, fd)
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Wait(ctx, func([]int) (bool, error) {
		if err := emptyInotify(fd); err != nil {
			return false, fmt.Errorf("cannot watch %q: %w", path, err)
		}
		return false, changed()
	})
}

// emptyInotify reads the pending notices: each says the same.
func emptyInotify(fd int) error {
	var buf [4096]byte
	for {
		_, err := unix.Read(fd, buf[:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		}
	}
}

// tail reads whole lines of a file that grows.
type tail struct {
	r    io.Reader
	part []byte // the begin of a line whose end is not written yet
	skip bool   // the line is too long
}

// send passes on every whole line that there is now, without its newline.
func (t *tail) send(send func([]byte) error) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := t.r.Read(buf)
		if err := t.lines(buf[:n], send); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read event log: %w", err)
		}
	}
}

func (t *tail) lines(b []byte, send func([]byte) error) error {
	for {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		if !t.skip {
			t.part = append(t.part, line...)
		}
		if len(t.part) > lineMax {
			t.part, t.skip = nil, true
		}
		if !whole {
			return nil
		}
		if !t.skip && len(t.part) > 0 {
			if err := send(t.part); err != nil {
				return err
			}
		}
		t.part, t.skip = nil, false
		b = rest
	}
}
