package stepnet

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// strangersMax are the connections that have not proved a key yet, and strangersOfOne
	// those from one address among them.
	strangersMax   = 256
	strangersOfOne = 64
	// refusalsMax are told of; more would only fill the log.
	refusalsMax = 20
)

// strangers are those who have come in and have not proved a key yet. Anybody who
// reaches the port may be one. Those who are expected need a few milliseconds; where
// there are too many, the one goes that has said nothing yet, else the oldest, of the
// address with the most: a stranger only drives out strangers of his own address.
type strangers struct {
	log func(format string, args ...any)

	mu       sync.Mutex
	waiting  []stranger // guarded by mu: the oldest first
	refusals int        // guarded by mu
}

// stranger is one of them.
type stranger struct {
	c    *meteredConn
	from netip.Prefix
	late *time.Timer // ends it, unless it has said something
}

func newStrangers(log func(format string, args ...any)) *strangers { return &strangers{log: log} }

// source is whom an address stands for: of IPv6, where a host has as many as it likes,
// its network.
func source(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap()
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// add takes one more in, who has so long to say a first word: who dials tries again.
func (s *strangers) add(c *meteredConn, silence time.Duration) {
	n := stranger{c: c, from: source(c.RemoteAddr())}
	n.late = time.AfterFunc(silence, func() {
		if c.got.Load() == 0 {
			c.Close()
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	count := make(map[netip.Prefix]int)
	most := n.from
	for _, w := range s.waiting {
		if count[w.from]++; count[w.from] > count[most] {
			most = w.from
		}
	}
	switch {
	case count[n.from] >= strangersOfOne:
		s.dropOf(n.from)
	case len(s.waiting) >= strangersMax:
		s.dropOf(most)
	}
	s.waiting = append(s.waiting, n)
}

// dropOf ends one of an address. The lock is held.
func (s *strangers) dropOf(from netip.Prefix) {
	victim := -1
	for i, w := range s.waiting {
		if w.from != from {
			continue
		}
		if w.c.got.Load() == 0 {
			victim = i
			break
		}
		if victim < 0 {
			victim = i
		}
	}
	if victim >= 0 {
		s.waiting[victim].c.Close()
		s.removeAt(victim)
	}
}

func (s *strangers) removeAt(i int) {
	s.waiting[i].late.Stop()
	s.waiting = slices.Delete(s.waiting, i, i+1)
}

// known lets go of one, who has proved a key or was refused.
func (s *strangers) known(c *meteredConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.waiting, func(w stranger) bool { return w.c == c }); i >= 0 {
		s.removeAt(i)
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
