package main

import (
	"os"

	"stepd/api/stepapi"
)

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
