// Package spool is the directories and files of one noded: their names, who may reach them, their
// locks, and what they have of each step, which is an event log, a result that its stepd has left,
// and its kept output. The state beside them is package state's.
//
// A file system whose server is gone holds each caller for ever. The state has its own deadline
// (package store); the spool's other files are asked through Spool.Do, which waits no longer than
// the spool's patience.
//
// Begin with Layout, and New.
package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/internal/linux"
	"stepd/step"
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

// Layout names the files of one noded.
type Layout struct {
	// Run is emptied by a boot, Dir is the spool, which belongs to one noded; both are absolute.
	Run, Dir string
	// Slurmd is where slurmd's spool would be, "" where no file says it.
	Slurmd string
}

func (l Layout) StepsDir() string             { return filepath.Join(l.Run, "steps") }
func (l Layout) SocketName(id step.ID) string { return id.Key() + ".sock" }
func (l Layout) StacksDir() string            { return filepath.Join(l.Run, "stacks") }
func (l Layout) Stack(digest string) string   { return filepath.Join(l.StacksDir(), digest) }
func (l Layout) PMIxDir() string              { return filepath.Join(l.Run, "pmix") }
func (l Layout) Socket() string               { return filepath.Join(l.Run, "noded.sock") }
func (l Layout) Published() string            { return filepath.Join(l.Run, api.PublishedName) }
func (l Layout) ResultsDir() string           { return filepath.Join(l.Dir, "results") }
func (l Layout) Result(id step.ID) string     { return filepath.Join(l.ResultsDir(), id.Key()) }
func (l Layout) OutputDir() string            { return filepath.Join(l.Dir, "output") }
func (l Layout) Output(id step.ID) string     { return filepath.Join(l.OutputDir(), id.Key()) }
func (l Layout) ScriptsDir() string           { return filepath.Join(l.Dir, "scripts") }
func (l Layout) Script(job uint32) string     { return filepath.Join(l.jobDir(job), "slurm_script") }
func (l Layout) EventsDir() string            { return filepath.Join(l.Dir, "events") }
func (l Layout) Events(id step.ID) string     { return filepath.Join(l.EventsDir(), id.Key()+".jsonl") }

// jobDir is the directory of a job's batch script. Its name, and the script's, are as in slurmd's
// spool: what begins a job's name is looked for there by the site's scripts.
func (l Layout) jobDir(job uint32) string { return filepath.Join(l.ScriptsDir(), jobName(job)) }

func jobName(job uint32) string { return fmt.Sprintf("job%05d", job) }

// Make creates the directories. Users pass through RUN to their steps'
// sockets, and through the spool to their batch scripts; of the rest of the
// spool nothing is theirs to see.
func (l Layout) Make() error {
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		{l.Run, 0o755}, {l.StepsDir(), 0o755}, {l.StacksDir(), 0o755},
		{l.Dir, 0o711}, {l.ResultsDir(), 0o700}, {l.EventsDir(), 0o700}, {l.OutputDir(), 0o700}, {l.ScriptsDir(), 0o711},
	} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return fmt.Errorf("cannot create directory: %w", err)
		}
		if err := checkOurs(d.path); err != nil {
			return err
		}
	}
	if l.Run == l.Dir {
		return nil
	}
	// An earlier noded's spool was closed to users.
	if err := os.Chmod(l.Dir, 0o711); err != nil {
		return fmt.Errorf("cannot let users reach their scripts: %w", err)
	}
	return nil
}

// Jobs returns the jobs whose steps have files here, with the number behind their highest step.
// What cannot be read has none.
func (l Layout) Jobs() map[uint32]uint32 {
	jobs := make(map[uint32]uint32)
	for dir, suffix := range map[string]string{l.EventsDir(): ".jsonl", l.ResultsDir(): "", l.OutputDir(): "", l.StepsDir(): ".sock"} {
		f, err := os.Open(dir)
		if err != nil {
			continue
		}
		names, _ := f.Readdirnames(-1) // up to an error
		f.Close()
		for _, name := range names {
			stem, ok := strings.CutSuffix(name, suffix)
			id, err := step.ParseID(stem)
			if !ok || err != nil || id.Job >= step.JobsEnd {
				continue
			}
			next := jobs[id.Job]
			if id.Step < step.StepsEnd {
				next = max(next, id.Step+1)
			}
			jobs[id.Job] = next
		}
	}
	return jobs
}

// open opens a file of the spool, for root alone, and follows no link there: no
// other user can make one while the directories are root's, but no caller relies on that.
func (l Layout) open(path string, flags int) (*os.File, error) {
	name, err := filepath.Rel(l.Dir, path)
	if err != nil {
		return nil, fmt.Errorf("internal error: %q is not in the spool: %w", path, err)
	}
	return linux.OpenBeneath(l.Dir, name, flags, 0o600)
}

