// Package x11 gives a job a display: an extern step listens where X11's clients of the job
// connect to, and passes each connection on to srun or salloc, which has asked for it and
// connects to the user's X server. The clients find the display's key, the X server's cookie, in
// a file of the user's. Whether a client has the key, the X server says.
//
// It knows neither messages nor the step: how a connection to the X server is opened, the caller
// says. Begin with Start.
package x11

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// Config is what a display needs. All but Namespace and Home are required.
type Config struct {
	// Owner is the job's user.
	Owner linux.User
	// Dir is where the key lies in a file of the job's own, as Namespace sees it, the job's mount
	// namespace or nil. Where Home is not "", the key lies in the user's .Xauthority there instead.
	Dir       string
	Namespace *os.File
	Home      string
	// Note is a file of root's that stays as long as the key: Remove's argument.
	Note string
	// Cookie is the X server's, in hexadecimal.
	Cookie string
	// Open opens a connection to the user's X server. Any goroutine calls it.
	Open func(ctx context.Context) (*net.TCPConn, error)
	// Log takes one line. Any goroutine calls it.
	Log func(line string)

	hello, linger time.Duration // helloMax and lingerMax; tests shorten them
}

// Forward is a display that is served.
type Forward struct {
	cfg       Config
	authority authority
	listeners []net.Listener
	ctx       context.Context // over when the display is closed
	stop      context.CancelFunc
	wg        sync.WaitGroup

	mu     sync.Mutex
	total  int             // guarded by mu: connections
	others int             // guarded by mu: the ones of other users than the owner and root
	noted  map[string]bool // guarded by mu
}

// The displays, and the port of display 0. Slurm leaves the first ones to X servers and to sshd.
const (
	displayFirst = 20
	displayLast  = 99
	portBase     = 6000
)

// keyMax bounds a cookie, in bytes. A real one has 16.
const keyMax = 256

// Start makes a display and serves it until Close. After an error nothing of it is left.
func Start(cfg Config) (_ *Forward, err error) {
	// The error says nothing of the cookie.
	key, err := hex.DecodeString(cfg.Cookie)
	if err != nil || len(key) == 0 || len(key) > keyMax {
		return nil, errors.New("cannot forward X11: the X server's cookie is none")
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot forward X11: %w", err)
	}
	f := &Forward{cfg: cfg, noted: make(map[string]bool)}
	f.authority = authority{
		Path: filepath.Join(cfg.Dir, ".Xauthority-"+rand.Text()), Host: host,
		UID: cfg.Owner.UID, GID: cfg.Owner.GID, Groups: cfg.Owner.Groups,
	}
	if cfg.Home != "" { // the job's private directories are no place for it
		f.authority.Path, f.authority.Shared, f.cfg.Namespace = filepath.Join(cfg.Home, ".Xauthority"), true, nil
	}
	if !filepath.IsAbs(f.authority.Path) {
		return nil, fmt.Errorf("cannot forward X11: %q, which is to have the display's key, is no absolute path", f.authority.Path)
	}
	if f.listeners, f.authority.Display, err = listen(); err != nil {
		return nil, fmt.Errorf("cannot forward X11: %w", err)
	}
	err = f.authority.note(cfg.Note) // first: a daemon that is killed leaves nothing without it
	if err == nil {
		err = f.authority.put(f.cfg.Namespace, key)
	}
	if err != nil {
		f.closeListeners()
		return nil, errors.Join(fmt.Errorf("cannot forward X11: %w", err), f.authority.remove(f.cfg.Namespace), removeFile(cfg.Note))
	}
	f.ctx, f.stop = context.WithCancel(context.Background())
	for _, l := range f.listeners {
		f.wg.Go(func() { f.accept(l) })
	}
	return f, nil
}

// Display is the number of the display, and the path of the file that has its key.
func (f *Forward) Display() (number int32, authority string) {
	return int32(f.authority.Display), f.authority.Path
}

// Close ends the display, with all of its connections. It is called before the job's mount
// namespace is closed.
func (f *Forward) Close() error {
	f.stop()
	f.closeListeners()
	f.wg.Wait()
	return errors.Join(f.authority.remove(f.cfg.Namespace), removeFile(f.cfg.Note))
}

func (f *Forward) closeListeners() {
	for _, l := range f.listeners {
		l.Close()
	}
}

// listen takes a display that is free, beginning with any of them.
func listen() (list []net.Listener, display int, err error) {
	const n = displayLast - displayFirst + 1
	first := mathrand.IntN(n)
	for i := range n {
		display = displayFirst + (first+i)%n
		if list, err = listenOn(portBase + display); err == nil || !errors.Is(err, unix.EADDRINUSE) {
			return list, display, err
		}
	}
	return nil, 0, fmt.Errorf("all displays from %d to %d are in use: %w", displayFirst, displayLast, err)
}

