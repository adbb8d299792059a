package relay

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/printable"
	"stepd/step/launch"
)

// Drain returns when the last byte that the tasks wrote has gone to the launcher: no
// process of the step is left. A stream that another process keeps open is closed
// after limit, and reported. It is called once; nothing passes any more after it.
func (r *Relay) Drain(limit time.Duration) (held []launch.Held) {
	r.mu.Lock()
	r.ending = true
	all := r.all
	if all != nil && r.open == 0 {
		close(all)
	}
	r.mu.Unlock()
	if all == nil {
		return nil
	}
	r.wakeLoop()
	select {
	case <-all:
	case <-time.After(limit):
		held = r.held()
	}
	r.stop()
	return held
}

// held finds out who holds what is open still.
func (r *Relay) held() (held []launch.Held) {
	writers := make(map[uint64]launch.Held)
	r.mu.Lock()
	for _, s := range r.streams {
		if !s.ended {
			writers[s.inode] = launch.Held{FD: s.fd, Rank: s.rank}
		}
	}
	r.mu.Unlock()
	FindWriters(writers)
	for _, s := range r.streams { // nothing is added any more
		if h, ok := writers[s.inode]; ok {
			held = append(held, h)
		}
	}
	return held
}

// FindWriters looks for a process that may write to each of the pipes, by inode, and
// puts it into the Held of that. It reads all of /proc.
func FindWriters(pipes map[uint64]launch.Held) {
	found := 0
	procs, _ := os.ReadDir("/proc")
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		dir := "/proc/" + p.Name()
		fds, err := os.ReadDir(dir + "/fd")
		if err != nil {
			continue // it has ended
		}
		for _, f := range fds {
			link, err := os.Readlink(dir + "/fd/" + f.Name())
			text, ok := strings.CutPrefix(link, "pipe:[")
			if err != nil || !ok {
				continue
			}
			inode, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64)
			h, asked := pipes[inode]
			if err != nil || !asked || h.PID != 0 || !writes(dir+"/fdinfo/"+f.Name()) {
				continue
			}
			h.PID, h.Command, h.UID = pid, command(dir), owner(dir)
			pipes[inode] = h
			if found++; found == len(pipes) {
				return
			}
		}
	}
}

// writes reports whether a descriptor was opened for writing (proc(5), fdinfo).
func writes(fdinfo string) bool {
	b, err := os.ReadFile(fdinfo)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseUint(strings.TrimSpace(text), 8, 64)
			return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY
		}
	}
	return false
}

// commandMax bounds a command line that is reported.
const commandMax = 80

// command is a process's command line, or its name where it has none.
func command(dir string) string {
	b, _ := os.ReadFile(dir + "/cmdline")
	if b = bytes.TrimRight(b, "\x00"); len(b) == 0 {
		b, _ = os.ReadFile(dir + "/comm")
	}
	words := string(bytes.ReplaceAll(b[:min(len(b), commandMax)], []byte{0}, []byte{' '}))
	return strings.TrimSpace(printable.Line(words, 0)) // printed as one line, in a log or on a terminal
}

func owner(dir string) uint32 {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return ^uint32(0)
	}
	return st.Uid
}
