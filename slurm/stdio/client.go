package stdio

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"stepd/slurm/wire"
	"stepd/step/launch"
)

const (
	// outMax is how much waits for a client before no stream is read any more.
	outMax = 256 << 10
	// clientsMax bounds the clients beside srun.
	clientsMax = 32
	// stallMax is how long a client beside srun may hold up the tasks, and endMax how long it may
	// take nothing once they have ended: it may be stopped. slurmstepd waits for ever.
	stallMax, endMax = 10 * time.Second, 5 * time.Second
)

// peer is a connection that gets what the tasks write, and may send input: srun's, or one of
// an sattach. The loop alone uses it.
type peer struct {
	name               string
	sock               int // -1 when it has ended
	readable, writable bool
	hungUp             bool      // it sends nothing more
	flow               int       // bytes that it has sent without a pause
	flows              bool      // they are much
	came               time.Time // the last of them
	window             []byte    // what has come from it and is no whole frame yet
	out                []byte    // what goes to it
	sent               int       // of out
	shut               bool      // it knows that nothing more comes
	moved              time.Time // when it took something last
	full               time.Time // since when it holds up the tasks; zero while it does not
	gone               func()    // Joining.Gone
}

func (c *peer) open() bool { return c.sock >= 0 }

// left is how much waits for the client.
func (c *peer) left() int { return len(c.out) - c.sent }

// room reports whether it takes what tasks write, or nothing any more.
func (c *peer) room() bool { return !c.open() || c.left() < outMax }

// note marks what events are of.
func (c *peer) note(events uint32) {
	c.hungUp = c.hungUp || events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	c.readable = c.readable || events&^unix.EPOLLOUT != 0
	c.writable = c.writable || events&^unix.EPOLLIN != 0
}

// Joining is a client beside srun that wants the tasks' output, and may send input (sattach).
type Joining struct {
	Release wire.Release   // the client's
	Server  netip.AddrPort // where it waits for the connection
	Key     []byte         // by which it knows this daemon
	// Gone is called when the client ends its connection before the streams have ended. It must
	// not wait. nil does nothing.
	Gone func()
}

// Join connects to a client while the tasks run. It gets the last of what they have written, and
// what they write from then on; one that holds them up for stallMax is given up. The error wraps
// the connection's.
func (s *Streams) Join(j Joining) error {
	if err := s.join(j); err != nil {
		return fmt.Errorf("cannot connect the tasks' streams to sattach at %v: %w", j.Server, err)
	}
	return nil
}

func (s *Streams) join(j Joining) error {
	var ends [3]int
	for _, o := range s.loop.outs {
		ends[o.kind]++
	}
	if s.loop.voices.extra {
		ends[stderr]++
	}
	hello, err := greeting(j.Release, s.cfg.Node, ends, j.Key)
	if err != nil {
		return err
	}
	l := s.loop
	if err := l.reserve(); err != nil {
		return err
	}
	sock, err := greet(j.Server, hello)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && (!l.begun || l.phase > running) {
		unix.Close(sock)
		err = errEnding
	}
	if err != nil {
		l.joined--
		return err
	}
	l.news = append(l.news, news{c: &peer{name: "sattach", sock: sock, moved: time.Now(), gone: j.Gone}, fd: sock})
	l.wakeLocked()
	return nil
}

var errEnding = errors.New("the step is ending")

// reserve counts a client that is to join, before it is waited for: connections that do not
// come about must not heap up either.
func (l *loop) reserve() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.begun || l.phase > running:
		return errEnding
	case l.joined >= clientsMax:
		return fmt.Errorf("%d have connected before it, which is the limit", clientsMax)
	}
	l.joined++
	return nil
}

// greet connects to a client, and says who connects.
func greet(to netip.AddrPort, hello []byte) (sock int, err error) {
	if sock, err = connect(to, connectTimeout); err != nil {
		return -1, err
	}
	_, err = unix.Write(sock, hello) // it fits the empty buffer
	if err == nil {
		err = unix.SetNonblock(sock, true)
	}
	if err != nil {
		unix.Close(sock)
		return -1, err
	}
	return sock, nil
}

// join begins with a client. The caller holds mu.
func (l *loop) join(c *peer) {
	place := 1 + slices.IndexFunc(l.clients[1:], func(c *peer) bool { return !c.open() })
	if place == 0 {
		place = len(l.clients)
		l.clients = append(l.clients, nil)
	}
	l.clients[place] = c
	c.out = l.kept.appendTo(c.out)
	for _, o := range l.outs {
		if o.closed {
			c.out = o.append(c.out)
		}
	}
	if err := l.watch(c.sock, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP, wordSocket, place); err != nil {
		unix.Close(c.sock)
		c.sock = -1
		l.joined--
	}
}

// wait is how long the loop may wait for an event, in milliseconds.
func (l *loop) wait() int {
	if slices.ContainsFunc(l.ready, l.may) {
		return 0
	}
	soonest := -1
	for _, c := range l.clients {
		if c.readable && l.hungry(c) {
			return 0
		}
		if c.flows && c.open() {
			soonest = 1
		}
		until, why := l.limit(c)
		if why == nil {
			continue
		}
		left := time.Until(until)
		if left <= 0 {
			l.lose(c, why)
			return 0
		}
		if ms := int(left.Milliseconds()) + 1; soonest < 0 || ms < soonest {
			soonest = ms
		}
	}
	return soonest
}

