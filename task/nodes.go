package task

import "stepd/step"

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
	s.end(cause{kind: byOther, node: &e, code: e.Code, reason: e.String()})
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
	if s.end(cause{kind: byOther, node: &e, reason: e.String()}) {
		s.sayError(e.String())
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

// toldAs is the word for a cause that the other nodes are told.
var toldAs = map[endKind]step.EndCause{
	byRequest: step.EndCancel, byBadExit: step.EndBadExit, byAbort: step.EndAbort, byMemory: step.EndMemory,
	byTime: step.EndTime, byHost: step.EndCancel, byFailure: step.EndFailure,
}

// tellNodes tells the other nodes that the step ends, unless they know.
func (s *Step) tellNodes(c *cause) {
	switch {
	case s.d.Network == nil:
	case c.node == nil:
		e := step.NodeEnd{
			Node: int(s.plan.Spec.NodeID), Name: s.plan.Spec.NodeName,
			Why: toldAs[c.kind], Rank: c.rank, Reason: c.reason,
		}
		if c.kind == byAbort {
			e.Code = c.code
		}
		s.d.Network.EndStep(e)
	case c.node.Why == step.EndLost:
		s.d.Network.EndStep(*c.node)
	}
}
