package stepnet

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// servedMax bounds the calls that are answered on one node at a time, and
// servedBytes their data.
const (
	servedMax   = 64 << 10
	servedBytes = 256 << 20
)

// Answer is what Handle takes.
type Answer = func(ctx context.Context, from int, data []byte) ([]byte, error)

// calls are the questions on their way. They go along the tree: a connection of
// its own for each pair would cost a handshake (1 ms) for what is mostly one
// question, n² sockets where all ask all, and another way to lose a node. With 16
// branches no node is more than three hops from the root.
type calls struct {
	callMu  sync.Mutex
	asked   map[int]chan *call // guarded by callMu: by number; size 1, nil is no answer
	number  int                // guarded by callMu
	answers map[string]Answer  // guarded by callMu
	more    chan struct{}      // guarded by callMu: closed when answers has grown
	callErr error              // guarded by callMu: there will be no more answers
	serving int                // guarded by callMu
	bytes   int                // guarded by callMu: the size of the questions being served
	asking  chan struct{}      // a place for each question of this node
}

func (c *calls) init(lim Limits) {
	c.asked, c.answers, c.more = make(map[int]chan *call), make(map[string]Answer), make(chan struct{})
	c.asking = make(chan struct{}, lim.Calls)
}

// Handle implements launch.Peers. A call that comes before its handler waits.
func (n *Node) Handle(name string, answer func(ctx context.Context, from int, data []byte) ([]byte, error)) {
	n.callMu.Lock()
	defer n.callMu.Unlock()
	n.answers[name] = answer
	close(n.more)
	n.more = make(chan struct{})
}

// Call implements launch.Peers.
func (n *Node) Call(ctx context.Context, node int, name string, data []byte) ([]byte, error) {
	if node < 0 || node >= n.nodes {
		return nil, fmt.Errorf("cannot call node %d: the step has %d", node, n.nodes)
	}
	answer, err := n.call(ctx, &call{to: node, from: n.self, name: name, data: data})
	if err != nil {
		return nil, fmt.Errorf("cannot call %.80q of node %s: %w", name, n.cfg.Names[node], err)
	}
	return answer, nil
}

func (n *Node) call(ctx context.Context, c *call) ([]byte, error) {
	switch {
	case len(c.data) > n.lim.Message:
		return nil, fmt.Errorf("%d bytes: at most %d", len(c.data), n.lim.Message)
	case len(c.name) > gatherNameMax:
		return nil, fmt.Errorf("a name of %d bytes: at most %d", len(c.name), gatherNameMax)
	}
	select {
	case n.asking <- struct{}{}:
		defer func() { <-n.asking }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	reply := make(chan *call, 1)
	n.callMu.Lock()
	if n.callErr != nil {
		defer n.callMu.Unlock()
		return nil, n.callErr
	}
	n.number = (n.number + 1) & (1<<30 - 1)
	c.number = n.number
	n.asked[c.number] = reply
	n.callMu.Unlock()
	defer func() {
		n.callMu.Lock()
		delete(n.asked, c.number)
		n.callMu.Unlock()
	}()
	if c.to == n.self {
		n.serve(c)
	} else if err := n.linkTo(c.to).pushWait(ctx, c.frame(kindCall)); err != nil {
		return nil, n.orLost(err)
	}
	select {
	case r := <-reply:
		switch {
		case r == nil:
			return nil, n.orLost(errOver)
		case r.problem != "":
			return nil, errors.New(r.problem)
		}
		return r.data, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// orLost is why the tree does not hold any more, or else err.
func (n *Node) orLost(err error) error {
	if lost := n.lostError(); lost != nil {
		return lost
	}
	return err
}

func (n *Node) linkTo(node int) *link {
	at := n.towards(node)
	if l := n.down[at]; l != nil {
		return l
	}
	return n.up
}

// route passes a call or an answer on, or takes it in. It may wait for room on the
// next hop: up waits for up and down, down for down alone, and nothing here waits
// for a handler, so that no circle of nodes waits for itself.
func (n *Node) route(k kind, c *call) error {
	if c.to < 0 || c.to >= n.nodes || (k == kindCall && (c.from < 0 || c.from >= n.nodes)) {
		return errFrame
	}
	if c.to != n.self {
		if err := n.linkTo(c.to).pushWait(n.ctx, c.frame(k)); err != nil {
			n.log("cannot pass on a call to node %s: %v", n.cfg.Names[c.to], err)
		}
		return nil
	}
	if k == kindCall {
		n.serve(c)
		return nil
	}
	n.callMu.Lock()
	defer n.callMu.Unlock()
	if reply := n.asked[c.number]; reply != nil {
		delete(n.asked, c.number)
		reply <- c
	}
	return nil
}

// serve answers a call, on a goroutine of its own.
func (n *Node) serve(c *call) {
	n.callMu.Lock()
	full := n.serving >= servedMax || n.bytes+len(c.data) > servedBytes
	if !full {
		n.serving++
		n.bytes += len(c.data)
	}
	n.callMu.Unlock()
	if full {
		n.wg.Go(func() {
			n.reply(c, nil, fmt.Errorf("it has %d calls to answer already, or %d bytes of them", servedMax, servedBytes))
		})
		return
	}
	n.wg.Go(func() {
		defer func() {
			n.callMu.Lock()
			n.serving--
			n.bytes -= len(c.data)
			n.callMu.Unlock()
		}()
		answer := n.awaitAnswer(c.name)
		if answer == nil {
			return // the step is over
		}
		data, err := answer(n.ctx, c.from, c.data)
		if err == nil && len(data) > n.lim.Message {
			data, err = nil, fmt.Errorf("its answer has %d bytes: at most %d", len(data), n.lim.Message)
		}
		n.reply(c, data, err)
	})
}

// awaitAnswer waits until a handler for that name exists.
func (n *Node) awaitAnswer(name string) Answer {
	for {
		n.callMu.Lock()
		answer, more := n.answers[name], n.more
		n.callMu.Unlock()
		if answer != nil {
			return answer
		}
		select {
		case <-more:
		case <-n.ctx.Done():
			return nil
		}
	}
}

func (n *Node) reply(c *call, data []byte, err error) {
	r := &call{to: c.from, number: c.number, data: data}
	if err != nil {
		if r.problem = err.Error(); r.problem == "" {
			r.problem = "it failed"
		}
		r.data = nil
	}
	if c.from == n.self {
		n.route(kindReply, r)
		return
	}
	if err := n.linkTo(c.from).pushWait(n.ctx, r.frame(kindReply)); err != nil && n.ctx.Err() == nil {
		n.log("cannot answer node %s: %v", n.cfg.Names[c.from], err)
	}
}

// failCalls ends all that wait, and those to come.
func (n *Node) failCalls(err error) {
	n.callMu.Lock()
	defer n.callMu.Unlock()
	if n.callErr == nil {
		n.callErr = err
	}
	for number, reply := range n.asked {
		delete(n.asked, number)
		reply <- nil
	}
}
