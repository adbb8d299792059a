package spank

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/wire"
	"stepd/step"
	"stepd/step/launch"
)

// reply is one packet from the host's control channel.
type reply struct {
	kind uint32
	body reader
	fds  []int
}

// send writes one command with its descriptors.
func (h *Host) send(cmd uint32, body []byte, fds ...int) error {
	b := binary.LittleEndian.AppendUint32(nil, cmd)
	b = append(b, body...)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := h.control.WriteMsgUnix(b, oob, nil); err != nil {
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			return launch.ErrHostGone
		}
		return fmt.Errorf("cannot send command %d to spankhost: %w", cmd, err)
	}
	return nil
}

// recv reads one packet; its descriptors are the caller's, its bytes are valid
// until the next call.
func (h *Host) recv() (reply, error) {
	if h.buf == nil {
		h.buf, h.oob = make([]byte, hostPacketMax), make([]byte, unix.CmsgSpace(hostFDsMax*4))
	}
	n, oobn, flags, _, err := h.control.ReadMsgUnix(h.buf, h.oob)
	if n == 0 || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) { // the last by Kill
		return reply{}, launch.ErrHostGone
	}
	if err != nil {
		return reply{}, fmt.Errorf("cannot read from spankhost: %w", err)
	}
	r := reply{body: reader{Reader: wire.Reader{B: h.buf[:n]}}}
	r.kind = r.body.U32()
	if oobn > 0 {
		cmsgs, err := unix.ParseSocketControlMessage(h.oob[:oobn])
		if err != nil {
			return reply{}, fmt.Errorf("cannot read descriptors from spankhost: %w", err)
		}
		for i := range cmsgs {
			if fds, err := unix.ParseUnixRights(&cmsgs[i]); err == nil {
				r.fds = append(r.fds, fds...)
			}
		}
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || r.body.Err != nil {
		r.close()
		return reply{}, fmt.Errorf("internal error: reply of spankhost is cut")
	}
	return r, nil
}

func (r *reply) close() {
	for _, fd := range r.fds {
		unix.Close(fd)
	}
	r.fds = nil
}

// do sends a command and reads replies until its REP_DONE; each sees the others.
func (h *Host) do(cmd uint32, body []byte, fds []int, each func(*reply) error) error {
	if err := h.send(cmd, body, fds...); err != nil {
		return err
	}
	for {
		r, err := h.recv()
		if err != nil {
			return err
		}
		if r.kind == repDone {
			return h.done(cmd, &r)
		}
		if each == nil {
			r.close()
			return fmt.Errorf("internal error: spankhost answered command %d by record %d", cmd, r.kind)
		}
		if err := each(&r); err != nil {
			r.close()
			return err
		}
	}
}

// done turns a REP_DONE into nil, a *launch.HookError or a plain error.
func (h *Host) done(cmd uint32, r *reply) error {
	defer r.close()
	got, rc, errno := r.body.U32(), r.body.i32(), r.body.i32()
	plugin, hook, task, what := r.body.U32(), r.body.U32(), r.body.U32(), r.body.str()
	if r.body.Err != nil || got != cmd {
		return fmt.Errorf("internal error: spankhost answered command %d for %d: %v", got, cmd, r.body.Err)
	}
	if rc == 0 {
		return nil
	}
	if what != "" {
		if errno != 0 {
			return fmt.Errorf("%s: %w", what, syscall.Errno(errno))
		}
		return errors.New(what)
	}
	e := &launch.HookError{Plugin: h.PluginName(int(plugin)), Hook: hookName(hook), Required: h.Required(int(plugin)), RC: new(int(rc))}
	if task != noRank {
		e.Rank = h.rankOf(int(task))
	}
	return e
}

// sendFDs puts descriptors into the host's table, after those sent before.
// They stay open here.
func (h *Host) sendFDs(fds []int) error {
	if h.nfds+len(fds) > hostFDTable {
		return fmt.Errorf("cannot hand %d descriptors to spankhost: the limit is %d", h.nfds+len(fds), hostFDTable)
	}
	for len(fds) > 0 {
		n := min(len(fds), hostFDsMax)
		if err := h.do(cmdFDs, nil, fds[:n], nil); err != nil {
			return err
		}
		h.nfds += n
		fds = fds[n:]
	}
	return nil
}

