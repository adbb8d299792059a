package live

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/stepio/replay"
)

// client is the other end of a watcher.
type client struct {
	t    *testing.T
	conn *os.File
	// What came.
	text []byte
	gaps uint64
}

func watch(t *testing.T, h *Hub, how Watching) *client {
	t.Helper()
	fd, err := h.Watch(how)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, conn: os.NewFile(uintptr(fd), "client")}
	t.Cleanup(func() { c.conn.Close() })
	return c
}

// patient is how long a test waits for what must come.
const patient = 20 * time.Second

// read takes frames until done says that it is enough, or the end.
func (c *client) read(done func() bool) {
	c.t.Helper()
	buf := make([]byte, replay.FrameHead+replay.FrameMax)
	c.conn.SetReadDeadline(time.Now().Add(patient))
	for !done() {
		n, err := c.conn.Read(buf)
		if err != nil {
			c.t.Fatalf("after %d bytes and %d skipped: %v", len(c.text), c.gaps, err)
		}
		f, err := replay.Parse(buf[:n])
		if err != nil {
			c.t.Fatal(err)
		}
		switch f.Kind {
		case replay.KindOutput:
			c.text = append(c.text, f.Data...)
		case replay.KindGap:
			c.gaps += f.N
		case replay.KindEnd:
			return
		}
	}
}

func (c *client) all() { c.t.Helper(); c.read(func() bool { return false }) }

func (c *client) until(n int) { c.t.Helper(); c.read(func() bool { return len(c.text) >= n }) }

func TestHubReplays(t *testing.T) {
	h := newHub(1000, false)
	h.Write(1, 0, []byte("before "))
	whole, part, once := watch(t, h, Watching{Replay: -1}), watch(t, h, Watching{Replay: 4}), watch(t, h, Watching{Replay: -1, Once: true})
	once.all()
	h.Write(2, 3, []byte("after"))
	whole.until(12)
	part.until(9)
	if lost := h.close(patient); lost != 0 {
		t.Errorf("%d bytes were lost", lost)
	}
	for _, c := range []struct {
		name, want string
		*client
	}{{"whole", "before after", whole}, {"part", "ore after", part}, {"once", "before ", once}} {
		if c.client != once {
			c.all()
		}
		if string(c.text) != c.want || c.gaps != 0 {
			t.Errorf("%s: %q with %d skipped, want %q", c.name, c.text, c.gaps, c.want)
		}
	}
	if _, err := h.Watch(Watching{}); err != nil {
		t.Logf("after the end: %v", err)
	}
}

// A watcher that does not read holds up no other, and is told what it has missed.
func TestHubSlowWatcher(t *testing.T) {
	const total = 8 << 20
	h := newHub(64<<10, false)
	slow, quick := watch(t, h, Watching{}), watch(t, h, Watching{})
	go func() {
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<10)
		for n := 0; n < total; n += len(data) {
			h.Write(1, 0, data)
		}
		h.mu.Lock()
		h.over = true
		h.more.Broadcast()
		h.mu.Unlock()
	}()
	quick.all()
	slow.all()
	for _, c := range []*client{quick, slow} {
		if got := uint64(len(c.text)) + c.gaps; got != total {
			t.Errorf("%d bytes and %d skipped are %d, want %d", len(c.text), c.gaps, got, total)
		}
	}
	if slow.gaps == 0 {
		t.Error("the slow one has missed nothing: the test has not tested it")
	}
}

// The launcher gets every byte: what writes waits for it, and no longer than it lives.
func TestHubLauncherHoldsBack(t *testing.T) {
	const total = 2 << 20
	h := newHub(64<<10, false)
	l := watch(t, h, Watching{Launcher: true, Replay: -1})
	written := make(chan struct{})
	data := make([]byte, total)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	go func() { defer close(written); h.Write(1, 0, data) }()
	select {
	case <-written:
		t.Error("2 MiB were written, and nobody has read")
	case <-time.After(100 * time.Millisecond):
	}
	l.until(total)
	<-written
	if l.gaps != 0 || !bytes.Equal(l.text, data) {
		t.Errorf("%d bytes and %d skipped, or others than were written", len(l.text), l.gaps)
	}
	go func() { h.Write(1, 0, data); h.close(0) }()
	l.until(total + 1)
	l.conn.Close()
	done := make(chan struct{})
	go func() { h.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patient):
		t.Error("a launcher that is gone is waited for")
	}
}

