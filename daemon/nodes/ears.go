package nodes

import (
	"encoding/json"
	"fmt"

	"stepd/api/stepapi"
	"stepd/step"
	"stepd/stepnet"
	"stepd/task"
)

// ears hear the other nodes and the launcher for the step.
type ears struct {
	t      *Tree
	st     *task.Step
	joined chan struct{} // closed when the tree has its node
}

var _ stepnet.Handler = (*ears)(nil)

func (e *ears) LauncherReady() { e.st.AttachDone() }
func (e *ears) LauncherLost() {
	<-e.joined
	e.t.hangUp()
	e.st.LauncherLost()
}

// NodeLost: the tree tells all nodes itself, which the step does not know.
func (e *ears) NodeLost(err *stepnet.LostError) {
	<-e.joined
	if err.Node == 0 {
		e.t.hangUp() // the launcher is heard by way of it
	}
	e.st.NodeLost(err.Node, fmt.Errorf("its stepd: %s", err.Cause))
}

func (e *ears) Told(from int, words []byte) {
	<-e.joined
	var end step.NodeEnd
	if err := json.Unmarshal(words, &end); err != nil {
		e.t.log(fmt.Sprintf("cannot parse what node %d has told: %v", from, err))
		return
	}
	e.t.Hurry()
	e.st.EndedBy(end)
}

// Ordered does what the launcher asks of the tasks on all nodes. It is the step's
// owner, by its key.
func (e *ears) Ordered(words []byte) {
	<-e.joined
	m := new(stepapi.Msg)
	err := json.Unmarshal(words, m)
	if err == nil {
		switch m.Type {
		case stepapi.TypeSignal:
			if state := e.st.Record().State; state == step.Completing || state.Final() {
				return // its tasks here have ended: others may not have
			}
			err = e.st.Signal(m.Signal, m.Scope)
		case stepapi.TypeCancel:
			if err = stepapi.CheckReason(m.Reason); err == nil {
				err = e.st.Cancel(m.Reason)
			}
		case stepapi.TypeUnread:
			if m.FD != 1 && m.FD != 2 {
				err = fmt.Errorf("no task writes to stream %d", m.FD)
				break
			}
			e.t.CloseOutput(m.FD)
		default:
			err = fmt.Errorf("unknown record type %.40q", m.Type)
		}
	}
	if err != nil {
		// Dropped where the launcher orders and does not listen.
		e.t.TellLine(encode(&stepapi.Msg{Type: stepapi.TypeReply, Seq: m.Seq, Error: err.Error()}))
	}
}
