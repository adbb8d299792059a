package x11

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// TestMain holds that no test leaves a goroutine or a descriptor.
func TestMain(m *testing.M) {
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil { // the runtime's poller stays
		l.Close()
	}
	before := descriptors()
	code := m.Run()
	for range 100 {
		if runtime.NumGoroutine() <= 2 && descriptors() <= before {
			os.Exit(code)
		}
		time.Sleep(20 * time.Millisecond)
		runtime.GC() // the pipes of splice(2) are in a pool
	}
	buf := make([]byte, 1<<20)
	fmt.Fprintf(os.Stderr, "left: %d descriptors, before %d\n%s", descriptors(), before, buf[:runtime.Stack(buf, true)])
	os.Exit(1)
}

func descriptors() int {
	fds, _ := os.ReadDir("/proc/self/fd")
	return len(fds)
}

const cookie = "00112233445566778899aabbccddeeff"

// patienceOfTests ends a wait that has failed.
const patienceOfTests = time.Minute

// xserver is a peer of displays.
type xserver struct {
	t     *testing.T
	l     *net.TCPListener
	opens chan struct{} // one for each call of open
	lines chan string   // the log's
}

func newXServer(t *testing.T) *xserver {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &xserver{t: t, l: l.(*net.TCPListener), opens: make(chan struct{}, 1000), lines: make(chan string, 1000)}
}

func (x *xserver) config() Config {
	dir := x.t.TempDir()
	return Config{
		Owner: linux.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Groups: []uint32{uint32(os.Getgid())}},
		Dir:   dir, Note: filepath.Join(x.t.TempDir(), "note"), Cookie: cookie,
		Open: func(ctx context.Context) (*net.TCPConn, error) {
			x.opens <- struct{}{}
			c, err := new(net.Dialer).DialContext(ctx, "tcp4", x.l.Addr().String())
			if err != nil {
				return nil, err
			}
			return c.(*net.TCPConn), nil
		},
		Log: func(line string) { x.lines <- line },
	}
}

func (x *xserver) start(cfg Config) *Forward {
	x.t.Helper()
	f, err := Start(cfg)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() {
		if err := f.Close(); err != nil {
			x.t.Error(err)
		}
		for _, path := range []string{cfg.Note, f.authority.Path} {
			if _, err := os.Lstat(path); !f.authority.Shared && !errors.Is(err, os.ErrNotExist) {
				x.t.Errorf("%q is left: %v", path, err)
			}
		}
	})
	return f
}

// accept is the server's end of the next connection.
func (x *xserver) accept() *net.TCPConn {
	x.t.Helper()
	x.l.SetDeadline(time.Now().Add(patienceOfTests))
	c, err := x.l.AcceptTCP()
	if err != nil {
		x.t.Fatal(err)
	}
	return within(x.t, c)
}

func within(t *testing.T, c *net.TCPConn) *net.TCPConn {
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patienceOfTests))
	return c
}

// dial is a client of a display, by one of the host's addresses.
func dial(t *testing.T, f *Forward, host string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", net.JoinHostPort(host, fmt.Sprint(portBase+f.authority.Display)))
	if err != nil {
		t.Fatal(err)
	}
	return within(t, c.(*net.TCPConn))
}

// ends holds that a connection is ended by the other side.
func ends(t *testing.T, what string, c net.Conn) {
	t.Helper()
	if n, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: %v after %d bytes", what, err, n)
	}
}

// TestForward: both directions carry all, at once, and the client's end is the server's.
func TestForward(t *testing.T) {
	x := newXServer(t)
	f := x.start(x.config())
	hosts := []string{"127.0.0.1"}
	if len(f.listeners) == 2 {
		hosts = append(hosts, "::1")
	}
	for _, host := range hosts {
		client := dial(t, f, host)
		if _, err := client.Write([]byte("l")); err != nil {
			t.Fatal(err)
		}
		server := x.accept()
		var sums [2][]byte
		var wg sync.WaitGroup
		data := [2][]byte{bytes.Repeat([]byte("request "), 1<<18), bytes.Repeat([]byte("event"), 1<<18)}
		for i, c := range []*net.TCPConn{client, server} {
			wg.Go(func() {
				if _, err := c.Write(data[i]); err != nil {
					t.Error(err)
				}
				c.CloseWrite()
			})
			wg.Go(func() {
				h := sha256.New()
				if _, err := io.Copy(h, c); err != nil {
					t.Error(err)
				}
				sums[i] = h.Sum(nil)
			})
		}
		wg.Wait()
		want := [2][32]byte{sha256.Sum256(data[1]), sha256.Sum256(append([]byte("l"), data[0]...))}
		if !bytes.Equal(sums[0], want[0][:]) || !bytes.Equal(sums[1], want[1][:]) {
			t.Errorf("%s: what has come is not what was sent", host)
		}
	}
}

// TestSilentClient: the X server hears nothing of a client that says nothing, whose connection
// ends.
func TestSilentClient(t *testing.T) {
	x := newXServer(t)
	cfg := x.config()
	cfg.hello = time.Millisecond
	f := x.start(cfg)
	for range 20 {
		ends(t, "a silent client", dial(t, f, "127.0.0.1"))
	}
	if n := len(x.opens); n != 0 {
		t.Errorf("%d connections to the X server", n)
	}
}

