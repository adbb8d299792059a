package stepio

import (
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// foreground reads a terminal while the client is in its foreground. In the background the
// terminal has no input for the client: a read would stop it (SIGTTIN, credentials(7)), and the
// user has put it there to let it run.
type foreground struct {
	terminal *os.File
	typed    *linux.Poller // each line that is typed is an event, also where another process reads it
}

// inForeground is what reads f: a foreground where f is a terminal, else f itself.
func inForeground(f *os.File) io.Reader {
	if f == nil || !isTerminal(f) {
		return f
	}
	// Edges, since what the shell has not read yet is no news.
	typed, err := linux.NewPoller(unix.EPOLLIN|unix.EPOLLET, rawFD(f))
	if err != nil {
		return f
	}
	return &foreground{f, typed}
}

// Read waits until something is typed that is for the client. One goroutine may call it.
func (r *foreground) Read(b []byte) (int, error) {
	err := r.typed.Wait(context.Background(), func([]int) (bool, error) {
		fd := rawFD(r.terminal)
		return fd < 0 || ours(fd) && ready(fd, unix.POLLIN, 0), nil
	})
	if err != nil {
		return 0, err
	}
	return r.terminal.Read(b)
}

// ours reports whether this process may read the terminal: it is in the foreground, or the
// terminal is not the one that its session is controlled by.
func ours(fd int) bool {
	front, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err != nil || front == unix.Getpgrp()
}
