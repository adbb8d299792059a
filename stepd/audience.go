package stepd

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/eventlog"
	"stepd/step"
	"stepd/step/launch"
	"stepd/stepio/live"
	"stepd/stepio/relay"
	"stepd/task"
)

// handler lets the socket act on the step, most of whose requests are methods of the step itself.
type handler struct {
	*task.Step
	aud     *audience
	streams *relay.Relay
	owner   uint32     // of the tasks
	output  *live.Live // what others see of it
}

// Stat also writes out the event log: a client that asks for the state may read it next.
func (h handler) Stat() step.Record {
	h.aud.flush()
	return h.Step.Stat()
}

func (h handler) Watch(w *stepapi.Watch, launcher bool) (*stepapi.Watched, int, error) {
	fd, err := h.output.Watch(live.Watching{Launcher: launcher, ReadOnly: w.ReadOnly, Once: w.Once, Replay: w.Replay})
	if err != nil {
		return nil, -1, err
	}
	var passed step.Record
	h.streams.Fill(&passed)
	return &stepapi.Watched{
		Terminal: h.output.Terminal(), Stdout: passed.StdoutBytes != nil, Stderr: passed.StderrBytes != nil,
	}, fd, nil
}

func (h handler) Attach(streams []stepapi.StreamFD, fds []int) error {
	var first error
	for i, s := range streams {
		handle, err := fds[i], error(nil)
		if s.Relay {
			handle, err = h.between(s, handle)
		}
		if err == nil {
			err = h.Step.Attach(s.FD, s.Rank, handle)
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

// newRelay makes the relay of a step with so many tasks here. A stream that comes by
// it takes three descriptors instead of one: where there are not enough for all of
// them, none does, and the tasks have the client's own.
func newRelay(tasks int, aud *audience) *relay.Relay {
	const others, ofTask = 256, 2 // what stepd has besides
	streams := 2 * (tasks + 1)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && uint64(3*streams+ofTask*tasks+others) > limit.Cur {
		aud.Log(launch.LogInfo, fmt.Sprintf("the tasks have the client's own pipes, and their bytes are not counted: to pass them on for %d tasks takes more than the %d descriptors that stepd may have (RLIMIT_NOFILE)", tasks, limit.Cur))
		streams = 0
	}
	return relay.New(streams)
}

// between puts a pipe of ours before the client's. Where that cannot be, the tasks
// have the client's, if it was made for them.
func (h handler) between(s stepapi.StreamFD, handle int) (int, error) {
	tasks, err := h.streams.Add(s.FD, s.Rank, handle, h.owner)
	if err == nil {
		return tasks, nil
	}
	var st unix.Stat_t
	if serr := unix.Fstat(handle, &st); serr != nil || st.Uid != h.owner {
		unix.Close(handle)
		return -1, err
	}
	h.aud.Log(launch.LogDebug, err.Error())
	return handle, nil
}

// audience reports the step to its clients, its event log and noded's log.
type audience struct {
	log    *logrus.Entry
	server *stepapi.Server

	mu     sync.Mutex
	file   *os.File
	events *bufio.Writer // guarded by mu
	stops  failpoint
	// flushing: they will be written out by themselves.
	flushing bool        // guarded by mu
	ends     []ended     // guarded by mu: not told yet, in the order of their first rank
	timer    *time.Timer // guarded by mu: tells ends
	out      *output     // guarded by mu: a batch job's own output, or nil
	before   []string    // guarded by mu: lines of a batch job that has none yet
	batch    bool
}

// ended are the ranks that share a status.
type ended struct {
	status step.ExitStatus
	ranks  []int
}

// trimAfter is how long a step runs before its memory is given back.
const trimAfter = 300 * time.Millisecond

// endsDelay is how long ends of tasks are collected: the ends of one step
// come together, and reporting each by itself costs every peer a wake-up (srun, too,
// gets them in groups).
const endsDelay = 50 * time.Millisecond

// eventBuffer holds what is written between two flushes: a launch of a
// thousand tasks writes some hundred kilobytes.
const eventBuffer = 64 << 10

func newAudience(log *logrus.Logger, spec *step.Spec) (*audience, error) {
	f := os.NewFile(stepapi.FDEvents, "events")
	if f == nil {
		return nil, fmt.Errorf("cannot use descriptor %d as the event log", stepapi.FDEvents)
	}
	return &audience{
		log:   log.WithField("step", spec.ID.String()),
		batch: spec.ID.Step == step.BatchStep,
		file:  f, events: bufio.NewWriterSize(f, eventBuffer),
		stops: newFailpoint(spec.Env),
	}, nil
}

func (a *audience) Say(line string) {
	a.mu.Lock()
	out := a.out
	if out == nil && a.batch && len(a.before) < outputLines {
		a.before = append(a.before, line)
	}
	a.mu.Unlock()
	if out != nil {
		out.say(line)
	}
	a.server.Tell(&stepapi.Msg{Type: stepapi.TypeMessage, Text: line})
}

func (a *audience) SayTo(f *os.File) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.out != nil {
		f.Close()
		return
	}
	a.out = newOutput(f)
	for _, line := range a.before {
		a.out.say(line)
	}
	a.before = nil
}

func (a *audience) TaskExited(rank int, status step.ExitStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer == nil {
		a.timer = time.AfterFunc(endsDelay, a.tellEnds)
	}
	for i := range a.ends {
		if a.ends[i].status == status {
			a.ends[i].ranks = append(a.ends[i].ranks, rank)
			return
		}
	}
	a.ends = append(a.ends, ended{status, []int{rank}})
}

// tellEnds reports what was collected.
func (a *audience) tellEnds() {
	a.mu.Lock()
	ends := a.ends
	a.ends = nil
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	a.mu.Unlock()
	for _, e := range ends {
		slices.Sort(e.ranks)
		a.server.Tell(&stepapi.Msg{Type: stepapi.TypeTaskExit, Ranks: e.ranks, Status: &e.status})
	}
}

func (a *audience) State(rec step.Record) {
	a.tellEnds()
	a.server.TellState(&rec)
	if rec.State == step.Running {
		// The launch has left garbage that a long step need not carry; a short
		// one is over before.
		time.AfterFunc(trimAfter, debug.FreeOSMemory)
	}
	if rec.State == step.Starting {
		return // on the way of a launch; flushSoon does it where the launch is suspended
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events.Flush()
}

// Progress also writes out the event log: a client that asks noded for the state may read it.
func (a *audience) Progress(rec step.Record) {
	a.server.TellNoded(&rec)
	a.flush()
}

func (a *audience) Event(e eventlog.Event) {
	if !eventLog {
		return
	}
	a.mu.Lock()
	line := e.AppendTo(a.events.AvailableBuffer())
	stop := a.stops.at(line)
	a.events.Write(line)
	a.flushSoon()
	a.mu.Unlock()
	if stop {
		a.flush()
		a.stops.wait()
	}
}

// eventsDelay is how far the log may lie behind: who follows it sees ends of tasks and
// signals soon, and a launch costs no write for each of its events.
const eventsDelay = 200 * time.Millisecond

// flushSoon writes out what waits now, after eventsDelay; the caller holds mu.
func (a *audience) flushSoon() {
	if !a.flushing {
		a.flushing = true
		time.AfterFunc(eventsDelay, a.flush) // of a log that is closed meanwhile it writes nothing
	}
}

// Hooks writes one line for all calls: a step of many tasks and plugins has
// more of them than of all other events.
func (a *audience) Hooks(h eventlog.HookCalls) {
	if !eventLog {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events.Write(h.AppendTo(a.events.AvailableBuffer()))
	a.flushSoon()
}

func (a *audience) Log(level launch.LogLevel, text string) { logAt(a.log, level, text) }

func logAt(log *logrus.Entry, level launch.LogLevel, text string) {
	switch level {
	case launch.LogError, launch.LogSpank:
		log.Error(text)
	case launch.LogWarning:
		log.Warn(text)
	case launch.LogInfo:
		log.Info(text)
	default:
		log.Debug(text)
	}
}

func (a *audience) flush() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.flushing = false
	a.events.Flush() // close tells its error
}

// close writes what is left of the event log and of a batch job's output.
func (a *audience) close() {
	a.mu.Lock()
	out := a.out
	a.mu.Unlock()
	if out != nil {
		out.close()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.events.Flush(); err != nil {
		a.log.Errorf("cannot write the event log: %v", err)
	}
	a.file.Close()
}

// nameBytes is a C string for prctl(2).
func nameBytes(name string) uintptr {
	b := append([]byte(name), 0)
	return uintptr(unsafe.Pointer(&b[0]))
}

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
