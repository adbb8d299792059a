package site

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/mpi"
	"stepd/node/place"
	"stepd/node/spool"
	"stepd/node/store"
	"stepd/proctrack/detect"
	"stepd/slurmconf"
)

// finding is one line of what `noded --check` says of the host.
type finding struct {
	severity slurmconf.Severity // severityOK is none of slurmconf's
	about    string
	text     string
	remedy   string // "" of what is in order
}

// severityOK is a finding that all is well.
const severityOK slurmconf.Severity = "ok"

func (f finding) String() string {
	s := fmt.Sprintf("%s: %s: %s", f.severity, f.about, f.text)
	if f.remedy != "" && !strings.Contains(f.text, f.remedy) {
		s += "; " + f.remedy
	}
	return s
}

// probeMax bounds each look at the host: a dead mount does not answer.
const probeMax = 4 * time.Second

// probe is one look at the host.
type probe struct {
	about string
	look  func(s *Site) []finding
}

// probes are all of them, in the order in which they are told.
func probes() []probe {
	return []probe{
		{"programs", (*Site).lookPrograms},
		{"run directory", func(s *Site) []finding { return lookDir("run directory", s.Run, "--run-dir") }},
		{"spool", func(s *Site) []finding { return lookDir("spool", s.Spool, "SlurmdSpoolDir or --spool-dir") }},
		{"disk", (*Site).lookRoom},
		{"cgroups", (*Site).lookCgroups},
		{"memory", (*Site).lookMemory},
		{"limits", (*Site).lookLimits},
		{"clock", (*Site).lookClock},
		{"plugins", (*Site).lookPlugins},
		{"mpi", (*Site).lookMPI},
		{"scripts", (*Site).lookScripts},
		{"containers", (*Site).lookContainers},
		{"metrics", (*Site).lookMetrics},
		{"systemd", (*Site).lookSystemd},
	}
}

// examine is the second half of `noded --check`: what the host has and noded needs.
func examine(s *Site) (found []finding) {
	if os.Geteuid() != 0 {
		return []finding{{slurmconf.SeverityWarning, "host", "was not examined, as this is not root", "run noded --check as root"}}
	}
	// All at once: hanging checks wait together.
	var answers []chan []finding
	for _, p := range probes() {
		answer := make(chan []finding)
		answers = append(answers, answer)
		go func() { answer <- s.ask(p, probeMax) }()
	}
	for _, answer := range answers {
		found = append(found, <-answer...)
	}
	return found
}

// ask looks, and does not wait longer than limit.
func (s *Site) ask(p probe, limit time.Duration) []finding {
	found := make(chan []finding, 1) // size 1: the caller may not wait any more
	go func() { found <- p.look(s) }()
	select {
	case f := <-found:
		return f
	case <-time.After(limit):
		return []finding{{
			slurmconf.SeverityError, p.about, fmt.Sprintf("no answer within %v: a file system waits for its server or disk", limit),
			"find the mount (cat /proc/mounts) and bring its server back, or umount -f",
		}}
	}
}

func fine(about, format string, args ...any) []finding {
	return []finding{{severityOK, about, fmt.Sprintf(format, args...), ""}}
}

func (s *Site) lookPrograms() []finding {
	stepd, spankhost, err := programs()
	if err != nil {
		return []finding{{slurmconf.SeverityError, "programs", err.Error(), "install the package anew: noded finds them beside itself, or in ../libexec/stepd"}}
	}
	var out []finding
	for _, path := range []string{stepd, spankhost} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			out = append(out, finding{slurmconf.SeverityError, "programs", fmt.Sprintf("cannot look at %q: %v", path, err), "install the package anew"})
		} else if st.Uid != 0 || st.Mode&0o022 != 0 {
			out = append(out, finding{
				slurmconf.SeverityWarning, "programs", fmt.Sprintf("%q runs as root, and uid %d owns it with mode %#o", path, st.Uid, st.Mode&0o7777),
				fmt.Sprintf("chown root %[1]s && chmod go-w %[1]s", path),
			})
		}
	}
	if len(out) == 0 {
		return fine("programs", "%s, %s", stepd, spankhost)
	}
	return out
}

