package terminal

import (
	"fmt"
	"os"
	"sync/atomic"
)

// ExitError ends the program with a code and no words: they were said.
type ExitError int

func (e ExitError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// Exit is the error that ends the program with a code where err is nil: nil where that is 0.
func Exit(code int, err error) error {
	if err == nil && code != 0 {
		return ExitError(code)
	}
	return err
}

// Say writes one line of stepctl's own to stderr.
func Say(format string, args ...any) { SayLine("stepctl: " + fmt.Sprintf(format, args...)) }

// rawLines is set while the terminal is raw: a line needs its carriage returns then.
var rawLines atomic.Bool

// SayLine writes one line to stderr.
func SayLine(line string) {
	Waiting.Clear()
	if rawLines.Load() {
		line = "\r" + line + "\r"
	}
	fmt.Fprintln(os.Stderr, line)
}
