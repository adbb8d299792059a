// Package rpc sends Slurm's messages to slurmctld, slurmd and srun, signed by munge, and reads
// their answers. Begin with Client.
package rpc

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"stepd/slurm/munge"
	"stepd/slurm/wire"
)

// Client sends messages of a release. Its methods may be called from several goroutines.
type Client struct {
	Release wire.Release
	Munge   munge.Client
	// Timeout bounds one exchange, MessageTimeout of slurm.conf, and Connect the connection
	// before it, TCPTimeout: a controller whose host is down is not waited for longer. 0 is 10 s
	// and 2 s.
	Timeout, Connect time.Duration
	// Written is called when a peer has been written a message, before its answer. nil does
	// nothing.
	Written func(wire.Message)
}

// Peer is who a message goes to.
type Peer struct {
	// Addr is "HOST:PORT".
	Addr string
	// Reader is the user who may read the token: munge.Anyone where it is not known.
	Reader uint32
	// Signers are the users whose answer counts.
	Signers []uint32
	// Silent says that the peer answers nothing, and is not waited for (sattach).
	Silent bool
}

// frameMax bounds an answer, in bytes: it is a number.
const frameMax = 1 << 20

// ReturnError is an answer that is not 0.
type ReturnError struct{ Code uint32 }

func (e *ReturnError) Error() string {
	if text := returns[e.Code]; text != "" {
		return fmt.Sprintf("it answers %q (Slurm's error %d)", text, e.Code)
	}
	return fmt.Sprintf("it answers with Slurm's error %d", e.Code)
}

// Over reports whether the answer says that the job or step has ended before, which is no fault
// of the message.
func (e *ReturnError) Over() bool { return e.Code == invalidJob || e.Code == alreadyDone }

// Slurm's numbers (slurm_errno.h).
const (
	invalidJob  = 2017
	alreadyDone = 2021
)

// returns are the texts of what a step daemon is answered.
var returns = map[uint32]string{
	1005:        "incompatible versions of client and server code",
	1007:        "protocol authentication error",
	2002:        "access denied",
	invalidJob:  "invalid job id",
	alreadyDone: "job or step already completing or completed",
	standby:     "slurm backup controller in standby mode",
}

// Send sends a message and waits for the answer. A *ReturnError is the peer's refusal; another
// error, that the message may not have come, and may be sent again.
func (c *Client) Send(ctx context.Context, to Peer, m wire.Message) error {
	conn, err := c.Open(ctx, to, m)
	if err == nil {
		conn.Close()
	}
	return err
}

// Open is Send over a connection that stays: what follows the answer on it is the caller's.
func (c *Client) Open(ctx context.Context, to Peer, m wire.Message) (*net.TCPConn, error) {
	timeout := cmp.Or(c.Timeout, 10*time.Second)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it took longer than %v (MessageTimeout in slurm.conf)", timeout))
	defer cancel()
	conn, err := c.open(ctx, to, m)
	if err != nil {
		return nil, fmt.Errorf("cannot send %s to %s: %w", m.Type(), to.Addr, err)
	}
	return conn, nil
}

func (c *Client) open(ctx context.Context, to Peer, m wire.Message) (*net.TCPConn, error) {
	body := wire.Pack(c.Release, m)
	token, err := c.Munge.Encode(ctx, to.Reader, hash(m.Type(), body))
	if err != nil {
		return nil, &SignError{err}
	}
	dialer := net.Dialer{Timeout: cmp.Or(c.Connect, 2*time.Second)}
	conn, err := dialer.DialContext(ctx, "tcp", to.Addr)
	if err != nil {
		return nil, err
	}
	keep := context.AfterFunc(ctx, func() { conn.Close() })
	err = c.exchange(ctx, conn, to, m, wire.Frame(c.Release, m.Type(), token, body))
	if !keep() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// exchange sends a message on a connection, which ctx closes, and reads the answer.
func (c *Client) exchange(ctx context.Context, conn net.Conn, to Peer, m wire.Message, frame []byte) error {
	if _, err := conn.Write(frame); err != nil {
		return err
	}
	if c.Written != nil {
		c.Written(m)
	}
	if to.Silent {
		return nil
	}
	b, err := readFrame(conn)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	return c.answer(ctx, to, b)
}

// readFrame reads a message with its length before it.
func readFrame(in io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(in, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > frameMax {
		return nil, fmt.Errorf("it has %d bytes, and %d is the limit", n, frameMax)
	}
	b, err := io.ReadAll(io.LimitReader(in, int64(n)))
	if err == nil && len(b) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// answer reads an answer, and whose it is.
func (c *Client) answer(ctx context.Context, from Peer, b []byte) error {
	h, token, body, err := wire.ParseFrame(b)
	if err != nil {
		return err
	}
	if !h.Unsigned() {
		if err := c.trust(ctx, from, h, token, body); err != nil {
			return fmt.Errorf("its answer is not to be trusted: %w", err)
		}
	}
	if h.Type != wire.TypeReturnCode {
		return fmt.Errorf("it answers with %s", h.Type)
	}
	rc, err := wire.ReturnCode(body)
	if err == nil && rc != 0 {
		err = &ReturnError{rc}
	}
	return err
}

// trust checks whose an answer is.
func (c *Client) trust(ctx context.Context, from Peer, h wire.Header, token string, body []byte) error {
	cred, err := c.Munge.Decode(ctx, token)
	switch {
	case err != nil:
		return err
	case !slices.Contains(from.Signers, cred.UID):
		return fmt.Errorf("it is uid %d's", cred.UID)
	case !signs(cred.Payload, h.Type, body):
		return errors.New("the token is another message's")
	}
	return nil
}
