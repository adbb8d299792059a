package spank

import (
	"encoding/binary"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"stepd/step/launch"
)

// threadsRecord is the host's word on threads that plugin 0 has left running.
func threadsRecord(count uint32) (b []byte) {
	for _, v := range []uint32{recThreads, 0, 1, count} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// TestCrashAfterRecord holds that a host that dies with its last record unread is judged by
// it, while a task still holds the log channel.
func TestCrashAfterRecord(t *testing.T) {
	for _, reading := range []bool{false, true} {
		log, childLog, err := seqpacketPair("log")
		if err != nil {
			t.Fatal(err)
		}
		control, childControl, err := seqpacketPair("control")
		if err != nil {
			t.Fatal(err)
		}
		board, err := newBoard(0, 1)
		if err != nil {
			t.Fatal(err)
		}
		h := &Host{control: control, log: log, pidfd: -1, board: board, names: []string{"x.so"}, logDone: make(chan struct{})}
		board.word(boardHeader + 12).Store(noHook)
		var mu sync.Mutex
		heard := 0
		hear := func(launch.HostRecord) { mu.Lock(); heard++; mu.Unlock() }
		if h.sink = hear; reading {
			h.listen(hear)
		}
		if _, err := childLog.Write(threadsRecord(1)); err != nil {
			t.Fatal(err)
		}
		hook, ok := h.Crash(-1, "killed by SIGSEGV")
		if !ok || hook.Plugin != "x.so" || !strings.Contains(hook.Cause, "later, with 1 thread of it running") {
			t.Errorf("reading %v: %v, %v", reading, hook, ok)
		}
		mu.Lock()
		if heard != 1 {
			t.Errorf("reading %v: the record was reported %d times", reading, heard)
		}
		mu.Unlock()
		childLog.Close()
		childControl.Close()
		if !reading {
			close(h.logDone)
		}
		h.Close()
	}
}

// TestCloseWhileHeld: what was written is heard, and a helper of slurm_spank_exit that holds the
// channel (by _Fork or clone, of which no handler hears) does not hold up the step's end.
func TestCloseWhileHeld(t *testing.T) {
	control, childControl, err := seqpacketPair("control")
	if err != nil {
		t.Fatal(err)
	}
	defer childControl.Close()
	log, childLog, err := seqpacketPair("log")
	if err != nil {
		t.Fatal(err)
	}
	defer childLog.Close()
	board, err := newBoard(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{control: control, log: log, pidfd: -1, board: board, names: []string{"x.so"}, logDone: make(chan struct{})}
	heard := 0
	h.listen(func(launch.HostRecord) { heard++ })
	for range 5 {
		if _, err := childLog.Write(threadsRecord(1)); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	if h.Close(); heard != 5 || time.Since(began) > 500*time.Millisecond {
		t.Errorf("%d records after %v", heard, time.Since(began))
	}
}

// What crashes at exit(3) may be left of a plugin whose init() has refused.
func TestSuspects(t *testing.T) {
	h := &Host{
		names: []string{"kept.so", "refused.so", "missing.so"}, stack: make([]Plugin, 3), keep: []bool{true, false, false},
		loaded: []Loaded{{Hooks: []string{"slurm_spank_exit"}}, {Hooks: []string{"slurm_spank_exit"}}, {Error: "not loaded"}},
	}
	for hook, want := range map[string]string{"slurm_spank_exit": "kept.so", launch.HookClose: "kept.so or refused.so", "slurm_spank_init": "unknown plugin"} {
		if names, _ := h.suspects(hook); names != want {
			t.Errorf("%s: %q, want %q", hook, names, want)
		}
	}
}

// A process says once where it crashes, in printable words, and of itself; another signal's end
// has nothing of it.
func TestCrashPlaces(t *testing.T) {
	var c crashPlaces
	c.note(noRank, 2, syscall.SIGSEGV, "x.so+0x1")
	c.note(noRank, 2, syscall.SIGABRT, "the second word")
	c.note(1, 2, syscall.SIGBUS, "a\x1b[2J line")
	c.note(2, 2, syscall.SIGBUS, "no such task")
	c.note(0, 2, syscall.SIGILL, "")
	for _, tt := range []struct {
		id          int
		cause, want string
	}{
		{-1, "killed by SIGSEGV", "killed by SIGSEGV at x.so+0x1"},
		{-1, "killed by SIGKILL", "killed by SIGKILL"},
		{0, "killed by SIGILL", "killed by SIGILL"},
		{1, "killed by SIGBUS", "killed by SIGBUS"},
		{2, "killed by SIGBUS", "killed by SIGBUS"},
	} {
		if got := c.after(tt.id, tt.cause); got != tt.want {
			t.Errorf("%d: %q, want %q", tt.id, got, tt.want)
		}
	}
}
