package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// screen is a terminal with a stepctl in it, as a user's window is.
type screen struct {
	t      *testing.T
	master *os.File
	slave  *os.File // ours, to see its modes
	before unix.Termios
	p      *process

	mu   sync.Mutex
	all  []byte     // guarded by mu: what was shown
	more *sync.Cond // of all
	from int        // what was asked for is behind it
}

// terminals counts them: each has a name of its own.
var terminals atomic.Int32

// openTerminal makes a pair, of which the user has the slave.
func openTerminal(t *testing.T, rows, cols uint16) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	must(t, err)
	t.Cleanup(func() { master.Close() })
	s := &screen{t: t, master: master}
	s.more = sync.NewCond(&s.mu)
	must(t, s.control(func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno != 0 {
			return errno
		}
		number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
		s.slave = os.NewFile(peer, fmt.Sprintf("pts%d-%d", number, terminals.Add(1)))
		if err != nil {
			return err
		}
		return nil
	}))
	t.Cleanup(func() { s.slave.Close() })
	must(t, s.slave.Chown(int(alice.uid), int(alice.gid)))
	s.size(rows, cols)
	tio, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	must(t, err)
	s.before = *tio
	go s.read()
	return s
}

func (s *screen) control(f func(fd int) error) error {
	raw, err := s.master.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := raw.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

func (s *screen) size(rows, cols uint16) {
	s.t.Helper()
	must(s.t, s.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	}))
}

// resized gives the window another size: nothing orders the signal of that and what is
// typed, so the program in it is asked until it says so.
func (s *screen) resized(rows, cols uint16) {
	s.t.Helper()
	s.size(rows, cols)
	want := fmt.Sprintf("%d %d\r\n", rows, cols)
	eventually(s.t, callTimeout, "the window's size", func() error {
		s.types("stty size\n")
		s.sees("stty size\r\n")
		if text := s.sees("$ "); !strings.Contains(text, want) {
			return fmt.Errorf("%q", text)
		}
		return nil
	})
}

func (s *screen) read() {
	buf := make([]byte, 4096)
	for {
		n, err := s.master.Read(buf)
		s.mu.Lock()
		s.all = append(s.all, buf[:n]...)
		s.more.Broadcast()
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// types types; \n is the return key.
func (s *screen) types(text string) {
	s.t.Helper()
	_, err := s.master.WriteString(strings.ReplaceAll(text, "\n", "\r"))
	must(s.t, err)
}

// sees waits for a text that was not asked for before, and returns what is before it.
func (s *screen) sees(text string) string {
	s.t.Helper()
	late := time.AfterFunc(callTimeout, func() { s.more.Broadcast() })
	defer late.Stop()
	end := time.Now().Add(callTimeout)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if at := bytes.Index(s.all[s.from:], []byte(text)); at >= 0 {
			before := string(s.all[s.from : s.from+at])
			s.from += at + len(text)
			return before
		}
		if time.Now().After(end) {
			s.t.Fatalf("%q is not seen; there is %q", text, s.all[s.from:])
		}
		s.more.Wait()
	}
}

// shown is all that was shown so far.
func (s *screen) shown() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.all)
}

// ctl runs stepctl in it.
func (s *screen) ctl(n *node, c call) *process {
	s.t.Helper()
	c.files, c.terminal = []*os.File{s.slave, s.slave, s.slave}, true
	c.env = append([]string{"TERM=xterm", "PS1=$ ", "HISTFILE="}, c.env...)
	s.p = n.start(s.t, c)
	return s.p
}

// ends waits for the end of stepctl: its code, and the terminal as it was.
func (s *screen) ends(code int) {
	s.t.Helper()
	if r := s.p.wait(s.t); r.code != code {
		s.t.Errorf("stepctl %q: exit code %d, want %d; the screen shows %q", s.p.args, r.code, code, tail(s.shown(), 5))
	}
	s.restored()
}

// restored fails the test where the terminal has other modes than in the beginning.
func (s *screen) restored() {
	s.t.Helper()
	now, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	must(s.t, err)
	if *now != s.before {
		s.t.Errorf("stepctl %q leaves the terminal with %+v, it was %+v", s.p.args, *now, s.before)
	}
}

// cancelAtEnd ends a step whatever became of the test.
func (n *node) cancelAtEnd(t *testing.T, id string) {
	t.Cleanup(func() { n.ctlRoot(t, "cancel", id) })
}

// inTerminal starts a command in a terminal and returns the step's number.
func (s *screen) inTerminal(n *node, command ...string) (id string) {
	s.t.Helper()
	s.ctl(n, call{args: append([]string{"run", "--pty", "-J", s.slave.Name()}, command...)})
	eventually(s.t, callTimeout, "the step", func() error {
		for _, d := range n.ps(s.t) {
			if d.State == "RUNNING" && d.Name == s.slave.Name() {
				id = d.id()
				return nil
			}
		}
		return fmt.Errorf("ps does not show %q of %q", s.slave.Name(), command)
	})
	n.cancelAtEnd(s.t, id)
	// noded may know of it before the client does: until then its signals are not caught.
	eventually(s.t, callTimeout, "a terminal that is the step's", func() error {
		tio, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
		if err == nil && tio.Lflag&unix.ICANON != 0 {
			err = errors.New("it is not raw")
		}
		return err
	})
	return id
}
