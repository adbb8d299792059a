package stepnet

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// What TLS answers while the writer waits for an end that does not read does not wait
// for it, and goes out behind.
func TestTogetherDoesNotHold(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	c := &meteredConn{Conn: ours}
	write := func(s string) func() error {
		return func() error { _, err := c.Write([]byte(s)); return err }
	}
	wrote := make(chan error, 1)
	go func() {
		err := c.together(func() error {
			_ = write("one ")()
			return write("two ")()
		})
		wrote <- err
	}()
	b := make([]byte, 1)
	if _, err := theirs.Read(b); err != nil || b[0] != 'o' { // the writer is in it
		t.Fatalf("%q, %v", b, err)
	}
	answered := make(chan error, 1)
	go func() { answered <- write("answer ")() }()
	select {
	case err := <-answered:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("an answer waits for an end that does not read")
	}
	all := make(chan []byte, 1)
	go func() { b, _ := io.ReadAll(theirs); all <- b }()
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if err := c.together(write("three")); err != nil {
		t.Error(err)
	}
	if err := write("!")(); err != nil { // not held
		t.Error(err)
	}
	ours.Close()
	if got := <-all; string(got) != "ne two answer three!" {
		t.Errorf("%q went out", got)
	}
}

// Only what is of the pool comes back to it: a sink may keep a record of just its size.
func TestRecordKept(t *testing.T) {
	for range 50 {
		b := newInbox()
		body := bytes.Repeat([]byte{'r'}, pieceSize)
		if err := b.put(item{kind: kindRecord, body: body}); err != nil {
			t.Fatal(err)
		}
		if err := b.put(item{last: true}); err != nil {
			t.Fatal(err)
		}
		b.consume(func(item) {}, func(int) {})
		for range 2 {
			if p := newPiece(1); &p[0] == &body[0] {
				t.Fatal("a record's memory was taken for output")
			}
		}
	}
}

// Where a node has more children than a tree has, its links to them save memory.
func TestLeanLinks(t *testing.T) {
	late := make([]int, leanAbove)
	for i := range late {
		late[i] = 2 + i
	}
	for _, noKill := range []bool{false, true} {
		r := newRig(t, rigOptions{nodes: leanAbove + 2, noKill: noKill, late: late})
		l := r.nodes[0].down[1]
		within(t, l.attached, "node 1")
		l.mu.Lock()
		m := l.meter
		l.mu.Unlock()
		if l.lean != noKill || (m.read.buf == nil) != noKill || r.nodes[1].up.lean {
			t.Errorf("--no-kill %v: lean %v, a buffer of %d bytes", noKill, l.lean, len(m.read.buf))
		}
	}
}