// TestNoServer: a client reads the end of its connection where the X server cannot be reached, and
// the log has one line.
func TestNoServer(t *testing.T) {
	x := newXServer(t)
	cfg := x.config()
	cfg.Open = func(context.Context) (*net.TCPConn, error) { return nil, errors.New("srun has ended") }
	f := x.start(cfg)
	for range 3 {
		client := dial(t, f, "127.0.0.1")
		client.Write([]byte("l"))
		ends(t, "a client without a server", client)
	}
	f.Close()
	if line := <-x.lines; len(x.lines) != 0 || line != "cannot connect a client of X11 to the user's X server: srun has ended" {
		t.Errorf("%q, and %d more", line, len(x.lines))
	}
}

// TestEndsTogether: the end of the X server's connection is the client's, also where the other
// side keeps its half open.
func TestEndsTogether(t *testing.T) {
	x := newXServer(t)
	cfg := x.config()
	cfg.linger = time.Millisecond
	f := x.start(cfg)
	client := dial(t, f, "127.0.0.1")
	client.Write([]byte("l"))
	server := x.accept()
	server.Close()
	ends(t, "a client whose server has ended", client)

	client = dial(t, f, "127.0.0.1")
	client.Write([]byte("l"))
	server = x.accept()
	client.CloseWrite()
	ends(t, "a server whose client has ended", server)
	ends(t, "a client that keeps its half open", client)
}

// TestClose: it ends clients that say nothing, that wait for the server and that have one.
func TestClose(t *testing.T) {
	x := newXServer(t)
	cfg := x.config()
	open := cfg.Open
	hangs := make(chan struct{}, 1)
	cfg.Open = func(ctx context.Context) (*net.TCPConn, error) {
		select {
		case hangs <- struct{}{}:
			<-ctx.Done()
			return nil, ctx.Err()
		default:
			return open(ctx)
		}
	}
	f := x.start(cfg)
	silent, waits := dial(t, f, "127.0.0.1"), dial(t, f, "127.0.0.1")
	waits.Write([]byte("l"))
	for len(hangs) == 0 { // until it is the one that hangs
		time.Sleep(time.Millisecond)
	}
	served := dial(t, f, "127.0.0.1")
	served.Write([]byte("l"))
	server := x.accept()
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	for what, c := range map[string]net.Conn{"silent": silent, "waits": waits, "served": served, "server": server} {
		ends(t, what, c)
	}
	if len(x.lines) != 0 {
		t.Errorf("the log has %q", <-x.lines)
	}
}

// TestManyConnections: no more than so many are held, and those that end make room.
func TestManyConnections(t *testing.T) {
	x := newXServer(t)
	cfg := x.config()
	cfg.hello = time.Hour
	f := x.start(cfg)
	held := make([]*net.TCPConn, connectionsMax)
	for i := range held {
		held[i] = dial(t, f, "127.0.0.1")
	}
	for range 50 {
		ends(t, "one too many", dial(t, f, "127.0.0.1"))
	}
	if line := <-x.lines; !strings.Contains(line, "too many connections") {
		t.Errorf("%q", line)
	}
	for _, c := range held {
		c.Close()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for deadline := time.Now().Add(patienceOfTests); f.total > 0; f.mu.Lock() {
		f.mu.Unlock()
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are left", f.total)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestClientUID: a connection's user is known, by either address.
func TestClientUID(t *testing.T) {
	x := newXServer(t)
	f := x.start(x.config())
	for _, l := range f.listeners {
		c := within(t, dial(t, f, l.Addr().(*net.TCPAddr).IP.String()))
		// As the server sees it: the two ends change places.
		uid, err := socketUID(c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort())
		if err != nil || uid != uint32(os.Getuid()) {
			t.Errorf("%s: %d, %v", l.Addr(), uid, err)
		}
	}
	none := netip.MustParseAddrPort("127.0.0.1:1")
	if uid, err := socketUID(none, none); err == nil {
		t.Errorf("a connection that is none is uid %d's", uid)
	}
}

// TestPortInUse: a port that is taken by one address alone is not used.
func TestPortInUse(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		taken, err := net.Listen("tcp", at)
		if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT) {
			continue // no IPv6
		}
		if err != nil {
			t.Fatal(err)
		}
		if list, err := listenOn(taken.Addr().(*net.TCPAddr).Port); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("%s: %v, %v", taken.Addr(), list, err)
		}
		taken.Close()
	}
}

// TestStartFails: of a display that cannot be made nothing is left, and the error has no key.
func TestStartFails(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(*Config)
		want  string
	}{
		"no cookie":             {func(c *Config) { c.Cookie = "" }, "the X server's cookie is none"},
		"a cookie of letters":   {func(c *Config) { c.Cookie = "secret" }, "the X server's cookie is none"},
		"a huge cookie":         {func(c *Config) { c.Cookie = strings.Repeat("00", keyMax+1) }, "the X server's cookie is none"},
		"no directory":          {func(c *Config) { c.Dir += "/none" }, "no such file or directory"},
		"no directory of notes": {func(c *Config) { c.Note += "/none" }, "no such file or directory"},
		"a home of no place":    {func(c *Config) { c.Home = "home" }, "is no absolute path"},
		"no home":               {func(c *Config) { c.Home = c.Dir + "/none" }, "no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := newXServer(t).config()
			tc.spoil(&cfg)
			f, err := Start(cfg)
			if err == nil {
				f.Close()
				t.Fatal("it has started")
			}
			if !strings.HasPrefix(err.Error(), "cannot forward X11: ") || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), cookie) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			for _, dir := range []string{cfg.Dir, filepath.Dir(cfg.Note)} {
				if left, _ := os.ReadDir(dir); len(left) != 0 {
					t.Errorf("left: %v", left)
				}
			}
		})
	}
}
