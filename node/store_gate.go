package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// A file system whose server is gone holds whoever asks it, for ever. Nobody waits for the
// spool longer than patience: then what needs it is refused, until it answers again. What
// has happened and cannot be refused is stored then (storeLater).

const (
	// spoolPatience is how long an answer of the spool may take, where the site does not say
	// (SpoolTimeout).
	spoolPatience = 20 * time.Second
	// spoolTold is how often it is told that the spool does not answer.
	spoolTold = 30 * time.Second
)

// errSpool is that the spool does not answer.
type errSpool struct {
	dir   string
	since time.Time
}

func (e errSpool) Error() string {
	return fmt.Sprintf("the spool %q has not answered for %v: its file system waits for a server or a disk", e.dir, time.Since(e.since).Round(time.Second))
}

// spoolGate lets calls through that ask the spool.
type spoolGate struct {
	dir string
	log *logrus.Logger

	mu       sync.Mutex
	patience time.Duration // guarded by mu: 0 is for ever, as while noded starts
	stuck    []time.Time   // guarded by mu: when the calls began that nobody waits for any more
	freed    chan struct{} // guarded by mu: closed when there is none; nil where there is none
}

// setPatience says how long the calls that come now are waited for.
func (g *spoolGate) setPatience(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.patience = d
}

// pass returns how long a call is waited for, or why there is none.
func (g *spoolGate) pass() (time.Duration, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.patience, g.deadLocked()
}

// dead returns an errSpool as long as the spool does not answer.
func (g *spoolGate) dead() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.deadLocked()
}

func (g *spoolGate) deadLocked() error {
	if len(g.stuck) == 0 {
		return nil
	}
	return errSpool{g.dir, slices.MinFunc(g.stuck, time.Time.Compare)}
}

// do calls f, and waits for it as long as its patience is. The error is an errSpool where
// f goes on without the caller: then late is called when it has ended well. nil is nothing.
func (g *spoolGate) do(f func() error, late func()) error {
	patience, err := g.pass()
	if err != nil {
		return err
	}
	if patience == 0 {
		return f()
	}
	began := time.Now()
	var mu sync.Mutex
	left := false // guarded by mu: the caller has gone
	done := make(chan error, 1)
	go func() { // ends with f
		err := f()
		mu.Lock()
		defer mu.Unlock()
		done <- err
		if !left {
			return
		}
		if err == nil && late != nil {
			late()
		}
		g.back(began)
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
	}
	mu.Lock()
	defer mu.Unlock()
	select {
	case err := <-done: // in the last moment
		return err
	default:
	}
	left = true
	g.gone(began)
	return errSpool{g.dir, began}
}

// close closes a file of the spool that was written to: some file systems send the rest of
// it then.
func (g *spoolGate) close(f *os.File) {
	if g.dead() != nil {
		go f.Close() // ends when the spool answers
		return
	}
	_ = g.do(f.Close, nil) // of an errSpool the gate tells; others have no remedy
}

// gone notes a call that nobody waits for any more.
func (g *spoolGate) gone(began time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stuck = append(g.stuck, began)
	if g.freed == nil {
		g.freed = make(chan struct{})
		go g.tell(errSpool{g.dir, began}, g.freed) // ends when the spool answers
	}
}

// back notes that such a call has ended.
func (g *spoolGate) back(began time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stuck = slices.DeleteFunc(g.stuck, began.Equal)
	if len(g.stuck) == 0 && g.freed != nil {
		close(g.freed)
		g.freed = nil
	}
}

// tell says in the log that the spool does not answer, and when it does again.
func (g *spoolGate) tell(e errSpool, freed <-chan struct{}) {
	again := time.NewTicker(spoolTold)
	defer again.Stop()
	for {
		g.log.Errorf("%v; steps that run go on, and others are refused: bring it back, or put the spool on a local file system", e)
		select {
		case <-freed:
			g.log.Warnf("the spool %q has answered after %v", e.dir, time.Since(e.since).Round(time.Second))
			return
		case <-again.C:
		}
	}
}

