package terminal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
	"stepd/stepio/replay"
)

// Screen is the client's terminal while a step's is shown in it: raw, so that every
// key is the step's, and as it was when the client leaves by any way but SIGKILL.
type Screen struct {
	in, out *os.File
	keys    *DetachKeys
	Conn    *os.File // frames from and to stepd
	// readOnly shows and types nothing.
	readOnly bool
	// Escaper shows what would control the terminal; nil lets it.
	Escaper *Escaper

	mu    sync.Mutex
	saved *unix.Termios // guarded by mu: nil while the terminal is as it was
	modes replay.Modes  // guarded by mu: what the step has made of it

	typed chan []byte
	Left  chan struct{} // closed when the client is to leave
	once  sync.Once
	why   Leaving       // of left
	ended chan struct{} // closed when stepd has sent all, or is gone
	gaps  Skipped
	short bool // stepd has not sent all; to be read when ended is closed
}

// Leaving is why a client leaves a step that goes on.
type Leaving struct {
	Code  int    // the code to exit with
	Words string // "detached", "" where no user can read it
}

// typedWaits bounds what is typed ahead of a step that does not take it; more is lost,
// with a bell, as at any terminal.
const typedWaits = 256

// NewScreen is the screen on the terminal in and out; keys leave it, and readOnly types nothing.
func NewScreen(in, out *os.File, keys *DetachKeys, readOnly bool) *Screen {
	return &Screen{
		in: in, out: out, keys: keys, readOnly: readOnly,
		typed: make(chan []byte, typedWaits), Left: make(chan struct{}), ended: make(chan struct{}),
	}
}

// TerminalOf asks for a terminal like the client's.
func TerminalOf(in, out *os.File) *step.Terminal {
	t := &step.Terminal{}
	t.Rows, t.Cols = windowSize(in, out)
	if tio, err := termiosOf(in); err == nil {
		t.Chars = append(t.Chars, tio.Cc[:]...)
		t.UTF8 = tio.Iflag&unix.IUTF8 != 0
	}
	return t
}

// windowSize is the size of the window that shows the output; 0 is not known.
func windowSize(in, out *os.File) (rows, cols uint16) {
	for _, f := range []*os.File{out, in} {
		if size, err := winsizeOf(f); err == nil {
			return size.Row, size.Col
		}
	}
	return 0, 0
}

// Begin makes the terminal raw and passes on what comes and what is typed. The caller
// calls end on every way out.
func (s *Screen) Begin(conn *os.File, redraw bool) error {
	s.Conn = conn
	stop, err := s.catch()
	if err != nil {
		return err
	}
	go s.Guarded(func() { defer stop(); defer close(s.ended); s.show() })
	if !s.readOnly {
		s.resize(redraw)
		go s.Guarded(s.read)
		go s.Guarded(s.send)
	}
	return nil
}

// Guarded runs f, and leaves no broken terminal behind when it panics.
func (s *Screen) Guarded(f func()) {
	defer func() {
		if p := recover(); p != nil {
			s.Restore()
			panic(p)
		}
	}()
	f()
}

// raw makes the terminal so that every byte is passed on as it is typed.
func (s *Screen) raw() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readOnly || s.saved != nil {
		return nil
	}
	saved, err := termiosOf(s.in)
	if err != nil {
		return fmt.Errorf("cannot read the mode of the terminal: %w", err)
	}
	raw := *saved
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON | unix.IXANY | unix.IXOFF
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := linux.OnFD(s.in, func(fd int) error { return unix.IoctlSetTermios(fd, unix.TCSETSW, &raw) }); err != nil {
		return fmt.Errorf("cannot make the terminal raw: %w", err)
	}
	s.saved = saved
	rawLines.Store(true)
	return nil
}

