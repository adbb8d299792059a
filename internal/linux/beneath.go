package linux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

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
	var d int
	err := IgnoringEINTR(func() (err error) {
		d, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
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
	var fd int
	err := unix.EAGAIN
	for try := 0; err == unix.EAGAIN && try < beneathTries; try++ {
		ferr := IgnoringEINTR(func() (err error) {
			fd, err = unix.Openat2(d, name, &how)
			return err
		})
		if ferr == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		errno, ok := ferr.(unix.Errno)
		if !ok {
			return nil, fmt.Errorf("cannot open %q: %w", path, ferr)
		}
		err = errno
	}
	return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
}
