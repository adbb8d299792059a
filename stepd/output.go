package stepd

import (
	"os"
	"sync"
	"time"
)

// output writes lines to a user's file without ever being held up by it: a FIFO
// may have no reader, a file server may be gone.
type output struct {
	lines chan string
	done  chan struct{}

	mu     sync.Mutex
	closed bool // guarded by mu
}

const (
	// outputLines wait for a slow file; more are lost to it, and in the log still.
	outputLines = 1024
	// outputPatience is how long the last ones are waited for.
	outputPatience = time.Second
)

func newOutput(f *os.File) *output {
	o := &output{lines: make(chan string, outputLines), done: make(chan struct{})}
	go func() { // ends with close, or with the process where the file hangs
		defer close(o.done)
		defer f.Close()
		for line := range o.lines {
			if _, err := f.WriteString(line + "\n"); err != nil {
				return // a full disk is the user's
			}
		}
	}()
	return o
}

func (o *output) say(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	select {
	case o.lines <- line:
	default:
	}
}

func (o *output) close() {
	o.mu.Lock()
	if !o.closed {
		o.closed = true
		close(o.lines)
	}
	o.mu.Unlock()
	select {
	case <-o.done:
	case <-time.After(outputPatience):
	}
}
