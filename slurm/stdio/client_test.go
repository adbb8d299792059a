package stdio

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"stepd/slurm/wire"
)

// attach joins an sattach to the streams.
func (r *rig) attach(key string) *srun { return r.attachGone(key, nil) }

func (r *rig) attachGone(key string, gone func()) *srun {
	r.t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		r.t.Fatal(err)
	}
	defer l.Close()
	if err := r.Join(Joining{Release: wire.V2411, Server: netip.MustParseAddrPort(l.Addr().String()), Key: []byte(key), Gone: gone}); err != nil {
		r.t.Fatal(err)
	}
	c, err := l.AcceptTCP()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	s := &srun{t: r.t, TCPConn: c, r: bufio.NewReaderSize(c, 64<<10)}
	hello := make([]byte, 22+len(key))
	if _, err := io.ReadFull(s.r, hello); err != nil {
		r.t.Fatal(err)
	}
	if v := binary.BigEndian.Uint16(hello[4:]); v != uint16(wire.V2411) || string(hello[22:]) != key {
		r.t.Errorf("it is greeted by %q", hello)
	}
	for k := stdout; k <= stderr; k++ {
		s.ends[k] = binary.BigEndian.Uint32(hello[6+4*k:])
	}
	return s
}

func (r *rig) write(rank, fd int, text string) {
	r.t.Helper()
	if _, err := r.fd(rank, fd).WriteString(text); err != nil {
		r.t.Fatal(err)
	}
}

// TestJoin: a client that comes later gets what was written before, each stream's end, also of
// one that has ended, and may send input.
func TestJoin(t *testing.T) {
	r := begin(t, config(2))
	r.write(4, 1, "first\n")
	r.srun.want(stdout, 4, 0, "first\n")
	r.fd(5, 1).Close()
	r.srun.want(stdout, 5, 1, "")
	a, b := r.attach("\x00"), r.attach("a key")
	if a.ends != [3]uint32{0, 2, 2} {
		t.Errorf("it waits for the ends %v", a.ends)
	}
	for _, c := range []*srun{a, b} {
		c.want(stdout, 4, 0, "first\n")
		c.want(stdout, 5, 1, "")
	}
	r.write(4, 2, "second\n")
	for _, c := range []*srun{r.srun, a, b} {
		c.want(stderr, 4, 0, "second\n")
	}
	r.Say("third")
	for _, c := range []*srun{r.srun, a, b} {
		c.want(stderr, 4, 0, "third\n")
	}
	b.give(stdinOne, 5, "typed\n")
	typed := make([]byte, 6)
	if _, err := io.ReadFull(r.fd(5, 0), typed); err != nil || string(typed) != "typed\n" {
		t.Errorf("task 5 reads %q, %v", typed, err)
	}
	a.give(stdinAll, 0, "")
	if rest, err := io.ReadAll(r.fd(5, 0)); err != nil || len(rest) > 0 {
		t.Errorf("task 5 reads %q, %v", rest, err)
	}
	b.Close() // and the others go on
	r.write(4, 1, "fourth\n")
	r.srun.want(stdout, 4, 0, "fourth\n")
	a.want(stdout, 4, 0, "fourth\n")
	r.tasksEnd()
	go r.finish()
	for _, c := range []*srun{r.srun, a} {
		ends := 0
		for range 3 {
			if f, err := c.next(); err == nil && f.data == "" {
				ends++
			}
		}
		if ends != 3 {
			t.Errorf("%d streams end", ends)
		}
		c.Close()
	}
	<-r.loop.done
}

// TestJoinLabelled: what goes to a file with labels is not srun's, and an sattach gets it.
func TestJoinLabelled(t *testing.T) {
	r := begin(t, labelled(t.TempDir(), "f.%t"))
	a := r.attach("k")
	r.write(4, 1, "line\npart")
	a.want(stdout, 4, 0, "line\n")
	r.tasksEnd()
	go r.finish()
	if got := a.toEnd()[header{kind: stdout, rank: 4}]; got != "part" {
		t.Errorf("it gets %q", got)
	}
	a.Close()
	r.srun.toEnd()
	r.srun.Close()
	<-r.loop.done
}

