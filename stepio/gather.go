package stepio

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// bufferSize is what is read at once: what a pipe holds, and the processor's cache.
const bufferSize = 256 << 10

// gather reads one stream of many ranks and passes it on by lines. It is one thread that
// waits for the kernel: a goroutine for each rank would have them all wait for the file
// in turns, and take twice as long.
type gather struct {
	epoll   int
	sources map[int]*source // by descriptor
	buf     []byte
	used    []*lines // of one round; kept for its room
}

// source is what one rank writes.
type source struct {
	feed *lineFeed
	to   *lines
}

func newGather() (*gather, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return &gather{epoll: fd, sources: make(map[int]*source)}, nil
}

// add takes the pipe over, from which rank's lines come.
func (g *gather) add(rank int, pipe *os.File, to *lines) error {
	fd, err := TakeFD(pipe) // or the runtime's poller would be woken as well
	if err != nil {
		return err
	}
	g.sources[fd] = &source{to.feed(rank), to}
	return unix.EpollCtl(g.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// run passes on what comes until all pipes have ended, or their files take no more.
func (g *gather) run() {
	defer g.close()
	_ = linux.BatchThread() // without it the bytes only take longer
	g.buf = make([]byte, bufferSize)
	var events [128]unix.EpollEvent
	for len(g.sources) > 0 {
		n, err := unix.EpollWait(g.epoll, events[:], -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // internal error: the descriptor is no epoll any more
		}
		g.used = g.used[:0]
		for _, e := range events[:max(n, 0)] {
			if s := g.sources[int(e.Fd)]; s != nil && !g.read(int(e.Fd), s) {
				delete(g.sources, int(e.Fd))
				unix.Close(int(e.Fd))
			}
			if s := g.sources[int(e.Fd)]; s != nil && (len(g.used) == 0 || g.used[len(g.used)-1] != s.to) {
				g.used = append(g.used, s.to)
			}
		}
		for _, l := range g.used {
			_ = l.flush() // failed gets the error, as does the next read
		}
	}
}

// read passes on what is available, and reports whether more may come.
func (g *gather) read(fd int, s *source) bool {
	n, err := unix.Read(fd, g.buf)
	switch {
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		return true
	case n > 0:
		return s.to.add(s.feed, g.buf[:n]) == nil
	}
	_ = s.to.end(s.feed) // failed gets the error
	return false
}

func (g *gather) close() {
	for fd := range g.sources {
		unix.Close(fd)
	}
	g.sources = nil
	unix.Close(g.epoll)
}
