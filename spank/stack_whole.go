package spank

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// look is a path that the stack was read from, and what it was then.
type look struct {
	path string
	info os.FileInfo // nil: there was none
	glob *globbed    // of a pattern
}

// changed names a path that is no longer what it was when it was read, or "".
func (r *stackReader) changed() string {
	for _, l := range r.looked {
		if l.glob != nil {
			now, err := globFiles(l.path)
			if err != nil || !slices.Equal(now.files, l.glob.files) {
				return l.path
			}
			continue
		}
		now, err := os.Stat(l.path)
		switch {
		case errors.Is(err, os.ErrNotExist) && l.info == nil:
		case err != nil || l.info == nil || !sameContent(now, l.info):
			return l.path
		}
	}
	return ""
}

// sameContent reports whether a file is still the same one, and unchanged. ctime
// is the kernel's alone: mtime can be set back.
func sameContent(a, b os.FileInfo) bool {
	x, okX := a.Sys().(*syscall.Stat_t)
	y, okY := b.Sys().(*syscall.Stat_t)
	return okX && okY && x.Dev == y.Dev && x.Ino == y.Ino && x.Size == y.Size && x.Mtim == y.Mtim && x.Ctim == y.Ctim
}

// errWriter says that a process has the file open for writing.
var errWriter = errors.New("it is open for writing")

// readWhole reads a file that no process is writing, or waits until no process is.
func readWhole(file string, deadline time.Time) (string, os.FileInfo, error) {
	text, info, err := readStackFile(file)
	if !errors.Is(err, errWriter) {
		return text, info, err
	}
	events, err := linux.NewInotify()
	if err != nil {
		return "", nil, fmt.Errorf("cannot wait for the writer of %q: %w", file, err)
	}
	defer events.Close()
	until, grace := deadline, time.Millisecond
	for {
		// Another file may have taken the name, and each has its own watch.
		if err := events.Watch(file, unix.IN_CLOSE_WRITE|unix.IN_ATTRIB|unix.IN_MOVE_SELF|unix.IN_DELETE_SELF); err != nil {
			return "", nil, err
		}
		// After the watch: a close before it is not reported any more.
		text, info, err := readStackFile(file)
		if !errors.Is(err, errWriter) {
			return text, info, err
		}
		if !time.Now().Before(deadline) {
			return "", nil, fmt.Errorf("cannot read %q: %w, and was for %v; let the writer end, or write a new file and rename it into place",
				file, errWriter, stackPatience)
		}
		switch err := events.Wait(until); {
		case err == nil:
			grace = time.Millisecond
		case errors.Is(err, os.ErrDeadlineExceeded):
			grace *= 2
		default:
			return "", nil, err
		}
		// The kernel reports the close just before it counts the writer out
		// (__fput), and nothing afterwards.
		if until = time.Now().Add(grace); until.After(deadline) {
			until = deadline
		}
	}
}

// readStackFile reads a regular file, or /dev/null, as it is while no
// process writes it, else it returns errWriter. O_NONBLOCK keeps a FIFO in its place
// from holding the step.
func readStackFile(file string) (string, os.FileInfo, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, unix.EAGAIN) { // another's write lease, which is now being broken
		return "", nil, errWriter
	}
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	leased, err := lease(f)
	if err != nil {
		return "", nil, err
	}
	if leased {
		// Now, not when the last descriptor is closed: a child that is being
		// forked has one for a moment.
		defer unlease(f)
	}
	info, err := f.Stat()
	if err != nil {
		return "", nil, err
	}
	if !info.Mode().IsRegular() && file != os.DevNull {
		return "", nil, fmt.Errorf("open %s: not a regular file", file)
	}
	if !leased {
		return readStill(f, info)
	}
	text, err := readBounded(f)
	return text, info, err
}

// lease takes a read lease (fcntl(2), F_SETLEASE): the kernel grants it only
// while no process has the file open for writing, or mapped so, and holds a
// process that opens it for writing until we release the lease, which is some
// microseconds later. The SIGIO that it sends us then is one that Go programs ignore. A
// user does not get the lease on another's file, and in some file systems.
func lease(f *os.File) (leased bool, err error) {
	err = control(f, func(fd uintptr) error {
		_, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_RDLCK)
		if err != unix.EAGAIN {
			return err
		}
		// NFS and SMB say so too where their server has not lent us the file.
		var fs unix.Statfs_t
		if unix.Fstatfs(int(fd), &fs) == nil {
			switch uint32(fs.Type) {
			case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC:
				return unix.EOPNOTSUPP
			}
		}
		return errWriter
	})
	if errors.Is(err, errWriter) {
		return false, errWriter
	}
	return err == nil, nil
}

// unlease gives the lease back. It cannot fail for a lease that is held.
func unlease(f *os.File) {
	_ = control(f, func(fd uintptr) error {
		_, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_UNLCK)
		return err
	})
}

// control calls do with the descriptor, which stays open meanwhile.
func control(f *os.File, do func(fd uintptr) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := conn.Control(func(fd uintptr) { failed = do(fd) }); err != nil {
		return err
	}
	return failed
}

// rereadsMax bounds how often a file without a lease is read: who changes it
// more often than that is not waiting for us.
const rereadsMax = 100

// readStill reads the file until it was the same before and after.
func readStill(f *os.File, before os.FileInfo) (string, os.FileInfo, error) {
	for range rereadsMax {
		text, err := readBounded(f)
		if err != nil {
			return "", nil, err
		}
		after, err := f.Stat()
		if err != nil {
			return "", nil, err
		}
		if sameContent(before, after) {
			return text, after, nil
		}
		before = after
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return "", nil, err
		}
	}
	return "", nil, fmt.Errorf("cannot read %q: it changes all the time; write a new file and rename it into place", f.Name())
}

func readBounded(f *os.File) (string, error) {
	data, err := io.ReadAll(io.LimitReader(f, stackFileMax+1))
	if err != nil {
		return "", err
	}
	if len(data) > stackFileMax {
		return "", fmt.Errorf("read %s: more than %d bytes", f.Name(), stackFileMax)
	}
	return string(data), nil
}
