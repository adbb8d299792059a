package task

import (
	"fmt"

	"stepd/step"
)

// A step of several nodes ends on all of them when one of them says so: what
// happens here is told to the others, once, and what they tell ends it here as a
// cancel does.

// EndedBy hears that another node has ended the step: SIGTERM to all of its
// processes here, after KillWait SIGKILL. The record says which node it was. It
// may be called from any goroutine, and does not wait.
func (s *Step) EndedBy(e step.NodeEnd) {
	if e.Code != 0 {
		e.Code = abortCode(e.Code)
	}
	s.ctlMu.Lock()
	s.toldNodes = true // they know
	if s.byNode == nil {
		s.byNode = &e
	}
	s.ctlMu.Unlock()
	s.end(byOther, e.String())
}

// NodeLost ends the step on all nodes that are left: the stepd of one of them is
// not to be reached any more, before it has said that it has done its part. It
// may be called from any goroutine, and does not wait.
//
// With --no-kill a step that runs goes on, and its record names the node; one that is
// being launched would be without that node's tasks, and ends.
func (s *Step) NodeLost(node int, why error) {
	e := step.NodeEnd{Node: node, Name: s.nodeName(node), Why: step.EndLost, Reason: why.Error()}
	if s.plan.Spec.NoKill && s.goOnWithout(e) {
		return
	}
	s.ctlMu.Lock()
	if s.byNode == nil {
		s.byNode = &e
	}
	s.ctlMu.Unlock()
	if s.end(byOther, e.String()) {
		s.sayError(e.String())
		s.tellNodes(e)
	}
}

// goOnWithout notes a node that is lost; it is false where the tasks here do not run yet.
func (s *Step) goOnWithout(e step.NodeEnd) bool {
	s.mu.Lock()
	runs := s.rec.State != step.Pending && s.rec.State != step.Starting
	if runs {
		s.rec.LostNodes = append(s.rec.LostNodes, step.LostNode{Node: e.Name, Reason: e.Reason})
	}
	s.mu.Unlock()
	if !runs {
		return false
	}
	text := e.String() + "; the step goes on without it (--no-kill)"
	s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventNodeLost, Text: text})
	if s.plan.Spec.NodeID == 0 { // which all others hear it from
		s.sayError(text)
	} else {
		s.d.Audience.Log(step.LogError, text)
	}
	return true
}

func (s *Step) nodeName(node int) string {
	if l := s.plan.Spec.Layout; l != nil && node >= 0 && node < len(l.Nodes) {
		return l.Nodes[node].Name
	}
	return s.plan.Spec.NodeName
}

// tellNodes tells the other nodes that the step ends, unless they know.
func (s *Step) tellNodes(e step.NodeEnd) {
	s.ctlMu.Lock()
	told := s.toldNodes
	s.toldNodes = true
	s.ctlMu.Unlock()
	if told || s.d.Network == nil {
		return
	}
	if e.Name == "" {
		e.Node, e.Name = int(s.plan.Spec.NodeID), s.plan.Spec.NodeName
	}
	s.d.Network.EndStep(e)
}

// endBadly is --kill-on-bad-exit: a task has failed, on this node.
func (s *Step) endBadly(rank int, status step.ExitStatus) {
	reason := fmt.Sprintf("task %d: %s, and --kill-on-bad-exit was given", rank, status.Describe())
	// With nothing left to end here, the others are to hear of it all the same.
	if s.alive == 0 || s.end(byBadExit, reason) {
		s.tellNodes(step.NodeEnd{Why: step.EndBadExit, Rank: &rank, Reason: reason})
	}
}

// tellFailure tells the others that the step could not be launched here, or that
// its plugins' host has died: it would be without this node's tasks.
func (s *Step) tellFailure(err error) {
	if err == nil || isGivenUp(err) {
		return
	}
	s.tellNodes(step.NodeEnd{Why: step.EndFailure, Reason: err.Error()})
}

// endedByOther is the node that has ended the step, nil where none has: the first
// cause counts.
func (s *Step) endedByOther() *step.NodeEnd {
	s.ctlMu.Lock()
	defer s.ctlMu.Unlock()
	if s.cause != byOther {
		return nil
	}
	return s.byNode
}

// abortCode is the exit code that an abort's code makes: one that is no success.
func abortCode(code int) int { return max(1, code&0xff) }
