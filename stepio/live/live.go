package live

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
	"stepd/stepio/replay"
)

// Config is what a Live needs of its neighbours.
type Config struct {
	// Namespace is the job's mount namespace, nil without a container.
	Namespace *os.File
	// Tap makes t hear what the tasks write as it passes by, nil ends that: t must
	// not block. relay.SetTap is that.
	Tap func(t func(fd, rank int, data []byte))
	// Log hears what an administrator may want to know.
	Log func(text string)
}

// Live is what others than the launcher see of one step's output. It costs nothing
// until there is something to keep or a client that watches.
type Live struct {
	spec *step.Spec
	cfg  Config

	mu   sync.Mutex
	hub  *Hub      // guarded by mu: nil without watchers while nothing is kept
	over bool      // guarded by mu: the step has ended
	term *terminal // guarded by mu
}

// New makes the Live of a step. What is to be kept is kept from here on.
func New(spec *step.Spec, cfg Config) *Live {
	l := &Live{spec: spec, cfg: cfg}
	switch {
	case l.Terminal():
		l.hub = newHub(int(max(spec.ReplayBytes, replayMin)), true)
	case spec.ReplayBytes > 0 && spec.Terminal == nil:
		l.begin()
	}
	return l
}

// begin keeps what passes from now on. It is called with mu held, or by New.
func (l *Live) begin() {
	l.hub = newHub(int(max(l.spec.ReplayBytes, replayMin)), false)
	l.hub.empty = l.quiet
	l.cfg.Tap(l.hub.Write)
}

// quiet is called when the last watcher has gone: a tap costs the tasks speed.
func (l *Live) quiet() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopHearing()
}

// stopHearing does so. It is called with mu held.
func (l *Live) stopHearing() {
	if l.spec.ReplayBytes == 0 && l.hub != nil && l.hub.empty != nil && !l.over && l.hub.alone() {
		l.hub = nil
		l.cfg.Tap(nil)
	}
}

// OpenTerminal makes the step's terminal and returns the descriptor that is to be rank
// 0's; it stays Live's. It is called once.
func (l *Live) OpenTerminal() (fd int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hub == nil || !l.Terminal() {
		return -1, errors.New("internal error: the step has no terminal")
	}
	if l.term, err = openTerminal(l.hub, l.cfg.Namespace, &l.spec.User, l.spec.Terminal); err != nil {
		return -1, err
	}
	return int(l.term.slave.Fd()), nil
}

// Watch adds a client that sees the output; see Hub.Watch.
func (l *Live) Watch(how Watching) (fd int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.over:
		return -1, step.ErrEnded
	case l.hub == nil && how.Once:
		return -1, errors.New("its output is kept only while a client watches (ReplayBytes of stepd.conf)")
	case l.hub == nil:
		l.begin()
	}
	if !l.Terminal() {
		// The launcher has its own pipes, and their back-pressure holds.
		how.Launcher, how.ReadOnly = false, true
	}
	if fd, err = l.hub.Watch(how); err != nil {
		l.stopHearing() // the watcher for whom it would have begun did not come
	}
	return fd, err
}

// Terminal reports whether there is one on this node.
func (l *Live) Terminal() bool { return l.spec.Terminal != nil }

// Used reports whether something is kept, or a client watches.
func (l *Live) Used() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hub != nil
}

// patience is how long a launcher that does not read is waited for when all tasks have
// ended.
const patience = 10 * time.Second

// Drain passes on the rest of the output: no process of the tasks is left. It returns
// when all watchers have it, or are given up, and no client can watch any more.
func (l *Live) Drain() {
	l.mu.Lock()
	l.over = true
	hub, term := l.hub, l.term
	l.mu.Unlock()
	if hub == nil {
		return
	}
	begin := time.Now()
	if term != nil {
		term.finish(patience)
	}
	if lost := hub.close(max(0, patience-time.Since(begin))); lost > 0 {
		l.cfg.Log(fmt.Sprintf("%d bytes of output were not taken by the client within %v of the tasks' end", lost, patience))
	}
	if term != nil {
		term.close()
	}
	if l.spec.OutputFile != "" && (l.spec.ReplayBytes > 0 || term != nil) {
		if err := l.save(hub, l.spec.OutputFile); err != nil {
			l.cfg.Log(err.Error())
		}
	}
}

