package linux

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// WriteFile writes value, by one write(2), to the file name in the directory dir, or
// in the current one with unix.AT_FDCWD; no symlink is followed. The file must be
// there: it is one of the kernel's. Errors name it as path, and the value, and wrap
// the errno.
func WriteFile(dir int, name, path, value string) error {
	var fd int
	err := IgnoringEINTR(func() (err error) {
		fd, err = unix.Openat(dir, name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
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
