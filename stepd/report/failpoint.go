//go:build failpoint

package report

import (
	"bytes"
	"os"
	"strings"
)

// failpoint is where a step stops, so that a test can kill something right there: after
// the first line of the event log that has the text of STEPD_STOP in the job's
// environment, until a line comes by the FIFO STEPD_STOP_FIFO. What else stepd does goes
// on. Only tests build it.
type failpoint struct {
	text, fifo string
	passed     bool
}

func newFailpoint(env []string) failpoint {
	var f failpoint
	for _, v := range env {
		if text, ok := strings.CutPrefix(v, "STEPD_STOP="); ok {
			f.text = text
		}
		if fifo, ok := strings.CutPrefix(v, "STEPD_STOP_FIFO="); ok {
			f.fifo = fifo
		}
	}
	return f
}

// at reports whether to stop after that line. The caller holds the lock of the log.
func (f *failpoint) at(line []byte) bool {
	if f.passed || f.text == "" || !bytes.Contains(line, []byte(f.text)) {
		return false
	}
	f.passed = true
	return true
}

// wait returns when it may go on, and where the FIFO cannot be read.
func (f *failpoint) wait() {
	fifo, err := os.Open(f.fifo)
	if err != nil {
		return
	}
	defer fifo.Close()
	_, _ = fifo.Read(make([]byte, 1)) // an error lets it go on as well
}
