package live

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/stepio/replay"
)

// watchersMax bounds the watchers of one step.
const watchersMax = 128

// Hub passes on what the tasks write. Watchers read from its ring: one that does
// not keep up misses bytes, is told how many, and holds up no other, unless it is the
// launcher, for whom the tasks wait.
type Hub struct {
	mu sync.Mutex
	// room is signalled when a launcher has read on, or is no longer waited for; more
	// when there is something to read.
	room, more *sync.Cond
	ring       *replay.Ring          // guarded by mu
	modes      *replay.Modes         // guarded by mu: of a terminal, where the ring begins; nil: none
	marks      marks                 // guarded by mu: of a terminal
	watchers   map[*watcher]struct{} // guarded by mu
	over       bool                  // guarded by mu: nothing more is written
	act        func(f *replay.Frame) // guarded by mu: takes what a watcher sends; nil: not yet
	early      early                 // guarded by mu: what came before act
	// empty is called when the last watcher has gone; nil: no call.
	empty func()
	wg    sync.WaitGroup // the watchers' goroutines
}

func newHub(limit int, terminal bool) *Hub {
	h := &Hub{ring: replay.NewRing(limit), watchers: make(map[*watcher]struct{})}
	h.room, h.more = sync.NewCond(&h.mu), sync.NewCond(&h.mu)
	if terminal {
		h.modes = &replay.Modes{}
		h.ring.Evicted = func(_, _ int, b []byte) { h.modes.Feed(b) }
	}
	return h
}

// Write takes what rank wrote on fd. It waits while a launcher does not read.
func (h *Hub) Write(fd, rank int, data []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(data) > 0 {
		n := min(len(data), max(h.ring.Limit()/4, 1))
		for h.heldBack(n) {
			h.room.Wait()
		}
		h.ring.Add(fd, rank, data[:n])
		if h.modes != nil {
			h.marks.feed(data[:n], h.ring.First(), h.ring.Limit())
		}
		data = data[n:]
		h.more.Broadcast()
	}
}

// heldBack reports whether n bytes more would push out some that a launcher has not read.
func (h *Hub) heldBack(n int) bool {
	for w := range h.watchers {
		if w.launcher && !w.released && !w.gone && h.ring.End()+int64(n)-w.pos > int64(h.ring.Limit()) {
			return true
		}
	}
	return false
}

// watcher is one client that sees the output.
type watcher struct {
	conn               *os.File // our end of a SOCK_SEQPACKET pair
	launcher, readOnly bool
	// released: a launcher that is no longer waited for. Guarded by Hub.mu.
	released bool
	once     bool  // it wants what is kept and no more
	until    int64 // guarded by Hub.mu: where that ends
	pos      int64 // guarded by Hub.mu
	gone     bool  // guarded by Hub.mu
	prefix   string
	quiet    replay.Quiet  // of a terminal, for what was kept when it came
	sent     chan struct{} // closed when it has got all, or is gone
}

// Watching is how one wants to see the output.
type Watching struct {
	// Launcher holds back the tasks when it does not read.
	Launcher, ReadOnly bool
	// Once wants what is kept and no more.
	Once bool
	// Replay is how much of what is kept comes first, in bytes; below 0 is all.
	Replay int64
}

// Watch adds a client, and returns its end of the connection, which is the caller's to
// close. The client ends it by closing its own.
func (h *Hub) Watch(how Watching) (fd int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot make a connection for the output: %w", err)
	}
	w := &watcher{
		conn: os.NewFile(uintptr(pair[0]), "watcher"), launcher: how.Launcher, readOnly: how.ReadOnly,
		once: how.Once, sent: make(chan struct{}),
	}
	h.mu.Lock()
	if len(h.watchers) >= watchersMax {
		h.mu.Unlock()
		w.conn.Close()
		unix.Close(pair[1])
		return -1, fmt.Errorf("cannot attach: %d clients watch this step, which is the limit", watchersMax)
	}
	w.until = h.ring.End()
	w.pos = h.ring.First()
	if w.pos > 0 && !w.launcher {
		// What is pushed out while it is sent would be a gap at once.
		w.pos += (h.ring.End() - w.pos) / 4
	}
	if how.Replay >= 0 {
		w.pos = max(w.pos, h.ring.End()-how.Replay)
	}
	h.begin(w)
	h.watchers[w] = struct{}{}
	h.wg.Add(2)
	h.mu.Unlock()
	go func() { defer h.wg.Done(); h.send(w) }()
	go func() { defer h.wg.Done(); h.receive(w) }()
	return pair[1], nil
}

