package oom

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// victim is what the kernel's log says of one kill.
type victim struct {
	pid  int
	comm string
	// The cgroups of the process and of the limit, as paths of the memory
	// hierarchy; empty where the kernel left its detail out.
	task, full string
	// global: no cgroup's limit was reached, but the machine's own.
	global bool
}

// record is one record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg).
type record struct {
	micros uint64 // since boot, CLOCK_MONOTONIC as the kernel logs it
	text   string
}

// parseRecord reads "PRIO,SEQ,MICROS,FLAGS[,…];TEXT\n KEY=VALUE\n…".
func parseRecord(data []byte) (record, bool) {
	head, text, ok := bytes.Cut(data, []byte(";"))
	if !ok {
		return record{}, false
	}
	fields := bytes.Split(head, []byte(","))
	if len(fields) < 4 {
		return record{}, false
	}
	micros, err := strconv.ParseUint(string(fields[2]), 10, 64)
	if err != nil {
		return record{}, false
	}
	text, _, _ = bytes.Cut(text, []byte("\n"))
	return record{micros: micros, text: string(text)}, true
}

// parseVictim reads the two lines that the kernel writes for a kill: the
// detail, and "…: Killed process PID (COMM) total-vm:…". A command is the
// user's and may hold anything, so both are read from their ends.
func parseVictim(text string) (victim, bool) {
	if v, ok := strings.CutPrefix(text, "oom-kill:"); ok {
		return parseDetail(v)
	}
	_, rest, ok := strings.Cut(text, "Killed process ")
	if !ok || !strings.Contains(text[:len(text)-len(rest)], "ut of memory") {
		return victim{}, false
	}
	rest, _, ok = cutLast(rest, ") total-vm:")
	if !ok {
		return victim{}, false
	}
	num, comm, ok := strings.Cut(rest, " (")
	pid, valid := parsePID(num)
	return victim{pid: pid, comm: comm, global: strings.HasPrefix(text, "Out of memory")}, ok && valid
}

// parseDetail reads "constraint=C,nodemask=…,cpuset=…,mems_allowed=…,
// oom_memcg=P,task_memcg=P,task=COMM,pid=N,uid=N"; global_oom stands in the
// place of oom_memcg where no cgroup's limit was reached.
func parseDetail(s string) (victim, bool) {
	s, _, ok := cutLast(s, ",uid=")
	if !ok {
		return victim{}, false
	}
	s, num, ok := cutLast(s, ",pid=")
	if !ok {
		return victim{}, false
	}
	pid, ok := parsePID(num)
	if !ok {
		return victim{}, false
	}
	v := victim{pid: pid}
	v.global = !strings.HasPrefix(s, "constraint=CONSTRAINT_MEMCG,")
	_, rest, ok := strings.Cut(s, ",oom_memcg=")
	if ok {
		v.full, rest, ok = strings.Cut(rest, ",task_memcg=")
	} else {
		_, rest, ok = strings.Cut(s, ",task_memcg=")
	}
	if !ok {
		return victim{}, false
	}
	v.task, v.comm, ok = strings.Cut(rest, ",task=")
	return v, ok
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func parsePID(s string) (int, bool) {
	n, err := strconv.ParseInt(s, 10, 32)
	return int(n), err == nil && n > 0
}

// kmsg is the kernel's log, read record by record.
type kmsg struct {
	fd  int
	buf []byte
}

// openKmsg begins at the end of the log, or at its oldest record.
func openKmsg(fromStart bool) (*kmsg, error) {
	const path = "/dev/kmsg"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %q: %w", path, err)
	}
	if !fromStart {
		if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
			unix.Close(fd)
			return nil, &os.PathError{Op: "lseek", Path: path, Err: err}
		}
	}
	return &kmsg{fd: fd}, nil
}

// drain hands over every record that is queued.
func (k *kmsg) drain(f func(record)) error {
	if k.buf == nil { // most steps read nothing
		k.buf = make([]byte, 8<<10) // a read takes one record, and fails where it does not fit (EINVAL)
	}
	for {
		n, err := unix.Read(k.fd, k.buf)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINVAL):
			continue // EPIPE: records were overwritten before they were read
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return fmt.Errorf("cannot read the kernel's log: %w", err)
		case n == 0:
			return nil
		}
		if r, ok := parseRecord(k.buf[:n]); ok {
			f(r)
		}
	}
}

func (k *kmsg) close() { unix.Close(k.fd) }
