package peers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	fields "stepd/internal/wire"
)

// A mail is what one step daemon sends another by way of its slurmd: a few numbers, and bytes.
type mail struct {
	kind      kind
	job, step uint32
	from, to  uint32 // node ids
	channel   uint64 // of kindData, kindRead and kindEnd
	number    uint64 // of kindData: which piece; of kindRead: how many bytes were read
	data      []byte
}

type kind byte

const (
	kindHello kind = iota + 1 // to the parent: a token that holds the link's secret and where to connect
	kindData                  // a piece of a channel
	kindRead                  // how much of a channel was read
	kindEnd                   // a channel's end
	kindGone                  // the sender's daemon has left, and why
	kindLast
)

// mailMagic begins a mail: a release whose mails are others has another.
const mailMagic = 0x53505231

// mailMax bounds a mail.
const mailMax = 128 << 10

func (m *mail) encode() []byte {
	w := fields.Writer{}
	w.U32(mailMagic)
	for _, v := range []uint32{uint32(m.kind), m.job, m.step, m.from, m.to} {
		w.U32(v)
	}
	w.U64(m.channel)
	w.U64(m.number)
	w.Bytes(m.data)
	return w.B
}

// Gone is the mail by which a node's neighbour learns that its step daemon has left.
func Gone(job, step uint32, from, to int, why string) []byte {
	return (&mail{kind: kindGone, job: job, step: step, from: uint32(from), to: uint32(to), data: []byte(why)}).encode()
}

// parseMail takes a mail apart; data shares its memory.
func parseMail(b []byte) (*mail, error) {
	r := fields.Reader{B: b}
	magic, what := r.U32(), r.U32()
	m := &mail{kind: kind(what), job: r.U32(), step: r.U32(), from: r.U32(), to: r.U32(), channel: r.U64(), number: r.U64(), data: r.Bytes()}
	if r.Err != nil || len(r.B) > 0 || magic != mailMagic || what == 0 || what >= uint32(kindLast) {
		return nil, errors.New("it is no mail of this release of stepd")
	}
	return m, nil
}

// mailbox is the socket by which slurmd brings mails.
type mailbox struct {
	listener *net.UnixListener
	path     string
	made     os.FileInfo
	wg       sync.WaitGroup
	places   chan struct{} // of mails that are being read
	patience time.Duration // of a mail
}

const (
	mailsAtOnce = 64
	// mailPatience bounds the reading of a mail: root's process has begun it, and a busy machine may
	// hold it up.
	mailPatience = 30 * time.Second
	// pathMax is the longest name of a socket that slurmd can connect to.
	pathMax = 107
)

// openMailbox makes the socket; serve takes the mails.
func openMailbox(path string) (*mailbox, error) {
	if len(path) > pathMax {
		return nil, fmt.Errorf("cannot listen at %q: the name has %d bytes, and slurmd cannot connect to one with more than %d; give slurmd a shorter SlurmdSpoolDir", path, len(path), pathMax)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot listen at %q: what is left there does not go: %w", path, err)
	}
	// Root alone may connect, from the first moment on: the folder is root's.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen at %q: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // close does it, if the file is still the one
	b := &mailbox{listener: l, path: path, places: make(chan struct{}, mailsAtOnce), patience: mailPatience}
	if b.made, err = os.Lstat(path); err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("cannot listen at %q: %w", path, err)
	}
	return b, nil
}

// serve hands over each mail, on a goroutine of its own, or why one was refused.
func (b *mailbox) serve(take func(*mail), refuse func(error)) {
	b.wg.Go(func() {
		for {
			conn, err := b.listener.AcceptUnix()
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				refuse(err)
				time.Sleep(acceptPause) // no descriptor is left, say
				continue
			}
			b.places <- struct{}{}
			b.wg.Go(func() {
				defer func() { <-b.places }()
				m, err := b.read(conn)
				conn.Close() // slurmd waits for that
				switch {
				case err != nil:
					refuse(err)
				case m != nil:
					take(m)
				}
			})
		}
	})
}

// acceptPause follows an error of accept(2) that is not the listener's end.
const acceptPause = 100 * time.Millisecond

// read reads one mail, nil for none, as slurmd writes it: the sender's uid, the length, the bytes. slurmd
// connects with the sender's rights, which munge has proven to it.
func (b *mailbox) read(conn *net.UnixConn) (*mail, error) {
	cred, err := linux.PeerCred(conn)
	if err != nil {
		return nil, err
	}
	if root := uint32(os.Geteuid()); cred.Uid != root { // root, but in tests
		return nil, fmt.Errorf("uid %d has sent a mail", cred.Uid)
	}
	_ = conn.SetDeadline(time.Now().Add(b.patience))
	var head [8]byte
	switch _, err := io.ReadFull(conn, head[:]); {
	case errors.Is(err, io.EOF):
		return nil, nil // slurmd has ended before the first byte
	case err != nil:
		return nil, fmt.Errorf("a mail is cut: %w", err)
	}
	if uid := binary.BigEndian.Uint32(head[:]); uid != cred.Uid {
		return nil, fmt.Errorf("uid %d has sent a mail", uid)
	}
	n := binary.BigEndian.Uint32(head[4:])
	if n > mailMax {
		return nil, fmt.Errorf("a mail has %d bytes, and %d is the limit", n, mailMax)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(conn, data); err != nil {
		return nil, fmt.Errorf("a mail is cut: %w", err)
	}
	return parseMail(data)
}

// close removes the socket.
func (b *mailbox) close() {
	if now, err := os.Lstat(b.path); err == nil && os.SameFile(now, b.made) {
		_ = unix.Unlink(b.path)
	}
	b.listener.Close()
	b.wg.Wait()
}
