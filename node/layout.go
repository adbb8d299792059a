package node

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

// layout names the files of one noded.
type layout struct{ run, spool string }

func (l layout) stepsDir() string             { return filepath.Join(l.run, "steps") }
func (l layout) socketName(id step.ID) string { return id.String() + ".sock" }
func (l layout) pmixDir() string              { return filepath.Join(l.run, "pmix") }
func (l layout) socket() string               { return filepath.Join(l.run, "noded.sock") }
func (l layout) published() string            { return filepath.Join(l.run, api.PublishedName) }
func (l layout) resultsDir() string           { return filepath.Join(l.spool, "results") }
func (l layout) result(id step.ID) string     { return filepath.Join(l.resultsDir(), id.String()) }
func (l layout) outputDir() string            { return filepath.Join(l.spool, "output") }
func (l layout) output(id step.ID) string     { return filepath.Join(l.outputDir(), id.String()) }
func (l layout) scriptsDir() string           { return filepath.Join(l.spool, "scripts") }
func (l layout) script(job uint32) string     { return filepath.Join(l.scriptsDir(), fmt.Sprint(job)) }
func (l layout) eventsDir() string            { return filepath.Join(l.spool, "events") }
func (l layout) events(id step.ID) string     { return filepath.Join(l.eventsDir(), id.String()+".jsonl") }

// make creates the directories. Users pass through RUN to their steps'
// sockets, and through the spool to their batch scripts; of the rest of the
// spool nothing is theirs to see.
func (l layout) make() error {
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		{l.run, 0o755}, {l.stepsDir(), 0o755},
		{l.spool, 0o711}, {l.resultsDir(), 0o700}, {l.eventsDir(), 0o700}, {l.outputDir(), 0o700}, {l.scriptsDir(), 0o711},
	} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return fmt.Errorf("cannot create directory: %w", err)
		}
		if err := checkOurs(d.path); err != nil {
			return err
		}
	}
	if l.run == l.spool {
		return nil
	}
	// An earlier noded's spool was closed to users.
	if err := os.Chmod(l.spool, 0o711); err != nil {
		return fmt.Errorf("cannot let users reach their scripts: %w", err)
	}
	return nil
}

// spoolFile is a file that is read, of a spool that may not answer.
type spoolFile struct {
	spool *spool
	file  *os.File
}

func (f *spoolFile) Close() error { return f.file.Close() }

func (f *spoolFile) Read(b []byte) (int, error) {
	buf := make([]byte, len(b)) // b is not ours any more when its owner has gone
	var got int
	err := f.spool.do(func() (err error) {
		got, err = f.file.Read(buf)
		return err
	})
	if errors.As(err, new(errSpool)) {
		return 0, err
	}
	return copy(b, buf[:got]), err
}

// size is how many bytes the file has.
func (f *spoolFile) size() (n int64, err error) {
	var fi os.FileInfo // not the caller's who has gone
	err = f.spool.do(func() (err error) {
		fi, err = f.file.Stat()
		return err
	})
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

// openFile opens a file to be read, of a spool that may not answer.
func (n *Node) openFile(path string) (*spoolFile, error) {
	var f *os.File // not the caller's who has gone
	err := n.spool.do(func() (err error) {
		f, err = n.files.open(path, os.O_RDONLY)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &spoolFile{n.spool, f}, nil
}

// open opens a file of the spool, for root alone, and follows no link there: no
// other user can make one while the directories are root's, but no caller relies on that.
func (l layout) open(path string, flags int) (*os.File, error) {
	name, err := filepath.Rel(l.spool, path)
	if err != nil {
		return nil, fmt.Errorf("internal error: %q is not in the spool: %w", path, err)
	}
	return linux.OpenBeneath(l.spool, name, flags, 0o600)
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

// errLocked is wrapped by lockDir's error when another process has the lock.
var errLocked = errors.New("in use")

// A noded that is killed between fork and exec of a stepd leaves its lock to the child,
// until that execs: lockWait is how long the next noded tries, every lockPause. Nothing
// reports the lock's release but a try.
const (
	lockWait  = time.Second
	lockPause = 5 * time.Millisecond
)

// lockDir takes the lock of dir for the life of the file that it returns. The
// holder's pid is in the file, for the message of who comes second.
func lockDir(dir string) (*os.File, error) {
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
		return nil, fmt.Errorf("cannot use directory %q: %w by %s", dir, errLocked, holder)
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
