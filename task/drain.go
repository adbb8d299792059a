package task

import (
	"time"

	"stepd/step"
)

// heldLimit is how long a stream may stay open when no process of the step is left.
const heldLimit = 5 * time.Second

// drainStreams ends the streams that stepd passes on: the step is over when the last
// byte of its tasks is where it is to go.
func (s *Step) drainStreams() error {
	limit := heldLimit
	if s.given() {
		limit = 0 // those that do not die hold them, and were told of
	}
	held := s.d.Streams.Drain(limit)
	if s.given() {
		return nil
	}
	for i, h := range held {
		text := h.String()
		s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventHeldOpen, PID: h.PID, Text: text})
		if i < heldTold {
			s.mu.Lock()
			s.rec.HeldOpen = append(s.rec.HeldOpen, text)
			s.mu.Unlock()
			s.sayError(text + ", which is no process of the step: it was waited for in vain")
		}
	}
	return nil
}

// heldTold is how many held streams are told to the user; and in the record; the event log has all.
const heldTold = 10

// drainOutput ends what others see of the output, when all of it has passed.
func (s *Step) drainOutput() {
	switch {
	case s.d.Output == nil:
	case s.d.Output.Used():
		s.endStage("output", func() error { s.d.Output.Drain(); return nil })
	default:
		s.d.Output.Drain() // nobody may begin to watch any more
	}
}
