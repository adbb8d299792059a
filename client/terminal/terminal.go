// Package terminal is the terminal of stepctl's user: its size and colours, the lines that
// stepctl writes to it, the line that is shown while the user waits, and, in Screen, the
// terminal of a step in the user's own. It knows neither noded nor the options of a verb.
package terminal

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/internal/printable"
)

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := termiosOf(f)
	return err == nil
}

// ScreenSize is the size of the terminal that f is; else the width is
// $COLUMNS. 0 is not known.
func ScreenSize(f *os.File) (columns, rows int) {
	if size, err := winsizeOf(f); err == nil {
		return int(size.Col), int(size.Row)
	}
	n, err := strconv.Atoi(os.Getenv("COLUMNS"))
	if err != nil || n < 0 {
		return 0, 0
	}
	return min(n, 1000), 0
}

func termiosOf(f *os.File) (tio *unix.Termios, err error) {
	err = linux.OnFD(f, func(fd int) error {
		tio, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	return tio, err
}

func winsizeOf(f *os.File) (size *unix.Winsize, err error) {
	err = linux.OnFD(f, func(fd int) error {
		size, err = unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		return err
	})
	return size, err
}

// Colours reports whether what is written to f may be coloured: only a terminal, and
// not where NO_COLOR says no (no-color.org).
func Colours(f *os.File) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && IsTerminal(f)
}

// ExitError ends the program with a code and no words: they were said.
type ExitError int

func (e ExitError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// Exit is the error that ends the program with a code where err is nil: nil where that is 0.
func Exit(code int, err error) error {
	if err == nil && code != 0 {
		return ExitError(code)
	}
	return err
}

// Say writes one line of stepctl's own to stderr, or several.
func Say(format string, args ...any) { SayLine("stepctl: " + clean(fmt.Sprintf(format, args...))) }

// clean is a message in which nothing controls the terminal: the names of files, and what errors
// say of them, are what any user has made of them.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (printable.Control(r) || r == utf8.RuneError) {
			return '?'
		}
		return r
	}, text)
}

// rawLines is set while the terminal is raw: a line needs its carriage returns then.
var rawLines atomic.Bool

// SayLine writes one line to stderr.
func SayLine(line string) {
	Waiting.Clear()
	if rawLines.Load() {
		line = "\r" + line + "\r"
	}
	fmt.Fprintln(os.Stderr, line)
}

// gapsEvery is the least time between two lines of skipped output: a client that is
// behind skips thousands of times.
const gapsEvery = time.Second

// Skipped reports how much of a step's output was skipped. The zero value has told nothing.
type Skipped struct {
	mu    sync.Mutex
	n     uint64      // guarded by mu: bytes that were not told
	timer *time.Timer // guarded by mu: tells them; nil while a gap is told at once
}

// Add reports so many bytes, at once or with later ones.
func (g *Skipped) Add(n uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n += n
	if g.timer == nil {
		g.tell()
		g.timer = time.AfterFunc(gapsEvery, g.due)
	}
}

func (g *Skipped) due() {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.timer == nil: // the end came before it
	case g.n == 0:
		g.timer = nil
	default:
		g.tell()
		g.timer = time.AfterFunc(gapsEvery, g.due)
	}
}

// End tells the rest.
func (g *Skipped) End() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	g.tell()
}

// tell is called with mu held.
func (g *Skipped) tell() {
	if g.n > 0 {
		Say("%d bytes of output were skipped here", g.n)
		g.n = 0
	}
}

// SayCut reports that the output has ended before its end.
func SayCut() {
	Say("the rest of the output is missing: it was not read in time")
}

// progressAfter is how long something may take before it is shown to the user;
// WaitingEvery how often that is told anew, with its time.
const (
	progressAfter = time.Second
	WaitingEvery  = time.Second
)

// WaitingLine is one line on a terminal, rewritten while something takes its time and
// taken away at its end.
type WaitingLine struct {
	mu    sync.Mutex
	to    *os.File
	shown string // guarded by mu: "" while nothing is
	open  bool   // guarded by mu: others have begun a line and not ended it
}

// Waiting is the line of this process: say takes it away before a line of its own.
var Waiting = &WaitingLine{to: os.Stderr}

// set shows a text, cut to the terminal. The cursor stays at the line's begin: what a
// task writes now stands in its place.
func (p *WaitingLine) set(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open {
		return
	}
	columns, _ := ScreenSize(p.to)
	if columns <= 1 {
		columns = 80
	}
	fmt.Fprint(p.to, "\r\x1b[K"+Fit(text, columns-1)+"\r")
	p.shown = text
}

// Clear takes the text away, and nothing that others have written before it.
func (p *WaitingLine) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

// clear is called with mu held.
func (p *WaitingLine) clear() {
	if p.shown != "" {
		fmt.Fprint(p.to, "\x1b[K")
		p.shown = ""
	}
}

// Others takes the text away before others write b to the terminal. While a line of theirs has
// no end nothing is shown: it would be written over.
func (p *WaitingLine) Others(b []byte) {
	if len(b) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	p.open = b[len(b)-1] != '\n'
}

