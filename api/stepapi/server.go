package stepapi

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"stepd/step"
)

// Handler is what a step does for those who connect to it. Its methods are
// called from several goroutines.
type Handler interface {
	// Record is the step as it is now, for Hello.
	Record() step.Record
	// Attach takes over descriptors for the tasks' streams.
	Attach(streams []StreamFD, fds []int) error
	// AttachDone says that the launcher has handed over all of them.
	AttachDone()
	// File takes bytes of a file that is sent with the step.
	File(p step.SentPiece) error
	// LauncherLost says that the connection of the launcher ended.
	LauncherLost()
	// Stat is the step with what its tasks use just now.
	Stat() step.Record
	// Signal and Cancel act on the tasks.
	Signal(sig int, scope string) error
	Cancel(reason string) error
	// Watch makes a connection on which the output is seen; the descriptor is the
	// server's to send and close.
	Watch(w *Watch, launcher bool) (*Watched, int, error)
	// Suspend and Resume act for the user with the uid by.
	Suspend(by uint32) error
	Resume(by uint32) error
}

const (
	// linesMax bounds the lines for the user's stderr that wait for one peer;
	// beyond it they are dropped, counted and told about.
	linesMax = 1024
	// queueMax bounds all records that wait for one peer; a peer that falls
	// further behind is cut off, so that nobody's pipe can hold the step.
	queueMax = linesMax + 256
	// acceptPause is how long no connection is taken after one failed.
	acceptPause = 100 * time.Millisecond
	// linePatience is how long a burst of lines waits for room, once: a plugin
	// that writes faster than the peer reads is held back that long.
	linePatience = time.Second
	// sendTimeout bounds one write to a peer.
	sendTimeout = 10 * time.Second
	// peersMax bounds the connections of others than root to one step: its
	// owner must not keep noded out.
	peersMax = 64
)

// Server serves one step's connections. The zero value is not usable.
type Server struct {
	id      step.ID
	owner   uint32
	handler Handler

	mu    sync.Mutex
	peers map[*peer]struct{} // guarded by mu
	users int                // guarded by mu: peers that are not root
	done  bool               // guarded by mu
	// early are the lines for the user that were told before a launcher has
	// said that it is one: it gets them then.
	early    []*Msg // guarded by mu
	launched bool   // guarded by mu
	asks     asks
	wg       sync.WaitGroup
}

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
	slow    bool // guarded by lineMu: it was waited for in vain
	dropped int  // guarded by lineMu: lines
}

// NewServer makes the server of step id, whose tasks run as owner.
func NewServer(id step.ID, owner uint32, h Handler) *Server {
	s := &Server{id: id, owner: owner, handler: h, peers: make(map[*peer]struct{})}
	s.asks.init()
	return s
}

// Serve accepts connections until the listener is closed.
func (s *Server) Serve(l *net.UnixListener) {
	s.wg.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				// No descriptor is left: one comes free when a peer goes, and
				// nothing tells.
				time.Sleep(acceptPause)
				continue
			}
			s.admit(NewConn(c))
		}
	})
}

// admit checks who is there: the step's owner or root.
func (s *Server) admit(c *Conn) {
	cred, err := c.Peer()
	if err != nil || (cred.Uid != 0 && cred.Uid != s.owner) {
		c.SetWriteDeadline(time.Now().Add(sendTimeout))
		c.Send(&Msg{Type: TypeHello, Version: Version, Error: "permission denied"})
		c.Close()
		return
	}
	if cred.Uid != 0 {
		c.recordMax = inlineMax // a client's records are small
	}
	s.Add(c, "", cred.Uid == 0)
}

