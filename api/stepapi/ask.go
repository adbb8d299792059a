package stepapi

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

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