// listenOn listens at a port of this host's own addresses: at both, since a client that tries the
// one that another user has taken would send that user the key.
func listenOn(port int) (list []net.Listener, err error) {
	var conf net.ListenConfig
	conf.SetMultipathTCP(false) // sock_diag(7) would not find its connections
	for _, at := range []struct{ network, host string }{{"tcp4", "127.0.0.1"}, {"tcp6", "::1"}} {
		l, err := conf.Listen(context.Background(), at.network, net.JoinHostPort(at.host, strconv.Itoa(port)))
		if err != nil && len(list) > 0 && (errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT)) {
			break // the host has no IPv6
		}
		if err != nil {
			for _, l := range list {
				l.Close()
			}
			return nil, fmt.Errorf("cannot listen for X11's clients: %w", err)
		}
		list = append(list, l)
	}
	return list, nil
}

const (
	// connectionsMax bounds the connections of a display, othersMax the ones of other users than
	// the owner and root: none of them keeps the owner out.
	connectionsMax = 256
	othersMax      = 16
	// acceptPause is how long no connection is taken after one failed.
	acceptPause = 100 * time.Millisecond
)

// accept takes connections until the listener is closed.
func (f *Forward) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err == nil {
			f.admit(c.(*net.TCPConn))
			continue
		}
		if f.ctx.Err() != nil {
			return
		}
		// No descriptor is left: one comes free when a client goes, and nothing tells.
		f.note("accept", fmt.Sprintf("cannot take a connection of X11: %v", err))
		select {
		case <-f.ctx.Done():
		case <-time.After(acceptPause):
		}
	}
}

// admit serves a connection, unless there are too many.
func (f *Forward) admit(c *net.TCPConn) {
	uid, err := socketUID(c.RemoteAddr().(*net.TCPAddr).AddrPort(), c.LocalAddr().(*net.TCPAddr).AddrPort())
	// A kernel may have no sock_diag: such a connection counts as the owner's.
	other := err == nil && uid != f.cfg.Owner.UID && uid != 0
	f.mu.Lock()
	full := f.total >= connectionsMax || other && f.others >= othersMax
	if !full {
		f.count(1, other)
	}
	f.mu.Unlock()
	if full {
		c.Close()
		f.note("full", fmt.Sprintf("display %d has too many connections: further ones are closed", f.authority.Display))
		return
	}
	f.wg.Go(func() {
		silent := cmp.Or(f.cfg.hello, helloMax)
		if other {
			silent = min(silent, otherHelloMax)
		}
		f.serve(c, silent)
		f.mu.Lock()
		f.count(-1, other)
		f.mu.Unlock()
	})
}

// count counts a connection; the caller holds mu.
func (f *Forward) count(n int, other bool) {
	f.total += n
	if other {
		f.others += n
	}
}

const (
	// helloMax is how long a client may be silent at first: one of X11 speaks before its server.
	// One of another user's than the owner or root, which the X server will refuse, has less time.
	helloMax      = 30 * time.Second
	otherHelloMax = 2 * time.Second
	// lingerMax is how long the other direction may go on when one has ended. X11 has no
	// half-open connections.
	lingerMax = 30 * time.Second
)

// serve passes a client's connection on. A client that is silent for so long does not reach the X
// server.
func (f *Forward) serve(client *net.TCPConn, silent time.Duration) {
	defer client.Close()
	defer context.AfterFunc(f.ctx, func() { client.Close() })()
	first := make([]byte, 4<<10)
	client.SetReadDeadline(time.Now().Add(silent))
	n, _ := client.Read(first)
	if n == 0 {
		return
	}
	client.SetReadDeadline(time.Time{})
	server, err := f.cfg.Open(f.ctx)
	if err != nil {
		if f.ctx.Err() == nil {
			f.note("open", fmt.Sprintf("cannot connect a client of X11 to the user's X server: %v", err))
		}
		return
	}
	defer server.Close()
	defer context.AfterFunc(f.ctx, func() { server.Close() })()
	if _, err := server.Write(first[:n]); err != nil {
		return
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		f.pass(client, server)
	}()
	f.pass(server, client)
	<-back
}

// pass passes on what comes from one end, until its end.
func (f *Forward) pass(to, from *net.TCPConn) {
	_, err := io.Copy(to, from) // by splice(2)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		to.Close()
		from.Close()
		return
	}
	end := time.Now().Add(cmp.Or(f.cfg.linger, lingerMax))
	to.SetReadDeadline(end)
	from.SetWriteDeadline(end)
}

// note logs a line once for each key: a client could cause any number.
func (f *Forward) note(key, line string) {
	f.mu.Lock()
	first := !f.noted[key]
	f.noted[key] = true
	f.mu.Unlock()
	if first {
		f.cfg.Log(line)
	}
}