// lookDir looks at a directory that noded makes where it is missing.
func lookDir(about, dir, key string) []finding {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return fine(about, "%s, which noded will make", dir)
	case err != nil:
		return []finding{{slurmconf.SeverityError, about, fmt.Sprintf("cannot use %q: %v", dir, err), "write another one (" + key + ")"}}
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return []finding{{slurmconf.SeverityError, about, fmt.Sprintf("%q is no directory", dir), "remove it, or write another one (" + key + ")"}}
	case st.Uid != 0:
		return []finding{{slurmconf.SeverityError, about, fmt.Sprintf("%q belongs to uid %d, and noded works there as root", dir, st.Uid), "chown root " + dir + ", or write another one (" + key + ")"}}
	case st.Mode&0o022 != 0:
		return []finding{{slurmconf.SeverityError, about, fmt.Sprintf("others than root may write in %q (mode %#o)", dir, st.Mode&0o7777), "chmod go-w " + dir}}
	}
	if pid := noded(dir); pid != 0 {
		return fine(about, "%s, in use by noded (pid %d)", dir, pid)
	}
	return fine(about, "%s", dir)
}

// noded is the pid of the noded that works in dir, 0 for none. It takes no lock
// itself: a noded that starts at this moment must get it.
func noded(dir string) (pid int) {
	path := filepath.Join(dir, "lock")
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(locks)) {
		// "1: FLOCK  ADVISORY  WRITE 708 00:13:464 0 EOF" (proc_locks(5))
		words := strings.Fields(line)
		if len(words) > 5 && words[1] == "FLOCK" && words[4] == strings.TrimSpace(string(text)) && strings.HasSuffix(words[5], fmt.Sprintf(":%d", st.Ino)) {
			pid, _ = strconv.Atoi(words[4]) // 0 of what is no number
			return pid
		}
	}
	return 0
}

