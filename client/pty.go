package client

import (
	"os"

	"stepd/api/stepapi"
	"stepd/client/terminal"
)

// watchSeq is the number of the one Watch of a connection.
const watchSeq = 1<<32 - 1

// askToWatch asks for the output; it comes with the answer.
func askToWatch(conn *stepapi.Conn, w *stepapi.Watch) error {
	return conn.Send(&stepapi.Msg{Type: stepapi.TypeWatch, Seq: watchSeq, Watch: w})
}

// showTerminal begins to show the step's terminal in the client's own.
func (l *launch) showTerminal(conn *stepapi.Conn, fd int) {
	if err := l.screen.Begin(os.NewFile(uintptr(fd), "the step's terminal"), false); err != nil {
		l.screen.Leave(terminal.Leaving{Code: 1, Words: err.Error() + ": detached"})
	}
	go l.screen.Guarded(func() { // ends with the client's part, or with the process
		<-l.screen.Left
		conn.Close()
	})
}

// endScreen shows what is left of the step's terminal, and says where that was cut short;
// whole is whether the step's end was received. left: the user has detached, and the step
// goes on.
func (l *launch) endScreen(whole bool) (left bool) {
	if l.screen == nil {
		return false
	}
	l.screen.End(drainLimit)
	if _, left := l.screen.LeftBy(); left {
		return true
	}
	if whole && l.screen.Conn != nil && l.screen.Cut() {
		terminal.SayCut()
	}
	return false
}

// detached ends a run whose client has left the step.
func (l *launch) detached() (code int, left bool) {
	if l.screen == nil {
		return 0, false
	}
	why, left := l.screen.LeftBy()
	if left && why.Words != "" {
		terminal.Say("%s; step %s goes on: `stepctl attach %s` takes it up again", why.Words, l.id.Name(), l.id.Name())
	}
	return why.Code, left
}
