package linux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// OpenBeneath opens name in the directory dir, or below it: no link on the way or at
// its end is followed, and nothing leads out of dir (openat2(2), RESOLVE_BENEATH and
// RESOLVE_NO_SYMLINKS), whatever is put there meanwhile. Links on the way to
// dir are the site's own. flags and mode are open(2)'s; the file is close-on-exec.
// The error is an *os.PathError: os.ErrNotExist, ELOOP of a link, EXDEV of a name that
// leads out. Linux 5.6.
func OpenBeneath(dir, name string, flags int, mode uint32) (*os.File, error) {
	path := filepath.Join(dir, name)
	d, err := Uninterrupted(func() (int, error) { return unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(d)
	return openAt(d, name, path, flags, mode)
}

// OpenIn is OpenBeneath for a directory that is open: dir's path is used for messages alone.
func OpenIn(dir *os.File, name string, flags int, mode uint32) (f *os.File, err error) {
	ferr := OnFD(dir, func(fd int) error {
		f, err = openAt(fd, name, filepath.Join(dir.Name(), name), flags, mode)
		return nil
	})
	return f, errors.Join(ferr, err)
}

// beneathTries is how often a name is looked up that moves meanwhile: EAGAIN says so.
const beneathTries = 64

func openAt(d int, name, path string, flags int, mode uint32) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	fd, err := -1, error(unix.EAGAIN)
	for try := 0; errors.Is(err, unix.EAGAIN) && try < beneathTries; try++ {
		fd, err = Uninterrupted(func() (int, error) { return unix.Openat2(d, name, &how) })
	}
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// OnFD calls f with the descriptor of a file or a connection, which stays open meanwhile. os.File.Fd
// would make it blocking, for all that share it and for the runtime's poller. The
// error is f's, or os.ErrClosed.
func OnFD(file syscall.Conn, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := raw.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

// WriteFile writes value, by one write(2), to the file name in the directory dir, or
// in the current one with unix.AT_FDCWD; no symlink is followed. The file must be
// there: it is one of the kernel's. Errors name it as path, and the value, and wrap
// the errno.
func WriteFile(dir int, name, path, value string) error {
	fd, err := Uninterrupted(func() (int, error) { return unix.Openat(dir, name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) })
	if err != nil {
		return fmt.Errorf("cannot open %q: %w", path, err)
	}
	defer unix.Close(fd)
	err = IgnoringEINTR(func() error {
		_, err := unix.Write(fd, []byte(value))
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot write %q to %q: %w", value, path, err)
	}
	return nil
}

// WriteWhole makes the file path what write writes, for its owner alone (mode 0600),
// whole or not at all: the old file stays until all is written. With sync it is on
// the disk when WriteWhole returns, but for its name. It is not for folders that
// others may write to, though a link that waits there leads nowhere. The error is
// write's, or names the path and wraps the errno.
func WriteWhole(path string, sync bool, write func(io.Writer) error) (err error) {
	tmp := path + ".tmp"
	f, err := OpenBeneath(filepath.Dir(tmp), filepath.Base(tmp), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write %q: %w", path, err)
	}
	defer func() {
		if err != nil {
			os.Remove(tmp) // it is of no use
		}
	}()
	if err = write(f); err == nil && sync {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	return err
}

// Value returns what a key has in one of the kernel's files of lines "KEY: VALUE" or "KEY VALUE"
// (/proc/PID/status, cgroup-v2.rst "Flat keyed"), "" where no line has the key.
func Value(path, key string) (string, error) {
	data, err := os.ReadFile(path)
	for line := range strings.Lines(string(data)) {
		if end := strings.IndexAny(line, ": \n"); end >= 0 && line[:end] == key {
			return strings.TrimSpace(line[end+1:]), nil
		}
	}
	return "", err
}

// PeerCred returns the process at the other end of a unix socket, by its credentials at the
// time of connect(2).
func PeerCred(c syscall.Conn) (cred *unix.Ucred, err error) {
	err = OnFD(c, func(fd int) error {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	return cred, err
}

// Poller waits for events on descriptors. It holds an epoll descriptor, which
// Go's own poller watches in turn: so a wait parks a goroutine and not a
// thread, and events that Go's poller does not know (POLLPRI of kernfs files)
// end it all the same.
//
// One goroutine at a time may call Wait.
type Poller struct {
	file *os.File
}

// NewPoller watches fds for events, a mask for epoll_ctl(2) such as
// unix.EPOLLPRI. The caller keeps the fds open until Close, and closes them.
func NewPoller(events uint32, fds ...int) (*Poller, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create an epoll descriptor: %w", err)
	}
	// Only a descriptor that says O_NONBLOCK is given to Go's poller.
	if err := unix.SetNonblock(epfd, true); err != nil {
		unix.Close(epfd)
		return nil, fmt.Errorf("cannot set O_NONBLOCK on an epoll descriptor: %w", err)
	}
	for _, fd := range fds {
		ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
		if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
			unix.Close(epfd)
			return nil, fmt.Errorf("cannot watch descriptor %d: %w", fd, err)
		}
	}
	return &Poller{file: os.NewFile(uintptr(epfd), "epoll")}, nil
}

// Close ends the watch.
func (p *Poller) Close() error { return p.file.Close() }

// Wait calls check, with the descriptors that are ready, until it returns true
// or an error, which Wait returns. The first call comes at once and without
// any: the state may be the wanted one already, and a kernfs file reports only
// changes since it was last read through the watched descriptor. When ctx ends
// first, its cause is returned; check has been called once even then.
func (p *Poller) Wait(ctx context.Context, check func(ready []int) (bool, error)) error {
	if done, err := check(nil); done || err != nil {
		return err
	}
	conn, err := p.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot wait: %w", err)
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(fired)
		_ = p.file.SetReadDeadline(time.Unix(1, 0)) // fails only after Close
	})
	defer func() {
		if !stop() {
			<-fired // a late call would spoil the next Wait
		}
		_ = p.file.SetReadDeadline(time.Time{})
	}()

	var checkErr error
	readErr := conn.Read(func(epfd uintptr) bool {
		done, err := drain(int(epfd), check)
		checkErr = err
		return done || err != nil
	})
	switch {
	case checkErr != nil:
		return checkErr
	case errors.Is(readErr, os.ErrDeadlineExceeded):
		return context.Cause(ctx)
	case readErr != nil:
		return fmt.Errorf("cannot wait: %w", readErr)
	}
	return nil
}

// drain hands every pending event to check. It goes on until epoll has none
// left: Go's poller is edge-triggered and would not report the rest.
func drain(epfd int, check func([]int) (bool, error)) (bool, error) {
	var events [64]unix.EpollEvent
	var ready [len(events)]int
	for {
		n, err := Uninterrupted(func() (int, error) { return unix.EpollWait(epfd, events[:], 0) })
		if err != nil {
			return false, fmt.Errorf("cannot read events: %w", err)
		}
		if n == 0 {
			return false, nil
		}
		for i := range n {
			ready[i] = int(events[i].Fd)
		}
		if done, err := check(ready[:n]); done || err != nil {
			return done, err
		}
	}
}

// Inotify reports that something has happened to files or directories
// (inotify(7)). What it was is not kept: the caller looks again. Watch and Wait
// may be called at the same time, Wait by one goroutine only.
type Inotify struct {
	f *os.File
}

// NewInotify makes one that watches nothing yet. EMFILE: the user's limit
// (fs.inotify.max_user_instances) is reached.
func NewInotify() (*Inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot create an inotify instance: %w", err)
	}
	return &Inotify{f: os.NewFile(uintptr(fd), "inotify")}, nil
}

// Watch adds path to what is watched, for the events of mask (unix.IN_…). A
// path that is watched already gets the new mask. ENOENT: it does not exist.
// ENOSPC: the user's limit (fs.inotify.max_user_watches) is reached.
func (i *Inotify) Watch(path string, mask uint32) error {
	err := OnFD(i.f, func(fd int) error { _, err := unix.InotifyAddWatch(fd, path, mask); return err })
	if err != nil {
		return fmt.Errorf("cannot watch %q: %w", path, err)
	}
	return nil
}

// Wait returns when something has happened since the last call, or with
// os.ErrDeadlineExceeded at the deadline; the zero time is none. After Close it
// returns os.ErrClosed.
func (i *Inotify) Wait(deadline time.Time) error {
	if err := i.f.SetReadDeadline(deadline); err != nil {
		// The one cause for a file that has deadlines at all; its own error for
		// it is not exported.
		return fmt.Errorf("cannot wait for inotify: %w", os.ErrClosed)
	}
	// Room for many events: each call takes all that there are at once.
	buf := make([]byte, 16<<10)
	if _, err := i.f.Read(buf); err != nil {
		return fmt.Errorf("cannot read inotify: %w", err)
	}
	return nil
}

// Close ends the watches, and a Wait that is under way.
func (i *Inotify) Close() error { return i.f.Close() }

// OpenTerminal opens both ends of a new terminal of the calling thread's /dev. The master does
// not block. Neither is opened by a name that a user could have made: the slave is asked of
// the master (ioctl_tty(2), TIOCGPTPEER).
func OpenTerminal() (master, slave int, err error) {
	const path = "/dev/ptmx"
	master, err = unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("open %q: %w", path, err)
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		unix.Close(master)
		return -1, -1, fmt.Errorf("unlock a terminal of %q: %w", path, err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		unix.Close(master)
		return -1, -1, fmt.Errorf("open the other end of a terminal of %q: %w", path, errno)
	}
	return master, int(peer), nil
}

// connectSlice is how long connect(2) waits for a place in the queue of connections before
// the context is looked at.
const connectSlice = 200 * time.Millisecond

// Connect connects a unix socket of this kind, as SOCK_STREAM, to the socket name in dir. The path
// goes through /proc/self/fd, because sun_path holds 108 bytes. A full queue of connections is
// waited for until ctx ends, of which the cause is then the error: a connect(2) that does not
// block fails there, and this one waits (unix(7), EAGAIN). The descriptor does not block.
func Connect(ctx context.Context, kind int, dir, name string) (int, error) {
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	wait := unix.NsecToTimeval(int64(connectSlice))
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait)
	to := &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", at, name)}
	for connected := false; err == nil && !connected; {
		if err = context.Cause(ctx); err != nil {
			break
		}
		err = unix.Connect(fd, to)
		connected = err == nil
		if err == unix.EAGAIN || err == unix.EINTR {
			err = nil
		}
	}
	if err == nil {
		err = unix.SetNonblock(fd, true) // for deadlines
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
