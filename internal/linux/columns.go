package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// Columns is the width of the terminal that f is, 0 where it is none or its width is not known.
func Columns(f *os.File) (n int) {
	_ = OnFD(f, func(fd int) error { // it is 0 with an error
		size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err == nil {
			n = int(size.Col)
		}
		return err
	})
	return n
}
