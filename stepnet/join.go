package stepnet

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"sync"
	"time"
)

// join connects to the parent.
func (n *Node) join() {
	ctx, cancel := context.WithTimeoutCause(n.ctx, n.lim.Connect, fmt.Errorf("it did not answer within %v", n.lim.Connect))
	defer cancel()
	to := n.cfg.Layout.Nodes[n.parent()]
	m, conn, err := dial(ctx, to.Addr, n.id, to.Key, n.lim.Refused)
	if err == nil {
		err = greet(n.up, m, conn, n.hello(), true, n.lim.Handshake)
	}
	if err != nil {
		n.up.fail(fmt.Errorf("cannot connect to its stepd at %s: %w", to.Addr, err))
	}
}

// hello is ours.
func (n *Node) hello() hello {
	return hello{version: protocol, job: wire(n.cfg.ID.Job), step: wire(n.cfg.ID.Step), from: n.self, fan: n.fan, nodes: n.nodes}
}

// wire is a number as it comes out of a frame.
func wire(v uint32) int { return int(int32(v)) }

// greet exchanges hellos on a new connection of a link and begins to use it. Who
// has dialled speaks first.
func greet(l *link, m *meteredConn, conn *tls.Conn, mine hello, dialled bool, limit time.Duration) (err error) {
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	conn.SetDeadline(time.Now().Add(limit))
	r := bufio.NewReaderSize(conn, 16<<10)
	say := func() error { _, err := conn.Write(mine.frame()); return err }
	if dialled {
		err = say()
	}
	if err == nil {
		err = hear(r, mine, l.peer)
	}
	if err == nil && l.connected() {
		err = errSecond
	}
	if err == nil && !dialled {
		err = say()
	}
	if err != nil {
		return err
	}
	conn.SetDeadline(time.Time{})
	return l.attach(conn, r, m)
}

// hear checks the other end's hello.
func hear(r *bufio.Reader, mine hello, peer int) error {
	k, body, err := readFrame(r, 1<<10)
	if err != nil {
		return err
	}
	if k != kindHello {
		return errFrame
	}
	theirs, err := parseHello(body)
	if err != nil {
		return err
	}
	want := mine
	want.from = peer
	if theirs != want {
		return fmt.Errorf("it is of another step or tree: %+v, not %+v", theirs, want)
	}
	return nil
}

// expected are those who may come in, by their keys.
func (n *Node) expected() map[[sha256.Size]byte]*link {
	who := make(map[[sha256.Size]byte]*link)
	add := func(key []byte, l *link) {
		if len(key) == sha256.Size {
			who[[sha256.Size]byte(key)] = l
		}
	}
	for c, l := range n.down {
		add(n.cfg.Layout.Nodes[c].Key, l)
	}
	if n.root() {
		add(n.cfg.Layout.Launcher, n.up)
	}
	return who
}

// listen lets in those who prove a key that is expected, until all are there.
func (n *Node) listen() {
	ln := n.cfg.Listener
	if ln == nil {
		return
	}
	defer ln.Close()
	who := n.expected()
	watcher, open := n.watcherKey()
	if len(who) == 0 && !open {
		return
	}
	all, stop := context.WithCancel(n.ctx)
	defer stop()
	unhook := context.AfterFunc(all, func() { ln.Close() })
	defer unhook()
	n.wg.Go(func() {
		n.awaitAll(all, who)
		if !open {
			stop()
		}
	})
	conf := pinned(n.id, func(h [sha256.Size]byte) bool { return who[h] != nil || open && h == watcher })
	strangers := newStrangers(n.log)
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		raw, err := ln.Accept()
		if err != nil {
			if all.Err() != nil {
				return
			}
			// No descriptor is left: nothing tells when one is.
			select {
			case <-time.After(dialPause):
				continue
			case <-all.Done():
				return
			}
		}
		m := &meteredConn{Conn: raw}
		strangers.add(m, n.lim.Silence)
		wg.Go(func() {
			err := n.admit(m, tls.Server(m, conf), who)
			strangers.known(m)
			if err != nil && n.ctx.Err() == nil {
				strangers.refused(raw, err)
			}
		})
	}
}

// admit is the handshake of one who came in.
func (n *Node) admit(m *meteredConn, conn *tls.Conn, who map[[sha256.Size]byte]*link) error {
	ctx, cancel := context.WithTimeout(n.ctx, n.lim.Handshake)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		conn.Close()
		return err
	}
	hash, err := peerHash(conn.ConnectionState())
	l := who[hash]
	if watcher, open := n.watcherKey(); err == nil && l == nil && open && hash == watcher {
		return n.watched(m.Conn, conn)
	}
	if err != nil || l == nil {
		conn.Close()
		return errKey
	}
	if err := greet(l, m, conn, n.hello(), false, n.lim.Handshake); err != nil {
		return err
	}
	if l.peer == launcherID {
		watchKernel(m.Conn)
		n.launcherReady()
	}
	return nil
}

// awaitAll loses those who do not come, and returns when there is nobody left to wait for.
func (n *Node) awaitAll(ctx context.Context, who map[[sha256.Size]byte]*link) {
	var wg sync.WaitGroup
	for _, l := range who {
		limit := n.lim.Connect
		if l.peer == launcherID {
			limit = n.lim.Launcher
		}
		wg.Go(func() {
			t := time.NewTimer(limit)
			defer t.Stop()
			select {
			case <-l.attached:
			case <-l.gone:
			case <-ctx.Done():
			case <-t.C:
				l.fail(fmt.Errorf("it did not connect within %v", limit))
			}
		})
	}
	wg.Wait()
}
