package relay

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// lastTurns bound what is moved at once of a stream that ends: more than a pipe holds.
const lastTurns = 4

// Drain returns when the last byte that the tasks wrote has gone to the launcher: no
// process of the step is left. A stream that somebody else keeps open is closed after
// limit, and told of. It is called once; nothing passes any more after it.
func (r *Relay) Drain(limit time.Duration) (held []step.Held) {
	r.mu.Lock()
	if r.all == nil {
		r.ending = true
		r.mu.Unlock()
		return nil
	}
	all := r.all
	if r.ending = true; r.open == 0 {
		close(all)
	}
	for _, s := range r.streams {
		for i := 0; i < lastTurns && r.move(s); i++ {
		}
	}
	r.mu.Unlock()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-all:
	case <-t.C:
		held = r.giveUp()
	}
	r.stop()
	return held
}

// giveUp closes what is open still, and finds out who holds it.
func (r *Relay) giveUp() (held []step.Held) {
	r.mu.Lock()
	defer r.mu.Unlock()
	writers := make(map[uint64]step.Held)
	for _, s := range r.streams {
		if s.src >= 0 {
			writers[s.inode] = step.Held{FD: s.fd, Rank: s.rank}
		}
	}
	findWriters(writers)
	for _, s := range r.streams {
		if s.src >= 0 {
			held = append(held, writers[s.inode])
			r.end(s)
		}
	}
	return held
}

// findWriters looks for a process that may write to each of the pipes, by inode.
func findWriters(pipes map[uint64]step.Held) {
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

// writes tells whether a descriptor was opened for writing (proc(5), fdinfo).
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

// commandMax bounds a command line that is told.
const commandMax = 80

// command is a process's command line, or its name where it has none.
func command(dir string) string {
	b, _ := os.ReadFile(dir + "/cmdline")
	if b = bytes.TrimRight(b, "\x00"); len(b) == 0 {
		b, _ = os.ReadFile(dir + "/comm")
	}
	b = slices.Clone(b[:min(len(b), commandMax)])
	for i, c := range b {
		if c < ' ' || c == 0x7f {
			b[i] = ' ' // it is told as one line
		}
	}
	return strings.ToValidUTF8(strings.TrimSpace(string(b)), "?")
}

func owner(dir string) uint32 {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return ^uint32(0)
	}
	return st.Uid
}