// Restore leaves the terminal as it was found. It may be called at any time, by any
// goroutine, as often as one likes.
func (s *Screen) Restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if undo := s.modes.Undo(); undo != "" && IsTerminal(s.out) {
		s.out.WriteString(undo) // else it cannot be reached any more
	}
	s.modes = replay.Modes{}
	if s.saved != nil {
		saved, how := s.saved, uint(unix.TCSETSW)
		if _, left := s.LeftBy(); left {
			// What the terminal has answered to the step is nothing for the shell.
			how = unix.TCSETSF
			s.out.WriteString("\r\n")
		}
		_ = linux.OnFD(s.in, func(fd int) error { return unix.IoctlSetTermios(fd, how, saved) }) // as above
		s.saved = nil
		rawLines.Store(false)
	}
}

// Leave ends the client's part; the first reason counts.
func (s *Screen) Leave(why Leaving) {
	s.once.Do(func() {
		s.why = why
		close(s.Left)
	})
}

// LeftBy reports whether the client has left, and why.
func (s *Screen) LeftBy() (why Leaving, left bool) {
	select {
	case <-s.Left:
		return s.why, true
	default:
		return why, false
	}
}

// catch takes the signals that are the terminal's own. One that ends the client leaves
// the step: a terminal that is gone must not take it along.
func (s *Screen) catch() (stop func(), err error) {
	c := make(chan os.Signal, 8)
	signal.Notify(c, syscall.SIGHUP, syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT)
	if err := s.raw(); err != nil {
		signal.Stop(c)
		return nil, err
	}
	done := make(chan struct{})
	go s.Guarded(func() {
		for {
			select {
			case <-done:
				return
			case sig := <-c:
				s.signalled(sig)
			}
		}
	})
	return sync.OnceFunc(func() { signal.Stop(c); close(done) }), nil
}

func (s *Screen) signalled(sig os.Signal) {
	switch sig {
	case syscall.SIGHUP:
		s.Leave(Leaving{Code: 128 + int(syscall.SIGHUP)})
	case syscall.SIGWINCH:
		s.resize(false)
	case syscall.SIGTSTP:
		s.Restore()
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // ourselves: it cannot fail
	case syscall.SIGCONT:
		if s.raw() == nil {
			s.resize(true)
		}
	}
}

func (s *Screen) resize(redraw bool) {
	if s.readOnly {
		return
	}
	rows, cols := windowSize(s.in, s.out)
	f := replay.Frame{Kind: replay.KindSize, Rows: rows, Cols: cols, Redraw: redraw}
	s.Conn.Write(f.Append(nil)) // stepd's end shows where it is read
}

// show writes what stepd sends, until the end.
func (s *Screen) show() {
	for f, err := range replay.Frames(s.Conn) {
		switch {
		case errors.Is(err, replay.ErrCut):
			s.short = true
		case err != nil:
			s.Leave(Leaving{Code: 1, Words: fmt.Sprintf("cannot read its output (%v): detached", err)})
		case f.Kind == replay.KindGap:
			s.gap(f.N)
		case f.Kind == replay.KindOutput && !s.write(f.Data):
			return
		}
	}
}

func (s *Screen) write(b []byte) bool {
	if s.Escaper != nil {
		b = s.Escaper.Append(nil, b)
	}
	s.mu.Lock()
	s.modes.Feed(b)
	s.mu.Unlock()
	if _, err := s.out.Write(b); err != nil {
		s.Leave(Leaving{Code: 1, Words: fmt.Sprintf("cannot write its output (%v): detached", err)})
		return false
	}
	return true
}

// gap begins with an empty screen, since what follows does not continue what is shown.
func (s *Screen) gap(n uint64) {
	s.mu.Lock()
	undo := s.modes.Undo()
	s.modes = replay.Modes{}
	s.mu.Unlock()
	if IsTerminal(s.out) {
		io.WriteString(s.out, "\x18"+undo+"\x1b[m\x1b[H\x1b[2J")
	}
	s.gaps.Add(n)
	s.resize(true)
}

