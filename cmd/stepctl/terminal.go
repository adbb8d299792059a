package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// isTerminal tells whether a file is a terminal.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// screenSize is the size of the terminal that f is; else the width is that of
// $COLUMNS. 0 is not known.
func screenSize(f *os.File) (columns, rows int) {
	if ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
		return int(ws.Col), int(ws.Row)
	}
	n, err := strconv.Atoi(os.Getenv("COLUMNS"))
	if err != nil || n < 0 {
		return 0, 0
	}
	return min(n, 1000), 0
}

// colours tells whether what is written to f may be coloured: only a terminal, and
// not where NO_COLOR says no (no-color.org).
func colours(f *os.File) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(f)
}
