// Package report has what a step's daemon reports with, whatever serves the step: the event
// log, the ends of tasks by their status, and a batch job's output.
package report

import (
	"bufio"
	"io"
	"sync"
	"time"

	"stepd/eventlog"
)

// Events writes the event log of a step. Any goroutine may use it.
type Events struct {
	mu  sync.Mutex
	out *bufio.Writer // guarded by mu
	// flushing: the lines will be written out by themselves.
	flushing bool // guarded by mu
	file     io.WriteCloser
	stops    failpoint // guarded by mu
}

const (
	// eventBuffer holds what is written between two flushes: a launch of a thousand tasks
	// writes some hundred kilobytes.
	eventBuffer = 64 << 10
	// eventsDelay is how far the log may lie behind: who follows it sees ends of tasks and
	// signals soon, and a launch costs no write for each of its events.
	eventsDelay = 200 * time.Millisecond
)

// NewEvents writes to f, which becomes its own. env is the job's environment, which tells
// programs that are built for tests where to stop.
func NewEvents(f io.WriteCloser, env []string) *Events {
	return &Events{file: f, out: bufio.NewWriterSize(f, eventBuffer), stops: newFailpoint(env)}
}

// Event writes a line.
func (e *Events) Event(ev eventlog.Event) {
	if !eventLog {
		return
	}
	e.mu.Lock()
	line := ev.AppendTo(e.out.AvailableBuffer())
	stop := e.stops.at(line)
	e.out.Write(line)
	e.flushSoon()
	e.mu.Unlock()
	if stop {
		e.Flush()
		e.stops.wait()
	}
}

// flushSoon writes out what waits now, after eventsDelay; the caller holds mu.
func (e *Events) flushSoon() {
	if !e.flushing {
		e.flushing = true
		time.AfterFunc(eventsDelay, e.Flush) // of a log that is closed meanwhile it writes nothing
	}
}

// Hooks writes one line for all calls: a step of many tasks and plugins has
// more of them than of all other events.
func (e *Events) Hooks(h eventlog.HookCalls) {
	if !eventLog {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.out.Write(h.AppendTo(e.out.AvailableBuffer()))
	e.flushSoon()
}

// Flush writes out what waits.
func (e *Events) Flush() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flushing = false
	e.out.Flush() // Close tells its error
}

// Close writes the rest, and closes the file.
func (e *Events) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.out.Flush()
	e.file.Close()
	return err
}