// send passes on what comes, until the end or until the client is gone.
func (h *Hub) send(w *watcher) {
	defer close(w.sent)
	defer h.leave(w)
	// Half of it: what was held back of the one before may come with a piece.
	buf, packet := make([]byte, replay.FrameMax/2), make([]byte, 0, replay.FrameMax+replay.FrameHead)
	put := func(f *replay.Frame) bool {
		_, err := w.conn.Write(f.Append(packet[:0]))
		return err == nil
	}
	for {
		p, prefix, next, skipped, more := h.next(w, buf)
		if skipped > 0 && !put(&replay.Frame{Kind: replay.KindGap, N: uint64(skipped)}) {
			return
		}
		if prefix != "" && !put(&replay.Frame{Kind: replay.KindOutput, Piece: replay.Piece{FD: 1, Data: []byte(prefix)}}) {
			return
		}
		if !more {
			if h.watches(w) { // one that was sent away has not got all
				put(&replay.Frame{Kind: replay.KindEnd})
			}
			return
		}
		if h.modes != nil {
			p.Data = w.unasked(p.Data, next)
		}
		if len(p.Data) > 0 && !put(&replay.Frame{Kind: replay.KindOutput, Piece: p}) {
			return
		}
		h.mu.Lock()
		w.pos = next
		h.room.Broadcast()
		h.mu.Unlock()
	}
}

// unasked takes the questions to a terminal out of what was written before the client
// came. data ends at the position end.
func (w *watcher) unasked(data []byte, end int64) []byte {
	before := max(0, min(len(data), len(data)-int(end-w.until)))
	if w.launcher || before == 0 && len(w.quiet.Held()) == 0 {
		return data
	}
	out := w.quiet.Append(nil, data[:before])
	if end >= w.until {
		out = append(out, w.quiet.Rest()...)
	}
	return append(out, data[before:]...)
}

// next waits for something to send; more is false at the end.
func (h *Hub) next(w *watcher, buf []byte) (p replay.Piece, prefix string, next, skipped int64, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	prefix, w.prefix = w.prefix, ""
	if prefix != "" {
		return p, prefix, w.pos, 0, true
	}
	for w.pos >= h.ring.End() && !h.over && !w.gone && !w.once {
		h.more.Wait()
	}
	if w.gone || w.pos >= h.ring.End() || (w.once && w.pos >= w.until) {
		return p, "", w.pos, 0, false
	}
	if lost := h.ring.First() - w.pos; lost > 0 {
		w.pos += lost
		from := w.pos
		w.quiet = replay.Quiet{} // what it was in the middle of is lost
		h.begin(w)
		prefix, w.prefix = w.prefix, ""
		return p, prefix, w.pos, lost + w.pos - from, true
	}
	p, next, _ = h.ring.Read(w.pos, buf)
	return p, "", next, 0, true
}

// receive takes what the client sends, and notices its end.
func (h *Hub) receive(w *watcher) {
	defer h.leave(w)
	buf := make([]byte, 4<<10)
	for {
		n, err := w.conn.Read(buf)
		if err != nil {
			return
		}
		f, err := replay.Parse(buf[:n])
		if err != nil {
			return // it is no client of ours
		}
		if act := h.taker(w, &f); act != nil {
			act(&f)
		}
	}
}

// early is what a client has sent before there was a terminal to take it: it types
// ahead, and its window has changed.
type early struct {
	input []byte
	size  *replay.Frame
}

// earlyMax bounds what is typed ahead, in bytes; who sends more waits.
const earlyMax = 64 << 10

// taker returns what is to take a frame of a client, or nil where it was kept for later
// or is dropped.
func (h *Hub) taker(w *watcher, f *replay.Frame) func(*replay.Frame) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.readOnly || h.modes == nil {
		return nil // without a terminal there is nothing to type into
	}
	for h.act == nil && !h.over && !w.gone && f.Kind == replay.KindInput && len(h.early.input)+len(f.Data) > earlyMax {
		h.more.Wait()
	}
	switch {
	case h.act != nil:
		return h.act
	case h.over || w.gone:
	case f.Kind == replay.KindInput:
		h.early.input = append(h.early.input, f.Data...)
	case f.Kind == replay.KindSize:
		h.early.size = &replay.Frame{Kind: f.Kind, Rows: f.Rows, Cols: f.Cols} // nothing has been drawn yet
	}
	return nil
}

// takeBy gives act what clients have sent and send from now on. It does not wait for
// the first two frames.
func (h *Hub) takeBy(act func(f *replay.Frame)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.early.size != nil {
		act(h.early.size)
	}
	if len(h.early.input) > 0 {
		act(&replay.Frame{Kind: replay.KindInput, Piece: replay.Piece{Data: h.early.input}})
	}
	h.act, h.early = act, early{}
	h.more.Broadcast()
}

// leave forgets a watcher; its connection ends.
func (h *Hub) leave(w *watcher) {
	h.mu.Lock()
	w.gone = true
	_, there := h.watchers[w]
	delete(h.watchers, w)
	last := there && len(h.watchers) == 0 && h.empty != nil
	h.room.Broadcast()
	h.more.Broadcast()
	h.mu.Unlock()
	if there {
		w.conn.Close()
	}
	if last {
		h.empty()
	}
}

