package socket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/slurm/wire"
)

const (
	// requestMax is how long a client may take for one request, and the wait for it.
	requestMax = 10 * time.Second
	// runningMax is how long a signal waits for the tasks, as in Slurm.
	runningMax = 120 * time.Second
)

// oldest is the oldest release whose commands Slurm serves: two before its own, and three
// since 24.11.
func oldest(v wire.Release) wire.Release {
	if v >= wire.V2411 {
		return v - 3<<8
	}
	return v - 2<<8
}

// serve answers one client's requests, in their order, until it goes.
func (s *Server) serve(c *net.UnixConn, uid uint32) {
	defer s.gone(c)
	if !s.patient(c) {
		return
	}
	var hello [4]byte
	if _, err := io.ReadFull(c, hello[:]); err != nil {
		return
	}
	version := int32(binary.NativeEndian.Uint32(hello[:]))
	if version < int32(oldest(s.conf.Release)) {
		s.note(fmt.Sprintf("version %d", version), fmt.Sprintf("user %d has connected with protocol %#06x of Slurm: too old for %s", uid, version, s.conf.Release))
		reply(c, int32(-1))
		return
	}
	if reply(c, int32(s.conf.Release)) != nil {
		return
	}
	for s.patient(c) {
		q, err := readRequest(s.conf.Release, c)
		switch {
		case errors.Is(err, errUnknown):
			s.note(fmt.Sprintf("request %d", q.code), fmt.Sprintf("user %d has sent request %d, which is none of %s: closed the connection", uid, q.code, s.conf.Release))
			return
		case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, unix.ECONNRESET):
			s.note(fmt.Sprintf("bad %d", q.code), fmt.Sprintf("user %d has sent request %d that cannot be read: %v", uid, q.code, err))
			return
		case err != nil:
			return
		}
		if !s.answer(c, uid, q) {
			return
		}
	}
}

// patient gives the client the time for a request. It reports whether the socket is still
// served.
func (s *Server) patient(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed() && c.SetReadDeadline(time.Now().Add(s.patience)) == nil
}

// reply sends values as the machine has them.
func reply(c *net.UnixConn, values ...any) error {
	var b []byte
	var err error
	for _, v := range values {
		if raw, ok := v.([]byte); ok {
			b = append(b, raw...)
		} else if b, err = binary.Append(b, binary.NativeEndian, v); err != nil {
			return fmt.Errorf("internal error: cannot send %T: %w", v, err)
		}
	}
	c.SetWriteDeadline(time.Now().Add(requestMax)) // one that does not read its answers
	_, err = c.Write(b)
	return err
}

// answer answers one request. It reports whether the connection may be asked on.
func (s *Server) answer(c *net.UnixConn, uid uint32, q request) bool {
	var err error
	switch q.code {
	case reqState:
		err = reply(c, s.handler.State().number(s.conf.Release))
	case reqDaemonPID:
		err = reply(c, int32(os.Getpid()))
	case reqUID:
		err = reply(c, s.conf.Owner)
	case reqNodeID:
		err = reply(c, s.conf.NodeID)
	case reqSLUID:
		err = reply(c, s.conf.SLUID)
	case reqMemLimits:
		if s.conf.Release >= wire.V2605 { // the job's is slurmctld's to know
			err = reply(c, s.conf.StepMemoryMB)
		} else {
			err = reply(c, s.conf.JobMemoryMB, s.conf.StepMemoryMB)
		}
	case reqHasPID:
		err = reply(c, slices.Contains(s.handler.PIDs(), int(q.pid)))
	case reqPIDs:
		err = reply(c, s.pids())
	case reqTaskInfo:
		err = reply(c, s.tasks())
	case reqStat:
		return s.owns(uid) && reply(c, s.usage()) == nil
	case reqSignal, reqTerminate, reqSuspend, reqResume, reqReconfigure, reqCompletion:
		rc, errno := result(s.act(uid, q))
		err = reply(c, rc, errno)
	case reqPasswd:
		err = reply(c, s.passwd(c, q))
	case reqGroup:
		err = reply(c, s.groups(c, q))
	case reqHost:
		err = reply(c, s.host(c, q))
	case reqX11:
		err = reply(c, s.display(uid))
	case reqNamespace, reqNamespaces:
		err = s.namespace(c, uid, q.code)
	case reqAddPID:
		rc, _ := result(s.act(uid, q))
		err = reply(c, rc)
	case reqNotify:
		_, errno := result(s.act(uid, q))
		err = reply(c, errno)
	case reqAttach:
		err = s.attach(c, uid, q.attach)
	}
	return err == nil
}

