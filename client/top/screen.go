package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/client/options"
	"stepd/client/terminal"
)

// rawTerminal is a terminal whose keys come one by one, with the screen to itself.
type rawTerminal struct {
	file  *os.File
	saved *unix.Termios
}

// enterRaw takes the terminal; leave gives it back as it was.
func enterRaw(f *os.File) (*rawTerminal, error) {
	saved, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("cannot read the terminal's modes: %w", err)
	}
	t := &rawTerminal{file: f, saved: saved}
	return t, t.enter()
}

func (t *rawTerminal) enter() error {
	raw := *t.saved
	raw.Lflag &^= unix.ICANON | unix.ECHO | unix.ISIG | unix.IEXTEN
	raw.Iflag &^= unix.IXON | unix.ICRNL
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(t.file.Fd()), unix.TCSETSW, &raw); err != nil {
		return fmt.Errorf("cannot set the terminal's modes: %w", err)
	}
	// The other screen, no cursor, no wrapping.
	_, err := os.Stdout.WriteString("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J")
	return err
}

func (t *rawTerminal) leave() {
	_, _ = os.Stdout.WriteString("\x1b[?7h\x1b[?25h\x1b[?1049l") // it may be gone
	_ = unix.IoctlSetTermios(int(t.file.Fd()), unix.TCSETSW, t.saved)
}

// topUI is the screen of top while it lasts.
type topUI struct {
	w    *topWatch
	o    *topOptions
	m    *topModel
	term *rawTerminal
	keys chan string
	next chan struct{} // the key before was dealt with
	bold bool
	lent bool // another program has just had the terminal
}

// topScreen shows looks until q. The terminal is given back however it ends, but by
// SIGKILL.
func topScreen(w *topWatch, o *topOptions) (err error) {
	l, err := w.look() // before the screen is taken: an error stays to be read
	if err != nil {
		return err
	}
	sigs := make(chan os.Signal, 8)
	signal.Notify(sigs, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGWINCH, syscall.SIGCONT)
	defer signal.Stop(sigs)
	term, err := enterRaw(os.Stdin)
	if err != nil {
		return err
	}
	defer term.leave() // after a panic, too
	u := &topUI{w: w, o: o, m: newTopModel(o), term: term, keys: make(chan string), next: make(chan struct{}), bold: os.Getenv("NO_COLOR") == ""}
	u.m.set(l)
	go u.readKeys() // ends with the process: a read of a terminal cannot be taken back
	return u.loop(sigs)
}

func (u *topUI) loop(sigs chan os.Signal) error {
	tick := time.NewTicker(time.Duration(u.o.delay * float64(time.Second)))
	defer tick.Stop()
	for n := 1; ; {
		if err := u.draw(); err != nil {
			return err
		}
		select {
		case <-tick.C:
			if n++; u.o.iterations > 0 && n > u.o.iterations {
				return nil
			}
			u.again()
		case key, ok := <-u.keys:
			if !ok {
				return nil // the terminal is gone
			}
			err := u.key(key)
			if u.lent {
				u.lent = false
				dropKeySignals(sigs)
			}
			u.next <- struct{}{}
			if errors.Is(err, errQuit) {
				return nil
			}
			if err != nil {
				u.m.message = "error: " + err.Error()
			}
		case sig := <-sigs:
			switch sig {
			case syscall.SIGWINCH:
			case syscall.SIGCONT: // another program may have had the terminal
				if err := u.term.enter(); err != nil {
					return err
				}
			default:
				u.term.leave()
				return terminal.ExitError(128 + int(sig.(syscall.Signal)))
			}
		}
	}
}

// dropKeySignals forgets what the terminal has sent to all who were at it: Ctrl-C was for
// the other program. A signal that a process has sent stays.
func dropKeySignals(sigs chan os.Signal) {
	for range len(sigs) {
		if sig := <-sigs; sig != syscall.SIGINT && sig != syscall.SIGQUIT {
			sigs <- sig
		}
	}
}

// again takes a new look; one that fails is told and tried again.
func (u *topUI) again() {
	l, err := u.w.look()
	if err != nil {
		u.m.message = "error: " + err.Error()
		return
	}
	if strings.HasPrefix(u.m.message, "error: cannot connect") {
		u.m.message = ""
	}
	u.m.set(l)
}

