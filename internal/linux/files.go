package linux

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// OpenBeneath opens name in the directory dir, or below it: no link on the way or at
// its end is followed, and nothing leads out of dir (openat2(2), RESOLVE_BENEATH and
// RESOLVE_NO_SYMLINKS), whatever is put there meanwhile. Links on the way to
// dir are the site's own. flags and mode are open(2)'s; the file is close-on-exec.
// The error is an *os.PathError: os.ErrNotExist, ELOOP of a link, EXDEV of a name that
// leads out. Linux 5.6.
func OpenBeneath(dir, name string, flags int, mode uint32) (*os.File, error) {
	path := filepath.Join(dir, name)
	d, err := Uninterrupted(func() (int, error) { return unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(d)
	return openAt(d, name, path, flags, mode)
}

// OpenIn is OpenBeneath for a directory that is open: dir's path is used for messages alone.
func OpenIn(dir *os.File, name string, flags int, mode uint32) (f *os.File, err error) {
	ferr := OnFD(dir, func(fd int) error {
		f, err = openAt(fd, name, filepath.Join(dir.Name(), name), flags, mode)
		return nil
	})
	return f, errors.Join(ferr, err)
}

// beneathTries is how often a name is looked up that moves meanwhile: EAGAIN says so.
const beneathTries = 64

func openAt(d int, name, path string, flags int, mode uint32) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	fd, err := -1, error(unix.EAGAIN)
	for try := 0; errors.Is(err, unix.EAGAIN) && try < beneathTries; try++ {
		fd, err = Uninterrupted(func() (int, error) { return unix.Openat2(d, name, &how) })
	}
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// OnFD calls f with the descriptor of a file or a connection, which stays open meanwhile. os.File.Fd
// would make it blocking, for all that share it and for the runtime's poller. The
// error is f's, or os.ErrClosed.
func OnFD(file syscall.Conn, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := raw.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

// WriteFile writes value, by one write(2), to the file name in the directory dir, or
// in the current one with unix.AT_FDCWD; no symlink is followed. The file must be
// there: it is one of the kernel's. Errors name it as path, and the value, and wrap
// the errno.
func WriteFile(dir int, name, path, value string) error {
	fd, err := Uninterrupted(func() (int, error) { return unix.Openat(dir, name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) })
	if err != nil {
		return fmt.Errorf("cannot open %q: %w", path, err)
	}
	defer unix.Close(fd)
	err = IgnoringEINTR(func() error {
		_, err := unix.Write(fd, []byte(value))
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot write %q to %q: %w", value, path, err)
	}
	return nil
}

// WriteWhole makes the file path what write writes, for its owner alone (mode 0600),
// whole or not at all: the old file stays until all is written. With sync it is on
// the disk when WriteWhole returns, but for its name. It is not for folders that
// others may write to, though a link that waits there leads nowhere. The error is
// write's, or names the path and wraps the errno.
func WriteWhole(path string, sync bool, write func(io.Writer) error) (err error) {
	tmp := path + ".tmp"
	f, err := OpenBeneath(filepath.Dir(tmp), filepath.Base(tmp), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write %q: %w", path, err)
	}
	defer func() {
		if err != nil {
			os.Remove(tmp) // it is of no use
		}
	}()
	if err = write(f); err == nil && sync {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	return err
}

// PeerCred returns the process at the other end of a unix socket, by its credentials at the
// time of connect(2).
func PeerCred(c syscall.Conn) (cred *unix.Ucred, err error) {
	err = OnFD(c, func(fd int) error {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	return cred, err
}
