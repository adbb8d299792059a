package terminal

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"stepd/internal/printable"
)

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
	shown bool // guarded by mu
}

// Waiting is the line of this process: say takes it away before a line of its own.
var Waiting = &WaitingLine{to: os.Stderr}

// set shows a text, cut to the terminal. The cursor stays at the line's begin: what a
// task writes now stands in its place.
func (p *WaitingLine) set(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	columns, _ := ScreenSize(p.to)
	if columns <= 1 {
		columns = 80
	}
	fmt.Fprint(p.to, "\r\x1b[K"+Fit(text, columns-1)+"\r")
	p.shown = true
}

// Clear takes the text away, and nothing that others have written before it.
func (p *WaitingLine) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.to, "\x1b[K")
		p.shown = false
	}
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
