package acct

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
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
	fd, err := linux.Uninterrupted(func() (int, error) { return unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	for have := 0; ; {
		n, err := linux.Uninterrupted(func() (int, error) { return unix.Read(fd, r.buf[have:]) })
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

// fileMax bounds what is read of one file of the kernel's. The longest is
// io.stat, with some 100 bytes for each device.
const fileMax = 64 << 10

// eachLine calls f for each line of data, without its newline; f ends it by an error.
func eachLine(data []byte, f func(line []byte) error) error {
	for len(data) > 0 {
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		data = rest
		if len(line) == 0 {
			continue
		}
		if err := f(line); err != nil {
			return err
		}
	}
	return nil
}

// number reads a count: whole, and not negative.
func number(b []byte) (int64, error) { return numberTo(b, math.MaxInt64) }

// smallMax bounds counts that are multiplied, by 64 KiB at most: of pages, ticks
// and kB. Larger ones are no figures of a real machine.
const smallMax = 1 << 46

func numberTo(b []byte, limit int64) (int64, error) {
	n, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil || n > uint64(limit) {
		return 0, fmt.Errorf("%.40q is no count", b)
	}
	return int64(n), nil
}

// plus adds counts; where the sum is too large for the type it is the largest
// there is.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// flatKeyed reads lines of "key value" or "key: value" (cgroup-v2.rst, "Flat
// keyed"; proc_pid_io(5)) into the entries of want that it names; an entry
// stays nil where the file has no such key.
func flatKeyed(data []byte, want map[string]**int64) error {
	return eachLine(data, func(line []byte) error {
		key, value, ok := bytes.Cut(line, []byte(" "))
		to := want[string(bytes.TrimSuffix(key, []byte(":")))]
		if to == nil {
			return nil
		}
		if !ok {
			return fmt.Errorf("no value in %.80q", line)
		}
		n, err := number(bytes.TrimSpace(value))
		if err != nil {
			return fmt.Errorf("%.40q: %w", key, err)
		}
		*to = &n
		return nil
	})
}

// cpuTimes are microseconds; nil is unknown.
type cpuTimes struct{ total, user, system *int64 }

// parseCPUStat reads cpu.stat, which every cgroup of v2 has, with the cpu
// controller or without.
func parseCPUStat(data []byte) (t cpuTimes, err error) {
	err = flatKeyed(data, map[string]**int64{"usage_usec": &t.total, "user_usec": &t.user, "system_usec": &t.system})
	return t, err
}

// ioBytes are bytes of /proc/PID/io. chars passed through system calls, disk
// through storage.
type ioBytes struct{ readChars, writtenChars, readDisk, writtenDisk *int64 }

// parseProcIO reads /proc/PID/io.
func parseProcIO(data []byte) (b ioBytes, err error) {
	err = flatKeyed(data, map[string]**int64{
		"rchar": &b.readChars, "wchar": &b.writtenChars, "read_bytes": &b.readDisk, "write_bytes": &b.writtenDisk,
	})
	return b, err
}

// parseIOStat adds up rbytes and wbytes of all devices in io.stat. A cgroup that
// has used none has an empty file: that is 0, since the controller is enabled.
func parseIOStat(data []byte) (read, written int64, err error) {
	sums := map[string]*int64{"rbytes": &read, "wbytes": &written}
	err = eachLine(data, func(line []byte) error {
		for _, field := range bytes.Fields(line) {
			key, value, _ := bytes.Cut(field, []byte("=")) // the device has none
			if err := addTo(sums[string(key)], value); err != nil {
				return err
			}
		}
		return nil
	})
	return read, written, err
}

// parseBlkio adds up Read and Write of all devices in v1's
// blkio.throttle.io_service_bytes_recursive.
func parseBlkio(data []byte) (read, written int64, err error) {
	sums := map[string]*int64{"Read": &read, "Write": &written}
	err = eachLine(data, func(line []byte) error {
		f := bytes.Fields(line)
		if len(f) != 3 {
			return nil // "Total N"
		}
		return addTo(sums[string(f[1])], f[2])
	})
	return read, written, err
}

// addTo adds a count to a sum; nil is none.
func addTo(sum *int64, count []byte) error {
	if sum == nil {
		return nil
	}
	n, err := number(count)
	*sum = plus(*sum, n)
	return err
}

// parsePressure reads a pressure file (psi(8)). It returns nil for an empty one:
// PSI is off.
func parsePressure(data []byte) (*step.Stalls, error) {
	var out *step.Stalls
	err := eachLine(data, func(line []byte) error {
		s, kind, err := parseStall(line)
		if err != nil {
			return err
		}
		if out == nil {
			out = new(step.Stalls)
		}
		switch kind {
		case "some":
			out.Some = s
		case "full":
			out.Full = &s
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// parseStall reads "some avg10=0.00 avg60=0.00 avg300=0.00 total=0".
func parseStall(line []byte) (s step.Stall, kind string, err error) {
	for i, field := range bytes.Fields(line) {
		if i == 0 {
			kind = string(field)
			continue
		}
		key, value, _ := bytes.Cut(field, []byte("="))
		switch string(key) {
		case "total":
			s.TotalUS, err = number(value)
		case "avg10":
			s.Avg10, err = percentage(value)
		case "avg60":
			s.Avg60, err = percentage(value)
		case "avg300":
			s.Avg300, err = percentage(value)
		}
		if err != nil {
			return s, kind, fmt.Errorf("%.40q: %w", key, err)
		}
	}
	return s, kind, nil
}

func percentage(b []byte) (float64, error) {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || !(f >= 0 && f <= 100) { // NaN is neither
		return 0, fmt.Errorf("%.40q is no percentage", b)
	}
	return f, nil
}

// procStat is what is used of /proc/PID/stat (proc_pid_stat(5)): ticks are of
// 10 ms, and children count once they were waited for.
type procStat struct {
	parent                     int
	minor, major               int64 // with waited-for children
	userTicks, systemTicks     int64
	childUserTicks, childTicks int64 // childTicks: system
	start                      int64
	virtual, resident          int64 // bytes, pages
}

// parseProcStat reads /proc/PID/stat. The name before the last ')' is the user's,
// and may hold anything.
func parseProcStat(data []byte) (s procStat, err error) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return s, fmt.Errorf("no process name in %.80q", data)
	}
	f := bytes.Fields(data[end+1:])
	const first = 3 // f[0] is field 3
	if len(f) <= 24-first {
		return s, fmt.Errorf("too few fields in %.80q", data)
	}
	var minor, childMinor, major, childMajor, parent int64
	for _, field := range []struct {
		at int
		to *int64
	}{
		{4, &parent},
		{10, &minor}, {11, &childMinor}, {12, &major}, {13, &childMajor},
		{14, &s.userTicks}, {15, &s.systemTicks}, {16, &s.childUserTicks}, {17, &s.childTicks},
		{22, &s.start}, {23, &s.virtual}, {24, &s.resident},
	} {
		limit := int64(smallMax)
		if field.to == &s.virtual {
			limit = math.MaxInt64 // bytes: what is reserved may be all of the address space
		}
		n, err := numberTo(f[field.at-first], limit)
		if err != nil {
			return s, fmt.Errorf("field %d: %w", field.at, err)
		}
		*field.to = n
	}
	s.parent, s.minor, s.major = int(parent), minor+childMinor, major+childMajor
	return s, nil
}

// parseShared reads the pages of a process that are shared: field 3 of
// /proc/PID/statm.
func parseShared(data []byte) (int64, error) {
	f := bytes.Fields(data)
	if len(f) < 3 {
		return 0, fmt.Errorf("too few fields in %.80q", data)
	}
	return numberTo(f[2], smallMax)
}

// parsePss reads the proportional size in kB of /proc/PID/smaps_rollup; nil where
// it has none.
func parsePss(data []byte) (pss *int64, err error) {
	err = eachLine(data, func(line []byte) error {
		value, ok := bytes.CutPrefix(line, []byte("Pss:"))
		if !ok || pss != nil {
			return nil
		}
		n, err := numberTo(bytes.TrimSuffix(bytes.TrimSpace(value), []byte(" kB")), smallMax)
		pss = &n
		return err
	})
	if err != nil {
		return nil, err
	}
	return pss, nil
}
