package stepapi

import (
	"slices"

	"stepd/step"
)

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
