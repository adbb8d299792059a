package stdio

import (
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step/launch"
	"stepd/stepio/relay"
)

const (
	// readMax is the most that is read of one stream at once.
	readMax = 256 << 10
	// srunPatience is how long srun may take nothing once the tasks have ended: it may be stopped,
	// or its host gone. slurmstepd gives up after as long.
	srunPatience = time.Minute
	// endPatience is how long srun may take for all that is left then, however little it takes at
	// a time: it is a user's, who must not keep the node. slurmstepd waits as long.
	endPatience = 300 * time.Second
)

// phase is how far the end of the streams is.
type phase int

const (
	running   phase = iota
	draining        // no task lives
	closing         // what is open and idle is closed
	finishing       // srun gets the ends of all streams
	stopped         // the loop is to end at once
)

// loop moves all bytes of a step, in one goroutine on a thread of its own, which waits in the
// kernel: to be woken through the runtime's poller takes twice as long for each turn. It holds
// no lock meanwhile.
type loop struct {
	log         func(launch.LogLevel, string)
	name        string        // before messages to the user
	patience    time.Duration // srunPatience, and the other one endPatience; tests shorten them
	endPatience time.Duration
	stall       time.Duration // stallMax, and the other one endMax; as these
	linger      time.Duration
	epoll, wake int
	voices      voices
	there       [3]bool       // which streams come by here; set by New
	all         chan struct{} // closed when no output is open, once draining
	done        chan struct{} // closed when the loop has ended

	// The loop's own, once it has begun:
	clients      []*peer // the first is srun, which may have ended; places of others are taken again
	kept         replay
	saying       []message // that wait for their labelled files
	allEnded     bool      // the clients have the last end
	attached     bool
	at           phase
	outs         []*output
	in           inputs
	ready, spare []*output // there may be something to read; room for a list
	stale        []*output // a process that is not the step's holds them open
	buf          []byte    // what is read of a task
	frames       []byte    // of what srun does not get
	until        time.Time // when clients are given up in any case, once draining

	mu       sync.Mutex
	begun    bool          // guarded by mu: the loop runs
	phase    phase         // guarded by mu
	news     []news        // guarded by mu
	given    bool          // guarded by mu: the step has its streams
	said     []message     // guarded by mu: messages of the step's own
	saidSize int           // guarded by mu
	open     int           // guarded by mu: outputs that have not ended
	joined   int           // guarded by mu: clients beside srun
	passed   [3]int64      // guarded by mu: bytes, by stream
	held     []launch.Held // guarded by mu
	files    []io.Closer   // guarded by mu: to be closed
}

// news is a stream that the loop gets, or a client.
type news struct {
	c     *peer
	o     *output
	file  *file
	i     *input
	fd    int
	slave *os.File // of the terminal whose master is fd
}

// output is what one task writes to one stream.
type output struct {
	header
	task int
	// terminal: a read returns a part of what there is.
	terminal bool
	byLines  bool
	last     bool // its end is sent after the step's own messages
	// labelled says that it goes to a file.
	labelled bool
	held     []byte // of a line without its end
	file     *file  // of a labelled one

	slave  *os.File // of the tasks' terminal, until they have ended; nil for another stream
	src    int      // -1 before it is attached and when it has ended
	hungUp bool     // no writer is left
	queued bool     // it is in ready
	over   bool     // nothing more is read of it
	closed bool     // its end is in loop.out
}

// The word that epoll has of a descriptor: which kind it is, and its place among them.
const (
	wordWake int32 = iota
	wordSocket
	wordOutput
	wordInput
)

// begin takes the connection over, and starts the loop.
func (l *loop) begin(sock int) (err error) {
	l.clients = []*peer{{name: "srun", sock: sock, moved: time.Now()}}
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		unix.Close(sock)
		return err
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = l.watch(l.wake, unix.EPOLLIN, wordWake, 0)
	}
	if err == nil {
		err = l.watch(sock, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP, wordSocket, 0)
	}
	if err != nil {
		unix.Close(l.epoll)
		unix.Close(l.wake)
		unix.Close(sock)
		return err
	}
	l.mu.Lock()
	l.begun = true
	l.mu.Unlock()
	go l.run()
	return nil
}

// watch has epoll report a descriptor edge by edge: a side that does not read must not make
// the loop spin.
func (l *loop) watch(fd int, events uint32, word int32, place int) error {
	ev := unix.EpollEvent{Events: events | unix.EPOLLET, Fd: int32(place), Pad: word}
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &ev)
}

