package site

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/node/store"
	"stepd/slurmconf"
)

// wantedLimits are the limits that noded needs on a node of many steps, and what for.
func wantedLimits() []struct {
	name, line string
	min        uint64
	why, unit  string
} {
	return []struct {
		name, line string
		min        uint64
		why, unit  string
	}{
		{"NOFILE", "Max open files", 65536, "noded has some descriptors for each step and each client, and a task's limit cannot be above it", "LimitNOFILE=131072"},
		{"NPROC", "Max processes", 4096, "a task's limit cannot be above it", "LimitNPROC=infinity"},
		{"MEMLOCK", "Max locked memory", 1 << 30, "tasks cannot lock more, and MPI over InfiniBand locks its buffers", "LimitMEMLOCK=infinity"},
		{"STACK", "Max stack size", 8 << 20, "a task's limit cannot be above it", "LimitSTACK=infinity"},
	}
}

// lookLimits looks at the limits of the noded that runs, else at our own.
func (s *Site) lookLimits() []finding {
	pid, whose := noded(s.Spool), "noded's"
	if pid == 0 {
		pid, whose = os.Getpid(), "this shell's (noded does not run)"
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return []finding{{slurmconf.SeverityWarning, "limits", fmt.Sprintf("cannot read %s limits: %v", whose, err), "look whether /proc is mounted"}}
	}
	out := judgeLimits(string(text), whose)
	if f, found := pidsLimit(pid); found {
		out = append(out, f)
	}
	if len(out) == 0 {
		return fine("limits", "%s are enough", whose)
	}
	return out
}

// judgeLimits reads /proc/PID/limits.
func judgeLimits(text, whose string) (out []finding) {
	for _, w := range wantedLimits() {
		for line := range strings.Lines(text) {
			rest, ok := strings.CutPrefix(line, w.line)
			words := strings.Fields(rest)
			if !ok || len(words) < 2 || words[1] == "unlimited" {
				continue
			}
			if n, err := strconv.ParseUint(words[1], 10, 64); err == nil && n < w.min {
				out = append(out, finding{
					slurmconf.SeverityWarning, "limits", fmt.Sprintf("%s hard limit %s is %d: %s", whose, w.name, n, w.why),
					"write " + w.unit + " into the unit (systemctl edit noded)",
				})
			}
		}
	}
	return out
}

// pidsMin is how many processes the cgroup of noded should allow.
const pidsMin = 1024

// pidsLimit looks at the pids controller above the process.
func pidsLimit(pid int) (f finding, found bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return f, false
	}
	for line := range strings.Lines(string(text)) {
		words := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(words) != 3 || words[1] != "" && words[1] != "pids" {
			continue
		}
		for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/pids"} {
			path := filepath.Join(root, words[2], "pids.max")
			b, err := os.ReadFile(path)
			if n, perr := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && perr == nil && n < pidsMin {
				return finding{slurmconf.SeverityWarning, "limits", fmt.Sprintf("%q allows %d processes, and steps started there are among them", path, n), "write TasksMax=infinity into the unit (systemctl edit noded)"}, true
			}
		}
	}
	return f, false
}

// lookClock compares the clock with what was written last, and asks the kernel
// whether a daemon keeps it.
func (s *Site) lookClock() []finding {
	var newest time.Time
	if info, err := os.Stat(filepath.Join(s.Spool, store.DurableName)); err == nil {
		newest = info.ModTime()
	}
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx)
	synced := err == nil && state != unix.TIME_ERROR && tx.Status&unix.STA_UNSYNC == 0
	return judgeClock(time.Now(), newest, synced)
}

// clockSlack is how far the last write may lie ahead.
const clockSlack = time.Minute

func judgeClock(now, newest time.Time, synced bool) []finding {
	switch {
	case now.Year() < 2024:
		return []finding{{slurmconf.SeverityError, "clock", fmt.Sprintf("it is %s by the clock: time limits and the ages of steps would be wrong", now.Format(time.RFC3339)), "set it, and let chrony or systemd-timesyncd keep it"}}
	case newest.After(now.Add(clockSlack)):
		return []finding{{slurmconf.SeverityWarning, "clock", fmt.Sprintf("it is %s by the clock, and noded has written its state at %s: it was set back", now.Format(time.RFC3339), newest.Format(time.RFC3339)), "set it, and let chrony or systemd-timesyncd keep it"}}
	case !synced:
		return fine("clock", "%s, kept by no daemon", now.Format(time.RFC3339))
	}
	return fine("clock", "%s, synchronised", now.Format(time.RFC3339))
}

// unitMax bounds the question to systemd, within probeMax: that it does not answer is
// told as such.
const unitMax = 3 * time.Second

// lookSystemd looks at the unit, where systemd runs the host.
func (s *Site) lookSystemd() []finding {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return fine("systemd", "does not run this host")
	}
	ctx, cancel := context.WithTimeout(context.Background(), unitMax)
	defer cancel()
	out, err := exec.CommandContext(ctx, "systemctl", "show", "noded.service", "-p", "LoadState,KillMode,Delegate,Type,TasksMax,NeedDaemonReload").Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return []finding{{slurmconf.SeverityWarning, "systemd", fmt.Sprintf("cannot ask for noded.service: %v", err), "look at systemctl status"}}
	}
	return judgeUnit(string(out))
}

func judgeUnit(show string) (out []finding) {
	have := map[string]string{}
	for line := range strings.Lines(show) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			have[key] = value
		}
	}
	if have["LoadState"] != "loaded" {
		return fine("systemd", "noded.service is %s: noded is not run as a unit", have["LoadState"])
	}
	warn := func(text, remedy string) {
		out = append(out, finding{slurmconf.SeverityWarning, "systemd", text, remedy})
	}
	if mode := have["KillMode"]; mode != "process" {
		warn("noded.service has KillMode="+mode+": a stop would end what noded has started, not noded alone", "write KillMode=process into it (systemctl edit noded)")
	}
	if have["Delegate"] != "yes" {
		warn("noded.service has Delegate="+have["Delegate"]+": systemd may change the cgroups of steps", "write Delegate=yes into it (systemctl edit noded)")
	}
	if kind := have["Type"]; kind != "notify" && kind != "notify-reload" {
		warn("noded.service has Type="+kind+": systemd takes it for ready before it serves", "write Type=notify into it (systemctl edit noded)")
	}
	if have["NeedDaemonReload"] == "yes" {
		warn("noded.service was changed on disk", "systemctl daemon-reload")
	}
	if len(out) == 0 {
		return fine("systemd", "noded.service is in order")
	}
	return out
}
