package stdio

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step/launch"
)

// Terminal is a terminal that rank 0 has for all its streams (srun --pty). The other ranks
// have none of srun's streams.
type Terminal struct {
	// Rows and Cols are the window's size in the beginning; 0 is not known.
	Rows, Cols uint16
	// GID is the user's group, which the terminal has.
	GID uint32
	// Window is HOST:PORT where srun sends each new size of its window; "" is nowhere.
	Window string
	// Resized is called after each new size. It is required.
	Resized func()
}

// terminal is what the step has of it.
type terminal struct {
	made  chan struct{} // closed when fd and err are known
	slave *os.File      // the tasks' end, the loop's to close
	err   error
	size  *os.File // the master, by which the size is set
}

// OpenTerminal waits for Attach, or for the error of Open, and returns the descriptor that is to
// be the controlling terminal of rank 0. It stays open here until the tasks have ended: without
// it, the terminal would be at its end as soon as a program has closed its streams.
func (s *Streams) OpenTerminal() (int, error) {
	t := s.terminal
	if t == nil {
		return -1, errors.New("internal error: the step has no terminal")
	}
	if <-t.made; t.err != nil {
		return -1, t.err
	}
	return int(t.slave.Fd()), nil
}

// hasTerminal reports whether rank 0 is here and has a terminal.
func (s *Streams) hasTerminal() bool {
	return s.cfg.Terminal != nil && len(s.cfg.Ranks) > 0 && s.cfg.Ranks[0] == 0
}

// makeTerminal makes the terminal one stream each way.
func (s *Streams) makeTerminal() {
	l := s.loop
	s.terminal = &terminal{made: make(chan struct{})}
	l.outs = []*output{{header: header{kind: stdout}, src: -1, terminal: true}}
	l.in.all = []*input{{fd: -1}}
	l.in.byID[0] = l.in.all[0]
	l.there[stdout] = true
}

// resolve says how OpenTerminal ends, once.
func (t *terminal) resolve(err error) {
	select {
	case <-t.made:
	default:
		t.err = err
		close(t.made)
	}
}

// attachTerminal makes the terminal and gives the loop its other end.
func (s *Streams) attachTerminal() (err error) {
	t := s.terminal
	defer func() { t.resolve(err) }()
	master, slave, err := linux.OpenTerminal()
	if err != nil {
		return fmt.Errorf("cannot make the terminal of task 0: %w", err)
	}
	input, err := s.prepare(master, slave)
	if err != nil {
		unix.Close(master)
		unix.Close(slave)
		return fmt.Errorf("cannot prepare the terminal of task 0: %w", err)
	}
	t.slave = os.NewFile(uintptr(slave), "the terminal of task 0")
	o, i := s.loop.outs[0], s.loop.in.all[0]
	if err := s.loop.add(news{o: o, fd: master, slave: t.slave}, unix.EPOLLIN, wordOutput, 0); err != nil {
		unix.Close(input)
		t.slave.Close()
		return err
	}
	return s.loop.add(news{i: i, fd: input}, unix.EPOLLOUT, wordInput, 0)
}

// prepare gives the terminal to the user, as the original step daemon does: with mode 0600 and
// the user's group. It returns another descriptor of the master, for what the user types.
func (s *Streams) prepare(master, slave int) (input int, err error) {
	c := s.cfg.Terminal
	if err := unix.Fchown(slave, int(s.cfg.UID), int(c.GID)); err != nil {
		return -1, fmt.Errorf("chown: %w", err)
	}
	if err := unix.Fchmod(slave, 0o600); err != nil {
		return -1, fmt.Errorf("chmod: %w", err)
	}
	if err := setSize(master, c.Rows, c.Cols); err != nil {
		return -1, err
	}
	if input, err = unix.FcntlInt(uintptr(master), unix.F_DUPFD_CLOEXEC, 3); err != nil {
		return -1, err
	}
	size, err := unix.FcntlInt(uintptr(master), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		unix.Close(input)
		return -1, err
	}
	s.terminal.size = os.NewFile(uintptr(size), "the terminal of task 0")
	s.loop.closeLater(s.terminal.size)
	return input, nil
}

// setSize sets the window's size; the kernel tells the program in the foreground.
func setSize(fd int, rows, cols uint16) error {
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		return fmt.Errorf("set the size of the terminal: %w", err)
	}
	return nil
}

// followWindow gives the terminal the size of srun's window, until srun ends the connection or
// ctx ends.
func (s *Streams) followWindow(ctx context.Context) {
	err := s.follow(ctx)
	if err != nil && ctx.Err() == nil {
		s.cfg.Log(launch.LogInfo, fmt.Sprintf("the terminal keeps the size of its window from now on: %v", err))
	}
}

func (s *Streams) follow(ctx context.Context) error {
	d := net.Dialer{Timeout: connectTimeout}
	c, err := d.DialContext(ctx, "tcp", s.cfg.Terminal.Window)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	select {
	case <-s.terminal.made:
	case <-ctx.Done():
	}
	if ctx.Err() != nil || s.terminal.err != nil {
		return nil // which has been reported
	}
	for {
		rows, cols, err := readSize(c)
		if errors.Is(err, io.EOF) {
			return nil // srun has ended
		}
		if err != nil {
			return err
		}
		err = linux.OnFD(s.terminal.size, func(fd int) error { return setSize(fd, rows, cols) })
		if err != nil {
			return err
		}
		s.cfg.Terminal.Resized()
	}
}

// readSize reads a new size of srun's window.
func readSize(in io.Reader) (rows, cols uint16, err error) {
	var b [4]byte
	if _, err := io.ReadFull(in, b[:]); err != nil {
		return 0, 0, err
	}
	return binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint16(b[:]), nil
}