// checkOurs refuses a directory that another user could put files into: root
// opens, renames and removes by name in it.
func checkOurs(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("cannot use directory %q: %w", dir, err)
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("cannot use directory %[1]q: it belongs to uid %[2]d, not to %[3]d: chown %[3]d %[1]s", dir, st.Uid, os.Geteuid())
	}
	if st.Mode&0o022 != 0 {
		return fmt.Errorf("cannot use directory %[1]q: others may write there (mode %#[2]o): chmod go-w %[1]s", dir, st.Mode&0o7777)
	}
	return nil
}

// ErrLocked is wrapped by Lock's error when another process has the lock.
var ErrLocked = errors.New("in use")

// A noded that is killed between fork and exec of a stepd leaves its lock to the child,
// until that execs: lockWait is how long the next noded tries, every lockPause. Nothing
// reports the lock's release but a try.
const (
	lockWait  = time.Second
	lockPause = 5 * time.Millisecond
)

// Lock takes the lock of dir for the life of the file that it returns. The
// holder's pid is in the file, for the message of who comes second.
func Lock(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := linux.OpenBeneath(dir, "lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open lock file: %w", err)
	}
	for tried := time.Now(); ; time.Sleep(lockPause) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Since(tried) > lockWait {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		defer f.Close()
		buf := make([]byte, 20)
		n, _ := f.Read(buf) // an unreadable pid only makes the message poorer
		holder := "another process"
		if n > 0 {
			holder = fmt.Sprintf("noded (pid %s)", buf[:n])
		}
		return nil, fmt.Errorf("cannot use directory %q: %w by %s", dir, ErrLocked, holder)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot lock %q: %w", path, err)
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(fmt.Sprint(os.Getpid())), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot write lock file %q: %w", path, err)
	}
	return f, nil
}

// Trouble is something that an administrator should mend, and how.
type Trouble struct{ Text, Remedy string }

const (
	// roomMin is the room of a file system below which a spool cannot be worked with:
	// the state of a step is some kilobytes, its event log up to megabytes.
	roomMin = 16 << 20
	// inodesMin is how many files must still go there.
	inodesMin = 100
)

// Room looks at the file system that dir is in: whether it answers, may be
// written to, and has room. dir is called what in the texts.
type Room struct {
	What, Dir string

	mu    sync.Mutex
	asked chan struct{} // guarded by mu: closed when the question that is under way is answered; nil is none
	st    unix.Statfs_t // guarded by mu: the last answer
	err   error         // guarded by mu
}

// Look asks, no longer than ctx lasts. A file system whose server is gone answers
// never: one question at a time waits for it, however often Look is called.
func (d *Room) Look(ctx context.Context) []Trouble {
	d.mu.Lock()
	asked := d.asked
	if asked == nil {
		asked = make(chan struct{})
		d.asked = asked
		go d.ask(asked) // ends with the answer
	}
	d.mu.Unlock()
	select {
	case <-asked:
	case <-ctx.Done():
		return []Trouble{{
			fmt.Sprintf("the %s %q does not answer: its file system waits for a server or a disk", d.What, d.Dir),
			"bring the server back, or put the directory on a local file system",
		}}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return roomTroubles(d.What, d.Dir, &d.st, d.err)
}

func (d *Room) ask(asked chan struct{}) {
	var st unix.Statfs_t
	err := unix.Statfs(d.Dir, &st)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.st, d.err, d.asked = st, err, nil
	close(asked)
}

func roomTroubles(what, dir string, st *unix.Statfs_t, err error) (found []Trouble) {
	if err != nil {
		return []Trouble{{fmt.Sprintf("cannot ask the file system of the %s %q: %v", what, dir, err), "make the directory, owned by root, or write another one"}}
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		found = append(found, Trouble{fmt.Sprintf("the %s %q is on a file system that is mounted read-only", what, dir), "mount -o remount,rw, or look in dmesg why the kernel has made it so"})
	}
	if room := st.Bavail * uint64(st.Bsize); room < roomMin {
		found = append(found, Trouble{fmt.Sprintf("the file system of the %s %q has %d bytes left", what, dir, room), fmt.Sprintf("make room: less than %d MiB is too little", roomMin>>20)})
	}
	if st.Files > 0 && st.Ffree < inodesMin {
		found = append(found, Trouble{fmt.Sprintf("the file system of the %s %q has room for %d more files", what, dir, st.Ffree), "remove files, or make it with more inodes"})
	}
	return found
}
