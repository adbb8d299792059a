package stepapi

import (
	"errors"
	"fmt"
)

var errNotRoot = errors.New("permission denied: only root speaks for noded")

// serve does what one record asks; an error is the answer to it.
func (s *Server) serve(p *peer, m *Msg, fds []int, root bool) error {
	if m.Type != TypeAttach {
		closeAll(fds)
	}
	switch m.Type {
	case TypeHello:
		if m.Version != Version {
			return fmt.Errorf("cannot speak version %d of the step protocol: this stepd speaks %d", m.Version, Version)
		}
		if m.Role == RoleNoded && !root {
			return errNotRoot
		}
		s.greet(p, m.Role)
		return nil
	case TypeAttach:
		if len(fds) != len(m.Streams) {
			closeAll(fds)
			return fmt.Errorf("cannot attach %d streams with %d descriptors", len(m.Streams), len(fds))
		}
		return s.handler.Attach(m.Streams, fds)
	case TypeAttachDone:
		s.handler.AttachDone()
		return nil
	case TypeAck:
		p.took.Store(true)
		p.once.Do(func() { close(p.acked) })
		return nil
	case TypeAnswer:
		s.asks.answered(p, m)
		return nil
	case TypeLauncherLost:
		if !root {
			return errNotRoot
		}
		s.handler.LauncherLost()
		return nil
	case TypeSignal:
		return s.answer(p, m.Seq, s.handler.Signal(m.Signal, m.Scope))
	case TypeCancel:
		reason, err := s.cancelReason(m, root)
		if err != nil {
			return err
		}
		return s.answer(p, m.Seq, s.handler.Cancel(reason))
	case TypeStat:
		rec := s.handler.Stat()
		s.send(p, &Msg{Type: TypeReply, Seq: m.Seq, State: rec.State, Record: &rec})
		return nil
	case TypeWatch:
		return s.watch(p, m)
	case TypeSuspend:
		return s.answer(p, m.Seq, s.handler.Suspend(s.asker(m, root)))
	case TypeResume:
		return s.answer(p, m.Seq, s.handler.Resume(s.asker(m, root)))
	default:
		return fmt.Errorf("unknown record type %q", m.Type)
	}
}

// watch answers with a connection on which the step's output is seen.
func (s *Server) watch(p *peer, m *Msg) error {
	if m.Watch == nil {
		return errors.New("cannot watch: the record does not say how")
	}
	s.mu.Lock()
	launcher := p.role == RoleLaunch
	s.mu.Unlock()
	watched, fd, err := s.handler.Watch(m.Watch, launcher)
	if err != nil {
		return err
	}
	s.sendFDs(p, &Msg{Type: TypeReply, Seq: m.Seq, Watched: watched}, fd)
	return nil
}

// asker is the uid for whom a record speaks: root may speak for others, and
// every other connected peer is the owner.
func (s *Server) asker(m *Msg, root bool) uint32 {
	switch {
	case !root:
		return s.owner
	case m.By != nil:
		return *m.By
	}
	return 0
}

// cancelReason is why a record cancels the step: a daemon's own words, else the peer's
// signature and its note.
func (s *Server) cancelReason(m *Msg, root bool) (string, error) {
	by := s.owner
	switch {
	case m.Text != "" && root:
		return m.Text, nil
	case m.Text != "":
		return "", errNotRoot
	case root:
		by = 0
	}
	return CancelledBy(by, m.Reason), CheckReason(m.Reason)
}

func (s *Server) answer(p *peer, seq uint32, err error) error {
	if err != nil {
		return err
	}
	s.send(p, &Msg{Type: TypeReply, Seq: seq})
	return nil
}
