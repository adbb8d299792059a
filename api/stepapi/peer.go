package stepapi

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// linesMax bounds the lines for the user's stderr that wait for one peer;
	// beyond it they are dropped, counted and told about.
	linesMax = 1024
	// queueMax bounds all records that wait for one peer; a peer that falls
	// further behind is cut off, so that no peer's pipe can hold the step.
	queueMax = linesMax + 256
	// linePatience is how long a burst of lines waits for room, once: a plugin
	// that writes faster than the peer reads is held back that long.
	linePatience = time.Second
	// sendTimeout bounds one write to a peer.
	sendTimeout = 10 * time.Second
)

// peer is one connection and the queue to it.
type peer struct {
	conn  *Conn
	role  Role // guarded by Server.mu
	queue chan queued
	slots chan struct{} // one taken by each line in the queue
	gone  chan struct{} // closed when the connection has ended
	acked chan struct{} // closed by Ack, and by the connection's end
	took  atomic.Bool   // Ack came
	once  sync.Once

	lineMu  sync.Mutex
	slow    bool // guarded by lineMu: waiting for it had no result
	dropped int  // guarded by lineMu: lines
}

func newPeer(c *Conn, role Role) *peer {
	return &peer{
		conn: c, role: role, queue: make(chan queued, queueMax), slots: make(chan struct{}, linesMax),
		gone: make(chan struct{}), acked: make(chan struct{}),
	}
}

// queued is a record that waits for its peer.
type queued struct {
	m    *Msg
	line bool  // it holds one of the peer's slots
	fds  []int // closed when they are sent
}

// put queues a record; a full queue cuts the peer off.
func (p *peer) put(q queued) {
	select {
	case p.queue <- q:
	default:
		CloseAll(q.fds)
		p.conn.Close()
	}
}

// putLine queues a line for the user's stderr. It waits a little for a peer
// that does not keep up, and then drops lines rather than the peer.
func (p *peer) putLine(m *Msg) {
	p.lineMu.Lock()
	defer p.lineMu.Unlock()
	if !p.slot() {
		p.dropped++
		return
	}
	if p.dropped > 0 {
		p.put(queued{m: &Msg{Type: TypeMessage, Text: fmt.Sprintf("stepd: error: %d lines were dropped here: they came faster than they were read", p.dropped)}})
		p.dropped = 0
	}
	p.put(queued{m: m, line: true})
}

// slot takes a place for a line. A peer for which waiting had no result is not
// waited for again until it has made room.
func (p *peer) slot() bool {
	select {
	case p.slots <- struct{}{}:
		p.slow = false
		return true
	default:
	}
	if p.slow {
		return false
	}
	select {
	case p.slots <- struct{}{}:
		return true
	case <-p.gone:
	case <-time.After(linePatience):
	}
	p.slow = true
	return false
}

// write sends what is queued until the connection ends, and then what was
// queued before that.
func (p *peer) write() {
	defer p.forget()
	for {
		select {
		case q := <-p.queue:
			if !p.send(q) {
				return
			}
		case <-p.gone:
			if len(p.queue) == 0 {
				return
			}
		}
	}
}

// forget ends the connection, and closes the descriptors of what was not sent: when
// the reader has ended, nothing is queued any more.
func (p *peer) forget() {
	p.conn.Close()
	<-p.gone
	for {
		select {
		case q := <-p.queue:
			CloseAll(q.fds)
		default:
			return
		}
	}
}

func (p *peer) send(q queued) bool {
	if q.line {
		<-p.slots
	}
	p.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	defer CloseAll(q.fds)
	return p.conn.Send(q.m, q.fds...) == nil
}
