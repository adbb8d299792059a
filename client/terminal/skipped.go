package terminal

import (
	"sync"
	"time"
)

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
