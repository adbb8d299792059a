package stepapi

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
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

// CancelledBy is the reason of a step that a user has cancelled. The daemon that took the
// request writes it: by is the uid of its peer, from the kernel. note is the client's own
// words, "" for none: they are quoted, so that no note reads as another user's signature.
func CancelledBy(by uint32, note string) string {
	text := fmt.Sprintf("cancelled by uid %d", by)
	if note != "" {
		text += ": " + strconv.Quote(note)
	}
	return text
}

// reasonMax bounds the reason of a cancel: it goes into the record, the log and
// other people's terminals.
const reasonMax = 256

// CheckReason refuses the reason of a cancel that does not fit on one line.
func CheckReason(reason string) error {
	if len(reason) > reasonMax || strings.ContainsFunc(reason, unicode.IsControl) || !utf8.ValidString(reason) {
		return fmt.Errorf("cannot take the reason %.32q: want at most %d bytes on one line", reason, reasonMax)
	}
	return nil
}
