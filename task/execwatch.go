package task

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// execWatch tells when tasks exec: each holds the write end of a pipe that
// execve closes (rulings 1). One goroutine watches all of them.
type execWatch struct {
	epfd  int
	wake  int // eventfd: ends the watch
	pipes map[int]int
	wg    sync.WaitGroup
	stop  chan struct{}
}

func newExecWatch() *execWatch {
	return &execWatch{epfd: -1, wake: -1, pipes: make(map[int]int), stop: make(chan struct{})}
}

// add takes over the read end of one task's pipe.
func (w *execWatch) add(fd, rank int) error {
	if w.epfd < 0 {
		var err error
		if w.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
			return fmt.Errorf("cannot make an epoll: %w", err)
		}
		if w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
			return fmt.Errorf("cannot make an eventfd: %w", err)
		}
		if err := w.epoll(w.wake); err != nil {
			return err
		}
	}
	w.pipes[fd] = rank
	return w.epoll(fd)
}

func (w *execWatch) epoll(fd int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := unix.EpollCtl(w.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("cannot watch descriptor %d: %w", fd, err)
	}
	return nil
}

// start tells each rank whose pipe has ended to execs, until all have or close
// is called.
func (w *execWatch) start(execs chan<- int) {
	w.wg.Go(func() {
		events := make([]unix.EpollEvent, 64)
		for len(w.pipes) > 0 {
			n, err := unix.EpollWait(w.epfd, events, -1)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return
			}
			for _, ev := range events[:n] {
				fd := int(ev.Fd)
				if fd == w.wake {
					return
				}
				rank := w.pipes[fd]
				delete(w.pipes, fd)
				unix.Close(fd)
				select {
				case execs <- rank:
				case <-w.stop:
					return
				}
			}
		}
	})
}

// close ends the watch and closes what is left.
func (w *execWatch) close() error {
	close(w.stop)
	if w.wake >= 0 {
		unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	w.wg.Wait()
	for fd := range w.pipes {
		unix.Close(fd)
	}
	for _, fd := range []int{w.epfd, w.wake} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	return nil
}
