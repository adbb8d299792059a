package stepnet

import (
	"net"
	"slices"
	"sync"
)

const (
	// strangersMax are the connections that have not proved a key yet.
	strangersMax = 256
	// refusalsMax are told of; more would only fill the log.
	refusalsMax = 20
)

// strangers are those who have come in and have not proved a key yet. Anybody who
// reaches the port may be one: who says nothing makes room for who comes later, and
// those who are expected need a few milliseconds.
type strangers struct {
	log func(format string, args ...any)

	mu       sync.Mutex
	waiting  []net.Conn // guarded by mu: the oldest first
	refusals int        // guarded by mu
}

func newStrangers(log func(format string, args ...any)) *strangers { return &strangers{log: log} }

// add takes one more in.
func (s *strangers) add(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) >= strangersMax {
		s.waiting[0].Close()
		s.waiting = s.waiting[1:]
	}
	s.waiting = append(s.waiting, c)
}

// known lets go of one, who has proved a key or was refused.
func (s *strangers) known(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, c); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
}

// refused tells of one.
func (s *strangers) refused(c net.Conn, err error) {
	s.mu.Lock()
	s.refusals++
	n := s.refusals
	s.mu.Unlock()
	switch {
	case n < refusalsMax:
		s.log("refused a connection from %s: %v", c.RemoteAddr(), err)
	case n == refusalsMax:
		s.log("refused a connection from %s: %v; further ones are not told of", c.RemoteAddr(), err)
	}
}