// draw writes the picture in one write, line by line over the last one.
func (u *topUI) draw() error {
	columns, lines := terminal.ScreenSize(os.Stdout)
	if columns <= 0 || lines <= 0 {
		columns, lines = 80, 24
	}
	picture, mark := u.m.screen(columns, lines)
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range picture {
		if i > 0 {
			b.WriteString("\r\n")
		}
		switch {
		case i == mark:
			line = "\x1b[7m" + terminal.Pad(line, columns) + "\x1b[0m"
		case i == 3 && u.bold:
			line = "\x1b[1m" + line + "\x1b[0m"
		}
		b.WriteString(line + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	_, err := os.Stdout.WriteString(b.String())
	return err
}

// readKeys reads keys one at a time: while another program has the terminal, nothing
// is read here.
func (u *topUI) readKeys() {
	defer close(u.keys)
	buf := make([]byte, 32)
	for {
		n, err := u.term.file.Read(buf)
		if err != nil || n == 0 {
			return
		}
		for _, key := range splitKeys(buf[:n]) {
			u.keys <- key
			<-u.next
		}
	}
}

// splitKeys parts what a terminal sends into keys: escape sequences are one each.
func splitKeys(b []byte) (keys []string) {
	for len(b) > 0 {
		n := 1
		if b[0] == 0x1b && len(b) > 2 && (b[1] == '[' || b[1] == 'O') {
			n = 2
			for n < len(b) && (b[n] < '@' || b[n] > '~') {
				n++
			}
			n = min(n+1, len(b))
		}
		keys = append(keys, string(b[:n]))
		b = b[n:]
	}
	return keys
}

// key does what a key means.
func (u *topUI) key(key string) error {
	m := u.m
	if m.asking {
		return u.askedKey(key)
	}
	m.message = ""
	if m.help {
		m.help = false
		return nil
	}
	if m.move(key) || m.order(key) {
		return nil
	}
	switch key {
	case "q", "Q", "\x03", "\x1b":
		return errQuit
	case "h", "?":
		m.help = true
		return nil
	case " ":
		u.again()
		return nil
	case "\x1a": // Ctrl-Z
		u.term.leave()
		return syscall.Kill(0, syscall.SIGTSTP)
	}
	if m.at() < 0 {
		return nil
	}
	ref := api.Ref(m.chosen.id)
	switch key {
	case "s":
		m.asking, m.answer = true, ""
	case "z":
		return u.do(" is suspended", func(ctx context.Context, c *api.Client) error { return c.Suspend(ctx, ref) })
	case "r":
		return u.do(" goes on", func(ctx context.Context, c *api.Client) error { return c.Unsuspend(ctx, ref) })
	case "a":
		return u.other(false, "attach", m.chosen.id.Name())
	case "e":
		return u.other(true, "explain", m.chosen.id.Name())
	}
	return nil
}

// askedKey is a key of the answer to "which signal".
func (u *topUI) askedKey(key string) error {
	m := u.m
	switch {
	case key == "\r" || key == "\n":
		m.asking = false
		name := cmp.Or(m.answer, "TERM")
		sig, err := options.ParseSignal(name)
		if err != nil {
			return err
		}
		ref := api.Ref(m.chosen.id)
		return u.do(" got "+strings.ToUpper(name), func(ctx context.Context, c *api.Client) error {
			_, err := c.Signal(ctx, &api.SignalRequest{StepRef: ref, Signal: sig, Scope: "tasks"})
			return err
		})
	case key == "\x1b" || key == "\x03":
		m.asking = false
	case key == "\x7f" || key == "\b":
		if m.answer != "" {
			m.answer = m.answer[:len(m.answer)-1]
		}
	case len(key) == 1 && key[0] > ' ' && key[0] < 0x7f && len(m.answer) < 12:
		m.answer += key
	}
	return nil
}

// do acts on the chosen step and looks again.
func (u *topUI) do(done string, f func(context.Context, *api.Client) error) error {
	if err := u.w.d.Call(f); err != nil {
		return err
	}
	u.m.message = u.m.name(u.m.chosen) + done
	u.again()
	return nil
}

// other gives the terminal to another verb, and takes it back when that has ended.
func (u *topUI) other(wait bool, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot start %s: %w", args[0], err)
	}
	path, _ := u.w.d.Path()
	u.term.leave()
	u.lent = true
	cmd := exec.Command(self, append([]string{"--socket", path}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if wait || err != nil {
		fmt.Print("\nenter goes back to top ")
		buf := make([]byte, 256)
		_, _ = os.Stdin.Read(buf) // an end of file goes back, too
	}
	if err := u.term.enter(); err != nil {
		return err
	}
	u.again()
	return nil
}

// move chooses another row.
func (m *topModel) move(key string) bool {
	by, known := map[string]int{
		"\x1b[A": -1, "\x1bOA": -1, "k": -1,
		"\x1b[B": 1, "\x1bOB": 1, "j": 1,
		"\x1b[5~": -10, "\x1b[6~": 10,
		"\x1b[H": -len(m.rows), "\x1b[1~": -len(m.rows), "g": -len(m.rows),
		"\x1b[F": len(m.rows), "\x1b[4~": len(m.rows), "G": len(m.rows),
	}[key]
	if known && len(m.rows) > 0 {
		m.chosen = m.rows[min(max(max(m.at(), 0)+by, 0), len(m.rows)-1)]
	}
	return known
}

// order changes what is shown, and in which order.
func (m *topModel) order(key string) bool {
	fields := map[string]string{"c": "cpu", "m": "memory", "i": "io", "w": "time", "n": "step"}
	switch {
	case fields[key] != "":
		m.sort = fields[key]
	case key == "T":
		m.all = !m.all
	case slices.Contains([]string{"\r", "\n", "t"}, key):
		m.open[m.chosen.id] = !m.open[m.chosen.id]
	default:
		return false
	}
	m.arrange()
	return true
}
