package peers

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// piped is a wire between two goroutines.
type piped struct{ net.Conn }

func (p piped) CloseWrite() error { return p.Close() }

func newPipe(t *testing.T) (parent, child wire) {
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	return piped{a}, piped{b}
}

var testLink = between{job: 7, step: 3, parent: 0, child: 1}

func nothing() {}

func always() bool { return true }

// Both ends have a link when they know the secret, and name the same ends of it.
func TestGreet(t *testing.T) {
	for name, c := range map[string]struct {
		parent, child between
		other         bool // secret
		want          string
	}{
		"the same":       {testLink, testLink, false, ""},
		"another secret": {testLink, testLink, true, errNotOurs.Error()},
		"another step":   {between{7, 4, 0, 1}, testLink, false, "it greets another link"},
		"another job":    {between{8, 3, 0, 1}, testLink, false, "it greets another link"},
		"another parent": {between{7, 3, 2, 1}, testLink, false, "it greets another link"},
	} {
		t.Run(name, func(t *testing.T) {
			up, down := newPipe(t)
			ours, theirs := secret{1}, secret{1}
			if c.other {
				theirs = secret{2}
			}
			made := make(chan error, 1)
			var parent *sealed
			go func() {
				var err error
				parent, err = greet(t.Context(), up, c.parent, &ours, patient)
				made <- err
			}()
			child, err := answer(t.Context(), down, c.child, &theirs, patient, nothing, always)
			if c.want != "" {
				if err == nil || err.Error() != c.want {
					t.Errorf("got %v", err)
				}
				down.Close()
				if err := <-made; err == nil {
					t.Error("the parent has a link")
				}
				return
			}
			if err := errors.Join(err, <-made); err != nil {
				t.Fatal(err)
			}
			go parent.Write([]byte("down"))
			got := make([]byte, 4)
			if _, err := io.ReadFull(child, got); err != nil || string(got) != "down" {
				t.Errorf("got %q, %v", got, err)
			}
			go child.Write([]byte("up.."))
			if _, err := io.ReadFull(parent, got); err != nil || string(got) != "up.." {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// A parent has no link where its child has given up at the last moment: it waits for its word.
func TestGivenUpLate(t *testing.T) {
	up, down := newPipe(t)
	s := secret{1}
	go func() {
		_, err := answer(t.Context(), down, testLink, &s, patient, nothing, func() bool { return false })
		if !errors.Is(err, errTaken) {
			t.Errorf("the child: %v", err)
		}
		down.Close()
	}()
	if _, err := greet(t.Context(), up, testLink, &s, patient); !errors.Is(err, io.EOF) {
		t.Errorf("the parent: %v", err)
	}
}

// Who is silent, or stops in the middle, is given up in time, on both sides.
func TestSilent(t *testing.T) {
	s := secret{1}
	said := append(testLink.bytes(), make([]byte, randomSize)...)
	for name, words := range map[string][]byte{"silent": nil, "half a word": said[:9], "a whole one": append(said, s.derive("parent", said)...)} {
		t.Run(name, func(t *testing.T) {
			up, down := newPipe(t)
			go func() {
				up.Write(words)
				io.Copy(io.Discard, up)
			}()
			if l, err := answer(t.Context(), down, testLink, &s, 50*time.Millisecond, nothing, always); err == nil || l != nil {
				t.Errorf("got %v, %v", l, err)
			}
		})
	}
	up, down := newPipe(t)
	go io.Copy(io.Discard, down)
	if l, err := greet(t.Context(), up, testLink, &s, 50*time.Millisecond); err == nil || l != nil {
		t.Errorf("got %v, %v", l, err)
	}
}

// FuzzAnswer: whatever comes to a child's port, it takes no link.
func FuzzAnswer(f *testing.F) {
	s := secret{1}
	said := append(testLink.bytes(), make([]byte, randomSize)...)
	f.Add(append(said, s.derive("parent", said)...))
	f.Add([]byte(greeting))
	f.Fuzz(func(t *testing.T, raw []byte) {
		w := &deaf{}
		w.Write(raw)
		if _, err := answer(t.Context(), w, testLink, &s, patient, nothing, func() bool { t.Error("taken"); return false }); err == nil {
			t.Error("a link was made")
		}
	})
}

// deaf is a tape that keeps nothing of what is said.
type deaf struct{ said, rest tape }

func (d *deaf) Write(b []byte) (int, error) {
	if d.said.Len() > 0 {
		return d.rest.Write(b)
	}
	return d.said.Write(b)
}
func (d *deaf) Read(b []byte) (int, error) { return d.said.Read(b) }
func (*deaf) Close() error                 { return nil }
func (*deaf) CloseWrite() error            { return nil }

// FuzzHello: a child's first mail is read, or refused.
func FuzzHello(f *testing.F) {
	h := hello{between: testLink, secret: secret{1}, port: 7}
	f.Add(h.encode())
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := parseHello(raw, testLink)
		if err == nil && string(h.encode()) != string(raw) {
			t.Errorf("%q became %q", raw, h.encode())
		}
	})
}

// Strangers at a port keep no other's place: the parent comes through a crowd of them.
func TestStrangers(t *testing.T) {
	o := newOffice(t, 2)
	child := o.start(1)
	t.Cleanup(func() { closeAll([]*Group{child}) })
	addr := child.port.Addr().(*net.TCPAddr)
	var crowd []net.Conn
	for i := range 3 * strangersMax {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", itoa(addr.Port)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%3 == 0 {
			conn.Write([]byte(strings.Repeat("x", helloSize)))
		}
		crowd = append(crowd, conn)
	}
	parent := o.start(0)
	t.Cleanup(func() { closeAll([]*Group{parent}) })
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	if _, err := parent.Call(ctx, 1, "pong", nil); err != nil {
		t.Error(err)
	}
	for _, conn := range crowd {
		conn.SetReadDeadline(time.Now().Add(patient))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a stranger was answered: %v", err)
		}
	}
	if lines := o.logs("refused"); len(lines) != 1 {
		t.Errorf("the log has %d lines: %q", len(lines), lines)
	}
}
