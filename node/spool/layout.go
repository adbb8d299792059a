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
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/internal/linux"
	"stepd/step"
)

// Layout names the files of one noded.
type Layout struct {
	// Run is emptied by a boot, Dir is the spool, which belongs to one noded; both are absolute.
	Run, Dir string
}

func (l Layout) StepsDir() string             { return filepath.Join(l.Run, "steps") }
func (l Layout) SocketName(id step.ID) string { return id.String() + ".sock" }
func (l Layout) PMIxDir() string              { return filepath.Join(l.Run, "pmix") }
func (l Layout) Socket() string               { return filepath.Join(l.Run, "noded.sock") }
func (l Layout) Published() string            { return filepath.Join(l.Run, api.PublishedName) }
func (l Layout) ResultsDir() string           { return filepath.Join(l.Dir, "results") }
func (l Layout) Result(id step.ID) string     { return filepath.Join(l.ResultsDir(), id.String()) }
func (l Layout) OutputDir() string            { return filepath.Join(l.Dir, "output") }
func (l Layout) Output(id step.ID) string     { return filepath.Join(l.OutputDir(), id.String()) }
func (l Layout) ScriptsDir() string           { return filepath.Join(l.Dir, "scripts") }
func (l Layout) Script(job uint32) string     { return filepath.Join(l.ScriptsDir(), fmt.Sprint(job)) }
func (l Layout) EventsDir() string            { return filepath.Join(l.Dir, "events") }
func (l Layout) Events(id step.ID) string     { return filepath.Join(l.EventsDir(), id.String()+".jsonl") }

// Make creates the directories. Users pass through RUN to their steps'
// sockets, and through the spool to their batch scripts; of the rest of the
// spool nothing is theirs to see.
func (l Layout) Make() error {
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		{l.Run, 0o755}, {l.StepsDir(), 0o755},
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