// read takes what is typed until the client leaves.
func (s *Screen) read() {
	buf := make([]byte, 1<<10)
	for {
		n, err := s.in.Read(buf)
		typed, left := s.keys.pass(buf[:n])
		if len(typed) > 0 {
			select {
			case s.typed <- append([]byte(nil), typed...):
			default:
				s.out.WriteString("\a")
			}
		}
		switch {
		case left:
			s.Leave(Leaving{Words: "detached"})
			return
		case err != nil:
			s.Leave(Leaving{Code: 128 + int(syscall.SIGHUP)}) // the terminal is gone
			return
		}
	}
}

func (s *Screen) send() {
	for {
		select {
		case b := <-s.typed:
			f := replay.Frame{Kind: replay.KindInput, Piece: replay.Piece{Data: b}}
			if _, err := s.Conn.Write(f.Append(nil)); err != nil {
				return // show sees the end
			}
		case <-s.ended:
			return
		case <-s.Left:
			return
		}
	}
}

// End waits for the last of the output where the step has ended, at most limit, and
// leaves the terminal as it was found.
func (s *Screen) End(limit time.Duration) {
	if _, left := s.LeftBy(); !left && s.Conn != nil {
		select {
		case <-s.ended:
		case <-s.Left:
		case <-time.After(limit):
		}
	}
	s.Restore()
	s.gaps.End()
}

// Cut reports whether the end of the output is missing, when end has waited for it.
func (s *Screen) Cut() bool {
	select {
	case <-s.ended:
		return s.short
	default:
		return true
	}
}

// DefaultDetachKeys leave an attached terminal.
const DefaultDetachKeys = "ctrl-],d"

// DetachKeys is a sequence of keys that is not typed into the terminal but ends the
// client's part in it. The first of them, typed twice, is typed once. nil is none.
type DetachKeys struct {
	keys []byte
	seen int // of keys, which were typed and are held back
}

// ParseDetachKeys reads "ctrl-],d": letters and digits, or ctrl- with a letter or one
// of @ [ \ ] ^ _; "none" or "" is none.
func ParseDetachKeys(s string) (*DetachKeys, error) {
	if s == "" || strings.EqualFold(s, "none") {
		return nil, nil
	}
	d := &DetachKeys{}
	for word := range strings.SplitSeq(s, ",") {
		key, ok := parseKey(word)
		if !ok {
			return nil, fmt.Errorf("--detach-keys=%s: %q is no key: write a letter, or ctrl- with a letter or one of @[\\]^_, parted by commas, or none", s, word)
		}
		d.keys = append(d.keys, key)
	}
	return d, nil
}

func parseKey(word string) (key byte, ok bool) {
	rest, ctrl := strings.CutPrefix(strings.ToLower(word), "ctrl-")
	switch {
	case ctrl && len(rest) == 1 && rest[0] >= 'a' && rest[0] <= 'z':
		return rest[0] & 0x1f, true
	case ctrl && len(rest) == 1 && strings.Contains("@[\\]^_", rest):
		return rest[0] & 0x1f, true
	case !ctrl && len(word) == 1 && word[0] > ' ' && word[0] < 0x7f:
		return word[0], true
	}
	return 0, false
}

// Words tells people what to type: "Ctrl-] d".
func (d *DetachKeys) Words() string {
	var words []string
	for _, k := range d.keys {
		if k < 0x20 {
			words = append(words, "Ctrl-"+string(rune(k|0x40)))
		} else {
			words = append(words, string(rune(k)))
		}
	}
	return strings.Join(words, " ")
}

// pass returns what is to be typed of data; left is true when the keys were in it, and
// what was typed behind them is lost.
func (d *DetachKeys) pass(data []byte) (typed []byte, left bool) {
	if d == nil {
		return data, false
	}
	for _, b := range data {
		switch {
		case b == d.keys[d.seen]:
			if d.seen++; d.seen == len(d.keys) {
				return typed, true
			}
		case d.seen == 1 && b == d.keys[0]:
			typed, d.seen = append(typed, b), 0
		default:
			typed = append(typed, d.keys[:d.seen]...)
			if d.seen = 0; b == d.keys[0] {
				d.seen = 1
			} else {
				typed = append(typed, b)
			}
		}
	}
	return typed, false
}
