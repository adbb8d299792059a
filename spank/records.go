package spank

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/internal/wire"
	"stepd/step/launch"
)

// listen starts passing records to sink.
func (h *Host) listen(sink func(launch.HostRecord)) {
	h.sink = sink
	go h.readLog()
}

// tell hands one record to the sink.
func (h *Host) tell(rec launch.HostRecord) {
	h.sinkMu.Lock()
	defer h.sinkMu.Unlock()
	h.sink(rec)
}

// readLog reports every record until the last process that holds the channel
// has closed it.
func (h *Host) readLog() {
	defer close(h.logDone)
	conn, err := h.log.SyscallConn()
	if err != nil {
		return // closed
	}
	ended := false
	one := func(fd uintptr) bool {
		got, end := h.readRecord(fd)
		ended = end
		return got || end
	}
	for !ended && conn.Read(one) == nil { // an error is Close's deadline
	}
}

// readRecord passes on one record of the log channel if there is one. ended says that there
// will be no more.
func (h *Host) readRecord(fd uintptr) (got, ended bool) {
	h.logMu.Lock()
	defer h.logMu.Unlock()
	if h.logBuf == nil {
		h.logBuf = make([]byte, hostPacketMax)
	}
	n, err := linux.Uninterrupted(func() (int, error) { return unix.Read(int(fd), h.logBuf) })
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false, false
	case err != nil || n <= 0:
		return false, true
	}
	if rec, ok := h.parseRecord(h.logBuf[:n]); ok {
		h.tell(rec)
	}
	return true, false
}

// recordsQueued bounds what drainLog reads: more than the channel's buffer holds, since
// tasks that a plugin runs in may write for ever.
const recordsQueued = 4096

// drainLog passes on the records that a dead host has left in the log channel, which does
// not end while a task holds it.
func (h *Host) drainLog() {
	conn, err := h.log.SyscallConn()
	if err != nil {
		return // closed
	}
	_ = conn.Control(func(fd uintptr) { // an error says that it is closed
		for range recordsQueued {
			if got, _ := h.readRecord(fd); !got {
				return
			}
		}
	})
}

// parseRecord decodes one packet; what is malformed is dropped, since its
// writer may be the user.
func (h *Host) parseRecord(b []byte) (launch.HostRecord, bool) {
	r := reader{Reader: wire.Reader{B: b}}
	rec := launch.HostRecord{LocalID: -1}
	switch r.U32() {
	case recLog:
		rec.Level = launch.LogLevel(r.U32())
		if n := r.U32(); n != noRank {
			rec.LocalID = int(n)
		}
		h.placeRecord(&rec, r.U32(), r.U32())
		rec.Text = r.str()
	case recFail:
		id := int(r.U32())
		f := &launch.LaunchError{Stage: stageName(r.U32()), Errno: syscall.Errno(r.i32()), Object: r.str(), Why: r.str()}
		rank := h.rankOf(id)
		if rank == nil {
			return rec, false
		}
		f.Rank = *rank
		rec.Level, rec.LocalID, rec.Fail = launch.LogError, id, f
	case recWarn:
		rec.Level = launch.LogInfo
		h.placeRecord(&rec, r.U32(), r.U32())
		if rec.Plugin == "" { // it says itself whom it may have been
			rec.Text = fmt.Sprintf("%s: %s", rec.Hook, r.str())
			break
		}
		rec.Text = fmt.Sprintf("plugin %q: %s: %s", rec.Plugin, rec.Hook, r.str())
	case recThreads:
		t := &threads{plugin: int(r.U32()), hook: hookName(r.U32()), count: int(r.U32())}
		if r.Err != nil {
			return rec, false
		}
		h.threads.Store(t)
		text := fmt.Sprintf("plugin %q: %s: left %s running", h.PluginName(t.plugin), t.hook, t)
		if len(h.ranks) > 0 {
			h.left = append(h.left, text)
			return rec, false // Close tells them in one line
		}
		rec.Level, rec.Text = launch.LogVerbose, text // nothing is forked here that would miss them
	case recLimit:
		id := int(r.U32())
		l := &launch.LimitCut{Wanted: limitOf(r.U64()), Had: limitOf(r.U64()), Name: r.str()}
		rank := h.rankOf(id)
		if rank == nil || r.Err != nil {
			return rec, false
		}
		rec.Level, rec.LocalID, rec.Limit, rec.Text = launch.LogInfo, id, l, l.String()
	case recCrash:
		h.crashes.note(r.U32(), len(h.ranks), syscall.Signal(r.U32()), r.str())
		return rec, false // Crash has the use of it
	default:
		return rec, false
	}
	return rec, r.Err == nil
}

// crashPlaces is what processes say of where they crash, by local id; -1 is the host.
type crashPlaces map[int]crashPlace

type crashPlace struct {
	signal syscall.Signal
	where  string
}

// note keeps the word of a process that crashes, the first one. It may be a user's.
func (c *crashPlaces) note(rank uint32, tasks int, sig syscall.Signal, where string) {
	id := -1
	if rank != noRank {
		id = int(rank)
	}
	unprintable := func(c rune) bool { return c < ' ' || c > '~' }
	if _, said := (*c)[id]; said || id >= tasks || where == "" || strings.ContainsFunc(where, unprintable) {
		return
	}
	if *c == nil {
		*c = make(crashPlaces)
	}
	(*c)[id] = crashPlace{sig, where}
}

// after is the cause of an end with the place behind it, where the process has said it.
func (c crashPlaces) after(id int, cause string) string {
	if at, ok := c[id]; ok && cause == "killed by "+unix.SignalName(at.signal) {
		return cause + " at " + at.where
	}
	return cause
}

// limitOf is a limit of setrlimit(2); RLIM_INFINITY is nil.
func limitOf(v uint64) *uint64 {
	if v == ^uint64(0) {
		return nil
	}
	return &v
}

// threads are what a plugin has left running in the host.
type threads struct {
	plugin int
	hook   string
	count  int
}

func (t *threads) String() string {
	if t.count == 1 {
		return "1 thread"
	}
	return fmt.Sprintf("%d threads", t.count)
}

func (h *Host) placeRecord(rec *launch.HostRecord, plugin, hook uint32) {
	if plugin != noPlugin {
		rec.Plugin = h.PluginName(int(plugin & 0xffff))
	}
	if hook != noHook {
		rec.Hook = hookName(hook)
	}
}
