package live

import (
	"slices"

	"stepd/stepio/replay"
)

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

const (
	// marksEvery is how far they are from each other at the least, in bytes, marksMax
	// how many there are at the most.
	marksEvery, marksMax = 64 << 10, 1024
)

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