// add gives the loop a stream.
func (l *loop) add(n news, events uint32, word int32, place int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := error(nil)
	if !l.begun || l.phase > running {
		err = errEnding
	} else {
		l.news = append(l.news, n) // before an event can come
		err = l.watch(n.fd, events, word, place)
	}
	if err != nil {
		unix.Close(n.fd)
	}
	return err
}

// closeLater closes f when the streams have ended.
func (l *loop) closeLater(f io.Closer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.files = append(l.files, f)
}

// allGiven lets input come: the step has all its streams.
func (l *loop) allGiven() {
	l.mu.Lock()
	l.given = true
	l.mu.Unlock()
	l.wakeUp()
}

// enter moves on to a later phase; it reports whether the loop has begun.
func (l *loop) enter(p phase) bool {
	l.mu.Lock()
	l.phase = max(l.phase, p)
	begun := l.begun
	l.mu.Unlock()
	l.wakeUp()
	return begun
}

// wakeUp makes the loop look, where it runs. The loop never reads wake: each write is an edge.
func (l *loop) wakeUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wakeLocked()
}

// wakeLocked is wakeUp of a caller that holds mu.
func (l *loop) wakeLocked() {
	if l.begun {
		one := [8]byte{1}
		_, _ = unix.Write(l.wake, one[:]) // an eventfd with room takes it
	}
}

// run moves bytes until the streams have ended.
func (l *loop) run() {
	defer close(l.done)
	defer l.closeAll()
	_ = linux.BatchThread() // without it the bytes only take longer
	var events [128]unix.EpollEvent
	for timeout := -1; ; timeout = l.wait() {
		n, err := unix.EpollWait(l.epoll, events[:], timeout)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // internal error: the descriptor is no epoll any more
		}
		for _, c := range l.clients {
			c.pace(0)
		}
		later := l.look()
		l.speak()
		if later {
			l.advance()
		}
		l.note(events[:max(n, 0)])
		for _, c := range l.clients {
			l.receive(c)
		}
		l.gather()
		for _, c := range l.clients {
			l.send(c)
		}
		l.settle()
		if l.at == stopped || l.at == finishing && !slices.ContainsFunc(l.clients, (*peer).open) {
			return
		}
	}
}

// look takes over what has changed, and reports whether the phase has.
func (l *loop) look() (later bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.news {
		if n.c != nil {
			l.join(n.c)
		} else if n.o != nil {
			n.o.src, n.o.file, n.o.slave = n.fd, n.file, n.slave
		} else {
			n.i.fd = n.fd
		}
	}
	l.news = nil
	l.attached = l.given
	if l.room() || l.phase >= finishing { // else they wait where they are counted
		l.saying = append(l.saying, l.said...)
		l.said, l.saidSize = nil, 0
	}
	later, l.at = l.phase > l.at, l.phase
	return later
}

// settle reports that all outputs have ended.
func (l *loop) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at >= draining && l.open == 0 {
		l.tellAll()
	}
}

// note marks what the events are of.
func (l *loop) note(events []unix.EpollEvent) {
	for _, e := range events {
		switch place := int(e.Fd); e.Pad {
		case wordSocket:
			l.clients[place].note(e.Events)
		case wordOutput:
			o := l.outs[place]
			o.hungUp = o.hungUp || e.Events&^unix.EPOLLIN != 0
			if !o.queued && o.src >= 0 {
				o.queued = true
				l.ready = append(l.ready, o)
			}
		case wordInput:
			i := l.in.all[place]
			if i.blocked = false; e.Events&unix.EPOLLERR != 0 {
				l.in.close(i) // the task has closed it
			} else if i.fd >= 0 {
				l.in.write(i)
			}
		}
	}
}

// may reports whether a stream may be read. srun, which has none of what goes to a labelled
// file, does not hold it up.
func (l *loop) may(o *output) bool {
	return l.room() || o.labelled && !slices.ContainsFunc(l.clients[1:], func(c *peer) bool { return !c.room() })
}

// gather reads the tasks' streams in turns, while there is room.
func (l *loop) gather() {
	turnless, again := l.ready[:0], l.spare[:0]
	for _, o := range l.ready {
		if !l.may(o) {
			turnless = append(turnless, o)
		} else if o.queued = l.read(o); o.queued {
			again = append(again, o)
		}
	}
	l.ready, l.spare = append(turnless, again...), again
	if len(l.stale) > 0 {
		l.endHeld(l.stale)
		l.stale = nil
	}
}