// watches reports whether a watcher has not left.
func (h *Hub) watches(w *watcher) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !w.gone
}

// alone reports whether there are no watchers.
func (h *Hub) alone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watchers) == 0
}

// othersPatience is how long watchers other than the launcher are waited for at the end.
const othersPatience = 500 * time.Millisecond

// close says that nothing more is written, and waits for the watchers: for the
// launcher at most patience, then it is cut off. It returns how many bytes that has lost.
func (h *Hub) close(patience time.Duration) (lost int64) {
	h.mu.Lock()
	h.over = true
	h.more.Broadcast()
	var launchers, released, others []*watcher
	for w := range h.watchers {
		if w.released {
			released = append(released, w)
		} else if w.launcher {
			launchers = append(launchers, w)
		} else {
			others = append(others, w)
		}
	}
	h.mu.Unlock()
	for _, class := range []struct {
		watchers []*watcher
		patience time.Duration
	}{{launchers, patience}, {released, 0}, {others, othersPatience}} {
		limit := time.NewTimer(class.patience)
		for _, w := range class.watchers {
			select {
			case <-w.sent:
			case <-limit.C:
				limit.Reset(0)
				h.mu.Lock()
				if w.launcher && !w.gone { // released or not
					lost = max(lost, h.ring.End()-w.pos)
				}
				h.mu.Unlock()
			}
			h.leave(w)
		}
		limit.Stop()
	}
	h.wg.Wait()
	return lost
}

// release lets Write go on although a launcher does not read: it is given up.
func (h *Hub) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		w.released = w.launcher
	}
	h.room.Broadcast()
}

// isOver reports whether a connection's other end has gone.
func isOver(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, os.ErrClosed) || errors.Is(err, unix.ECONNRESET)
}

// marks are the states of a terminal here and there in what is kept, so that who
// begins in the middle need not follow all that is before it.
type marks struct {
	now  replay.Modes // behind the last byte
	end  int64        // the position there
	list []mark
}

// mark is the state before the byte at a position.
type mark struct {
	pos   int64
	modes *replay.Modes
}

// marksEvery is how far they are from each other at the least, in bytes, marksMax
// how many there are at the most.
const marksEvery, marksMax = 64 << 10, 1024

// feed takes the next bytes of output; what is before first is not kept any more, and
// limit bytes are at the most.
func (m *marks) feed(data []byte, first int64, limit int) {
	forgotten := 0
	for forgotten < len(m.list) && m.list[forgotten].pos < first {
		forgotten++
	}
	m.list = slices.Delete(m.list, 0, forgotten)
	last := int64(0)
	if n := len(m.list); n > 0 {
		last = m.list[n-1].pos
	}
	if m.end-max(last, first) >= int64(max(marksEvery, limit/marksMax)) {
		m.list = append(m.list, mark{m.end, m.now.Clone()})
	}
	m.now.Feed(data)
	m.end += int64(len(data))
}

// modesAt is the terminal's state at a position of the ring.
func (h *Hub) modesAt(pos int64) *replay.Modes {
	at, modes := h.ring.First(), h.modes
	for _, m := range slices.Backward(h.marks.list) {
		if m.pos <= pos {
			at, modes = m.pos, m.modes
			break
		}
	}
	modes = modes.Clone()
	for buf := make([]byte, replay.FrameMax); at < pos; {
		var p replay.Piece
		p, at, _ = h.ring.Read(at, buf[:min(int64(len(buf)), pos-at)])
		if len(p.Data) == 0 {
			break
		}
		modes.Feed(p.Data)
	}
	return modes
}

// saneWithin is how far a beginning is looked for that is not in the middle of a line.
const saneWithin = 4 << 10

// begin moves a watcher of a terminal from its position on to one between two lines,
// or two characters at least, and gives it what sets its terminal to the state there.
// The tasks may wait for it: it follows no more than lies between two marks.
func (h *Hub) begin(w *watcher) {
	w.prefix = ""
	if h.modes == nil || w.pos == 0 {
		return // nothing is cut, and nothing set
	}
	m, from := h.modesAt(w.pos), w.pos
	p, _, _ := h.ring.Read(from, make([]byte, saneWithin)) // a terminal has one stream
	var between *replay.Modes
	for i, c := range p.Data {
		if between == nil && m.Between() {
			between, w.pos = m.Clone(), from+int64(i)
		}
		if m.Feed(p.Data[i : i+1]); c == '\n' && m.Between() {
			between, w.pos = m.Clone(), from+int64(i)+1
			break
		}
	}
	if between == nil {
		between = m
	}
	w.prefix = between.Set()
}
