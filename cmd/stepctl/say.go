package main

import (
	"fmt"
	"os"
	"sync/atomic"
)

// exitError ends the program with a code and no words: they were said.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// say writes one line of stepctl's own to stderr.
func say(format string, args ...any) { sayLine("stepctl: " + fmt.Sprintf(format, args...)) }

// rawLines is set while the terminal is raw: a line needs its carriage returns then.
var rawLines atomic.Bool

// sayLine writes one line to stderr.
func sayLine(line string) {
	waiting.clear()
	if rawLines.Load() {
		line = "\r" + line + "\r"
	}
	fmt.Fprintln(os.Stderr, line)
}
