package task

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// execWatch reports when tasks exec: each holds the write end of a pipe that
// execve closes. One goroutine watches all of them through one
// epoll instance, which is itself watched by the runtime's poller: no thread
// waits in the kernel.
type execWatch struct {
	epoll *os.File
	conn  syscall.RawConn
	pipes map[int]int // descriptor to local id; the goroutine's once it is started
	wg    sync.WaitGroup
	stop  chan struct{}
}

func newExecWatch() (*execWatch, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot make an epoll: %w", err)
	}
	// Non-blocking, or the runtime would not poll it.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot use epoll: %w", err)
	}
	w := &execWatch{epoll: os.NewFile(uintptr(fd), "exec watch"), pipes: make(map[int]int), stop: make(chan struct{})}
	if w.conn, err = w.epoll.SyscallConn(); err != nil {
		w.epoll.Close()
		return nil, fmt.Errorf("cannot use epoll: %w", err)
	}
	return w, nil
}

// add takes over the read end of one task's pipe.
func (w *execWatch) add(fd, id int) error {
	w.pipes[fd] = id
	// One shot: closing the descriptor does not end the watch, since tasks
	// that were forked later hold the same description until they exec.
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(fd)}
	var err error
	if cerr := w.conn.Control(func(ep uintptr) { err = unix.EpollCtl(int(ep), unix.EPOLL_CTL_ADD, fd, &ev) }); cerr != nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("cannot watch an exec: %w", err)
	}
	return nil
}

// start reports the local ids whose pipes have ended, several at a time, until all
// have or close is called.
func (w *execWatch) start(execs chan<- []int) {
	w.wg.Go(func() {
		events := make([]unix.EpollEvent, 64)
		for len(w.pipes) > 0 {
			n := 0
			err := w.conn.Read(func(ep uintptr) bool {
				var err error
				n, err = unix.EpollWait(int(ep), events, 0)
				return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
			})
			if err != nil || n <= 0 {
				return // closed
			}
			ids := make([]int, 0, n)
			for _, ev := range events[:n] {
				fd := int(ev.Fd)
				id, ok := w.pipes[fd]
				if !ok {
					continue
				}
				ids = append(ids, id)
				delete(w.pipes, fd)
				w.conn.Control(func(ep uintptr) { unix.EpollCtl(int(ep), unix.EPOLL_CTL_DEL, fd, nil) })
				unix.Close(fd)
			}
			select {
			case execs <- ids:
			case <-w.stop:
				return
			}
		}
	})
}

// close ends the watch and closes what is left.
func (w *execWatch) close() error {
	close(w.stop)
	err := w.epoll.Close() // ends a Read
	w.wg.Wait()
	for fd := range w.pipes {
		unix.Close(fd)
	}
	return err
}
