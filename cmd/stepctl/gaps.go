package main

import (
	"sync"
	"time"
)

// gapsEvery is the least time between two lines of skipped output: a client that is
// behind skips thousands of times.
const gapsEvery = time.Second

// gaps tells how much of a step's output was skipped. The zero value has told nothing.
type gaps struct {
	mu    sync.Mutex
	n     uint64      // guarded by mu: bytes that were not told
	timer *time.Timer // guarded by mu: tells them; nil while a gap is told at once
}

// add tells of so many bytes, at once or with those to come.
func (g *gaps) add(n uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n += n
	if g.timer == nil {
		g.tell()
		g.timer = time.AfterFunc(gapsEvery, g.due)
	}
}

func (g *gaps) due() {
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

// end tells the rest.
func (g *gaps) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	g.tell()
}

// tell is called with mu held.
func (g *gaps) tell() {
	if g.n > 0 {
		say("%d bytes of output were skipped here", g.n)
		g.n = 0
	}
}

// sayCut tells that the output has ended before its end.
func sayCut() {
	say("the rest of the output is missing: it was not read in time")
}