// Add serves a connection. role is set for one that needs no Hello to say what
// it is: the pair inherited from noded.
func (s *Server) Add(c *Conn, role Role, root bool) {
	p := &peer{conn: c, role: role, queue: make(chan queued, queueMax), slots: make(chan struct{}, linesMax), gone: make(chan struct{}), acked: make(chan struct{})}
	s.mu.Lock()
	if s.done || (!root && s.users >= peersMax) {
		full := !s.done
		s.mu.Unlock()
		if full {
			c.SetWriteDeadline(time.Now().Add(sendTimeout))
			c.Send(&Msg{Type: TypeHello, Version: Version, Error: fmt.Sprintf("%d clients are connected to step %s, which is the limit", peersMax, s.id)})
		}
		c.Close()
		return
	}
	s.peers[p] = struct{}{}
	if !root {
		s.users++
	}
	s.wg.Add(2)
	s.mu.Unlock()
	if role == RoleNoded {
		s.asks.here(p)
	}
	rec := s.handler.Record()
	p.put(queued{m: &Msg{Type: TypeHello, Version: Version, ID: &s.id, State: rec.State, Record: &rec}})
	go func() { defer s.wg.Done(); p.write() }()
	go func() { defer s.wg.Done(); s.read(p, root) }()
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
		closeAll(q.fds)
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

// slot takes a place for a line. A peer that was waited for in vain is not
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
	limit := time.NewTimer(linePatience)
	defer limit.Stop()
	select {
	case p.slots <- struct{}{}:
		return true
	case <-p.gone:
	case <-limit.C:
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
			continue
		default:
		}
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
			closeAll(q.fds)
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
	defer closeAll(q.fds)
	return p.conn.Send(q.m, q.fds...) == nil
}

// read serves one peer's records until it goes.
func (s *Server) read(p *peer, root bool) {
	for {
		m, fds, err := p.conn.Recv()
		if err != nil {
			break
		}
		if err := s.serve(p, m, fds, root); err != nil {
			p.put(queued{m: &Msg{Type: TypeReply, Seq: m.Seq, Error: err.Error()}})
		}
	}
	s.mu.Lock()
	role := p.role
	delete(s.peers, p)
	if !root {
		s.users--
	}
	s.mu.Unlock()
	close(p.gone)
	s.asks.lost(p)
	p.once.Do(func() { close(p.acked) })
	if role == RoleLaunch {
		s.handler.LauncherLost()
	}
}

var errNotRoot = errors.New("permission denied: only root speaks for noded")

// serve does what one record asks; an error is the answer to it.
func (s *Server) serve(p *peer, m *Msg, fds []int, root bool) error {
	if m.Type != TypeAttach {
		closeAll(fds)
	}
	switch m.Type {
	case TypeHello:
		if m.Version != Version {
			return fmt.Errorf("cannot speak version %d of the step protocol: this stepd speaks %d", m.Version, Version)
		}
		if m.Role == RoleNoded && !root {
			return errNotRoot
		}
		s.greet(p, m.Role)
		return nil
	case TypeAttach:
		if len(fds) != len(m.Streams) {
			closeAll(fds)
			return fmt.Errorf("cannot attach %d streams with %d descriptors", len(m.Streams), len(fds))
		}
		return s.handler.Attach(m.Streams, fds)
	case TypeAttachDone:
		s.handler.AttachDone()
		return nil
	case TypeFile:
		return s.handler.File(m.Piece())
	case TypeAck:
		p.took.Store(true)
		p.once.Do(func() { close(p.acked) })
		return nil
	case TypeAnswer:
		s.asks.answered(p, m)
		return nil
	case TypeLauncherLost:
		if !root {
			return errNotRoot
		}
		s.handler.LauncherLost()
		return nil
	case TypeSignal:
		return s.answer(p, m.Seq, s.handler.Signal(m.Signal, m.Scope))
	case TypeCancel:
		if err := CheckReason(m.Reason); err != nil {
			return err
		}
		return s.answer(p, m.Seq, s.handler.Cancel(m.Reason))
	case TypeStat:
		rec := s.handler.Stat()
		s.send(p, &Msg{Type: TypeReply, Seq: m.Seq, State: rec.State, Record: &rec})
		return nil
	case TypeWatch:
		return s.watch(p, m)
	case TypeSuspend:
		return s.answer(p, m.Seq, s.handler.Suspend(s.asker(m, root)))
	case TypeResume:
		return s.answer(p, m.Seq, s.handler.Resume(s.asker(m, root)))
	default:
		return fmt.Errorf("unknown record type %q", m.Type)
	}
}

// watch answers with a connection on which the step's output is seen.
func (s *Server) watch(p *peer, m *Msg) error {
	if m.Watch == nil {
		return errors.New("cannot watch: the record does not say how")
	}
	s.mu.Lock()
	launcher := p.role == RoleLaunch
	s.mu.Unlock()
	watched, fd, err := s.handler.Watch(m.Watch, launcher)
	if err != nil {
		return err
	}
	s.sendFDs(p, &Msg{Type: TypeReply, Seq: m.Seq, Watched: watched}, fd)
	return nil
}