// limit is when a client is given up, and why; a nil error is never.
func (l *loop) limit(c *peer) (time.Time, error) {
	if !l.isSrun(c) {
		switch { // one that holds the tasks up has to take half before they may go on
		case c.left() < outMax/2:
			c.full = time.Time{}
		case !c.room() && c.full.IsZero():
			c.full = time.Now()
		}
	}
	switch {
	case !c.open():
		return time.Time{}, nil
	case !c.full.IsZero():
		return c.full.Add(l.stall), fmt.Errorf("it has held up the tasks for %v", l.stall)
	case l.at < draining || len(c.out) == 0 && !c.shut:
		return time.Time{}, nil
	}
	silent := l.patience
	if !l.isSrun(c) {
		silent = l.linger
	}
	until := c.moved.Add(silent)
	if l.until.Before(until) {
		return l.until, fmt.Errorf("it has not taken all within %v of the tasks' end", l.endPatience)
	}
	return until, fmt.Errorf("it has taken nothing for %v", silent)
}

func (l *loop) isSrun(c *peer) bool { return c == l.clients[0] }

// hungry reports whether a client's input is read: not before the tasks have their streams, nor
// while they have too much that they have not read, nor while it reads nothing.
func (l *loop) hungry(c *peer) bool {
	return c.open() && (l.attached || l.at >= draining) && !l.in.full() && c.room()
}

// receive takes what a client has sent to the tasks.
func (l *loop) receive(c *peer) {
	if !c.readable || !l.hungry(c) {
		return
	}
	if c.window == nil {
		c.window = make([]byte, 0, readMax)
	}
	n, err := unix.Read(c.sock, c.window[len(c.window):cap(c.window)])
	if n > 0 && len(c.window)+n < cap(c.window) && !c.hungUp {
		c.readable = false // it is empty, and epoll reports what comes after
	}
	if n > 0 {
		c.pace(n)
	}
	switch {
	case errors.Is(err, unix.EINTR):
	case errors.Is(err, unix.EAGAIN):
		c.readable = false
	case err != nil:
		l.lose(c, err)
	case n == 0:
		l.lose(c, io.EOF)
	case l.at >= draining: // no task is left that would read it
		c.window = c.window[:0]
	default:
		rest, asked, err := l.in.give(c.window[:len(c.window)+n])
		if err != nil {
			l.log(launch.LogError, fmt.Sprintf("cannot go on with %s's streams: it has sent %v", c.name, err))
			l.lose(c, nil)
			return
		}
		c.window = c.window[:copy(c.window[:cap(c.window)], rest)]
		if asked {
			c.out = header{kind: test}.append(c.out)
		}
	}
}

// room reports whether tasks' streams are read: the clients take what they write.
func (l *loop) room() bool {
	for _, c := range l.clients {
		if !c.room() {
			return false
		}
	}
	return true
}

// emit gives clients data in frames, srun but what goes to a labelled file, and returns what is held
// back. o is nil where the data is no task's.
func (l *loop) emit(o *output, h header, data []byte, byLines bool) (rest []byte) {
	to := &l.frames
	if srun := l.clients[0]; srun.open() && (o == nil || !o.labelled) {
		to = &srun.out
	} else {
		l.frames = l.frames[:0]
	}
	begin := len(*to)
	*to, rest = appendFrames(*to, h, data, byLines)
	frames := (*to)[begin:]
	l.kept.add(frames)
	for _, c := range l.clients[1:] {
		c.give(frames)
	}
	return rest
}

// emitEnd tells the clients that a stream has ended; o is nil where it is no task's.
func (l *loop) emitEnd(o *output, h header) {
	end := h.append(nil)
	for i, c := range l.clients {
		if i > 0 || o == nil || !o.labelled {
			c.give(end)
		}
	}
}

// give puts frames into what goes to the client.
func (c *peer) give(frames []byte) {
	if !c.open() {
		return
	}
	if c.left() == 0 {
		c.moved = time.Now() // it has been idle
	}
	c.out = append(c.out, frames...)
}

// send gives a client what it takes.
func (l *loop) send(c *peer) {
	for c.open() && c.writable && c.sent < len(c.out) {
		n, err := unix.Write(c.sock, c.out[c.sent:])
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			c.writable = false
		case err != nil:
			l.lose(c, err)
		default:
			c.sent += n
			c.moved = time.Now()
		}
	}
	if c.left() == 0 || c.sent >= outMax {
		c.out = c.out[:copy(c.out, c.out[c.sent:])]
		c.sent = 0
	}
	if l.at == finishing && c.open() && len(c.out) == 0 && !c.shut {
		c.shut = true
		_ = unix.Shutdown(c.sock, unix.SHUT_WR) // what it sends still must be read, or it loses what it has not read
	}
}

// lose ends a connection. The tasks go on, as under slurmstepd: without any client their input
// ends, and what they write is dropped. why nil was reported already.
func (l *loop) lose(c *peer, why error) {
	if !c.open() {
		return
	}
	missing := slices.ContainsFunc(l.outs, func(o *output) bool { return !o.closed && !(o.labelled && l.isSrun(c)) })
	if why != nil && (missing || c.left() > 0) {
		l.log(launch.LogInfo, fmt.Sprintf("%s takes no more of the step's output, which is dropped from now on: %v", c.name, why))
	}
	unix.Close(c.sock)
	if c.gone != nil && missing && (c.hungUp || errors.Is(why, io.EOF)) {
		c.gone()
	}
	*c = peer{name: c.name, sock: -1}
	if !l.isSrun(c) {
		l.mu.Lock()
		l.joined--
		l.mu.Unlock()
	}
	if !slices.ContainsFunc(l.clients, (*peer).open) {
		l.in.end()
	}
}
