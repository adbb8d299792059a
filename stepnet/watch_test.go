package stepnet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
)

// Who has the watcher's key may come at any time, and as often as he likes, until the step
// is over; nobody else comes in, also when all of the step's own are there.
func TestWatchers(t *testing.T) {
	var mu sync.Mutex
	var heard []string
	r := newRig(t, rigOptions{nodes: 3, launcher: true, watch: func(conn net.Conn) {
		b, err := ReadPacket(conn, make([]byte, 100))
		mu.Lock()
		heard = append(heard, fmt.Sprintf("%s %v", b, err))
		mu.Unlock()
		if err := WritePacket(conn, []byte("seen")); err != nil {
			t.Error(err)
		}
		_, _ = ReadPacket(conn, make([]byte, 100)) // its end
	}})
	a := r.dial(&collector{})
	defer a.Close()
	within(t, r.steps[2].readyc, "the launcher")
	r.each(func(_ int, n *Node) error { _, err := n.Allgather(t.Context(), "up", nil, nil); return err })
	var conns []net.Conn
	for i := range 2 {
		conn, err := DialWatcher(t.Context(), r.layout, r.watcherKey)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := WritePacket(conn, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
		if b, err := ReadPacket(conn, make([]byte, 100)); err != nil || string(b) != "seen" {
			t.Errorf("the answer is %q, %v", b, err)
		}
		conns = append(conns, conn)
	}
	stranger, _, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := DialWatcher(t.Context(), r.layout, stranger); err == nil {
		// TLS 1.3: the server's refusal comes with the first read.
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a stranger was let in")
		}
		conn.Close()
	}
	conns[0].Close()
	r.finish()
	if _, err := conns[1].Read(make([]byte, 1)); err == nil {
		t.Error("a watcher outlives the step")
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(heard)
	if !slices.Equal(heard, []string{"0 <nil>", "1 <nil>"}) {
		t.Errorf("heard %q", heard)
	}
}

// Who holds the watcher's key does not get as many connections as he likes; when one ends
// there is room for another.
func TestWatchersBounded(t *testing.T) {
	came := make(chan struct{}, watchersMax+1)
	r := newRig(t, rigOptions{nodes: 1, watch: func(conn net.Conn) {
		came <- struct{}{}
		_, _ = ReadPacket(conn, make([]byte, 100)) // its end
	}})
	n := r.nodes[0]
	n.mu.Lock()
	n.watchers = watchersMax - 1
	n.mu.Unlock()
	dial := func() net.Conn {
		t.Helper()
		conn, err := DialWatcher(t.Context(), r.layout, r.watcherKey)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	last := dial()
	<-came
	for range 2 {
		more := dial()
		if _, err := more.Read(make([]byte, 1)); err == nil {
			t.Error("one too many was let in")
		}
		more.Close()
	}
	last.Close()
	n.watching.Wait()
	next := dial()
	<-came
	next.Close()
}

// The tap hears what node 0's tasks and those of the others write, as it goes on.
func TestTap(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 3, launcher: true})
	var mu sync.Mutex
	heard := make(map[string]string)
	r.nodes[0].SetTap(func(fd, rank int, data []byte) {
		mu.Lock()
		defer mu.Unlock()
		heard[fmt.Sprintf("%d/%d", fd, rank)] += string(data)
	})
	a := r.dial(&collector{})
	defer a.Close()
	for i, n := range r.nodes {
		within(t, r.steps[i].readyc, "the launcher")
		out, in := pipe(t, 0)
		n.Output(1+i%2, i, out)
		if _, err := fmt.Fprintf(in, "of %d", i); err != nil {
			t.Fatal(err)
		}
		in.Close()
	}
	r.finish()
	if err := a.Wait(); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if fmt.Sprint(heard) != "map[1/0:of 0 1/2:of 2 2/1:of 1]" {
		t.Errorf("heard %q", heard)
	}
	if got := r.nodes[2].Passed(1); got != 4 {
		t.Errorf("%d bytes of node 2 were counted", got)
	}
}

func FuzzPackets(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02ab\x00\x00\x00\x01c"))
	f.Add([]byte("\xff\xff\xff\xffx"))
	f.Add([]byte("\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, buf := bytes.NewReader(b), make([]byte, 64)
		var again bytes.Buffer
		for {
			p, err := ReadPacket(r, buf)
			if err != nil {
				if !errors.Is(err, errFrame) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Error(err)
				}
				break
			}
			if err := WritePacket(&again, p); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.HasPrefix(b, again.Bytes()) {
			t.Errorf("%q became %q", b, again.Bytes())
		}
	})
}
