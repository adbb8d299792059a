package acct

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// reader reads small files of the kernel's into one buffer: a sample opens some
// thousand of them. It is for one goroutine.
type reader struct {
	proc int // the directory /proc
	buf  []byte
}

func openReader() (*reader, error) {
	fd, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/proc", Err: err}
	}
	return &reader{proc: fd, buf: make([]byte, 1<<10)}, nil
}

func (r *reader) close() { unix.Close(r.proc) }

// process reads a file of a process; the bytes are valid until the next read.
func (r *reader) process(pid int, name string) ([]byte, error) {
	return r.at(r.proc, strconv.Itoa(pid)+"/"+name)
}

// file reads a file by its absolute path.
func (r *reader) file(path string) ([]byte, error) { return r.at(unix.AT_FDCWD, path) }

// at reads a file whole: one that is longer than fileMax is an error, since the
// half of a sum is no sum.
func (r *reader) at(dir int, path string) ([]byte, error) {
	var fd int
	err := linux.IgnoringEINTR(func() (err error) {
		fd, err = unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	for have := 0; ; {
		var n int
		err := linux.IgnoringEINTR(func() (err error) {
			n, err = unix.Read(fd, r.buf[have:])
			return err
		})
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return r.buf[:have], nil
		}
		if have += n; have < len(r.buf) {
			continue
		}
		if have >= fileMax {
			return nil, fmt.Errorf("cannot read %q: it is longer than %d bytes", path, fileMax)
		}
		r.buf = append(r.buf, make([]byte, len(r.buf))...)
	}
}

// absent reports whether err says that the kernel has no such file, or cannot read
// it: no controller there, PSI is off, or the process is gone.
func absent(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV)
}

// cpuClock is what the threads of a process have used of CPUs, its children not:
// the clock that clock_getcpuclockid(3) names.
func cpuClock(pid int) (us int64, ok bool) {
	const process = 2 // CPUCLOCK_SCHED, not of one thread
	var ts unix.Timespec
	if unix.ClockGettime(int32(^pid)<<3|process, &ts) != nil {
		return 0, false
	}
	return ts.Nano() / 1000, true
}