// read passes on some of what a task has written, and reports whether there may be more.
func (l *loop) read(o *output) (more bool) {
	if o.src < 0 {
		return false
	}
	if l.buf == nil {
		l.buf = make([]byte, lineMax+readMax)
	}
	n, err := unix.Read(o.src, l.buf[copy(l.buf, o.held):])
	switch {
	case errors.Is(err, unix.EINTR):
		return true
	case errors.Is(err, unix.EAGAIN):
		if l.at >= closing {
			l.stale = append(l.stale, o)
		}
		return false
	case n > 0:
		had := len(o.held)
		l.pass(o, l.buf[:had+n], false)
		l.mu.Lock()
		l.passed[o.kind] += int64(n)
		l.mu.Unlock()
		// An empty pipe has returned less than was asked for, and epoll reports what comes after.
		return had+n == len(l.buf) || o.hungUp || o.terminal || l.at >= closing
	}
	l.end(o) // the end of file; EIO is a terminal's
	return false
}

// pass puts data of a task into frames, or into its file; a line that has no end yet is held
// back, unless it is the last.
func (l *loop) pass(o *output, data []byte, last bool) {
	var rest []byte
	if o.labelled {
		rest = l.toFile(o, data, last)
		l.emit(o, o.header, data[:len(data)-len(rest)], false)
	} else {
		rest = l.emit(o, o.header, data, o.byLines && !last)
	}
	o.held = append(o.held[:0], rest...)
}

// end ends a stream, unless it has ended.
func (l *loop) end(o *output) {
	if o.over {
		return
	}
	o.over = true
	if o.src >= 0 {
		unix.Close(o.src) // and epoll forgets it
		o.src = -1
	}
	l.pass(o, o.held, true)
	if !o.last {
		l.sendEnd(o)
	}
	l.mu.Lock()
	l.open--
	l.mu.Unlock()
}

// sendEnd tells the clients that a stream has ended.
func (l *loop) sendEnd(o *output) {
	o.closed = true
	l.emitEnd(o, o.header)
}

// endHeld ends streams that are to be closed, and reports which processes hold them open. It looks
// for these before: one that writes ends by SIGPIPE.
func (l *loop) endHeld(outs []*output) {
	pipes := make(map[uint64]launch.Held)
	for _, o := range outs {
		var st unix.Stat_t
		if unix.Fstat(o.src, &st) == nil {
			pipes[st.Ino] = launch.Held{FD: int(o.kind), Rank: o.task}
		}
	}
	relay.FindWriters(pipes)
	for _, o := range outs {
		l.end(o)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range pipes {
		l.held = append(l.held, h)
	}
}

// advance does what the phases up to l.at are for.
func (l *loop) advance() {
	if l.at >= draining {
		now := time.Now()
		for _, c := range l.clients {
			c.moved = now
		}
		if l.until.IsZero() {
			l.until = now.Add(l.endPatience)
		}
		l.in.closeAll()
		for _, o := range l.outs {
			if o.src < 0 {
				l.end(o) // the launch has not come that far
			}
			o.slave.Close() // nil has no effect; the master comes to its end
		}
	}
	if l.at >= closing {
		l.ready = l.ready[:0]
		for _, o := range l.outs {
			if o.queued = !o.over; o.queued {
				l.ready = append(l.ready, o)
			}
		}
	}
	if l.at >= finishing {
		for _, o := range l.outs {
			l.end(o)
			if !o.closed {
				l.sendEnd(o)
			}
		}
		if l.voices.extra && !l.allEnded {
			l.emitEnd(nil, l.voices.srun)
		}
		l.allEnded = true
	}
}

// closeAll closes what is open at the loop's end.
func (l *loop) closeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = false
	for _, n := range l.news {
		unix.Close(n.fd)
		n.slave.Close()
	}
	for _, c := range l.clients {
		if c.open() {
			unix.Close(c.sock)
		}
	}
	for _, o := range l.outs {
		o.slave.Close()
		if o.src >= 0 {
			unix.Close(o.src)
		}
	}
	for _, f := range l.files {
		f.Close()
	}
	l.in.closeAll()
	unix.Close(l.epoll)
	unix.Close(l.wake)
	l.tellAll()
}

// tellAll closes all once.
func (l *loop) tellAll() {
	select {
	case <-l.all:
	default:
		close(l.all)
	}
}
