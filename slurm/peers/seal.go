package peers

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// wire carries bytes between two step daemons, in their order: a connection, or a channel.
type wire interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// secret is what the two ends of a link know and no one else: the child has made it.
type secret [32]byte

// derive returns a key for one purpose.
func (s *secret) derive(purpose string, about ...[]byte) []byte {
	h := hmac.New(sha256.New, s[:])
	h.Write([]byte(purpose))
	for _, b := range about {
		h.Write(b)
	}
	return h.Sum(nil)
}

const (
	// recordMax bounds the bytes of one record.
	recordMax = 64 << 10
	// recordHead is the length before a record, and recordTag what it has more than its bytes.
	recordHead, recordTag = 4, 16
)

// errForged is a record that the other end has not sent, or not now.
var errForged = errors.New("a record that is forged, cut, or not the next one")

// sealed is a wire on which each record is encrypted and authenticated with its number (AES-GCM):
// one that is changed, left out or sent again ends it. One goroutine reads and one writes.
type sealed struct {
	wire
	out, in               cipher.AEAD
	sent, got             uint64 // records
	left                  []byte // of the last record
	writeSpace, readSpace []byte
}

// seal begins records on a wire, with a key for each direction.
func seal(w wire, out, in []byte) *sealed { return &sealed{wire: w, out: gcm(out), in: gcm(in)} }

// Unheard is for how long the other end's kernel has acknowledged nothing, 0 where it has nothing to
// acknowledge. TCP_USER_TIMEOUT is no substitute: it ends the connection of a step daemon that does
// not read, too, as a closed window counts however often its probes are acknowledged (tcp(7)).
func (s *sealed) Unheard() time.Duration {
	conn, ok := s.wire.(*net.TCPConn)
	if !ok {
		return 0
	}
	var info *unix.TCPInfo
	if err := linux.OnFD(conn, func(fd int) (err error) {
		info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err
	}); err != nil {
		return 0 // it is closed, which its reader is told
	}
	// Probes ask whether a closed window has opened, at ever longer intervals, and whether a route is
	// back. One may be lost, or left out by tcp_invalid_ratelimit. Data that the other end has no
	// room for stays unacknowledged, but each time it is sent an answer comes.
	if info.Probes > 1 || info.Unacked > 0 && info.Last_data_sent < info.Last_ack_recv {
		return time.Duration(info.Last_ack_recv) * time.Millisecond
	}
	return 0
}

// gcm is AES-256-GCM; key has 32 bytes.
func gcm(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // a key of another size
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return aead
}

// nonce is a record's number: no key has two of the same.
func nonce(number uint64) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 4, 12), number)
}

func (s *sealed) Write(b []byte) (n int, err error) {
	for n < len(b) {
		piece := b[n:min(len(b), n+recordMax)]
		if err := s.writeRecord(piece); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return n, nil
}

func (s *sealed) writeRecord(b []byte) error {
	head := binary.BigEndian.AppendUint32(s.writeSpace[:0], uint32(len(b)))
	s.writeSpace = s.out.Seal(head, nonce(s.sent), b, head)
	s.sent++
	_, err := s.wire.Write(s.writeSpace)
	return err
}

func (s *sealed) Read(b []byte) (int, error) {
	for len(s.left) == 0 {
		var err error
		if s.left, err = s.readRecord(); err != nil {
			return 0, err
		}
	}
	n := copy(b, s.left)
	s.left = s.left[n:]
	return n, nil
}

// readRecord returns the next record, which is valid until the next call. io.EOF comes only
// between two records.
func (s *sealed) readRecord() ([]byte, error) {
	var head [recordHead]byte
	if _, err := io.ReadFull(s.wire, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > recordMax {
		return nil, fmt.Errorf("%w: it has %d bytes, and %d is the limit", errForged, n, recordMax)
	}
	if s.readSpace == nil {
		s.readSpace = make([]byte, recordMax+recordTag)
	}
	body := s.readSpace[:n+recordTag]
	if _, err := io.ReadFull(s.wire, body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	plain, err := s.in.Open(body[:0], nonce(s.got), body, head[:])
	if err != nil {
		return nil, errForged
	}
	s.got++
	return plain, nil
}
