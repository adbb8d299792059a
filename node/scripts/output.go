package scripts

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"stepd/internal/child"
)

// output takes what a program writes: the last of it is kept for messages. A
// process that the program has left running may go on writing.
type output struct {
	r    *os.File
	done chan struct{} // closed at the end of file

	mu   sync.Mutex
	tail []byte // guarded by mu
}

const (
	// outputMax is how much of a program's output is kept, in bytes.
	outputMax = 4 << 10
	// outputPatience is how long the rest of the output is waited for when a
	// program has ended and another process holds its other end.
	outputPatience = 50 * time.Millisecond
)

// newOutput returns the other end as well; the caller closes both.
func newOutput() (*output, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a pipe for a script's output: %w", err)
	}
	o := &output{r: r, done: make(chan struct{})}
	go o.read()
	return o, w, nil
}

func (o *output) read() {
	defer close(o.done)
	buf := make([]byte, 16*outputMax) // a program that prints a lot must not keep noded busy
	for {
		n, err := o.r.Read(buf)
		o.mu.Lock()
		o.tail = append(o.tail, buf[:n]...)
		o.tail = o.tail[max(0, len(o.tail)-outputMax):]
		o.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// lines returns the last lines that were written.
func (o *output) lines() []string {
	select {
	case <-o.done:
	case <-time.After(outputPatience):
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var lines []string
	for line := range bytes.Lines(o.tail) {
		if text := child.Message(strings.TrimRight(string(line), "\n")); text != "" {
			lines = append(lines, text)
		}
	}
	return lines
}

func (o *output) close() {
	o.r.Close()
	<-o.done
}
