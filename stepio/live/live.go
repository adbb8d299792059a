package live

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

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
func (l *Live) Terminal() bool {
	return l.spec.Terminal != nil
}

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
