package spawn

import (
	"context"
	"fmt"

	"stepd/step"
	"stepd/step/launch"
)

// child is one spawned step, as far as its step daemons have reported. Services.mu guards all of
// it but launched.
type child struct {
	number uint32 // ours
	seq    uint32 // srun's, 0 before srun has said it
	rank   int    // that has spawned it
	ntasks int
	id     step.ID // zero before the first report

	launched chan error // gets one value when the tasks run, or will not
	told     bool       // it has it
	given    string     // why its end is no news, "" where it is
	ending   string     // why it was asked to end, "" if not
	nodes    map[string]*nodeReports
	failed   map[int]string
	cause    string // of the last one of them
}

// nodeReports are what one node of a child has reported.
type nodeReports struct {
	ranks int
	ended bool
}

// tell reports the result of the start to the spawning rank, once.
func (c *child) tell(err error) {
	if !c.told {
		c.told = true
		c.launched <- err
	}
}

// count counts the ranks on nodes that have reported, or whose tasks have ended.
func (c *child) count(ended bool) (n int) {
	for _, node := range c.nodes {
		if node.ended || !ended {
			n += node.ranks
		}
	}
	return n
}

// spawned takes the report of a step daemon of a child.
func (s *Services) spawned(m Report) {
	if m.Step.Job != s.Spec.ID.Job || m.Ranks < 1 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.children[m.Spawn]
	if c == nil || c.id != (step.ID{}) && c.id != m.Step {
		if !m.Ended {
			s.cancelOn(m.Node, m.Step, "the step that was to spawn it, "+s.Spec.ID.Name()+", does not know it")
		}
		return
	}
	c.id = m.Step
	node := c.nodes[m.Node]
	if node == nil {
		node = &nodeReports{ranks: m.Ranks}
		c.nodes[m.Node] = node
		if c.ending != "" && !m.Ended {
			s.cancelOn(m.Node, m.Step, c.ending)
		}
	}
	node.ended = node.ended || m.Ended
	for _, f := range m.Failed {
		if c.failed == nil {
			c.failed = make(map[int]string)
		}
		c.failed[f.Rank], c.cause = f.Cause, f.Cause
	}
	switch {
	case m.Bad:
		s.endedBadly(c, m)
	case c.count(false) < c.ntasks:
	case len(c.failed) == 0:
		c.tell(nil)
	case !c.told:
		c.tell(&launch.SpawnError{ID: c.id, Failed: c.failed, Cause: c.cause})
		s.cancelLocked(c, "not all of its tasks could be started")
	}
	if c.count(true) >= c.ntasks {
		delete(s.children, c.number)
	}
}

// endedBadly acts on an end of a child that is not its tasks' own. It takes this step with it:
// their ranks are connected, and would wait for each other. The caller holds mu.
func (s *Services) endedBadly(c *child, m Report) {
	if !c.told {
		c.tell(&launch.SpawnError{ID: c.id, Failed: c.failed, Cause: m.Reason})
		s.cancelLocked(c, "it has ended on node "+m.Node)
	}
	if c.given != "" {
		return
	}
	c.given = m.Reason
	rank, code, text := c.rank, max(m.Code, 1), fmt.Sprintf("step %s, which it has spawned, has ended: %s", c.id, m.Reason)
	s.running.Go(func() { s.Abort(rank, code, text) })
}

// giveUp ends a child that no rank waits for.
func (s *Services) giveUp(c *child, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.told = true
	s.cancelLocked(c, reason)
}

// endWithStep ends all children when this step is ended, not when it ends by itself.
func (s *Services) endWithStep() {
	select {
	case <-s.ctx.Done():
		return
	case <-s.Ending():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.children {
		s.cancelLocked(c, "the step that has spawned it, "+s.Spec.ID.Name()+", has been ended")
	}
}

// cancelLocked asks all of a child's nodes to end it; those that report later are asked then. The
// caller holds mu.
func (s *Services) cancelLocked(c *child, reason string) {
	if c.given == "" {
		c.given = reason
	}
	if c.ending != "" {
		return
	}
	c.ending = reason
	for name, node := range c.nodes {
		if !node.ended {
			s.cancelOn(name, c.id, reason)
		}
	}
}

// cancelOn asks the step daemon of a child on one node to end it.
func (s *Services) cancelOn(node string, id step.ID, reason string) {
	s.running.Go(func() {
		ctx, stop := context.WithTimeout(context.Background(), reportPatience)
		defer stop()
		record, err := encode(commandCancel, &cancel{reason})
		if err == nil {
			err = s.Forward(ctx, node, id, record)
		}
		if err != nil {
			s.Log(fmt.Sprintf("cannot end step %s on node %q, it may have ended: %v", id, node, err))
		}
	})
}