// existing is dir, or the first directory above that exists.
func existing(dir string) string {
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

func (s *Site) lookRoom() (out []finding) {
	for _, d := range [][2]string{{"spool", s.Spool}, {"run directory", s.Run}} {
		room := spool.Room{What: d[0], Dir: existing(d[1])}
		for _, t := range room.Look(context.Background()) { // ask bounds it
			out = append(out, finding{slurmconf.SeverityError, "disk", t.Text, t.Remedy})
		}
	}
	if len(out) > 0 {
		return out
	}
	var st unix.Statfs_t
	if err := unix.Statfs(existing(s.Spool), &st); err != nil {
		return []finding{{slurmconf.SeverityError, "disk", err.Error(), "look at the file system of the spool"}}
	}
	return fine("disk", "%d MiB are free for the spool", st.Bavail*uint64(st.Bsize)>>20)
}

func (s *Site) lookCgroups() []finding {
	answer, err := detect.Detect(detect.Wish{
		ProctrackType: s.conf.ProctrackType, Plugin: s.conf.Cgroup.CgroupPlugin,
		Mountpoint: s.conf.Cgroup.CgroupMountpoint, IgnoreSystemd: s.conf.Cgroup.IgnoreSystemd,
	})
	if err != nil {
		return []finding{{slurmconf.SeverityError, "cgroups", err.Error(), "write another ProctrackType or CgroupPlugin"}}
	}
	out := fine("cgroups", "steps are tracked by %s", answer.Kind)
	if answer.Parent != "" {
		out = fine("cgroups", "steps are tracked by %s below %s", answer.Kind, answer.Parent)
	}
	for _, f := range answer.Fallbacks {
		out = append(out, finding{slurmconf.SeverityWarning, "cgroups", fmt.Sprintf("no %s: %s", f.What, f.Why), "see docs/cgroups.md"})
	}
	return out
}

func (s *Site) lookMemory() []finding {
	installed, err := machineMemory()
	if err != nil {
		return []finding{{slurmconf.SeverityError, "memory", err.Error(), "look whether /proc is mounted"}}
	}
	m := &machine{memory: cmp.Or(s.conf.Node.RealMemory<<20, installed), real: s.conf.Node.RealMemory > 0}
	tracker, err := place.NewTracker(silent(), placeConfig(s, ""))
	if err == nil { // else the look at cgroups reports it
		m.confine(place.MemoryAbove(tracker))
	}
	return judgeMemory(m, installed, s.memory(m.usable()).MB)
}

// judgeMemory compares what jobs are given, in MB, with what there is.
func judgeMemory(m *machine, installed, given uint64) []finding {
	warn := func(text, remedy string) []finding {
		return []finding{{slurmconf.SeverityWarning, "memory", text, remedy}}
	}
	switch {
	case m.memory > installed:
		return warn(fmt.Sprintf("RealMemory=%d is more than the %d MB of the machine", m.memory>>20, installed>>20), fmt.Sprintf("write RealMemory=%d", installed>>20))
	case m.file != "" && m.real:
		return warn(fmt.Sprintf("RealMemory=%d is more than the %d MB that %s allows", m.memory>>20, m.confined>>20, m.file), fmt.Sprintf("write RealMemory=%d, or raise the limit", m.confined>>20))
	case m.file != "":
		return fine("memory", "%d MB for jobs, of %d MB: %s allows no more", given, installed>>20, m.file)
	}
	return fine("memory", "%d MB for jobs, of %d MB", given, installed>>20)
}

func (s *Site) lookPlugins() []finding {
	if _, err := os.Stat(s.conf.PlugStackConfig); s.conf.PlugStackConfig == "" || errors.Is(err, os.ErrNotExist) {
		return fine("plugins", "none: there is no plugstack.conf")
	}
	if found := s.stackProblems(); len(found) > 0 {
		return fine("plugins", "%s: see above", s.conf.PlugStackConfig)
	}
	return fine("plugins", "%s is clean", s.conf.PlugStackConfig)
}

func (s *Site) lookMPI() []finding {
	self, err := os.Executable()
	if err == nil {
		_, err = program(self, "pmixhost")
	}
	if err == nil {
		return fine("mpi", "%s", strings.Join(mpi.Names(), ", "))
	}
	f := finding{severityOK, "mpi", "none, pmi2; no pmix: pmixhost is not installed", ""}
	if s.conf.MpiDefault == mpi.PMIx {
		f.severity, f.remedy = slurmconf.SeverityWarning, "install it, or write another MpiDefault"
	}
	return []finding{f}
}

func (s *Site) lookMetrics() []finding {
	p := NewPage(s)
	switch {
	case p == nil:
		return fine("metrics", "none (MetricsListen of stepd.conf)")
	case p.address == "unix":
		return fine("metrics", "%s", filepath.Join(s.Run, metricsSocket))
	case noded(s.Run) != 0:
		return fine("metrics", "http://%s/metrics", p.address)
	}
	l, err := p.listen()
	if err != nil {
		return []finding{{slurmconf.SeverityError, "metrics", fmt.Sprintf("cannot listen at %q: %v", p.address, err), "write another MetricsListen in stepd.conf"}}
	}
	l.Close()
	return fine("metrics", "http://%s/metrics", p.address)
}

// commandIn is the command with which an error says what mends it.
var commandIn = regexp.MustCompile(`\b(?:chmod|chown) \S+ [^\s)]+`)

// mistake is an error of what noded would not start with; the remedy is the error's own
// where it has one.
func mistake(about string, err error, remedy string) finding {
	if own := commandIn.FindString(err.Error()); own != "" {
		remedy = own
	}
	return finding{slurmconf.SeverityError, about, strings.ReplaceAll(err.Error(), "\n", "; "), remedy}
}

// silent is a log that goes nowhere.
func silent() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

func (s *Site) lookScripts() []finding {
	scripts := s.scripts()
	if err := scripts.Check(); err != nil {
		return []finding{mistake("scripts", err, "install it with chmod 755, or leave Prolog and Epilog out of slurm.conf")}
	}
	return fine("scripts", "%d of Prolog and Epilog", len(scripts.Prolog)+len(scripts.Epilog))
}

func (s *Site) lookContainers() []finding {
	if err := s.checkContainers(); err != nil {
		return []finding{mistake("containers", err, "make what is missing, or write another path")}
	}
	return fine("containers", "%s", s.conf.JobContainerType)
}

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
