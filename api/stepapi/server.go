package stepapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"stepd/step"
)

// Handler is what a step does for the peers that connect to it. Its methods are
// called from several goroutines.
type Handler interface {
	// Record is the step as it is now, for Hello.
	Record() step.Record
	// Attach takes over descriptors for the tasks' streams.
	Attach(streams []StreamFD, fds []int) error
	// AttachDone says that the launcher has handed over all of them.
	AttachDone()
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
	// Suspend and Resume act for the user with the uid by; noded alone asks for them.
	Suspend(by uint32) error
	Resume(by uint32) error
}

const (
	// acceptPause is how long no connection is taken after one failed.
	acceptPause = 100 * time.Millisecond
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

// NewServer makes the server of step id, whose tasks run as owner.
func NewServer(id step.ID, owner uint32, h Handler) *Server {
	return &Server{
		id: id, owner: owner, handler: h, peers: make(map[*peer]struct{}),
		asks: asks{came: make(chan struct{}), open: make(map[uint32]asked)},
	}
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

// admit checks the peer: the step's owner or root.
func (s *Server) admit(c *Conn) {
	cred, err := c.Peer()
	if err != nil || (cred.Uid != 0 && cred.Uid != s.owner) {
		refuse(c, fmt.Sprintf("permission denied (only uid %d and root may)", s.owner))
		return
	}
	if cred.Uid != 0 {
		c.recordMax = inlineMax // a client's records are small
	}
	s.Add(c, "", cred.Uid == 0)
}

// refuse ends a connection and says why.
func refuse(c *Conn, why string) {
	c.SetWriteDeadline(time.Now().Add(sendTimeout))
	c.Send(&Msg{Type: TypeHello, Version: Version, Error: why})
	c.Close()
}

// Add serves a connection. role is set for one that needs no Hello to say what
// it is: the pair inherited from noded.
func (s *Server) Add(c *Conn, role Role, root bool) {
	p := newPeer(c, role)
	s.mu.Lock()
	if s.done || (!root && s.users >= peersMax) {
		done := s.done
		s.mu.Unlock()
		if done {
			c.Close()
			return
		}
		refuse(c, fmt.Sprintf("%d clients are connected to step %s, which is the limit", peersMax, s.id))
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
	p.put(queued{m: &Msg{Type: TypeHello, Version: Version, State: rec.State, Record: &rec}})
	go func() { defer s.wg.Done(); p.write() }()
	go func() { defer s.wg.Done(); s.read(p, root) }()
}

// read serves one peer's records until it goes.
func (s *Server) read(p *peer, root bool) {
	for {
		m, fds, err := p.conn.Recv()
		if err != nil {
			break
		}
		if err := s.serve(p, m, fds, root); err != nil {
			p.put(queued{m: &Msg{Type: TypeReply, Seq: m.Seq, Error: err.Error(), Ended: errors.Is(err, step.ErrEnded)}})
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

// Finish sends the result to every peer, waits at most timeout for noded's Ack,
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

var errNotRoot = errors.New("permission denied: only root speaks for noded")

// serve does what one record asks; an error is the answer to it.
func (s *Server) serve(p *peer, m *Msg, fds []int, root bool) error {
	if m.Type != TypeAttach {
		CloseAll(fds)
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
			CloseAll(fds)
			return fmt.Errorf("cannot attach %d streams with %d descriptors", len(m.Streams), len(fds))
		}
		return s.handler.Attach(m.Streams, fds)
	case TypeAttachDone:
		s.handler.AttachDone()
		return nil
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
		reason, err := s.cancelReason(m, root)
		if err != nil {
			return err
		}
		return s.answer(p, m.Seq, s.handler.Cancel(reason))
	case TypeStat:
		rec := s.handler.Stat()
		s.send(p, &Msg{Type: TypeReply, Seq: m.Seq, State: rec.State, Record: &rec})
		return nil
	case TypeWatch:
		return s.watch(p, m)
	case TypeSuspend, TypeResume:
		return s.stand(p, m, root)
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

// stand suspends or resumes the step for noded alone: other jobs may have a suspended job's CPUs, and
// noded knows whether the job can have them back.
func (s *Server) stand(p *peer, m *Msg, root bool) error {
	if !root {
		return errNotRoot
	}
	by := *cmp.Or(m.By, new(uint32))
	if m.Type == TypeSuspend {
		return s.answer(p, m.Seq, s.handler.Suspend(by))
	}
	return s.answer(p, m.Seq, s.handler.Resume(by))
}

// cancelReason is why a record cancels the step: a daemon's own words, else the peer's
// signature and its note.
func (s *Server) cancelReason(m *Msg, root bool) (string, error) {
	by := s.owner
	switch {
	case m.Text != "" && root:
		return m.Text, nil
	case m.Text != "":
		return "", errNotRoot
	case root:
		by = 0
	}
	return CancelledBy(by, m.Reason), checkReason(m.Reason)
}

func (s *Server) answer(p *peer, seq uint32, err error) error {
	if err != nil {
		return err
	}
	s.send(p, &Msg{Type: TypeReply, Seq: seq})
	return nil
}

// CancelledBy is the reason of a step that a user has cancelled. The daemon that took the
// request writes it: by is the uid of its peer, from the kernel. note is the client's own
// words, "" for none: they are quoted, so that no note reads as another user's signature.
func CancelledBy(by uint32, note string) string {
	text := fmt.Sprintf("cancelled by uid %d", by)
	if note != "" {
		text += ": " + strconv.Quote(note)
	}
	return text
}

// reasonMax bounds the reason of a cancel: it goes into the record, the log and
// other people's terminals.
const reasonMax = 256

// checkReason refuses the reason of a cancel that does not fit on one line.
func checkReason(reason string) error {
	if len(reason) > reasonMax || strings.ContainsFunc(reason, unicode.IsControl) || !utf8.ValidString(reason) {
		return fmt.Errorf("cannot take the reason %.32q: want at most %d bytes on one line", reason, reasonMax)
	}
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
	CloseAll(fds)
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
	for _, p := range s.those(func(*peer) bool { return true }) {
		p.put(queued{m: m})
	}
}

// hearers are the peers that get a line now. Who has not said yet what it is may be
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

// TellState reports a change of state: the whole record to noded, which shows it,
// and of a spawned step to the launcher, which is the step that has spawned it;
// the state alone to others, who wait for the end.
func (s *Server) TellState(rec *step.Record) {
	whole := s.ofRole(RoleNoded)
	if rec.Parent != nil {
		whole = append(whole, s.ofRole(RoleLaunch)...)
	}
	for _, p := range s.those(func(*peer) bool { return true }) {
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

func (s *Server) ofRole(role Role) []*peer {
	return s.those(func(p *peer) bool { return p.role == role })
}

// those are the peers that are wanted; want is called with mu held.
func (s *Server) those(want func(*peer) bool) (peers []*peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		if want(p) {
			peers = append(peers, p)
		}
	}
	return peers
}

// asks are what stepd has asked noded and not been answered yet. A noded may go
// and another one come meanwhile.
type asks struct {
	mu   sync.Mutex
	peer *peer            // guarded by mu: the noded that is asked, nil without one
	came chan struct{}    // guarded by mu: closed and replaced when a noded comes
	seq  uint32           // guarded by mu
	open map[uint32]asked // guarded by mu
}

// asked is one request that waits for its answer.
type asked struct {
	of *peer
	// got has room for the one answer; nil comes from a peer that has gone.
	got chan *Msg
}

// ErrNodedGone says that the noded that was asked has gone before its answer: what
// was asked for may have been done or not.
var ErrNodedGone = errors.New("noded has gone before it has answered")

// here notes a noded; the latest is asked.
func (a *asks) here(p *peer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.peer = p
	close(a.came)
	a.came = make(chan struct{})
}

// lost ends what was asked of a peer that has gone.
func (a *asks) lost(p *peer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.peer == p {
		a.peer = nil
	}
	for seq, q := range a.open {
		if q.of == p {
			delete(a.open, seq)
			q.got <- nil
		}
	}
}

// answered hands an answer to the caller that asked that peer.
func (a *asks) answered(p *peer, m *Msg) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q, ok := a.open[m.Seq]; ok && q.of == p {
		delete(a.open, m.Seq)
		q.got <- m
	}
}

// Ask asks noded, and waits for a noded where none is connected, until ctx ends. A noded
// that goes before it answers is ErrNodedGone.
func (s *Server) Ask(ctx context.Context, ask *Ask) (*Answer, error) {
	p, seq, got, err := s.asks.begin(ctx)
	if err != nil {
		return nil, err
	}
	s.send(p, &Msg{Type: TypeAsk, Seq: seq, Ask: ask})
	select {
	case m := <-got:
		switch {
		case m == nil:
			return nil, ErrNodedGone
		case m.Error != "":
			return nil, errors.New(m.Error)
		case m.Answer == nil:
			return nil, fmt.Errorf("internal error: noded answers %q with nothing", ask.Do)
		}
		return m.Answer, nil
	case <-ctx.Done():
		s.asks.forget(seq)
		return nil, context.Cause(ctx)
	}
}

// begin finds a noded and takes a number.
func (a *asks) begin(ctx context.Context) (*peer, uint32, chan *Msg, error) {
	for {
		a.mu.Lock()
		if p := a.peer; p != nil {
			a.seq++
			got := make(chan *Msg, 1)
			a.open[a.seq] = asked{p, got}
			seq := a.seq
			a.mu.Unlock()
			return p, seq, got, nil
		}
		came := a.came
		a.mu.Unlock()
		select {
		case <-came:
		case <-ctx.Done():
			return nil, 0, nil, fmt.Errorf("cannot ask noded: none is connected: %w", context.Cause(ctx))
		}
	}
}

func (a *asks) forget(seq uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, seq)
}
