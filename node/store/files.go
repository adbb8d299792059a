package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// folder is the directory of a journal; tests have one that fails, hangs, or loses power.
type folder interface {
	// open takes open(2)'s flags; the file is its owner's alone.
	open(name string, flags int) (file, error)
	rename(from, to string) error
	// sync brings the names to the disk.
	sync() error
	close() error
}

// file is a file of a folder. Sync brings its contents to the disk.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	Sync() error
	// stat returns the size, and whether the file has a name yet.
	stat() (size int64, named bool, err error)
}

type diskFolder struct{ f *os.File }

// openFolder opens a directory: what is done in it stays there, whatever becomes of its path.
func openFolder(path string) (folder, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return diskFolder{f}, nil
}

func (d diskFolder) open(name string, flags int) (file, error) {
	f, err := linux.OpenIn(d.f, name, flags, 0o600)
	if err != nil {
		return nil, err
	}
	return diskFile{f}, nil
}

func (d diskFolder) rename(from, to string) error {
	return linux.OnFD(d.f, func(fd int) error {
		return linux.IgnoringEINTR(func() error { return unix.Renameat(fd, from, fd, to) })
	})
}

func (d diskFolder) sync() error  { return d.f.Sync() }
func (d diskFolder) close() error { return d.f.Close() }

type diskFile struct{ *os.File }

// Sync is fdatasync(2), which brings a size that has grown to the disk as well.
func (f diskFile) Sync() error {
	return linux.OnFD(f.File, func(fd int) error {
		return linux.IgnoringEINTR(func() error { return unix.Fdatasync(fd) })
	})
}

func (f diskFile) stat() (size int64, named bool, err error) {
	var st unix.Stat_t
	err = linux.OnFD(f.File, func(fd int) error { return unix.Fstat(fd, &st) })
	return st.Size, st.Nlink > 0, err
}

// remedies are what to do about the errors of a disk.
var remedies = map[syscall.Errno]string{
	unix.ENOSPC: "make room on its file system",
	unix.EDQUOT: "raise the quota of its file system",
	unix.EROFS:  "its file system is mounted read-only",
	unix.EIO:    "its disk or file system is failing",
}

// ioError says that op failed on path, and what to do.
func ioError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok { // without the path that os puts before it
		err = errno
		if remedy := remedies[errno]; remedy != "" {
			return fmt.Errorf("cannot %s %q: %w: %s", op, path, err, remedy)
		}
	}
	return fmt.Errorf("cannot %s %q: %w", op, path, err)
}
