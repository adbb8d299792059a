package stepapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/internal/quickjson"
)

const (
	// inlineMax is the largest record sent as a packet of its own; a larger
	// one travels as a sealed memfd (250,000 bytes give EMSGSIZE).
	inlineMax = 64 << 10
	// RecordMax bounds a record that a peer may make us read.
	RecordMax = 32 << 20
	// FDsMax bounds the descriptors of one packet (SCM_MAX_FD is 253).
	FDsMax = 200
)

// envelope is the packet that stands for a record in a memfd: the memfd is
// the first descriptor of the packet.
type envelope struct {
	Memfd int64 `json:"memfd"`
}

// envelopeStart is what an envelope begins with: other records are not looked at twice.
var envelopeStart = []byte(`{"memfd":`)

// Conn is one connection. One goroutine may send while another receives;
// two senders need a lock of their own.
type Conn struct {
	c *net.UnixConn
	// recordMax bounds the records of this peer; 0 is RecordMax.
	recordMax int64
}

// NewConn takes over c, which must be a SOCK_SEQPACKET socket.
func NewConn(c *net.UnixConn) *Conn { return &Conn{c: c} }

// FromFD takes over the seqpacket descriptor fd.
func FromFD(fd int, name string) (*Conn, error) {
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("cannot use descriptor %d as %q: %w", fd, name, err)
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("cannot use descriptor %d as %q: not a unix socket", fd, name)
	}
	return &Conn{c: uc}, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.c.Close() }

// SetWriteDeadline bounds Sends, so that a peer that does not read cannot
// hold the sender.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.c.SetWriteDeadline(t) }

// Peer returns the kernel's word on who is at the other end (SO_PEERCRED).
func (c *Conn) Peer() (*unix.Ucred, error) { return linux.PeerCred(c.c) }