// asker is the uid for whom a record speaks: root may speak for others, and
// whoever else is connected is the owner.
func (s *Server) asker(m *Msg, root bool) uint32 {
	switch {
	case !root:
		return s.owner
	case m.By != nil:
		return *m.By
	}
	return 0
}

// reasonMax bounds the reason of a cancel: it goes into the record, the log and
// other people's terminals.
const reasonMax = 256

// CheckReason refuses the reason of a cancel that would not do as one line.
func CheckReason(reason string) error {
	if len(reason) > reasonMax || strings.ContainsFunc(reason, unicode.IsControl) || !utf8.ValidString(reason) {
		return fmt.Errorf("cannot take the reason %.32q: want at most %d bytes on one line", reason, reasonMax)
	}
	return nil
}

func (s *Server) answer(p *peer, seq uint32, err error) error {
	if err != nil {
		return err
	}
	s.send(p, &Msg{Type: TypeReply, Seq: seq})
	return nil
}

// send queues a record to one peer, unless its reader has closed the queue.
func (s *Server) send(p *peer, m *Msg) { s.sendFDs(p, m) }

// sendFDs takes over the descriptors that go with it.
func (s *Server) sendFDs(p *peer, m *Msg, fds ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.peers[p]; ok {
		p.put(queued{m: m, fds: fds})
		return
	}
	closeAll(fds)
}

// Tell queues a record to every peer. Only a burst of lines may make it wait,
// for a second.
func (s *Server) Tell(m *Msg) {
	if m.Type == TypeMessage {
		for _, p := range s.hearers(m) {
			p.putLine(m)
		}
		return
	}
	for _, p := range s.all() {
		p.put(queued{m: m})
	}
}

// hearers are those who get a line now. Who has not said yet what it is may be
// the launcher, and gets it from greet.
func (s *Server) hearers(m *Msg) (peers []*peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.launched && len(s.early) < linesMax {
		s.early = append(s.early, m)
	}
	for p := range s.peers {
		if s.launched || p.role != "" {
			peers = append(peers, p)
		}
	}
	return peers
}

// greet notes what a peer is. The first launcher gets the lines that it has
// missed; no other can come in between.
func (s *Server) greet(p *peer, role Role) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.role = role
	if role == RoleNoded {
		s.asks.here(p)
	}
	if role != RoleLaunch || s.launched {
		return
	}
	s.launched = true
	for _, m := range s.early {
		p.putLine(m) // its queue has room for as many
	}
	s.early = nil
}

// TellState tells a change of state: the whole record to noded, which shows it,
// and of a spawned step to the launcher, which is the step that has spawned it;
// the state alone to others, who wait for the end.
func (s *Server) TellState(rec *step.Record) {
	whole := s.ofRole(RoleNoded)
	if rec.Parent != nil {
		whole = append(whole, s.ofRole(RoleLaunch)...)
	}
	for _, p := range s.all() {
		m := &Msg{Type: TypeState, State: rec.State}
		if slices.Contains(whole, p) {
			m.Record = rec
		}
		p.put(queued{m: m})
	}
}

// TellNoded tells noded alone how the step is.
func (s *Server) TellNoded(rec *step.Record) {
	for _, p := range s.ofRole(RoleNoded) {
		p.put(queued{m: &Msg{Type: TypeState, State: rec.State, Record: rec}})
	}
}

func (s *Server) all() []*peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	peers := make([]*peer, 0, len(s.peers))
	for p := range s.peers {
		peers = append(peers, p)
	}
	return peers
}

// Finish tells the result to everybody, waits at most timeout for noded's Ack,
// ends all connections and waits for their goroutines. It reports whether a
// noded has taken the result.
func (s *Server) Finish(m *Msg, timeout time.Duration) (acked bool) {
	s.Tell(m)
	t := time.NewTimer(timeout)
	defer t.Stop()
	for _, p := range s.ofRole(RoleNoded) {
		select {
		case <-p.acked:
			acked = acked || p.took.Load()
		case <-t.C:
			t.Reset(0)
		}
	}
	s.mu.Lock()
	s.done = true
	for p := range s.peers {
		p.conn.c.CloseRead() // the reader ends, and the writer sends what is queued
	}
	s.mu.Unlock()
	return acked
}

// Wait returns when all goroutines of the server have ended.
func (s *Server) Wait() { s.wg.Wait() }

func (s *Server) ofRole(role Role) (peers []*peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		if p.role == role {
			peers = append(peers, p)
		}
	}
	return peers
}
