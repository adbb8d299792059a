package stepnet

import (
	"errors"
	"fmt"
	"net"
	"time"
)

var errUnasked = fmt.Errorf("%w: not from there", errFrame)

// fromAbove takes a frame of the parent, or of the launcher: that one is a
// user's program, and few words are its.
func (n *Node) fromAbove(l *link, k kind, body []byte) error {
	if n.root() && k != kindInput && k != kindOrder && k != kindOver {
		return errUnasked
	}
	switch k {
	case kindInput:
		return l.in[chanInput].put(item{kind: k, body: body})
	case kindReady:
		n.launcherReady()
	case kindLauncherLost:
		n.launcherGone("")
	case kindOrder:
		// A launcher that orders without end waits here.
		f := append(newFrame(kindOrder, len(body)).b, body...)
		if err := n.toChildrenWait((&encoder{f}).done()); err != nil {
			return err
		}
		n.cfg.Handler.Ordered(body)
	case kindOver:
		if !n.saidAll() {
			return errUnasked
		}
		n.finished()
	case kindGatherDown:
		return n.gatheredAbove(body)
	default:
		return n.fromBoth(l, k, body)
	}
	return nil
}

// stream puts a frame of a stream before the reader of its channel.
func (l *link) stream(k kind, body []byte) error {
	to := chanRecord
	if k == kindOutput {
		o, err := parseOutput(body)
		if err != nil {
			return err
		}
		to = o.fd
	}
	return l.in[to].put(item{kind: k, body: body})
}

// fromBelow takes a frame of a child.
func (n *Node) fromBelow(l *link, k kind, body []byte) error {
	switch k {
	case kindOutput, kindRecord:
		return l.stream(k, body)
	case kindInputClosed:
		n.inputClosed(l.peer)
	case kindEnded:
		n.mu.Lock()
		n.endedBelow[l.peer] = true
		n.mu.Unlock()
		n.advance()
	case kindDone:
		n.mu.Lock()
		n.saidDone[l.peer] = true
		n.mu.Unlock()
		l.finishChannels(chanStdout) // its relays say when they have passed on all
	case kindGatherUp:
		return n.gatheredBelow(l, body)
	default:
		return n.fromBoth(l, k, body)
	}
	return nil
}

// fromBoth takes what may come from any neighbour that is a stepd.
func (n *Node) fromBoth(l *link, k kind, body []byte) error {
	switch k {
	case kindTold, kindLost:
		node, words, err := parseWords(body)
		if err != nil {
			return err
		}
		if node < 0 || node >= n.nodes {
			return errFrame
		}
		if k == kindLost {
			n.lose(node, string(words), l)
			return nil
		}
		n.flood(wordsFrame(k, node, words), l)
		n.cfg.Handler.Told(node, words)
	case kindCall, kindReply:
		c, err := parseCall(k, body)
		if err != nil {
			return err
		}
		return n.route(k, c)
	default:
		return errUnasked
	}
	return nil
}

// saidAll tells whether all that was written below has been sent up: before that,
// nobody may say that the step is over.
func (n *Node) saidAll() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.toldDone
}

// toChildrenWait sends a frame to all children as they have room for it. One that
// is gone is no matter.
func (n *Node) toChildrenWait(f frame) error {
	for _, l := range n.down {
		if err := l.pushWait(n.ctx, f); err != nil && n.ctx.Err() != nil {
			return err
		}
	}
	return nil
}

func (n *Node) toChildren(f frame) {
	for _, l := range n.down {
		l.push(f)
	}
}

// launcherReady says below that the launcher is there.
func (n *Node) launcherReady() {
	n.mu.Lock()
	already := n.ready
	n.ready = true
	n.mu.Unlock()
	if already {
		return
	}
	n.toChildren(plainFrame(kindReady))
	n.cfg.Handler.LauncherReady()
}

// launcherGone says below that there is no launcher: what the tasks write goes
// nowhere, as into a pipe that nobody reads, and their input ends. why is for
// the log.
func (n *Node) launcherGone(why string) {
	n.mu.Lock()
	already, over := n.launchless, n.isOver
	n.launchless = true
	n.mu.Unlock()
	if already || over {
		return
	}
	n.toChildren(plainFrame(kindLauncherLost))
	if n.root() {
		n.up.fail(errors.New(why))
		if len(n.cfg.Layout.Launcher) > 0 {
			n.log("the launcher is gone: %s", why)
		}
	}
	n.closeOutputs()
	n.endInput()
	if len(n.cfg.Layout.Launcher) > 0 {
		n.cfg.Handler.LauncherLost()
	}
	n.advance()
}

// watchKernel lets the kernels at both ends tell that the other's host is gone.
// The program there may be stopped for as long as its user likes.
func watchKernel(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3})
	}
}
