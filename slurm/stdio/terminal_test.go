package stdio

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// withTerminal is a step of n tasks whose first has a terminal, and the window that srun has.
func withTerminal(t *testing.T, n int) (cfg Config, window net.Listener, resized chan struct{}) {
	t.Helper()
	window, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { window.Close() })
	resized = make(chan struct{}, 8)
	cfg = config(n)
	for i := range cfg.Ranks {
		cfg.Ranks[i] = i
	}
	cfg.Streams = config(0).Streams
	for i := range cfg.Streams {
		cfg.Streams[i].Kind = "null"
	}
	cfg.Terminal = &Terminal{Rows: 33, Cols: 99, GID: uint32(os.Getgid()), Window: window.Addr().String(), Resized: func() { resized <- struct{}{} }}
	return cfg, window, resized
}

// TestTerminalOfTask: what rank 0 writes comes as its stdout, what srun sends is typed there, the
// window's size follows srun's, and no other stream is waited for.
func TestTerminalOfTask(t *testing.T) {
	cfg, window, resized := withTerminal(t, 3)
	r := begin(t, cfg)
	if r.srun.ends != [3]uint32{0, 1, 0} {
		t.Errorf("srun waits for the ends %v", r.srun.ends)
	}
	fd, err := r.OpenTerminal()
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&0o777 != 0o600 || int(st.Uid) != os.Getuid() || int(st.Gid) != os.Getgid() {
		t.Errorf("the terminal has mode %o of %d:%d, %v", st.Mode, st.Uid, st.Gid, err)
	}
	size := func() [2]uint16 {
		w, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err != nil {
			t.Fatal(err)
		}
		return [2]uint16{w.Row, w.Col}
	}
	if got := size(); got != [2]uint16{33, 99} {
		t.Errorf("the window is %v", got)
	}
	c, err := window.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte{0, 55, 0, 44}); err != nil {
		t.Fatal(err)
	}
	<-resized
	if got := size(); got != [2]uint16{44, 55} {
		t.Errorf("the window is %v after a change", got)
	}
	if _, err := unix.Write(fd, []byte("out\n")); err != nil {
		t.Fatal(err)
	}
	r.srun.want(stdout, 0, 0, "out\r\n")
	r.srun.give(stdinAll, 0, "typed\n")
	r.srun.want(stdout, 0, 0, "typed\r\n") // the echo
	b := make([]byte, 64)
	if n, err := unix.Read(fd, b); err != nil || string(b[:n]) != "typed\n" {
		t.Errorf("the task reads %q, %v", b[:n], err)
	}
	r.srun.give(stdinAll, 0, "") // the end of srun's input is not the terminal's
	r.Say("slurmstepd-n1: error: over")
	r.srun.want(stdout, 0, 0, "slurmstepd-n1: error: over\r\n")
	go r.finish()
	r.srun.want(stdout, 0, 0, "")
	r.srun.Close()
	<-r.loop.done
}

// TestTerminalLarge: no byte is lost of what is written just before the end.
func TestTerminalLarge(t *testing.T) {
	cfg, _, _ := withTerminal(t, 1)
	r := begin(t, cfg)
	fd, err := r.OpenTerminal()
	if err != nil {
		t.Fatal(err)
	}
	text := []byte(strings.Repeat("0123456789abcdef", 1<<16))
	go func() {
		for rest := text; len(rest) > 0; {
			n, err := unix.Write(fd, rest)
			if err != nil {
				t.Error(err)
				break
			}
			rest = rest[n:]
		}
		r.finish()
	}()
	var got bytes.Buffer
	for {
		f, err := r.srun.next()
		if err != nil {
			t.Fatal(err)
		}
		if f.data == "" {
			break
		}
		got.WriteString(f.data)
	}
	if !bytes.Equal(got.Bytes(), text) {
		t.Errorf("%d bytes of %d have come", got.Len(), len(text))
	}
	r.srun.Close()
	<-r.loop.done
}

// TestTerminalElsewhere: a node without rank 0 has no terminal, and no streams.
func TestTerminalElsewhere(t *testing.T) {
	cfg, _, _ := withTerminal(t, 2)
	cfg.Ranks = []int{2, 3}
	r := begin(t, cfg)
	if _, err := r.OpenTerminal(); err == nil || r.srun.ends != [3]uint32{} {
		t.Errorf("%v, and srun waits for the ends %v", err, r.srun.ends)
	}
	go r.finish()
	r.srun.Close()
	<-r.loop.done
}

// TestTerminalWithoutSrun: the launch is told, and does not wait.
func TestTerminalWithoutSrun(t *testing.T) {
	cfg, _, _ := withTerminal(t, 1)
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Server = l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	s := New(cfg)
	failed := s.Open(t.Context())
	if _, err := s.OpenTerminal(); failed == nil || err == nil {
		t.Errorf("Open: %v, OpenTerminal: %v", failed, err)
	}
}

// TestWindowLies: what srun sends for sizes harms nothing: a piece of one, and an address where
// nothing listens.
func TestWindowLies(t *testing.T) {
	cfg, window, resized := withTerminal(t, 1)
	r := begin(t, cfg)
	c, err := window.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte{0xff, 0xff, 0xff, 0xff, 0}); err != nil {
		t.Fatal(err)
	}
	<-resized
	c.Close()
	for begin := time.Now(); !strings.Contains(r.logged(), "unexpected EOF"); time.Sleep(time.Millisecond) {
		if time.Since(begin) > limit {
			t.Fatalf("the log has %q", r.logged())
		}
	}
	go r.finish()
	r.srun.want(stdout, 0, 0, "")
	r.srun.Close()
	<-r.loop.done
}

func FuzzSize(f *testing.F) {
	f.Add([]byte{0, 99, 0, 33})
	f.Add([]byte{0, 99})
	f.Fuzz(func(t *testing.T, b []byte) {
		rows, cols, err := readSize(bytes.NewReader(b))
		if (err == nil) != (len(b) >= 4) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		if err == nil && (cols != binary.BigEndian.Uint16(b) || rows != binary.BigEndian.Uint16(b[2:])) {
			t.Errorf("%v are %d rows and %d columns", b, rows, cols)
		}
	})
}
