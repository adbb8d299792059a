package main

import (
	"fmt"
	"os"
	"stepd/internal/printable"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// progressAfter is how long something may take before a user is told what it is;
// progressEvery how often that is told anew, with its time.
const (
	progressAfter = time.Second
	progressEvery = time.Second
)

// progressLine is one line on a terminal, rewritten while something takes its time and
// taken away at its end.
type progressLine struct {
	mu    sync.Mutex
	to    *os.File
	shown bool // guarded by mu
}

// waiting is the line of this process: say takes it away before a line of its own.
var waiting = &progressLine{to: os.Stderr}

// set shows a text, cut to the terminal. The cursor stays at the line's begin: what a
// task writes now stands in its place.
func (p *progressLine) set(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	columns, _ := screenSize(p.to)
	if columns <= 1 {
		columns = 80
	}
	fmt.Fprint(p.to, "\r\x1b[K"+fit(text, columns-1)+"\r")
	p.shown = true
}

// clear takes the text away, and nothing that others have written before it.
func (p *progressLine) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.to, "\x1b[K")
		p.shown = false
	}
}

// tellSlow shows what the command waits for, as now reports it, where that takes longer than
// a second: on a terminal, once a second, until the returned function is called, which removes
// the line. now may return "", which shows nothing, and that nothing more is to be shown; one
// goroutine calls it. With quiet nothing is shown.
func tellSlow(quiet bool, now func(since time.Duration) (text string, over bool)) (done func()) {
	if quiet || rawLines.Load() || os.Getenv("TERM") == "dumb" || !isTerminal(os.Stderr) {
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
				waiting.clear()
				return
			case <-timer.C:
			}
			text, over := now(time.Since(begun))
			if over || text == "" {
				waiting.clear()
			} else {
				waiting.set("stepctl: " + printable.Line(text, 400))
			}
			if over {
				return
			}
			timer.Reset(progressEvery)
		}
	})
	return sync.OnceFunc(func() { close(stop); wg.Wait() })
}

// fit cuts a line to the screen.
func fit(s string, columns int) string {
	s = strings.TrimRight(s, " ")
	if utf8.RuneCountInString(s) > columns {
		return string([]rune(s)[:max(columns-1, 0)]) + "…"
	}
	return s
}

// pad cuts or fills a text to a column.
func pad(s string, width int) string {
	s = fit(s, width)
	return s + strings.Repeat(" ", max(width-utf8.RuneCountInString(s), 0))
}
