package stepio

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"

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

const (
	// inputChunks bounds what is read ahead for a rank that reads more slowly than
	// the others.
	inputChunks = 16
	// inputSize is what is read at once: what a rank's pipe holds.
	inputSize = 64 << 10
)

// chunk is a piece of input that several ranks are to read.
type chunk struct {
	data    []byte
	readers atomic.Int32 // that have not got it yet
	buf     *[inputSize]byte
}

var chunks = sync.Pool{New: func() any { return new([inputSize]byte) }}

func (c *chunk) done() {
	if c.readers.Add(-1) == 0 {
		chunks.Put(c.buf)
	}
}

// feed is one rank's input.
type feed struct {
	chunks chan *chunk
	gone   chan struct{} // closed when it reads no more
}

// run writes what comes to the rank's pipe, until its end or the rank's.
func (f *feed) run(w *os.File) {
	defer w.Close()
	defer close(f.gone)
	for c := range f.chunks {
		_, err := w.Write(c.data)
		c.done()
		if err != nil {
			return
		}
	}
}

// broadcast sends src to every writer. A rank that has closed its input, or has
// ended, drops out; one that does not read holds the others back. It returns when src
// has ended, or when no reader is left, and what was wrong with src.
func broadcast(src io.Reader, writers []*os.File) error {
	feeds := make([]*feed, len(writers))
	for i, w := range writers {
		feeds[i] = &feed{make(chan *chunk, inputChunks), make(chan struct{})}
		go feeds[i].run(w)
	}
	defer func() {
		for _, f := range feeds {
			close(f.chunks)
		}
	}()
	for len(feeds) > 0 {
		c := &chunk{buf: chunks.Get().(*[inputSize]byte)}
		n, err := src.Read(c.buf[:])
		c.data = c.buf[:n]
		c.readers.Store(int32(len(feeds)))
		left := feeds[:0]
		for _, f := range feeds {
			select {
			case f.chunks <- c:
				left = append(left, f)
			case <-f.gone:
				c.done()
				close(f.chunks)
			}
		}
		feeds = left
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
