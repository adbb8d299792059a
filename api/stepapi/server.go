package stepapi

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

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
	// Suspend and Resume act for the user with the uid by.
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

// admit checks the peer: the step's owner or root.
func (s *Server) admit(c *Conn) {
	cred, err := c.Peer()
	if err != nil || (cred.Uid != 0 && cred.Uid != s.owner) {
		refuse(c, "permission denied")
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