// errLeft ends a transaction whose caller has gone before it began.
var errLeft = errors.New("nobody waits for it any more")

// transact stores what f changes. Where f has not begun when its caller goes, it never
// does; where it has, nobody waits for it, and late is called when it is stored after all.
// So f and late have what they read for themselves, and what f writes to is the caller's
// only where there is no error. nil is nothing to do late.
func (s *store) transact(f func(*bbolt.Tx) error, late func()) error {
	if s.gate == nil {
		return s.commit(f)
	}
	var taken atomic.Bool // by f, or by the caller who has gone
	err := s.gate.do(func() error {
		return s.commit(func(tx *bbolt.Tx) error {
			if !taken.CompareAndSwap(false, true) {
				return errLeft
			}
			return f(tx)
		})
	}, late)
	if errors.As(err, new(errSpool)) {
		taken.CompareAndSwap(false, true) // f may hang in a page that does not come
	}
	return err
}

// commit is db.Update of f, and notes whether what f has changed could be stored.
func (s *store) commit(f func(*bbolt.Tx) error) error {
	do := s.db.Update
	if slow := s.slow.Load(); slow != nil {
		do = *slow
	}
	var refused error // by f itself
	err := do(func(tx *bbolt.Tx) error {
		refused = f(tx)
		return refused
	})
	if refused == nil {
		s.unwritten.Lock()
		s.unwritten.err = err
		s.unwritten.Unlock()
	}
	return err
}

// unwritable says why nothing can be stored, nil is that it can. Where the last commit has
// failed it tries one that changes nothing, since a node that is not ready may be asked for
// nothing else; it waits no longer than ctx lasts.
func (s *store) unwritable(ctx context.Context) error {
	s.unwritten.Lock()
	last := s.unwritten.err
	s.unwritten.Unlock()
	if last == nil {
		return nil
	}
	done := make(chan error, 1)
	go func() { // ends with the gate's patience
		done <- s.update(func(*bbolt.Tx) error { return nil })
	}()
	select {
	case last = <-done:
	case <-ctx.Done():
	}
	if last != nil {
		return fmt.Errorf("cannot store the state %q: %w", s.db.Path(), last)
	}
	return nil
}

func (s *store) update(f func(*bbolt.Tx) error) error { return s.transact(f, nil) }

// updateOr is update of what a request has asked for that is refused where the spool does
// not answer: it must not come true later, and then undo takes it back; nil is that it may.
func (s *store) updateOr(undo, f func(*bbolt.Tx) error) error {
	if undo == nil {
		return s.update(f)
	}
	return s.transact(f, func() {
		if err := s.commit(undo); err != nil {
			s.gate.log.Errorf("cannot take back what the spool has stored too late: %v", err)
		}
	})
}

// view reads. That asks no file system as long as the pages are in memory, and so it is no
// call for the gate, which costs more than most reads do. Where they are not, or a commit
// makes the mapping larger (beyond mapSize alone), it waits for as long as the disk does.
func (s *store) view(f func(*bbolt.Tx) error) error {
	if s.gate != nil {
		if err := s.gate.dead(); err != nil {
			return err
		}
	}
	return s.db.View(f)
}

// localFS are the file systems that need no server.
var localFS = []int64{
	unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.F2FS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
	0x2fc12fc1, // zfs
}

// isLocal tells whether dir is on a file system that needs no server, as far as is known.
func isLocal(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && slices.Contains(localFS, int64(st.Type))
}

const (
	// mapSize is how much of a state is mapped at once, in bytes. While a larger mapping is
	// made nobody can read; of this one, only what is read takes memory.
	mapSize = 256 << 20
	// growSize is by how much the file of a state grows, in bytes; it is less than mapSize,
	// or the file would be as large as that.
	growSize = 1 << 20
)

// mapping are the flags of mmap(2) for a state in dir, and whether it is to be kept in
// memory. A page that its server does not give holds a thread that the whole process waits
// for.
func mapping(dir string) (flags int, lock bool) {
	if isLocal(dir) {
		return 0, false
	}
	return syscall.MAP_POPULATE, true
}