// A launcher that is stopped is given up, and what it has lost is told.
func TestHubGivesUpLauncher(t *testing.T) {
	h := newHub(1<<20, false)
	watch(t, h, Watching{Launcher: true, Replay: -1})
	h.Write(1, 0, make([]byte, 1<<20))
	if lost := h.close(50 * time.Millisecond); lost == 0 {
		t.Error("nothing was lost, and nobody has read")
	}
}

func TestHubBoundsWatchers(t *testing.T) {
	h := newHub(1000, false)
	var first *client
	for range watchersMax {
		if c := watch(t, h, Watching{}); first == nil {
			first = c
		}
	}
	if _, err := h.Watch(Watching{}); err == nil || !strings.Contains(err.Error(), fmt.Sprint(watchersMax)) {
		t.Errorf("one too many: %v", err)
	}
	first.conn.Close()
	for end := time.Now().Add(patient); ; {
		fd, err := h.Watch(Watching{})
		if err == nil {
			unix.Close(fd)
			break
		}
		if time.Now().After(end) {
			t.Fatalf("one has gone, and there is no place: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	h.close(0)
}

// What a client sends that is no frame ends its part, and no other client's.
func TestHubRefusesNonsense(t *testing.T) {
	h := newHub(1000, false)
	h.act = func(f *replay.Frame) { t.Errorf("%+v was taken", f) }
	bad, good := watch(t, h, Watching{}), watch(t, h, Watching{ReadOnly: true})
	bad.conn.Write([]byte("nonsense"))
	f := replay.Frame{Kind: replay.KindInput, Piece: replay.Piece{Data: []byte("x")}}
	good.conn.Write(f.Append(nil)) // it may not type
	if n, err := bad.conn.Read(make([]byte, 10)); err == nil && n > 0 {
		t.Errorf("%d bytes came", n)
	}
	h.Write(1, 0, []byte("on"))
	good.until(2)
	h.close(patient)
}

// A replay of a terminal begins between two lines, with the modes that hold there, and
// asks the client's terminal nothing.
func TestHubTerminalReplay(t *testing.T) {
	h := newHub(1000, true)
	h.Write(1, 0, []byte("\x1b[?1049h\x1b[?25l"))
	for i := range 300 {
		h.Write(1, 0, fmt.Appendf(nil, "line %d \x1b[31m\r\n", i))
	}
	h.Write(1, 0, []byte("\x1b[6nend"))
	c := watch(t, h, Watching{Replay: -1})
	h.Write(1, 0, []byte("\x1b[6n"))
	c.read(func() bool { return bytes.HasSuffix(c.text, []byte("end\x1b[6n")) })
	h.close(patient)
	c.all()
	text, ok := strings.CutPrefix(string(c.text), "\x1b[?1049h\x1b[?25l")
	if !ok || !strings.HasPrefix(text, "line ") {
		t.Errorf("the replay begins with %.60q", c.text)
	}
	if !strings.HasSuffix(text, "line 299 \x1b[31m\r\nend\x1b[6n") {
		t.Errorf("the replay ends with %q", text[max(0, len(text)-60):])
	}
}

// Wherever one begins, the terminal's state there is that which all of the output until
// there has made, and not much of it is followed for that.
func TestHubModesAnywhere(t *testing.T) {
	const limit, total = 400_000, 1_000_000
	h := newHub(limit, true)
	rnd := rand.New(rand.NewPCG(1, 2))
	var whole []byte
	for len(whole) < total {
		part := []byte("text\r\n")
		if rnd.IntN(100) == 0 {
			part = fmt.Appendf(nil, "\x1b[?%d%c", []int{1049, 25, 2004, 1000}[rnd.IntN(4)], "hl"[rnd.IntN(2)])
		}
		whole = append(whole, part...)
		h.Write(1, 0, part)
	}
	if n := len(h.marks.list); n < 3 || n > limit/marksEvery+1 {
		t.Errorf("%d marks in %d bytes", n, limit)
	}
	for range 50 {
		pos := h.ring.First() + rnd.Int64N(h.ring.End()-h.ring.First()+1)
		var want replay.Modes
		want.Feed(whole[:pos])
		if got := h.modesAt(pos); got.Set() != want.Set() || got.Between() != want.Between() {
			t.Errorf("at %d of %d to %d: %q, want %q", pos, h.ring.First(), h.ring.End(), got.Set(), want.Set())
		}
		for i, m := range h.marks.list {
			if next := i + 1; next < len(h.marks.list) && h.marks.list[next].pos-m.pos > 2*marksEvery {
				t.Fatalf("nothing is known between %d and %d", m.pos, h.marks.list[next].pos)
			}
		}
	}
}
