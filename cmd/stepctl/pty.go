package main

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"stepd/api/stepapi"
	"stepd/step"
)

// setTerminal asks for a terminal where --pty was given. As with srun the option is
// disregarded where the client has none itself.
func (o *runOptions) setTerminal(r *step.Request) {
	if !o.pty {
		return
	}
	if !isTerminal(os.Stdin) {
		say("error: standard input is no terminal: --pty is disregarded")
		o.pty = false
		return
	}
	r.Terminal = terminalOf(os.Stdin, os.Stdout)
	r.Stdin, r.Stdout, r.Stderr = nullStream, nullStream, nullStream
	r.Env = append(r.Env,
		fmt.Sprintf("SLURM_PTY_WIN_COL=%d", r.Terminal.Cols),
		fmt.Sprintf("SLURM_PTY_WIN_ROW=%d", r.Terminal.Rows))
}

// takesTerminal tells whether --pty was given and is not disregarded.
func takesTerminal(f *pflag.FlagSet) bool { return wasGiven(f, "pty") && isTerminal(os.Stdin) }

// watchSeq is the number of the one Watch of a connection.
const watchSeq = 1<<32 - 1

// askToWatch asks for the output; it comes with the answer.
func askToWatch(conn *stepapi.Conn, w *stepapi.Watch) error {
	return conn.Send(&stepapi.Msg{Type: stepapi.TypeWatch, Seq: watchSeq, Watch: w})
}

// showTerminal begins to show the step's terminal in the client's own.
func (l *launch) showTerminal(conn *stepapi.Conn, fd int) {
	if err := l.screen.begin(os.NewFile(uintptr(fd), "the step's terminal"), false); err != nil {
		l.screen.leave(leaving{code: 1, words: err.Error() + ": detached"})
	}
	go l.screen.guarded(func() { // ends with the client's part, or with the process
		<-l.screen.left
		conn.Close()
	})
}

// endScreen shows what is left of the step's terminal, and says where that was cut short;
// whole is whether the step's end was heard of. left: the user has detached, and the step
// goes on.
func (l *launch) endScreen(whole bool) (left bool) {
	if l.screen == nil {
		return false
	}
	l.screen.end(drainLimit)
	if _, left := l.screen.leftBy(); left {
		return true
	}
	if whole && l.screen.conn != nil && l.screen.cut() {
		sayCut()
	}
	return false
}

// detached ends a run whose client has left the step.
func (l *launch) detached() (code int, left bool) {
	if l.screen == nil {
		return 0, false
	}
	why, left := l.screen.leftBy()
	if left && why.words != "" {
		say("%s; step %s goes on: `stepctl attach %s` takes it up again", why.words, l.id.Name(), l.id.Name())
	}
	return why.code, left
}