// Text is what is shown, "" while nothing is.
func (p *WaitingLine) Text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shown
}

// ShowSlow shows what the command waits for, as now reports it, where that takes longer than
// a second: on a terminal, once a second, until the returned function is called, which removes
// the line. now may return "", which shows nothing, and that nothing more is to be shown; one
// goroutine calls it. With quiet nothing is shown.
func ShowSlow(quiet bool, now func(since time.Duration) (text string, over bool)) (done func()) {
	if quiet || rawLines.Load() || os.Getenv("TERM") == "dumb" || !IsTerminal(os.Stderr) {
		return func() {}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	begun := time.Now()
	wg.Go(func() {
		timer := time.NewTimer(progressAfter)
		defer timer.Stop()
		for {
			select {
			case <-stop:
				Waiting.Clear()
				return
			case <-timer.C:
			}
			text, over := now(time.Since(begun))
			if over || text == "" {
				Waiting.Clear()
			} else {
				Waiting.set("stepctl: " + printable.Line(text, 400))
			}
			if over {
				return
			}
			timer.Reset(WaitingEvery)
		}
	})
	return sync.OnceFunc(func() { close(stop); wg.Wait() })
}

// Fit cuts a line to the screen.
func Fit(s string, columns int) string { return printable.Fit(strings.TrimRight(s, " "), columns) }

// Pad cuts or fills a text to a column.
func Pad(s string, width int) string { return printable.Pad(strings.TrimRight(s, " "), width) }

// Escaper shows text that another user wrote: what would control the terminal is
// shown as words, as cat -v does. The zero value is at the beginning of text.
type Escaper struct {
	held []byte // the beginning of what is one character
}

// Append puts b behind out as it is to be shown. New lines and tabs stay as they are.
func (v *Escaper) Append(out, b []byte) []byte {
	b = append(v.held, b...)
	v.held = nil
	for i := 0; i < len(b); {
		switch c := b[i]; {
		case c == '\r' && i+1 == len(b), c >= utf8.RuneSelf && !utf8.FullRune(b[i:]):
			v.held = append(v.held, b[i:]...)
			return out
		case c == '\n' || c == '\t' || c == '\r' && b[i+1] == '\n':
			out = append(out, c)
		case c < ' ' || c == 0x7f:
			out = append(out, '^', c^0x40)
		case c < utf8.RuneSelf:
			out = append(out, c)
		default:
			r, size := utf8.DecodeRune(b[i:])
			out = appendRune(out, b[i:i+size], r)
			i += size
			continue
		}
		i++
	}
	return out
}

// appendRune puts a character of several bytes, or a byte that is none, behind out.
func appendRune(out, b []byte, r rune) []byte {
	switch {
	case r == utf8.RuneError && len(b) == 1:
		return fmt.Appendf(out, `\x%02x`, b[0])
	case printable.Control(r):
		return fmt.Appendf(out, "<%U>", r) // C1 controls, other directions of writing, what is not seen
	}
	return append(out, b...)
}

// Rest puts what was held back at the end of the text behind out.
func (v *Escaper) Rest(out []byte) []byte {
	for _, c := range v.held {
		if c == '\r' {
			out = append(out, "^M"...)
		} else {
			out = fmt.Appendf(out, `\x%02x`, c)
		}
	}
	v.held = nil
	return out
}

// Escape is a line as it is to be shown.
func Escape(line string) string {
	var v Escaper
	return string(v.Rest(v.Append(nil, []byte(line))))
}

// Guard keeps what another user's tasks have written from controlling the caller's
// terminal: it could set what is typed there next.
type Guard struct {
	On [3]bool // by stream: it is shown on a terminal
	of map[[2]int]*Escaper
}

// NewGuard returns the guard for a step of user uid; with raw it lets all pass.
func NewGuard(uid uint32, raw bool) *Guard {
	g := &Guard{of: make(map[[2]int]*Escaper)}
	if !raw && uint32(os.Geteuid()) != uid {
		g.On[1], g.On[2] = IsTerminal(os.Stdout), IsTerminal(os.Stderr)
	}
	return g
}

// Pass returns what is to be shown of what rank wrote on fd.
func (g *Guard) Pass(fd, rank int, b []byte) []byte {
	if !g.On[fd] {
		return b
	}
	v := g.of[[2]int{fd, rank}]
	if v == nil {
		v = &Escaper{}
		g.of[[2]int{fd, rank}] = v
	}
	return v.Append(nil, b)
}

// EndOf gives f what was held back of one stream.
func (g *Guard) EndOf(fd, rank int, f func(b []byte)) {
	at := [2]int{fd, rank}
	if v := g.of[at]; v != nil {
		delete(g.of, at)
		if rest := v.Rest(nil); len(rest) > 0 {
			f(rest)
		}
	}
}

// End gives f what was held back of any.
func (g *Guard) End(f func(fd, rank int, b []byte)) {
	for at := range g.of {
		g.EndOf(at[0], at[1], func(b []byte) { f(at[0], at[1], b) })
	}
}