// save leaves the kept output for clients that come after the step, whole or not at all.
func (l *Live) save(hub *Hub, path string) error {
	hub.mu.Lock()
	defer hub.mu.Unlock()
	if hub.ring.End() == 0 {
		return nil
	}
	err := linux.WriteWhole(path, false, func(w io.Writer) error { return replay.WriteKept(w, hub.ring, hub.modes) })
	if err != nil {
		return fmt.Errorf("cannot keep the output of step %s in %q: %w", l.spec.ID, path, err)
	}
	return nil
}

// replayMin is how much of a terminal's output is kept whatever ReplayBytes is, in bytes:
// some screens, without which no client could take the terminal up again.
const replayMin = 64 << 10

// terminal is a pseudo terminal of which stepd has the master.
type terminal struct {
	hub    *Hub
	master *os.File
	// slave is kept open until the tasks have ended: without any, the master would
	// read as at its end, and poll as ready, while a program has closed its streams.
	slave *os.File
	input chan []byte
	over  chan struct{} // closed when no input is taken any more
	// pumped is closed when the last byte of output has been read.
	pumped chan struct{}

	sizeMu sync.Mutex
	timer  *time.Timer // guarded by sizeMu: sets the size that was asked for
}

// inputWaits bounds the pieces of input that wait for the programs to read them.
const inputWaits = 16

// openTerminal makes the terminal, in the mount namespace of the job where it has
// one, owned by the user.
func openTerminal(hub *Hub, namespace *os.File, user *step.User, like *step.Terminal) (*terminal, error) {
	master, slave, err := openPair(namespace)
	if err != nil {
		return nil, fmt.Errorf("cannot open a terminal for the step: %w", err)
	}
	t := &terminal{
		hub: hub, master: master, slave: slave, input: make(chan []byte, inputWaits),
		over: make(chan struct{}), pumped: make(chan struct{}),
	}
	if err := t.prepare(user, like); err != nil {
		master.Close()
		slave.Close()
		return nil, fmt.Errorf("cannot prepare the step's terminal: %w", err)
	}
	go t.pump()
	go t.feed()
	hub.takeBy(t.take)
	return t, nil
}

// openPair opens both ends. Neither is opened by a name that a user could have made:
// the slave is asked of the master.
func openPair(namespace *os.File) (master, slave *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if namespace != nil {
			runtime.LockOSThread() // and the thread ends with this goroutine
		}
		if err = linux.EnterMounts(namespace); err == nil {
			var m, s int
			if m, s, err = linux.OpenTerminal(); err == nil {
				master, slave = os.NewFile(uintptr(m), "/dev/ptmx"), os.NewFile(uintptr(s), "the step's terminal")
			}
		}
	}()
	<-done
	return master, slave, err
}

// prepare gives the terminal to the user, as login does: mode 0620, group tty.
func (t *terminal) prepare(user *step.User, like *step.Terminal) error {
	fd := int(t.slave.Fd())
	gid, mode := ttyGroup(fd), uint32(0o620)
	if gid < 0 {
		gid, mode = int(user.GID), 0o600 // no other user is to write there
	}
	if err := unix.Fchown(fd, int(user.UID), gid); err != nil {
		return fmt.Errorf("chown: %w", err)
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		return fmt.Errorf("chmod: %w", err)
	}
	tio, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return fmt.Errorf("tcgetattr: %w", err)
	}
	for i, c := range like.Chars {
		if i != unix.VMIN && i != unix.VTIME && i < len(tio.Cc) {
			tio.Cc[i] = c
		}
	}
	if like.UTF8 {
		tio.Iflag |= unix.IUTF8
	}
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, tio); err != nil {
		return fmt.Errorf("tcsetattr: %w", err)
	}
	return t.setSize(like.Rows, like.Cols)
}