// Send writes one record with its descriptors. The descriptors stay open here.
func (c *Conn) Send(m *Msg, fds ...int) error {
	if len(fds) > FDsMax {
		return fmt.Errorf("cannot send %q record: %d descriptors, at most %d", m.Type, len(fds), FDsMax)
	}
	b, err := quickjson.Marshal(m)
	if err != nil {
		return fmt.Errorf("cannot encode %q record: %v", m.Type, err)
	}
	if len(b) > inlineMax {
		mfd, err := SealedMemfd("stepd-record", b)
		if err != nil {
			return err
		}
		defer mfd.Close()
		if b, err = quickjson.Marshal(envelope{Memfd: int64(len(b))}); err != nil {
			return err
		}
		fds = append([]int{int(mfd.Fd())}, fds...)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.c.WriteMsgUnix(b, oob, nil); err != nil {
		return fmt.Errorf("cannot send %q record: %w", m.Type, err)
	}
	return nil
}

// packet is what one record is read into.
type packet struct{ buf, oob []byte }

// packets are the buffers of all connections: one that waits has none, and noded has a
// connection for each step.
var packets = sync.Pool{New: func() any {
	return &packet{buf: make([]byte, inlineMax+1), oob: make([]byte, unix.CmsgSpace((FDsMax+1)*4))}
}}

// Recv reads one record. The descriptors are the caller's to close. It returns
// io.EOF when the peer has closed.
func (c *Conn) Recv() (m *Msg, fds []int, err error) {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	waitErr := raw.Read(func(fd uintptr) bool {
		p := packets.Get().(*packet)
		defer packets.Put(p)
		for {
			n, oobn, flags, _, rerr := unix.Recvmsg(int(fd), p.buf, p.oob, unix.MSG_CMSG_CLOEXEC)
			switch rerr {
			case nil:
				m, fds, err = c.take(p.buf[:n], p.oob[:oobn], flags)
				return true
			case unix.EAGAIN:
				return false
			case unix.EINTR:
				continue
			case unix.ECONNRESET:
				err = io.EOF
				return true
			}
			err = fmt.Errorf("cannot read record: %w", rerr)
			return true
		}
	})
	if waitErr != nil {
		return nil, nil, waitErr
	}
	return m, fds, err
}

// Hear is Recv of a peer that has no descriptors to give.
func (c *Conn) Hear() (*Msg, error) {
	m, fds, err := c.Recv()
	CloseAll(fds)
	return m, err
}

// take makes a record of a packet, of which it keeps nothing.
func (c *Conn) take(b, oob []byte, flags int) (*Msg, []int, error) {
	fds, err := parseRights(oob)
	if err != nil {
		return nil, nil, err
	}
	if len(b) == 0 && len(fds) == 0 {
		return nil, nil, io.EOF
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(b) > inlineMax {
		CloseAll(fds)
		return nil, nil, fmt.Errorf("cannot read record: longer than %d bytes or %d descriptors", inlineMax, FDsMax)
	}
	m, rest, err := decode(b, fds, cmp.Or(c.recordMax, RecordMax))
	if err != nil {
		CloseAll(fds)
		return nil, nil, err
	}
	CloseAll(fds[:len(fds)-len(rest)])
	return m, rest, nil
}

// checkSealed refuses what is no sealed memfd: a read of another file may wait
// for ever, or find it changed.
func checkSealed(fd int) error {
	const want = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&want != want {
		return errors.New("cannot read record: its descriptor is no sealed memfd")
	}
	return nil
}

// decode parses a packet; when it is an envelope it reads the memfd, and takes it off
// the list. It closes nothing.
func decode(b []byte, fds []int, limit int64) (*Msg, []int, error) {
	var env envelope
	if bytes.HasPrefix(b, envelopeStart) {
		if err := quickjson.Unmarshal(b, &env); err != nil {
			return nil, nil, fmt.Errorf("cannot parse record: %v", err)
		}
	}
	if env.Memfd != 0 {
		if len(fds) == 0 || env.Memfd < 0 || env.Memfd > limit {
			return nil, nil, fmt.Errorf("cannot read record of %d bytes: the limit is %d, and a memfd goes with it", env.Memfd, limit)
		}
		if err := checkSealed(fds[0]); err != nil {
			return nil, nil, err
		}
		data := make([]byte, env.Memfd)
		n, err := unix.Pread(fds[0], data, 0)
		if err != nil || int64(n) != env.Memfd {
			return nil, nil, fmt.Errorf("cannot read record of %d bytes from its memfd: got %d bytes, %v", env.Memfd, n, err)
		}
		b, fds = data, fds[1:]
	}
	m := new(Msg)
	if err := quickjson.Unmarshal(b, m); err != nil {
		return nil, nil, fmt.Errorf("cannot parse record: %v", err)
	}
	return m, fds, nil
}

func parseRights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("cannot parse control message: %w", err)
	}
	var fds []int
	for i := range cmsgs {
		got, err := unix.ParseUnixRights(&cmsgs[i])
		if err != nil {
			continue
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

// CloseAll closes descriptors that came with a record and are not wanted.
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// SealedMemfd returns a memfd that holds b and can no longer be changed, so
// that the reader's view cannot move under it. Its offset is 0.
func SealedMemfd(name string, b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("cannot create memfd %q: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteAt(b, 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot write %d bytes to memfd %q: %w", len(b), name, err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot seal memfd %q: %w", name, err)
	}
	return f, nil
}

// dialMax bounds the wait of DialDir.
const dialMax = 10 * time.Second

// DialDir connects to the socket name in dir. Where the socket's queue of connections is full,
// because stepd is stopped or another user connects faster than stepd accepts, it waits as long as
// ctx and dialMax let it.
func DialDir(ctx context.Context, dir, name string) (*Conn, error) {
	fail := func(err error) (*Conn, error) {
		return nil, fmt.Errorf("cannot connect to %q: %w", dir+"/"+name, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, dialMax, fmt.Errorf("its queue of connections is full since %v: stepd is stopped, or is flooded", dialMax))
	defer cancel()
	fd, err := linux.Connect(ctx, unix.SOCK_SEQPACKET, dir, name)
	if err != nil {
		return fail(err)
	}
	c, err := FromFD(fd, name)
	if err != nil {
		return fail(err)
	}
	return c, nil
}

const (
	// linesMax bounds the lines for the user's stderr that wait for one peer;
	// beyond it they are dropped, counted and told about.
	linesMax = 1024
	// queueMax bounds all records that wait for one peer; a peer that falls
	// further behind is cut off, so that no peer's pipe can hold the step.
	queueMax = linesMax + 256
	// linePatience is how long a burst of lines waits for room, once: a plugin
	// that writes faster than the peer reads is held back that long.
	linePatience = time.Second
	// sendTimeout bounds one write to a peer.
	sendTimeout = 10 * time.Second
)

// peer is one connection and the queue to it.
type peer struct {
	conn  *Conn
	role  Role // guarded by Server.mu
	queue chan queued
	slots chan struct{} // one taken by each line in the queue
	gone  chan struct{} // closed when the connection has ended
	acked chan struct{} // closed by Ack, and by the connection's end
	took  atomic.Bool   // Ack came
	once  sync.Once

	lineMu  sync.Mutex
	slow    bool // guarded by lineMu: waiting for it had no result
	dropped int  // guarded by lineMu: lines
}

func newPeer(c *Conn, role Role) *peer {
	return &peer{
		conn: c, role: role, queue: make(chan queued, queueMax), slots: make(chan struct{}, linesMax),
		gone: make(chan struct{}), acked: make(chan struct{}),
	}
}

// queued is a record that waits for its peer.
type queued struct {
	m    *Msg
	line bool  // it holds one of the peer's slots
	fds  []int // closed when they are sent
}

// put queues a record; a full queue cuts the peer off.
func (p *peer) put(q queued) {
	select {
	case p.queue <- q:
	default:
		CloseAll(q.fds)
		p.conn.Close()
	}
}

// putLine queues a line for the user's stderr. It waits a little for a peer
// that does not keep up, and then drops lines rather than the peer.
func (p *peer) putLine(m *Msg) {
	p.lineMu.Lock()
	defer p.lineMu.Unlock()
	if !p.slot() {
		p.dropped++
		return
	}
	if p.dropped > 0 {
		p.put(queued{m: &Msg{Type: TypeMessage, Text: fmt.Sprintf("stepd: error: %d lines were dropped here: they came faster than they were read", p.dropped)}})
		p.dropped = 0
	}
	p.put(queued{m: m, line: true})
}

// slot takes a place for a line. A peer for which waiting had no result is not
// waited for again until it has made room.
func (p *peer) slot() bool {
	select {
	case p.slots <- struct{}{}:
		p.slow = false
		return true
	default:
	}
	if p.slow {
		return false
	}
	select {
	case p.slots <- struct{}{}:
		return true
	case <-p.gone:
	case <-time.After(linePatience):
	}
	p.slow = true
	return false
}

// write sends what is queued until the connection ends, and then what was
// queued before that.
func (p *peer) write() {
	defer p.forget()
	for {
		select {
		case q := <-p.queue:
			if !p.send(q) {
				return
			}
		case <-p.gone:
			if len(p.queue) == 0 {
				return
			}
		}
	}
}

// forget ends the connection, and closes the descriptors of what was not sent: when
// the reader has ended, nothing is queued any more.
func (p *peer) forget() {
	p.conn.Close()
	<-p.gone
	for {
		select {
		case q := <-p.queue:
			CloseAll(q.fds)
		default:
			return
		}
	}
}

func (p *peer) send(q queued) bool {
	if q.line {
		<-p.slots
	}
	p.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	defer CloseAll(q.fds)
	return p.conn.Send(q.m, q.fds...) == nil
}