// TestJoinLabelledStopped: what goes to a file with labels does not heap up for a client that
// takes nothing.
func TestJoinLabelledStopped(t *testing.T) {
	r := begin(t, labelled(t.TempDir(), "f.%t"))
	a := r.attach("k")
	const size = 64 << 20 // more than sockets hold
	written := make(chan struct{})
	go func() {
		defer close(written)
		line := strings.Repeat("x", 1023) + "\n"
		for range size >> 10 {
			if _, err := r.fd(4, 1).WriteString(line); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	select {
	case <-written:
		t.Error("all that a task writes is read while a client takes nothing")
	case <-time.After(time.Second): // what is wrong takes half of it here; a slow machine does not see it
	}
	go func() {
		<-written
		r.tasksEnd()
		r.finish()
	}()
	if got := len(a.toEnd()[header{kind: stdout, rank: 4}]); got != size {
		t.Errorf("it gets %d bytes of %d", got, size)
	}
	a.Close()
	r.srun.toEnd()
	r.srun.Close()
	<-r.loop.done
}

// TestJoinGone: a client's end is told while the streams last, and not one after theirs.
func TestJoinGone(t *testing.T) {
	r := begin(t, config(1))
	early, late := make(chan struct{}), make(chan struct{})
	r.attachGone("k", func() { close(early) }).Close()
	<-early
	a := r.attachGone("k", func() { close(late) })
	r.tasksEnd()
	go r.finish()
	for _, c := range []*srun{a, r.srun} {
		c.toEnd()
		c.Close()
	}
	<-r.loop.done
	select {
	case <-late:
		t.Error("a client that has all is told to have gone")
	default:
	}
}

// TestJoinSrunGone: without srun, an sattach has the output and the input.
func TestJoinSrunGone(t *testing.T) {
	r := begin(t, config(1))
	a := r.attach("k")
	r.srun.Close()
	r.write(4, 1, "out\n")
	a.want(stdout, 4, 0, "out\n")
	a.give(stdinAll, 0, "typed\n")
	b := make([]byte, 6)
	if _, err := io.ReadFull(r.fd(4, 0), b); err != nil || string(b) != "typed\n" {
		t.Errorf("the task reads %q, %v", b, err)
	}
	a.Close() // now none is left
	if rest, err := io.ReadAll(r.fd(4, 0)); err != nil || len(rest) > 0 {
		t.Errorf("the task reads %q, %v", rest, err)
	}
	r.tasksEnd()
	r.finish()
	<-r.loop.done
}

// TestJoinStopped: a client that takes nothing is given up, and the tasks go on.
func TestJoinStopped(t *testing.T) {
	r := connected(t, config(1))
	r.loop.stall = 50 * time.Millisecond // the loop reads it only for a client that has joined
	if err := r.Streams.Attach(r); err != nil {
		t.Fatal(err)
	}
	a := r.attach("k")
	const size = 32 << 20 // more than sockets hold
	go func() {
		line := strings.Repeat("x", 1023) + "\n"
		for range size >> 10 {
			if _, err := r.fd(4, 1).WriteString(line); err != nil {
				t.Error(err)
				return
			}
		}
		r.tasksEnd()
		r.finish()
	}()
	if got := len(r.srun.toEnd()[header{kind: stdout, rank: 4}]); got != size {
		t.Errorf("srun gets %d bytes of %d", got, size)
	}
	r.srun.Close()
	<-r.loop.done
	if !strings.Contains(r.logged(), "sattach takes no more") || strings.Contains(r.logged(), "srun takes no more") {
		t.Errorf("the log has %q", r.logged())
	}
	a.Close()
}

// TestJoinStoppedAtTheEnd: nor does it hold up the end of the step.
func TestJoinStoppedAtTheEnd(t *testing.T) {
	r := connected(t, config(1))
	r.loop.linger = 50 * time.Millisecond
	if err := r.Streams.Attach(r); err != nil {
		t.Fatal(err)
	}
	r.attach("k")
	r.tasksEnd()
	go r.finish()
	r.srun.toEnd()
	r.srun.Close()
	<-r.loop.done
}

// TestJoinFails: one that does not listen, one too many, and one after the end.
func TestJoinFails(t *testing.T) {
	r := begin(t, config(1))
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	j := Joining{Release: wire.V2205, Server: l.Addr().(*net.TCPAddr).AddrPort(), Key: []byte("k")}
	for range clientsMax {
		if err := r.Join(j); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Join(j); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("one too many: %v", err)
	}
	l.Close()
	if err := r.Join(j); err == nil {
		t.Error("it has joined one that does not listen")
	}
	r.tasksEnd()
	go r.finish()
	r.srun.toEnd()
	r.srun.Close()
	<-r.loop.done
	other, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	j.Server = other.Addr().(*net.TCPAddr).AddrPort()
	if err := r.Join(j); err == nil || !strings.Contains(err.Error(), "ending") {
		t.Errorf("after the end: %v", err)
	}
}

// TestJoinLies: a client that sends what none sends is left alone, and srun goes on.
func TestJoinLies(t *testing.T) {
	r := begin(t, config(1))
	a := r.attach("k")
	a.give(stdinOne, 99, "for another node's task")
	if _, err := a.next(); err == nil {
		t.Error("the connection goes on")
	}
	r.write(4, 1, "out\n")
	r.srun.want(stdout, 4, 0, "out\n")
	r.tasksEnd()
	go r.finish()
	r.srun.toEnd()
	r.srun.Close()
	<-r.loop.done
}

// FuzzReplay keeps the last frames, however they come.
func FuzzReplay(f *testing.F) {
	f.Add([]byte("3a1bcd"), 5)
	f.Add(bytes.Repeat([]byte{1, 0, 3}, 200), 70)
	f.Fuzz(func(t *testing.T, sizes []byte, batch int) {
		sizes = sizes[:min(len(sizes), 600)]
		var r replay
		var all [][]byte
		var frames []byte
		for i, n := range sizes {
			frame := append(header{kind: stdout, rank: uint16(i), size: uint32(n)}.append(nil), bytes.Repeat([]byte{byte(i)}, int(n))...)
			all = append(all, frame)
			frames = append(frames, frame...)
			if batch < 1 || i%batch == 0 {
				r.add(frames)
				frames = nil
			}
		}
		r.add(frames)
		want := bytes.Join(all[max(0, len(all)-keptMax):], nil)
		if got := r.appendTo(nil); !bytes.Equal(got, want) {
			t.Errorf("%d bytes are kept, and %d are the last ones", len(got), len(want))
		}
	})
}
