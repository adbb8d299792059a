package serve

import (
	"context"
	"net"
	"sync"
	"time"

	"stepd/api"
)

// What a client has of noded counts for its user. A user with subordinate uids (subuid(5)) can
// connect as 65,536 others, which no name service knows: those count as one. So does, for one
// connection, a uid that it was never asked about, while it is asked about many.

// unknownUsers stands for all uids that no name service knows. It is no uid.
const unknownUsers = ^uint32(0)

const (
	// payersKeep is how long an answer of the name service counts here, and doubtKeep how long
	// it is that there was none. payersMax bounds the answers that are kept.
	payersKeep = 10 * time.Minute
	doubtKeep  = 10 * time.Second
	payersMax  = 1 << 14
	// lookupMax is how long an answer is waited for, and lookupsMax how many at a time.
	lookupMax  = time.Second
	lookupsMax = 8
	// lookupsFree questions are asked at once, and then one in each lookupEvery: each is a process.
	lookupsFree = 100
	lookupEvery = 50 * time.Millisecond
)

// payers are the users for whom connections count.
type payers struct {
	mu   sync.Mutex
	list map[uint32]payer // guarded by mu, by uid
}

type payer struct {
	uid   uint32 // or unknownUsers
	until time.Time
}

// find returns for whom uid counts, as far as that was ever asked, and whether it was of late.
func (p *payers) find(uid uint32) (payer uint32, fresh bool) {
	if uid == 0 {
		return 0, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	of, ok := p.list[uid]
	if !ok {
		return unknownUsers, false
	}
	return of.uid, time.Now().Before(of.until)
}

// ask asks the name service for whom uid counts. Where it does not answer, as itself.
func (p *payers) ask(uid uint32, known func(context.Context, uint32) (bool, error)) uint32 {
	ctx, cancel := context.WithTimeout(context.Background(), lookupMax)
	defer cancel()
	of := payer{uid, time.Now().Add(payersKeep)}
	switch is, err := known(ctx, uid); {
	case err != nil:
		of.until = time.Now().Add(doubtKeep)
	case !is:
		of.uid = unknownUsers
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.list == nil || len(p.list) >= payersMax {
		p.list = make(map[uint32]payer)
	}
	p.list[uid] = of
	return of.uid
}

// clientListener takes the connections that their users may have.
type clientListener struct {
	net.Listener
	s      *Server
	taken  chan net.Conn
	failed chan error
	closed chan struct{}
	close  func()
	asking chan struct{} // has a word for each question to the name service
	asked  time.Time     // run's: when the pace of questions has room for another; see mayAsk
}

func newClientListener(l net.Listener, s *Server) *clientListener {
	closed := make(chan struct{})
	c := &clientListener{
		Listener: l, s: s, taken: make(chan net.Conn), failed: make(chan error),
		closed: closed, close: sync.OnceFunc(func() { close(closed) }), asking: make(chan struct{}, lookupsMax),
	}
	go c.run() // ends with the listener
	return c
}

// Accept returns the next connection, a *clientConn.
func (l *clientListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.taken:
		return c, nil
	case err := <-l.failed:
		return nil, err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close closes the listener.
func (l *clientListener) Close() error {
	l.close()
	return l.Listener.Close()
}

func (l *clientListener) run() {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			select {
			case l.failed <- err: // net/http waits after some, and calls Accept again
				continue
			case <-l.closed:
				return
			}
		}
		c := &clientConn{UnixConn: accepted.(*net.UnixConn), leave: func() {}}
		if c.peer, err = l.s.PeerOf(c.UnixConn); err != nil {
			l.s.logRefused(unknownUsers, c.peer.UID, "connection closed: %v", err)
			l.s.Meter.Request("connect", string(api.Unauthenticated), 0)
			c.Close()
			continue
		}
		var fresh bool
		if c.payer, fresh = l.s.payers.find(c.peer.UID); fresh || l.s.Known == nil || !l.mayAsk(time.Now()) {
			l.admit(c)
			continue
		}
		go func() { // ends within lookupMax
			c.payer = l.s.payers.ask(c.peer.UID, l.s.Known)
			<-l.asking
			l.admit(c)
		}()
	}
}

// mayAsk reports whether the name service may be asked another question, and counts it.
func (l *clientListener) mayAsk(now time.Time) bool {
	if free := now.Add(-lookupsFree * lookupEvery); l.asked.Before(free) {
		l.asked = free
	}
	if l.asked.After(now.Add(-lookupEvery)) {
		return false
	}
	select {
	case l.asking <- struct{}{}:
		l.asked = l.asked.Add(lookupEvery)
		return true
	default:
		return false
	}
}

// admit hands a connection to Accept, unless its user has too many.
func (l *clientListener) admit(c *clientConn) {
	var err error
	if l.s.Known == nil {
		c.payer = c.peer.UID
	}
	if c.refusal, err = l.s.clients.enter(c.payer); err != nil {
		l.s.logRefused(c.payer, c.peer.UID, "connection closed: %v", err)
		l.s.Meter.Request("connect", string(api.ResourceExhausted), 0)
		c.peer.Close()
		c.UnixConn.Close()
		return
	}
	c.leave = sync.OnceFunc(func() {
		l.s.clients.open.drop(c.payer, 1)
		c.peer.Close()
	})
	select {
	case l.taken <- c:
	case <-l.closed:
		c.Close()
	}
}