// UserInit makes the host the user in effect, in the job's directory, and
// calls slurm_spank_user_init.
// stderr becomes the host's standard error, and stays open here; nil is what the first task
// has. opened gets the streams of StreamToEarlyPath; the files are its own.
func (h *Host) UserInit(stderr *os.File, opened func(fd int, f *os.File)) error {
	var fds []int
	if stderr != nil {
		fds = []int{int(stderr.Fd())}
	}
	return h.do(cmdUserInit, nil, fds, func(r *reply) error {
		fd := int(r.body.U32())
		if r.kind != repStream || len(r.fds) != 1 || fd < 1 || fd > 2 || r.body.Err != nil {
			return fmt.Errorf("internal error: spankhost answered user_init by record %d", r.kind)
		}
		f := os.NewFile(uintptr(r.fds[0]), [...]string{1: "stdout", 2: "stderr"}[fd])
		r.fds = nil
		opened(fd, f)
		return nil
	})
}

// Fork forks every task. They wait at the gate; the host is root again after.
func (h *Host) Fork() ([]launch.Forked, error) {
	var tasks []launch.Forked
	err := h.do(cmdFork, nil, nil, func(r *reply) error {
		if r.kind != repTasks {
			return fmt.Errorf("internal error: spankhost answered fork by record %d", r.kind)
		}
		n := int(r.body.U32())
		if len(r.fds) != 2*n {
			return fmt.Errorf("internal error: spankhost told %d tasks with %d descriptors", n, len(r.fds))
		}
		for i := range n {
			t := launch.Forked{LocalID: int(r.body.U32()), PID: int(r.body.i32()), PidFD: r.fds[2*i], Exec: r.fds[2*i+1]}
			tasks = append(tasks, t)
		}
		return r.body.Err
	})
	return tasks, err
}

// PostFork calls slurm_spank_task_post_fork for every task in order.
func (h *Host) PostFork() error { return h.do(cmdPostFork, nil, nil, nil) }

// Wait lets the host reap its tasks and reports each end; it returns when all
// have ended. slurm_spank_task_exit is called before each. A task's epilog waits in
// its process until track has returned without an error.
func (h *Host) Wait(ended func(launch.TaskEnd), track func(localID, pid int) error) error {
	return h.do(cmdWait, nil, nil, func(r *reply) error {
		if r.kind == repEpilog {
			return letGo(r, track)
		}
		if r.kind != repExit {
			return fmt.Errorf("internal error: spankhost answered wait by record %d", r.kind)
		}
		e := launch.TaskEnd{LocalID: int(r.body.U32()), Status: step.ExitStatus(r.body.U32())}
		if known := r.body.U32() != 0; known {
			e.Usage = new(launch.Usage)
		}
		r.body.usage(e.Usage)
		if r.body.Err != nil {
			return r.body.Err
		}
		ended(e)
		return nil
	})
}

// letGo tracks the process of an epilog and lets it begin: the end of its pipe
// without a byte ends it.
func letGo(r *reply, track func(localID, pid int) error) error {
	id, pid := int(r.body.U32()), int(r.body.i32())
	if r.body.Err != nil || len(r.fds) != 1 {
		return fmt.Errorf("internal error: spankhost told an epilog with %d descriptors: %v", len(r.fds), r.body.Err)
	}
	if track(id, pid) != nil {
		return nil // which has reported it
	}
	_, err := unix.Write(r.fds[0], []byte{1})
	if errors.Is(err, unix.EPIPE) {
		return nil // it has been killed
	}
	return err
}

// usage reads wait4's figures; to is nil where there are none.
func (b *reader) usage(to *launch.Usage) {
	utime, stime := b.U64(), b.U64()
	u := launch.Usage{
		User: time.Duration(utime) * time.Microsecond, System: time.Duration(stime) * time.Microsecond,
		MaxRSSBytes: b.i64() << 10,
		MinorFaults: b.i64(), MajorFaults: b.i64(),
		BlocksRead: b.i64(), BlocksOut: b.i64(),
		IO: b.str(),
	}
	if to != nil {
		*to = u
	}
}

// Exit calls slurm_spank_exit and fini() of every plugin, as far as the stack was loaded, and
// closes them; then the host ends, with what is left of their atexit handlers.
func (h *Host) Exit() error { return h.do(cmdExit, nil, nil, nil) }
