// Package terminal is the terminal of stepctl's user: its size and colours, the lines that
// stepctl writes to it, the line that is shown while the user waits, and, in Screen, the
// terminal of a step in the user's own. It knows neither noded nor the options of a verb.
package terminal

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool {
	return linux.OnFD(f, func(fd int) error {
		_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	}) == nil
}

// ScreenSize is the size of the terminal that f is; else the width is
// $COLUMNS. 0 is not known.
func ScreenSize(f *os.File) (columns, rows int) {
	err := linux.OnFD(f, func(fd int) error {
		ws, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err == nil {
			columns, rows = int(ws.Col), int(ws.Row)
		}
		return err
	})
	if err == nil {
		return columns, rows
	}
	n, err := strconv.Atoi(os.Getenv("COLUMNS"))
	if err != nil || n < 0 {
		return 0, 0
	}
	return min(n, 1000), 0
}

// Colours reports whether what is written to f may be coloured: only a terminal, and
// not where NO_COLOR says no (no-color.org).
func Colours(f *os.File) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && IsTerminal(f)
}
