package stepnet

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"stepd/step"
)

// Who watches a step is no part of its tree: a watcher has a connection of its own to node
// 0's stepd, over which go packets that are none of this package's.

// watcherKey tells whether there may be any, by their key.
func (n *Node) watcherKey() (hash [sha256.Size]byte, any bool) {
	key := n.cfg.Layout.Watcher
	if !n.root() || n.cfg.Watch == nil || len(key) != sha256.Size {
		return hash, false
	}
	return [sha256.Size]byte(key), true
}

// watchersMax is how many watch at a time: each of them holds a descriptor and memory.
const watchersMax = 128

// watched hands over a watcher's connection.
func (n *Node) watched(raw net.Conn, conn *tls.Conn) error {
	n.mu.Lock()
	late, many := n.unwatched, n.watchers >= watchersMax
	if !late && !many {
		n.watchers++
		n.watching.Add(1)
	}
	n.mu.Unlock()
	if late || many {
		raw.Close() // TLS's own close would wait for who does not read
	}
	switch {
	case late:
		return nil
	case many:
		return fmt.Errorf("%d connections watch the step already", watchersMax)
	}
	watchKernel(raw)
	n.wg.Go(func() {
		defer n.unwatch()
		defer context.AfterFunc(n.ctx, func() { raw.Close() })()
		defer conn.Close()
		n.cfg.Watch(conn)
	})
	return nil
}

// unwatch counts one less.
func (n *Node) unwatch() {
	n.mu.Lock()
	n.watchers--
	n.mu.Unlock()
	n.watching.Done()
}

// watchGrace is how long those who watch may take for the last of the output.
const watchGrace = time.Second

// awaitWatchers waits for them, who see the end by themselves. No others come any more.
func (n *Node) awaitWatchers() {
	n.mu.Lock()
	n.unwatched = true
	n.mu.Unlock()
	gone := make(chan struct{})
	// Not one of n.wg: Close may be called by several, and wait for those at once.
	go func() { n.watching.Wait(); close(gone) }() // they end with the node
	t := time.NewTimer(watchGrace)
	defer t.Stop()
	select {
	case <-gone:
	case <-t.C:
	}
}

// SetTap makes t hear what comes by node 0 on its way to the launcher, nil nobody. It must
// not block: it holds up the stream.
func (n *Node) SetTap(t func(fd, rank int, data []byte)) {
	if t == nil {
		n.tap.Store(nil)
		return
	}
	n.tap.Store(&t)
}

// hears gives the tap what has been sent.
func (n *Node) hears(fd, rank int, data []byte) {
	if t := n.tap.Load(); t != nil && n.root() && len(data) > 0 {
		(*t)(fd, rank, data)
	}
}

// DialWatcher connects to node 0's stepd with the private half of the layout's Watcher.
func DialWatcher(ctx context.Context, layout *step.Layout, key []byte) (net.Conn, error) {
	to := layout.Nodes[0]
	id, err := identity(key)
	if err == nil {
		var m *meteredConn
		var conn *tls.Conn
		if m, conn, err = dial(ctx, to.Addr, id, to.Key, dialPause); err == nil {
			watchKernel(m.Conn)
			return conn, nil
		}
	}
	return nil, fmt.Errorf("cannot connect to the stepd of node %q at %s: %w", to.Name, to.Addr, err)
}

// PacketMax bounds a packet.
const PacketMax = 64 << 10

// WritePacket writes a packet to a connection of bytes.
func WritePacket(w io.Writer, b []byte) error {
	if len(b) > PacketMax {
		return fmt.Errorf("a packet of %d bytes: at most %d", len(b), PacketMax)
	}
	_, err := w.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(b)), uint32(len(b))), b...))
	return err
}

// ReadPacket reads one into buf, which bounds its length, and returns that part of it.
func ReadPacket(r io.Reader, buf []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || int64(n) > int64(len(buf)) {
		return nil, fmt.Errorf("%w: a packet of %d bytes, at most %d", errFrame, n, len(buf))
	}
	_, err := io.ReadFull(r, buf[:n])
	return buf[:n], err
}
