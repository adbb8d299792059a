package nodes

import (
	"os"

	"golang.org/x/sys/unix"
)

// The terminal of rank 0 belongs to stepd, and its launcher may be on another node: the
// frames of their connection go by the tree, each as one piece of rank 0's stdout and of
// the launcher's input. Both ends of the connection keep them apart, as packets.

// attachTerminal joins the launcher's end of the terminal to the tree, and returns what
// takes its input.
func (t *Tree) attachTerminal(open func() (fd int, err error)) (input []*os.File, err error) {
	fd, err := open()
	if err != nil {
		return nil, err
	}
	files := [3]*os.File{os.NewFile(uintptr(fd), "the step's terminal")}
	for i := range files[1:] {
		again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			files[0].Close()
			return nil, err
		}
		files[1+i] = os.NewFile(uintptr(again), "the step's terminal")
	}
	t.mu.Lock()
	t.terminal = files[2]
	t.mu.Unlock()
	t.Output(1, 0, files[0])
	return files[1:2], nil
}

// hangUp ends the launcher's connection to the terminal, which goes on without: it would
// else wait for a launcher that reads no more.
func (t *Tree) hangUp() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.terminal == nil {
		return
	}
	if raw, err := t.terminal.SyscallConn(); err == nil {
		// ENOTCONN: the terminal has ended.
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	t.terminal.Close()
	t.terminal = nil
}

// Close leaves the other nodes.
func (t *Tree) Close() {
	t.hangUp()
	t.Node.Close()
}
