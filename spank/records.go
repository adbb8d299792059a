package spank

import (
	"fmt"
	"syscall"

	"stepd/step"
)

// listen starts passing records to sink.
func (h *Host) listen(sink func(step.HostRecord)) {
	h.sink = sink
	go h.readLog()
}

// tell hands one record to the sink.
func (h *Host) tell(rec step.HostRecord) {
	h.sinkMu.Lock()
	defer h.sinkMu.Unlock()
	h.sink(rec)
}

// readLog reports every record until the last process that holds the channel
// has closed it.
func (h *Host) readLog() {
	defer close(h.logDone)
	buf := make([]byte, hostPacketMax)
	for {
		n, err := h.log.Read(buf)
		if err != nil || n == 0 {
			return
		}
		if rec, ok := h.parseRecord(buf[:n]); ok {
			h.tell(rec)
		}
	}
}

// parseRecord decodes one packet; what is malformed is dropped, since its
// writer may be the user.
func (h *Host) parseRecord(b []byte) (step.HostRecord, bool) {
	r := reader{b: b}
	rec := step.HostRecord{LocalID: -1}
	switch r.u32() {
	case recLog:
		rec.Level = step.LogLevel(r.u32())
		if n := r.u32(); n != noRank {
			rec.LocalID = int(n)
		}
		h.placeRecord(&rec, r.u32(), r.u32())
		rec.Text = r.str()
	case recFail:
		id := int(r.u32())
		f := &step.LaunchError{Stage: stageName(r.u32()), Errno: syscall.Errno(r.i32()), Object: r.str(), Why: r.str()}
		rank := h.rankOf(id)
		if rank == nil {
			return rec, false
		}
		f.Rank = *rank
		rec.Level, rec.LocalID, rec.Fail = step.LogError, id, f
	case recWarn:
		rec.Level = step.LogInfo
		h.placeRecord(&rec, r.u32(), r.u32())
		if rec.Plugin == "" { // it says itself whom it may have been
			rec.Text = fmt.Sprintf("%s: %s", rec.Hook, r.str())
			break
		}
		rec.Text = fmt.Sprintf("plugin %q: %s: %s", rec.Plugin, rec.Hook, r.str())
	case recThreads:
		t := &threads{plugin: int(r.u32()), hook: hookName(r.u32()), count: int(r.u32())}
		if r.err != nil {
			return rec, false
		}
		h.threads.Store(t)
		rec.Level, rec.Plugin, rec.Hook = step.LogInfo, h.PluginName(t.plugin), t.hook
		rec.Text = fmt.Sprintf("plugin %q: %s: left %s running", rec.Plugin, t.hook, t)
	case recLimit:
		id := int(r.u32())
		l := &step.LimitCut{Wanted: limitOf(r.u64()), Had: limitOf(r.u64()), Name: r.str()}
		rank := h.rankOf(id)
		if rank == nil || r.err != nil {
			return rec, false
		}
		rec.Level, rec.LocalID, rec.Limit, rec.Text = step.LogInfo, id, l, l.String()
	default:
		return rec, false
	}
	return rec, r.err == nil
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

func (h *Host) placeRecord(rec *step.HostRecord, plugin, hook uint32) {
	if plugin != noPlugin {
		rec.Plugin = h.PluginName(int(plugin & 0xffff))
	}
	if hook != noHook {
		rec.Hook = hookName(hook)
	}
}
