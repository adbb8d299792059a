package spool

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// Patience is how long an answer of the spool may take, where the site does not say
// (SpoolTimeout).
const Patience = 20 * time.Second

// SilentError is that the spool does not answer.
type SilentError struct {
	dir   string
	since time.Time
}

func (e SilentError) Error() string {
	return fmt.Sprintf("the spool %q has not answered for %v: its file system waits for a server or a disk", e.dir, time.Since(e.since).Round(time.Second))
}

// Spool is the directories of a node, with the files of steps in them. Make it with New;
// methods may be called from several goroutines.
type Spool struct {
	Layout
	log *logrus.Logger

	mu       sync.Mutex
	patience time.Duration  // guarded by mu: 0 is for ever, as while noded starts
	calls    map[*call]bool // guarded by mu: the calls that have not ended
	told     *call          // guarded by mu: the call of which the log says that it hangs
}

// call is one call of Do.
type call struct{ began time.Time }

// New returns the spool of a layout. It waits for ever for an answer, until SetPatience.
func New(l Layout, log *logrus.Logger) *Spool {
	return &Spool{Layout: l, log: log, calls: make(map[*call]bool)}
}

// SetPatience sets how long the calls that come now are waited for.
func (s *Spool) SetPatience(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patience = d
}

// Silence returns a SilentError as long as a call has not been answered in time.
func (s *Spool) Silence() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silenceLocked()
}

func (s *Spool) silenceLocked() error {
	oldest := time.Now()
	for c := range s.calls {
		if c.began.Before(oldest) {
			oldest = c.began
		}
	}
	if s.patience == 0 || time.Since(oldest) < s.patience {
		return nil
	}
	return SilentError{s.Dir, oldest}
}

// Do calls f, and waits for it as long as its patience is. After a SilentError f may go on: so
// it writes to nothing of its caller's that is read after an error.
func (s *Spool) Do(f func() error) error {
	s.mu.Lock()
	patience, err := s.patience, s.silenceLocked()
	c := &call{time.Now()}
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

// get is Do of a call with a result. After a SilentError that is still written to, and not read.
func get[T any](s *Spool, f func() (T, error)) (T, error) {
	var result, none T
	err := s.Do(func() (err error) {
		result, err = f()
		return err
	})
	if err != nil {
		return none, err
	}
	return result, nil
}

// leave gives a call up.
func (s *Spool) leave(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := SilentError{s.Dir, c.began}
	if s.told == nil && s.calls[c] {
		s.told = c
		s.log.Errorf("%v; steps that run go on, and others are refused: bring it back, or put the spool on a local file system", err)
	}
	return err
}

// end notes that a call has ended.
func (s *Spool) end(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, c)
	if s.told == c {
		s.told = nil
		s.log.Warnf("the spool %q has answered after %v", s.Dir, time.Since(c.began).Round(time.Second))
	}
}

// CloseFile closes a file of the spool that was written to: some file systems send the rest of
// it then.
func (s *Spool) CloseFile(f *os.File) {
	if s.Silence() != nil {
		go f.Close() // ends when the spool answers
		return
	}
	_ = s.Do(f.Close) // the log has a SilentError; others have no remedy
}
