package stepio

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// moveMax is the most that the kernel is asked to move at once.
const moveMax = 1 << 20

// pass passes on everything from a pipe to the client's file until its end, as it
// comes. The kernel moves it, where it can for this kind of file and does not wait for it
// with the pipe held. What the file does
// not take is an error, and the rest is not read: the tasks get SIGPIPE. It takes a
// thread, which waits in the kernel: through the runtime's poller each of the pipes'
// turns takes longer.
func pass(dest, src *os.File) error {
	in, err := TakeFD(src)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	if err := unix.SetNonblock(in, false); err != nil {
		return err
	}
	_ = linux.BatchThread() // without it the bytes only take longer
	out := rawFD(dest)
	var buf []byte // where the kernel cannot, or is not to
	if !spliced(out) {
		buf = make([]byte, bufferSize)
	}
	for {
		var n int64
		if buf != nil {
			n, err = copySome(out, in, buf)
		} else {
			n, err = unix.Splice(in, nil, out, nil, moveMax, unix.SPLICE_F_MOVE)
		}
		switch {
		case errors.Is(err, unix.EINVAL) && buf == nil:
			buf = make([]byte, bufferSize) // one that is open for appending
		case errors.Is(err, unix.EAGAIN): // another process that shares the file does not want it to block
			ready(out, unix.POLLOUT, -1)
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return nil
		}
	}
}

// spliced reports whether the kernel may move a pipe's bytes to a descriptor. While it
// waits for a terminal (whose user has typed ^S) or a socket it holds the pipe, and a
// writer to that pipe hangs where no signal reaches it: the task, or the step's stepd.
// Some drivers do not wait for an empty pipe, either.
func spliced(fd int) bool {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFIFO:
		return true
	case unix.S_IFCHR:
		return st.Rdev == unix.Mkdev(1, 3) // /dev/null
	}
	return false
}

func copySome(out, in int, buf []byte) (int64, error) {
	n, err := unix.Read(in, buf)
	if n <= 0 {
		return 0, err
	}
	return int64(n), writeAll(out, buf[:n])
}

// ready waits at most ms milliseconds (-1: for ever) for events of a descriptor.
func ready(fd int, events int16, ms int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, ms)
	return n == 1 && err == nil
}

// writeAll writes all of the pieces, of which the first may be empty.
func writeAll(fd int, pieces ...[]byte) error {
	for len(pieces) > 0 {
		if len(pieces[0]) == 0 {
			pieces = pieces[1:]
			continue
		}
		var n int
		var err error
		if len(pieces) == 1 {
			n, err = unix.Write(fd, pieces[0])
		} else {
			n, err = unix.Writev(fd, pieces)
		}
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN): // another process that shares it does not want it to block
			ready(fd, unix.POLLOUT, -1)
		case err != nil:
			return err
		}
		for n = max(n, 0); n > 0; pieces = pieces[1:] {
			if n < len(pieces[0]) {
				pieces[0] = pieces[0][n:]
				break
			}
			n -= len(pieces[0])
		}
	}
	return nil
}
