package metrics

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/eventlog"
)

const (
	// logMax bounds what is read of one step's log, in bytes: the log of a thousand
	// tasks under twenty plugins fits.
	logMax = 8 << 20
	// lineMax bounds a line. A longer one ends the reading.
	lineMax = 1 << 20
)

// read counts the events of a step's log. m.reading is held.
func (m *Metrics) read(log io.Reader) error {
	lines := bufio.NewScanner(io.LimitReader(log, logMax))
	lines.Buffer(make([]byte, 0, 64<<10), lineMax)
	var l launched
	for lines.Scan() {
		line := lines.Bytes()
		if eventlog.EachHookCall(line, m.hookCall) {
			continue
		}
		m.line(line, &l)
	}
	l.tell(m)
	if err := lines.Err(); err != nil {
		return fmt.Errorf("cannot read the event log: %w", err)
	}
	return nil
}

// launched is what a log says about the launch as a whole.
type launched struct{ asked, ran time.Time }

func (l *launched) tell(m *Metrics) {
	if !l.asked.IsZero() && l.ran.After(l.asked) {
		m.launch.Observe(l.ran.Sub(l.asked).Seconds())
	}
}

// line counts one event. Most of a log's lines are of no interest, and are not parsed.
func (m *Metrics) line(line []byte, l *launched) {
	_, rest, ok := bytes.Cut(line[:min(len(line), 96)], []byte(`"event":"`))
	if !ok {
		return
	}
	name, _, _ := bytes.Cut(rest, []byte(`"`))
	switch string(name) {
	case eventlog.EventRequest, eventlog.EventStageEnd, eventlog.EventTaskExec, eventlog.EventKill:
	default:
		return
	}
	var e eventlog.Event
	if json.Unmarshal(line, &e) != nil {
		return // the end of stepd may have cut it
	}
	switch e.Event {
	case eventlog.EventRequest:
		l.asked = e.Time
	case eventlog.EventTaskExec:
		l.ran = e.Time
	case eventlog.EventStageEnd:
		if e.DurUS != nil {
			m.phases.WithLabelValues(m.phase.of(e.Phase)).Observe(float64(*e.DurUS) / 1e6)
		}
	case eventlog.EventKill:
		m.kills.WithLabelValues(signalName(e.Signal)).Inc()
	}
}

// signalName is "SIGTERM"; stepd's own end, after which noded has killed the rest,
// has no number in the log.
func signalName(n *int) string {
	if n == nil {
		return "SIGKILL"
	}
	if name := unix.SignalName(syscall.Signal(*n)); name != "" {
		return name
	}
	return other
}

func (m *Metrics) hookCall(c eventlog.HookCall) {
	plugin, hook := m.plugin.of(base(c.Plugin)), hookName(c.Hook)
	m.hooks.WithLabelValues(plugin, hook).Inc()
	m.hookTime.WithLabelValues(plugin, hook).Add(c.Took.Seconds())
	if !c.Returned || c.RC != 0 {
		m.hookBad.WithLabelValues(plugin, hook).Inc()
	}
}

// hookName is "task_init" of "slurm_spank_task_init".
func hookName(hook string) string {
	name := strings.TrimPrefix(hook, "slurm_spank_")
	switch name {
	case "init", "init_post_opt", "local_user_init", "user_init", "task_init_privileged", "task_init", "task_post_fork", "task_exit",
		"exit", "job_prolog", "job_epilog", "slurmd_exit":
		return name
	}
	return other
}

func base(path string) string { return filepath.Base(path) }
