package report

import (
	"os"
	"runtime"
	"sync"
	"time"

	"stepd/internal/linux"
	"stepd/step"
)

// Output writes lines to a user's file without ever being held up by it: a FIFO may have no
// reader, a file server may be gone. The zero value keeps them until it has the file. Any
// goroutine may use it.
type Output struct {
	mu     sync.Mutex
	before []string    // guarded by mu: lines that came before the file
	lines  chan string // guarded by mu: nil before the file
	closed bool        // guarded by mu
	done   chan struct{}
}

const (
	// outputLines wait for a slow file; more are lost to it, and in the log still.
	outputLines = 1024
	// outputPatience is how long the last ones are waited for.
	outputPatience = time.Second
)

// To gives it the file, which becomes its own. A second file is closed. It is written to as the
// user, who has chosen it: some files act by the rights of the process that writes to them.
func (o *Output) To(f *os.File, user step.User) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lines != nil {
		f.Close()
		return
	}
	o.lines, o.done = make(chan string, outputLines), make(chan struct{})
	go o.write(f, user, o.lines) // ends with Close, or with the process where the file hangs
	for _, line := range o.before {
		o.lines <- line
	}
	o.before = nil
}

func (o *Output) write(f *os.File, user step.User, lines <-chan string) {
	defer close(o.done)
	defer f.Close()
	runtime.LockOSThread() // which ends with it
	if (linux.User{UID: user.UID, GID: user.GID, Groups: user.Groups}).Become() != nil {
		return // the log has the lines still
	}
	for line := range lines {
		if _, err := f.WriteString(line + "\n"); err != nil {
			return // a full disk is the user's
		}
	}
}

// Say writes a line.
func (o *Output) Say(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
	case o.lines == nil && len(o.before) < outputLines:
		o.before = append(o.before, line)
	case o.lines != nil:
		select {
		case o.lines <- line:
		default:
		}
	}
}

// Close waits a second for what is left.
func (o *Output) Close() {
	o.mu.Lock()
	open := o.lines != nil
	if open && !o.closed {
		close(o.lines)
	}
	o.closed = true
	o.mu.Unlock()
	if !open {
		return
	}
	select {
	case <-o.done:
	case <-time.After(outputPatience):
	}
}
