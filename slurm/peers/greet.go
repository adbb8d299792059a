package peers

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// Two ends begin a link so, the parent first; S is the secret that the child has made:
//
//	parent: greeting, the step, both node ids, a random number    HMAC(S)
//	child:  a random number                                       HMAC(S) of both
//	parent: an empty record, sealed by keys of S and all that was said
//	child:  an empty record
//
// The child decides: by its last word it has this link and takes no other. Until the parent has
// read it, there may be none; and an end of the connection at that moment is an end of the link
// to a child that has it, which leaves then, and says so.

// between names the link's two ends.
type between struct{ job, step, parent, child uint32 }

// greeting begins a link; another exchange than this one has another.
const greeting = "stepd 1\n"

const (
	randomSize = 32
	macSize    = 32
	helloSize  = len(greeting) + 4*4 + randomSize + macSize
	replySize  = randomSize + macSize
	// helloWithin bounds the words up to the last, of a connection that anyone may have made.
	helloWithin = 2 * time.Second
	// channelWithin is the same of a channel: slurmd on both sides has to start a process for each
	// word, and root's alone come.
	channelWithin = 30 * time.Second
)

var (
	errNotOurs = errors.New("it does not know the link's secret")
	errLate    = errors.New("the other end has not answered in time")
)

func (b between) bytes() []byte {
	out := []byte(greeting)
	for _, v := range []uint32{b.job, b.step, b.parent, b.child} {
		out = binary.BigEndian.AppendUint32(out, v)
	}
	return out
}

// greet is the parent's part. ctx's end closes the wire.
func greet(ctx context.Context, w wire, b between, s *secret, within time.Duration) (*sealed, error) {
	defer context.AfterFunc(ctx, func() { w.Close() })()
	late := time.AfterFunc(within, func() { w.Close() })
	defer late.Stop()
	random := make([]byte, randomSize)
	rand.Read(random)
	said := append(b.bytes(), random...)
	if _, err := w.Write(append(said, s.derive("parent", said)...)); err != nil {
		return nil, err
	}
	reply := make([]byte, replySize)
	if _, err := io.ReadFull(w, reply); err != nil {
		return nil, fmt.Errorf("it does not answer: %w", err)
	}
	if !hmac.Equal(reply[randomSize:], s.derive("child", said, reply[:randomSize])) {
		return nil, errNotOurs
	}
	if !late.Stop() {
		return nil, errLate
	}
	// From here on the child may have the link: its word is waited for as long as the wire holds.
	l := seal(w, s.derive("down", said, reply), s.derive("up", said, reply))
	if err := l.writeRecord(nil); err != nil {
		return nil, err
	}
	return l, l.expectEmpty()
}

// answer is the child's part. known is called when the other end knows the secret, or has heard
// who does; take reports whether the child takes this link: no other after it. The link is
// returned where it was taken, with the error that has ended it, if any.
func answer(ctx context.Context, w wire, b between, s *secret, within time.Duration, known func(), take func() bool) (*sealed, error) {
	defer context.AfterFunc(ctx, func() { w.Close() })()
	late := time.AfterFunc(within, func() { w.Close() })
	defer late.Stop()
	hello := make([]byte, helloSize)
	if _, err := io.ReadFull(w, hello); err != nil {
		return nil, fmt.Errorf("its greeting is cut: %w", err)
	}
	said := hello[:helloSize-macSize]
	switch ours := b.bytes(); {
	case !hmac.Equal(hello[len(said):], s.derive("parent", said)):
		return nil, errNotOurs
	case string(said[:len(ours)]) != string(ours):
		return nil, errors.New("it greets another link")
	}
	known()
	random := make([]byte, randomSize)
	rand.Read(random)
	reply := append(random, s.derive("child", said, random)...)
	if _, err := w.Write(reply); err != nil {
		return nil, err
	}
	l := seal(w, s.derive("up", said, reply), s.derive("down", said, reply))
	if err := l.expectEmpty(); err != nil {
		return nil, err
	}
	if !late.Stop() {
		return nil, errLate
	}
	if !take() {
		return nil, errTaken
	}
	// By mail a word is sent again and again, and the parent may be gone.
	late.Reset(within)
	err := l.writeRecord(nil)
	if !late.Stop() && err == nil {
		err = errLate
	}
	return l, err
}

// errTaken: the child has a link already.
var errTaken = errors.New("the link was made another way")

// expectEmpty reads the record that ends a greeting.
func (s *sealed) expectEmpty() error {
	b, err := s.readRecord()
	if err == nil && len(b) > 0 {
		err = errForged
	}
	return err
}
