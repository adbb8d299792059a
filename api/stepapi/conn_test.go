package stepapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
)

func pair(t testing.TB) (*Conn, *Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, err := FromFD(fds[0], "a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := FromFD(fds[1], "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestRecords(t *testing.T) {
	a, b := pair(t)
	for _, text := range []string{"", "short", strings.Repeat("x", inlineMax-100), strings.Repeat("long ", 1<<20)} {
		go func() {
			if err := a.Send(&Msg{Type: TypeMessage, Text: text}, 0, 1); err != nil {
				t.Error(err)
			}
		}()
		m, fds, err := b.Recv()
		if err != nil || m.Text != text || len(fds) != 2 {
			t.Fatalf("%d bytes: got %d descriptors, %v", len(text), len(fds), err)
		}
		CloseAll(fds)
	}
	a.Close()
	if _, _, err := b.Recv(); err != io.EOF {
		t.Errorf("after the peer has closed: %v, want EOF", err)
	}
}

// What a user may send in place of a large record.
func TestHostileRecords(t *testing.T) {
	a, b := pair(t)
	b.recordMax = inlineMax
	plain, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	plain.WriteString(`{"type":"hello"}`)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	big, err := SealedMemfd("big", make([]byte, inlineMax+1))
	if err != nil {
		t.Fatal(err)
	}
	defer big.Close()
	for _, tt := range []struct {
		name, packet string
		fd           int
		says         string
	}{
		{"a plain file", `{"memfd":16}`, int(plain.Fd()), "no sealed memfd"},
		{"a pipe that never answers", `{"memfd":16}`, int(r.Fd()), "no sealed memfd"},
		{"too large", `{"memfd":65537}`, int(big.Fd()), "the limit is 65536"},
		{"negative", `{"memfd":-1}`, int(big.Fd()), "the limit is"},
		{"no descriptor", `{"memfd":5}`, -1, "a memfd goes with it"},
		{"no JSON", `{"type":`, -1, "cannot parse record"},
		{"empty object", `[]`, -1, "cannot parse record"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var oob []byte
			if tt.fd >= 0 {
				oob = unix.UnixRights(tt.fd)
			}
			if _, _, err := a.c.WriteMsgUnix([]byte(tt.packet), oob, nil); err != nil {
				t.Fatal(err)
			}
			if m, _, err := b.Recv(); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %+v, %v; want %q", m, err, tt.says)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"type":"attach","streams":[{"fd":1,"rank":-1}]}`))
	f.Add([]byte(`{"memfd":12}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, fds, err := decode(b, nil, inlineMax)
		if err == nil && (m == nil || len(fds) != 0) {
			t.Fatalf("%+v, %v", m, fds)
		}
	})
}

// fakeStep notes what the server asks of a step.
type fakeStep struct {
	cancelled chan string
	asked     chan uint32
	lost      chan struct{}
	attached  chan int
}

func (f *fakeStep) Record() step.Record { return step.Record{State: step.Running} }
func (f *fakeStep) AttachDone()         {}
func (f *fakeStep) Stat() step.Record {
	return step.Record{State: step.Running, Usage: &step.StepUsage{Samples: 3}}
}
func (f *fakeStep) LauncherLost()              { close(f.lost) }
func (f *fakeStep) Signal(int, string) error   { return nil }
func (f *fakeStep) Cancel(reason string) error { f.cancelled <- reason; return nil }
func (f *fakeStep) Suspend(by uint32) error    { f.asked <- by; return nil }
func (f *fakeStep) Watch(w *Watch, launcher bool) (*Watched, int, error) {
	if !launcher {
		return nil, -1, errors.New("nothing is kept")
	}
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return &Watched{Terminal: w.ReadOnly}, fd, err
}
func (f *fakeStep) Resume(by uint32) error { f.asked <- by; return errors.New("not suspended") }
func (f *fakeStep) Attach(streams []StreamFD, fds []int) error {
	CloseAll(fds)
	f.attached <- len(fds)
	return nil
}

func serve(t *testing.T) (*Server, *fakeStep, func() *Conn) {
	t.Helper()
	dir := t.TempDir()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: dir + "/s", Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	st := &fakeStep{make(chan string, 4), make(chan uint32, 4), make(chan struct{}), make(chan int, 4)}
	s := NewServer(step.ID{Job: 1}, uint32(os.Getuid()), st)
	s.Serve(l)
	t.Cleanup(func() { s.Finish(&Msg{Type: TypeResult}, 0); l.Close(); s.Wait() })
	return s, st, func() *Conn {
		c, err := DialDir(t.Context(), dir, "s")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if m, _, err := c.Recv(); err != nil || m.Type != TypeHello || m.Record == nil {
			t.Fatalf("greeting: %+v, %v", m, err)
		}
		return c
	}
}

func TestServer(t *testing.T) {
	s, st, dial := serve(t)
	c := dial()
	c.Send(&Msg{Type: TypeHello, Version: Version, Role: RoleLaunch})
	c.Send(&Msg{Type: TypeAttach, Streams: []StreamFD{{FD: 1, Rank: -1}, {FD: 2, Rank: -1}}}, 1, 2)
	if n := <-st.attached; n != 2 {
		t.Errorf("%d streams were attached", n)
	}
	for _, reason := range []string{"two\nlines", strings.Repeat("x", 300), "\x1b[2J"} {
		c.Send(&Msg{Type: TypeCancel, Seq: 7, Reason: reason})
		if m, _, err := c.Recv(); err != nil || m.Type != TypeReply || m.Error == "" || m.Seq != 7 {
			t.Errorf("reason %.10q: %+v, %v", reason, m, err)
		}
	}
	// The kernel's word says who cancels: a note in the client's words is quoted.
	signed := fmt.Sprintf("cancelled by uid %d", os.Getuid())
	for note, want := range map[string]string{
		"": signed, "enough": signed + `: "enough"`, "cancelled by uid 0": signed + `: "cancelled by uid 0"`,
		`enough"; cancelled by uid 0: "`: signed + `: "enough\"; cancelled by uid 0: \""`,
	} {
		c.Send(&Msg{Type: TypeCancel, Seq: 8, Reason: note})
		if r := <-st.cancelled; r != want {
			t.Errorf("cancelled: %q, want %q", r, want)
		}
		if m, _, err := c.Recv(); err != nil || m.Type != TypeReply || m.Error != "" || m.Seq != 8 {
			t.Errorf("%+v, %v", m, err)
		}
	}
	// A daemon's own words come from root alone.
	for root, want := range map[bool]string{true: "", false: errNotRoot.Error()} {
		reason, err := s.cancelReason(&Msg{Type: TypeCancel, Text: "the job has ended"}, root)
		if (err == nil) != root || err != nil && err.Error() != want || root && reason != "the job has ended" {
			t.Errorf("root %v: %q, %v", root, reason, err)
		}
	}
	// Only root, as noded is, suspends and resumes: for a user, or for itself.
	root := os.Getuid() == 0
	user := uint32(4711)
	for i, m := range []Msg{{Type: TypeSuspend, By: &user}, {Type: TypeResume, By: &user}, {Type: TypeSuspend}, {Type: TypeResume}} {
		m.Seq = uint32(20 + i)
		want, by := errNotRoot.Error(), uint32(0)
		c.Send(&m)
		if root {
			want = ""
			if by = <-st.asked; m.By != nil && by != user || m.By == nil && by != 0 {
				t.Errorf("%s for uid %d", m.Type, by)
			}
			if m.Type == TypeResume {
				want = "not suspended"
			}
		}
		if got, _, err := c.Recv(); err != nil || got.Type != TypeReply || got.Error != want || got.Seq != m.Seq {
			t.Errorf("%s: %+v, %v, want %q", m.Type, got, err, want)
		}
		if err := s.stand(nil, &m, false); err != errNotRoot || len(st.asked) > 0 {
			t.Errorf("%s by a user: %v", m.Type, err)
		}
	}
	// A burst of lines costs lines at most, never the peer.
	for range 5000 {
		s.Tell(&Msg{Type: TypeMessage, Text: "line"})
	}
	go s.Tell(&Msg{Type: TypeTaskExit, Ranks: []int{0}})
	for lines := 0; ; {
		m, _, err := c.Recv()
		if err != nil {
			t.Fatalf("the peer was cut off after %d lines: %v", lines, err)
		}
		if m.Type == TypeTaskExit {
			if lines < linesMax {
				t.Errorf("%d lines came, at least %d were to", lines, linesMax)
			}
			break
		}
		lines++
	}
	c.Close()
	select {
	case <-st.lost:
	case <-time.After(10 * time.Second):
		t.Error("the loss of the launcher was not told")
	}
}

func TestFinishWaitsForAck(t *testing.T) {
	s, _, dial := serve(t)
	if os.Getuid() != 0 {
		t.Log("noded is root: without it there is nobody to ack")
		return
	}
	c := dial()
	c.Send(&Msg{Type: TypeHello, Version: Version, Role: RoleNoded})
	for len(s.ofRole(RoleNoded)) == 0 {
		time.Sleep(time.Millisecond)
	}
	go func() {
		if m, _, err := c.Recv(); err == nil && m.Type == TypeResult {
			c.Send(&Msg{Type: TypeAck})
		}
	}()
	if !s.Finish(&Msg{Type: TypeResult, Record: &step.Record{}}, 10*time.Second) {
		t.Error("the ack was not heard")
	}
}

// TestWatch: the descriptor goes to who asked, and the role that it has said counts.
func TestWatch(t *testing.T) {
	_, _, dial := serve(t)
	c := dial()
	c.Send(&Msg{Type: TypeWatch, Seq: 1, Watch: &Watch{}})
	if m, fds, err := c.Recv(); err != nil || m.Error != "nothing is kept" || len(fds) != 0 {
		t.Errorf("of no launcher: %+v, %d descriptors, %v", m, len(fds), err)
	}
	c.Send(&Msg{Type: TypeHello, Version: Version, Role: RoleLaunch})
	c.Send(&Msg{Type: TypeWatch, Seq: 2})
	if m, _, err := c.Recv(); err != nil || m.Error == "" {
		t.Errorf("without saying how: %+v, %v", m, err)
	}
	c.Send(&Msg{Type: TypeWatch, Seq: 3, Watch: &Watch{ReadOnly: true}})
	m, fds, err := c.Recv()
	if err != nil || m.Seq != 3 || m.Watched == nil || !m.Watched.Terminal || len(fds) != 1 {
		t.Fatalf("%+v, %d descriptors, %v", m, len(fds), err)
	}
	unix.Close(fds[0])
}

// TestDialFull: a full queue of connections is waited for until there is room, or as long as the
// caller waits.
func TestDialFull(t *testing.T) {
	dir := t.TempDir()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: dir + "/s", Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 0) }); err != nil {
		t.Fatal(err)
	}
	first, err := DialDir(t.Context(), dir, "s")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	why := errors.New("that was long enough")
	short, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, why)
	defer cancel()
	if _, err := DialDir(short, dir, "s"); !errors.Is(err, why) {
		t.Errorf("a queue that stays full: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() {
		if c, err := l.Accept(); err == nil {
			c.Close()
		}
	})
	second, err := DialDir(t.Context(), dir, "s")
	if err != nil {
		t.Fatalf("a queue with room again: %v", err)
	}
	second.Close()
}
