package node

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// A file system whose server is gone holds each caller for ever. The state has its own
// deadline (package store); the spool's other files, which are event logs, kept output, batch
// scripts and results, are asked through spool.

// spoolPatience is how long an answer of the spool may take, where the site does not say
// (SpoolTimeout).
const spoolPatience = 20 * time.Second

// errSpool is that the spool does not answer.
type errSpool struct {
	dir   string
	since time.Time
}

func (e errSpool) Error() string {
	return fmt.Sprintf("the spool %q has not answered for %v: its file system waits for a server or a disk", e.dir, time.Since(e.since).Round(time.Second))
}

// spool is the directory of a node's files.
type spool struct {
	dir string
	log *logrus.Logger

	mu       sync.Mutex
	patience time.Duration       // guarded by mu: 0 is for ever, as while noded starts
	calls    map[*spoolCall]bool // guarded by mu: the calls that have not ended
	told     *spoolCall          // guarded by mu: the call of which the log says that it hangs
}

// spoolCall is one call of do.
type spoolCall struct{ began time.Time }

func newSpool(dir string, log *logrus.Logger) *spool {
	return &spool{dir: dir, log: log, calls: make(map[*spoolCall]bool)}
}

// setPatience sets how long the calls that come now are waited for.
func (s *spool) setPatience(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patience = d
}

// silence returns an errSpool as long as a call has not been answered in time.
func (s *spool) silence() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silenceLocked()
}

func (s *spool) silenceLocked() error {
	oldest := time.Now()
	for c := range s.calls {
		if c.began.Before(oldest) {
			oldest = c.began
		}
	}
	if s.patience == 0 || time.Since(oldest) < s.patience {
		return nil
	}
	return errSpool{s.dir, oldest}
}

// do calls f, and waits for it as long as its patience is. After an errSpool f may go on: so
// it writes to nothing of its caller's that is read after an error.
func (s *spool) do(f func() error) error {
	s.mu.Lock()
	patience, err := s.patience, s.silenceLocked()
	c := &spoolCall{time.Now()}
	if err == nil {
		s.calls[c] = true
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if patience == 0 {
		defer s.end(c)
		return f()
	}
	done := make(chan error, 1)
	go func() { // ends with f
		err := f()
		s.end(c)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		return s.leave(c)
	}
}

// leave gives a call up.
func (s *spool) leave(c *spoolCall) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errSpool{s.dir, c.began}
	if s.told == nil && s.calls[c] {
		s.told = c
		s.log.Errorf("%v; steps that run go on, and others are refused: bring it back, or put the spool on a local file system", err)
	}
	return err
}

// end notes that a call has ended.
func (s *spool) end(c *spoolCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, c)
	if s.told == c {
		s.told = nil
		s.log.Warnf("the spool %q has answered after %v", s.dir, time.Since(c.began).Round(time.Second))
	}
}

// close closes a file of the spool that was written to: some file systems send the rest of
// it then.
func (s *spool) close(f *os.File) {
	if s.silence() != nil {
		go f.Close() // ends when the spool answers
		return
	}
	_ = s.do(f.Close) // the log has an errSpool; others have no remedy
}
