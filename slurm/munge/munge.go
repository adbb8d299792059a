// Package munge asks munged(8) for credentials and what others' hold: a token proves to
// another host of the cluster which user has made it. Begin with Client.
//
// The protocol is munged's own, of a local socket: a header of eleven bytes and a body, one
// request and one reply a connection.
package munge

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// DefaultSocket is where munged listens.
const DefaultSocket = "/run/munge/munge.socket.2"

// Anyone is the uid, and gid, of a token that every user may read.
const Anyone uint32 = 0xffffffff

// Client asks the munged behind a socket. The zero value asks DefaultSocket's. Its methods may
// be called from several goroutines.
type Client struct{ Socket string }

// Credential is what a token holds.
type Credential struct {
	UID, GID uint32 // who has made it
	Payload  []byte
	Made     time.Time // by the other host's clock
}

const (
	magic      = 0x00606d4b
	version    = 4
	headerSize = 11
	bodyMax    = 1 << 20 // munged's own limit

	encodeRequest = 2
	encodeReply   = 3
	decodeRequest = 4
	decodeReply   = 5
)

// patience bounds a request to munged, which answers at once. One that is being restarted is
// asked so many times again, with a pause before each: as libmunge's users in Slurm do.
const (
	patience = 10 * time.Second
	retries  = 20
	pause    = 100 * time.Millisecond
)

// Encode makes a token of the payload that the user uid alone may read, Anyone for all. The
// error wraps the socket's errno, or has munged's own words.
func (c Client) Encode(ctx context.Context, uid uint32, payload []byte) (token string, err error) {
	// The defaults of cipher, MAC and compression, no realm, the default of the time to live.
	body := []byte{1, 1, 1, 0}
	for _, v := range []uint32{0, uid, Anyone, uint32(len(payload))} {
		body = binary.BigEndian.AppendUint32(body, v)
	}
	r, err := c.ask(ctx, encodeRequest, encodeReply, append(body, payload...))
	if err != nil {
		return "", err
	}
	data := r.bytes(r.u32())
	if r.short {
		return "", errShort
	}
	return string(data), nil
}

// Decode returns what a token holds. The error has munged's words where the token is not for
// this process, is too old, was seen before, or is none.
func (c Client) Decode(ctx context.Context, token string) (cred Credential, err error) {
	body := binary.BigEndian.AppendUint32(nil, uint32(len(token)))
	r, err := c.ask(ctx, decodeRequest, decodeReply, append(body, token...))
	if err != nil {
		return cred, err
	}
	return r.credential()
}

// credential reads what a token holds, as munged replies it.
func (r *reader) credential() (cred Credential, err error) {
	r.bytes(3) // cipher, MAC, compression
	r.bytes(uint32(r.u8()))
	r.u32() // time to live
	r.bytes(uint32(r.u8()))
	cred.Made = time.Unix(int64(r.u32()), 0)
	r.u32() // now
	cred.UID, cred.GID = r.u32(), r.u32()
	r.bytes(8) // who may read it
	cred.Payload = r.bytes(r.u32())
	if r.short {
		return Credential{}, errShort
	}
	return cred, nil
}

var errShort = errors.New("munged's reply is too short")

// ask sends a request, and returns the reply behind munged's word that it has gone well.
func (c Client) ask(ctx context.Context, request, reply uint8, body []byte) (*reader, error) {
	if len(body) > bodyMax {
		return nil, fmt.Errorf("cannot ask munged: a request has %d bytes, and %d is the limit", len(body), bodyMax)
	}
	socket := c.Socket
	if socket == "" {
		socket = DefaultSocket
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	seen := uint8(0) // 1 where munged may have had the request
	r, err := exchange(ctx, socket, header(request, seen, body), reply)
	for again := 1; err != nil && !errors.Is(err, errOther) && again <= retries; again++ {
		select {
		case <-ctx.Done():
			again = retries
		case <-time.After(pause):
			if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" {
				seen = 1
			}
			// What stood in the way before says more than that the time is over.
			next, failed := exchange(ctx, socket, header(request, seen, body), reply)
			if late, ok := errors.AsType[net.Error](failed); failed == nil || ctx.Err() == nil && !(ok && late.Timeout()) {
				r, err = next, failed
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot ask munged at %q: %w; start it, or set AuthInfo=socket= in slurm.conf", socket, err)
	}
	if err := r.failure(); err != nil {
		return nil, fmt.Errorf("munged at %q: %w", socket, err)
	}
	return r, nil
}

// failure reads munged's error at the beginning of a reply.
func (r *reader) failure() error {
	code, text := r.u8(), r.bytes(uint32(r.u8()))
	switch {
	case r.short:
		return errShort
	case code != 0:
		return fmt.Errorf("%s (error %d)", printable(text), code)
	}
	return nil
}

// printable drops the NUL at the end of munged's words.
func printable(text []byte) string {
	if n := len(text); n > 0 && text[n-1] == 0 {
		text = text[:n-1]
	}
	return fmt.Sprintf("%q", text)
}

// header is a request with its header. munged takes a token that it has seen before where again
// is not 0: the reply to an earlier attempt may have been lost. It is a count, of which munged
// refuses more than a few, so that it does not grow.
func header(request, again uint8, body []byte) []byte {
	head := binary.BigEndian.AppendUint32(nil, magic)
	head = binary.BigEndian.AppendUint32(append(head, version, request, again), uint32(len(body)))
	return append(head, body...)
}

func exchange(ctx context.Context, socket string, request []byte, reply uint8) (*reader, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(request); err != nil {
		return nil, err
	}
	return readReply(conn, reply)
}

var errOther = errors.New("another program than munged listens there")

// readReply reads a reply of the kind. Memory is taken for what comes.
func readReply(in io.Reader, kind uint8) (*reader, error) {
	head := make([]byte, headerSize)
	if _, err := io.ReadFull(in, head); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[7:])
	if binary.BigEndian.Uint32(head) != magic || head[4] != version || head[5] != kind || size > bodyMax+4096 {
		return nil, fmt.Errorf("%w: its reply begins with %x", errOther, head)
	}
	got, err := io.ReadAll(io.LimitReader(in, int64(size)))
	if err == nil && len(got) < int(size) {
		err = io.ErrUnexpectedEOF
	}
	return &reader{b: got}, err
}

// reader takes a body apart; what is read behind its end is zero, and short is set.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) bytes(n uint32) []byte {
	if uint64(n) > uint64(len(r.b)) {
		r.b, r.short = nil, true
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8() uint8 {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.bytes(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}
