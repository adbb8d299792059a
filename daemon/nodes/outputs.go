package nodes

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
	"stepd/stepio/relay"
)

// taskOutput is one stream of a task's on its way to the launcher.
type taskOutput struct {
	fd, rank int
	file     *os.File // ours, which the tree closes at its end
}

// The streams that the tree passes on, as the step's story sees them.

// Used tells whether there are any here.
func (t *Tree) Used() bool { return len(t.outs) > 0 }

// Fill writes into the record what has gone up so far of the streams that are the
// launcher's: of a task that has none of them that is nothing.
func (t *Tree) Fill(rec *step.Record) {
	if !t.hasBegun() {
		return
	}
	count := func(fd int, s step.Stream) *int64 {
		if s.Kind != step.StreamClient {
			return nil
		}
		n := t.Passed(fd)
		return &n
	}
	rec.StdoutBytes, rec.StderrBytes = count(1, t.spec.Stdout), count(2, t.spec.Stderr)
}

// Drain returns when nobody can write to the streams any more, once no process of the
// step is left. What is in them still goes up in the launcher's time: Finish waits for
// that. A stream that another process keeps open is closed after limit, and told of.
func (t *Tree) Drain(limit time.Duration) (held []step.Held) {
	open := t.openOutputs()
	defer func() {
		for fd := range open {
			unix.Close(fd)
		}
	}()
	if !awaitWriters(open, limit) {
		return nil
	}
	writers := make(map[uint64]step.Held)
	inodes := make(map[int]uint64)
	for fd, o := range open {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err == nil {
			inodes[fd], writers[st.Ino] = st.Ino, step.Held{FD: o.fd, Rank: o.rank}
		}
	}
	relay.FindWriters(writers)
	for fd, o := range open {
		held = append(held, writers[inodes[fd]])
		t.EndOutput(o.file)
	}
	return held
}

// openOutputs are those that have not ended, by a descriptor of our own: the tree closes
// its own at any time.
func (t *Tree) openOutputs() map[int]taskOutput {
	open := make(map[int]taskOutput)
	for _, o := range t.outs {
		raw, err := o.file.SyscallConn()
		if err != nil {
			continue
		}
		fd := -1
		err = raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 3) })
		if err == nil && fd >= 0 {
			open[fd] = o
		}
	}
	return open
}

// awaitWriters waits until nobody has the pipes open to write, and takes those of which
// that is so out of the map. left tells that there are others after limit.
func awaitWriters(open map[int]taskOutput, limit time.Duration) (left bool) {
	for end := time.Now().Add(limit); ; {
		poll := make([]unix.PollFd, 0, len(open))
		for fd := range open {
			poll = append(poll, unix.PollFd{Fd: int32(fd)}) // POLLHUP is told in any case
		}
		if len(poll) == 0 {
			return false
		}
		// Rounded up: no round is to wait for nothing.
		n, err := unix.Poll(poll, max(0, int((time.Until(end)+time.Millisecond-1)/time.Millisecond)))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return true
		}
		for _, p := range poll {
			if p.Revents != 0 {
				unix.Close(int(p.Fd))
				delete(open, int(p.Fd))
			}
		}
	}
}