// ttyGroup is the group of terminals: the mount's, else /etc/group's; -1
// without one.
func ttyGroup(fd int) int {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Gid != 0 {
		return int(st.Gid)
	}
	f, err := os.Open("/etc/group")
	if err != nil {
		return -1
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if words := strings.Split(sc.Text(), ":"); len(words) >= 3 && words[0] == "tty" {
			if gid, err := strconv.Atoi(words[2]); err == nil {
				return gid
			}
		}
	}
	return -1
}

// pump reads what the programs write, until the tasks have ended.
func (t *terminal) pump() {
	defer close(t.pumped)
	buf := make([]byte, 4<<10)
	for {
		n, err := t.master.Read(buf)
		t.hub.Write(1, 0, buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.drain(buf)
			return
		}
		if err != nil {
			return
		}
	}
}

// ttyHolds is more than the kernel holds of what was written to a terminal (its
// buffers' limit is 64 KiB).
const ttyHolds = 128 << 10

// drain reads what is left. No process of the step writes any more, and the kernel's
// read brings forward what is on its way: EAGAIN is the end. A process outside of the
// step may write on for ever: of more than there can have been nothing is the step's.
func (t *terminal) drain(buf []byte) {
	for total := 0; total < ttyHolds; {
		var n int
		err := linux.OnFD(t.master, func(fd int) (err error) {
			n, err = unix.Read(fd, buf)
			return err
		})
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		t.hub.Write(1, 0, buf[:n])
		total += n
	}
}

// take takes a frame of a client.
func (t *terminal) take(f *replay.Frame) {
	switch f.Kind {
	case replay.KindInput:
		select {
		case t.input <- append([]byte(nil), f.Data...):
		case <-t.over:
		}
	case replay.KindSize:
		t.resize(f.Rows, f.Cols, f.Redraw)
	}
}

// feed types what the clients have sent.
func (t *terminal) feed() {
	for {
		select {
		case b := <-t.input:
			if _, err := t.master.Write(b); err != nil && isOver(err) {
				return
			}
		case <-t.over:
			return
		}
	}
}

// redrawAfter is how long a window has another size so that the programs in it see
// two changes.
const redrawAfter = 50 * time.Millisecond

// resize sets the window's size. Programs draw their screen anew where it has changed:
// with redraw it does, for a moment, in any case.
func (t *terminal) resize(rows, cols uint16, redraw bool) {
	t.sizeMu.Lock()
	defer t.sizeMu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	if redraw && rows > 1 && t.size() == [2]uint16{rows, cols} {
		if t.setSize(rows-1, cols) == nil {
			t.timer = time.AfterFunc(redrawAfter, func() { t.resize(rows, cols, false) })
			return
		}
	}
	t.setSize(rows, cols) // the master is open as long as there are clients
}

func (t *terminal) size() (s [2]uint16) {
	_ = linux.OnFD(t.master, func(fd int) error {
		w, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err == nil {
			s = [2]uint16{w.Row, w.Col}
		}
		return err
	})
	return s
}

func (t *terminal) setSize(rows, cols uint16) error {
	return linux.OnFD(t.master, func(fd int) error {
		if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
			return fmt.Errorf("set the window's size to %d rows and %d columns: %w", rows, cols, err)
		}
		return nil
	})
}

// finish reads the rest: no process of the tasks is left. It waits at most patience
// for a launcher that does not read.
func (t *terminal) finish(patience time.Duration) {
	close(t.over)
	if t.master.SetReadDeadline(time.Unix(1, 0)) != nil {
		t.master.Close() // there is no other way to end it
	}
	limit := time.AfterFunc(patience, t.hub.release)
	<-t.pumped
	limit.Stop()
}

// close hangs up: a process that has escaped the step's end and has the terminal hears
// it.
func (t *terminal) close() {
	t.sizeMu.Lock()
	defer t.sizeMu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}
	t.slave.Close()
	t.master.Close()
}