// result is how an error travels: 0, 0 without one.
func result(err error) (rc, errno int32) {
	if err == nil {
		return 0, 0
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return -1, int32(errno)
	}
	return -1, int32(unix.EINVAL)
}

// namespace is the answer to reqNamespace, the number of a descriptor and the descriptor, and to
// reqNamespaces, of which each has its kind in the place of the number (measured: 24.11, 26.05).
// A descriptor comes with a byte that says nothing. Root alone enters a namespace, and to a user
// who kept it open the job's mounts would stay: others are told that there is none.
func (s *Server) namespace(c *net.UnixConn, uid uint32, q code) error {
	if s.conf.Namespace == nil || !s.trusts(uid) {
		return reply(c, int32(0))
	}
	return linux.OnFD(s.conf.Namespace, func(fd int) error { // the step's end closes it meanwhile
		head := nativeInts(int32(fd))
		if q == reqNamespaces {
			head = nativeInts(1, unix.CLONE_NEWNS)
		}
		if err := reply(c, head); err != nil {
			return err
		}
		_, _, err := c.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil)
		return err
	})
}

// pids is the answer to reqPIDs.
func (s *Server) pids() []byte {
	pids := s.handler.PIDs()
	b := binary.NativeEndian.AppendUint32(nil, uint32(len(pids)))
	for _, pid := range pids {
		b = binary.NativeEndian.AppendUint32(b, uint32(pid))
	}
	return b
}

// tasks is the answer to reqTaskInfo.
func (s *Server) tasks() []byte {
	list := s.handler.Tasks()
	b := binary.NativeEndian.AppendUint32(nil, uint32(len(list)))
	for _, t := range list {
		ended, status := byte(0), int32(-1)
		if t.Status != nil {
			ended, status = 1, int32(*t.Status)
		}
		b = binary.NativeEndian.AppendUint32(b, t.LocalID)
		b = binary.NativeEndian.AppendUint32(b, t.Rank)
		b = binary.NativeEndian.AppendUint32(b, uint32(t.PID))
		b = append(b, ended)
		b = binary.NativeEndian.AppendUint32(b, uint32(status))
	}
	return b
}

// usage is the answer to reqStat.
func (s *Server) usage() []byte {
	var b []byte
	packed, tasks := s.handler.Usage()
	if packed != nil {
		b = binary.NativeEndian.AppendUint32(b, uint32(len(packed)))
		b = append(b, packed...)
	}
	return binary.NativeEndian.AppendUint32(b, uint32(tasks))
}

// deny notes that a user may not do something, and returns the error.
func (s *Server) deny(uid uint32, q code) error {
	s.note(fmt.Sprintf("denied %d", uid), fmt.Sprintf("user %d may not send request %d to a step of user %d", uid, q, s.conf.Owner))
	return unix.EPERM
}

// act does what a user has asked for, if that user may.
func (s *Server) act(uid uint32, q request) error {
	may := s.owns(uid)
	switch q.code {
	case reqSuspend, reqResume, reqReconfigure, reqAddPID, reqCompletion:
		may = s.trusts(uid)
	}
	if !may {
		return s.deny(uid, q.code)
	}
	switch q.code {
	case reqSignal:
		return s.signal(q)
	case reqTerminate:
		s.handler.Terminate()
		return nil
	case reqSuspend:
		return s.handler.Suspend(uid)
	case reqResume:
		return s.handler.Resume(uid)
	case reqReconfigure:
		return s.handler.Reopen()
	case reqAddPID:
		return s.adopt(int(q.pid))
	case reqCompletion:
		return s.handler.Ended(q.ended)
	default:
		s.handler.Say(q.text)
		return nil
	}
}

// adopt takes a session into the extern step.
func (s *Server) adopt(pid int) error {
	if s.conf.Extern == nil {
		return errNotSupported
	}
	err := s.conf.Extern.Adopt(pid)
	if err != nil {
		s.note("adopt "+err.Error(), err.Error())
	}
	return err
}

// display is the answer to reqX11. The job's display is none of another user's.
func (s *Server) display(uid uint32) []byte {
	if s.conf.Extern == nil || !s.owns(uid) {
		return nativeInts(0, 0)
	}
	number, authority := s.conf.Extern.Display()
	if authority == "" {
		return nativeInts(number, 0)
	}
	return appendTexts(nativeInts(number), authority+"\x00")
}
