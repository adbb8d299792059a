package integration

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// world says what the names and numbers of one recording stand for, so that
// two recordings can be compared.
type world struct {
	words  map[string]string // whole values
	paths  *strings.Replacer // directories and files, anywhere in a value
	soft   map[string]string // SLURM_RLIMIT_NAME: the caller's soft limit
	limits map[string]string // rlimit: what every process inherits
	capBnd string
	cpus   string

	// inherited are descriptors that the caller had left open for its children.
	inherited map[string]bool

	job  string
	pids map[int]string
	// The task that ended last, by actor: what the environment says in exit.
	last map[string]int
	// A process's group and session when it was first seen.
	groups, sessions map[int]int
}

// traceWorld is where the traces were recorded.
func traceWorld(records []record) *world {
	first := records[0]
	w := &world{
		words: map[string]string{"guser1": "USER"},
		paths: strings.NewReplacer(
			"/srv/probe/home/guser1", "HOME", "/srv/probe/wd", "WORKDIR", "/srv/probe/etc", "ETC", "/srv/probe/plug", "PLUGINS",
			"/srv/probe/spool/job"+fmt.Sprintf("%05s", jobID(records))+"/slurm_script", "SCRIPT", "/srv/probe/log", "the daemon's"),
		soft: map[string]string{}, limits: first.Rlimit, inherited: openDescriptors(first.FDs),
		capBnd: first.Status["CapBnd"], cpus: first.Status["Cpus_allowed_list"],
	}
	for i := range records {
		for _, entry := range records[i].JobEnv {
			name, value, _ := strings.Cut(entry, "=")
			if limit, ok := strings.CutPrefix(name, "SLURM_RLIMIT_"); ok && limit != "CORE" && limit != "NOFILE" {
				w.soft[limit] = value
			}
		}
	}
	return w
}

// ourWorld is this machine, as the test's own process knows it: it is noded's
// parent and stepctl's.
func ourWorld(t testing.TB, n *node) *world {
	t.Helper()
	hostname, err := os.Hostname()
	must(t, err)
	w := &world{
		words: map[string]string{alice.name: "USER", hostname: "vm", n.socket(): "SOCKET"},
		paths: strings.NewReplacer(n.path("home"), "HOME", n.wd, "WORKDIR", n.path("spool", "scripts", "job00001", "slurm_script"), "SCRIPT", n.dir, "ETC"),
		soft:  map[string]string{}, limits: map[string]string{},
	}
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	own := map[string]string{}
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		must(t, err)
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			own[e.Name()] = ""
		}
	}
	w.inherited = openDescriptors(own)
	limits := map[string]int{
		"CPU": unix.RLIMIT_CPU, "FSIZE": unix.RLIMIT_FSIZE, "DATA": unix.RLIMIT_DATA, "STACK": unix.RLIMIT_STACK, "RSS": unix.RLIMIT_RSS,
		"NPROC": unix.RLIMIT_NPROC, "MEMLOCK": unix.RLIMIT_MEMLOCK, "AS": unix.RLIMIT_AS,
	}
	for name, which := range limits {
		var l unix.Rlimit
		must(t, unix.Getrlimit(which, &l))
		w.soft[name] = fmt.Sprint(l.Cur)
		w.limits[strings.ToLower(name)] = fmt.Sprintf("%d/%d", int64(l.Cur), int64(l.Max))
	}
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	for _, line := range strings.Split(string(status), "\n") {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); name {
		case "CapBnd":
			w.capBnd = value
		case "Cpus_allowed_list":
			w.cpus = value
		}
	}
	return w
}

// openDescriptors are those that exec does not close.
func openDescriptors(fds map[string]string) map[string]bool {
	open := map[string]bool{}
	for fd, target := range fds {
		if !strings.HasSuffix(target, closedByExec) {
			open[fd] = true
		}
	}
	return open
}

// closedByExec is how the recording plugin marks a descriptor.
const closedByExec = " [CX]"

// learn names the processes of the recording, and its job.
func (w *world) learn(records []record) {
	w.job = jobID(records)
	w.pids, w.last = map[int]string{}, map[string]int{}
	w.groups, w.sessions = map[int]int{}, map[int]int{}
	for i := range records {
		r := &records[i]
		if _, seen := w.groups[r.PID]; !seen && r.CB != "opt_cb" {
			w.groups[r.PID], w.sessions[r.PID] = r.PGID, r.SID
		}
		switch {
		case r.inChild():
			w.pids[r.PID] = fmt.Sprintf("%s task %d", r.actor, r.rank)
		case w.pids[r.PID] != "":
		case r.Ctx == 5:
			w.pids[r.PID] = r.CB
		default:
			w.pids[r.PID] = r.actor
		}
		if r.CB == "task_exit" {
			w.last[r.actor] = r.rank
		}
	}
}

// word replaces a value by what it stands for.
func (w *world) word(v string) string {
	if to, ok := w.words[v]; ok {
		return to
	}
	return w.paths.Replace(v)
}

func (w *world) pid(pid int) string {
	if name, ok := w.pids[pid]; ok {
		return name
	}
	return "another's"
}

// pidText names a number that may be a pid.
func (w *world) pidText(v string) string {
	pid, err := strconv.Atoi(v)
	if err != nil || pid <= 0 {
		return v
	}
	return w.pid(pid)
}

// envValue is the value of a variable that a record holds.
func (w *world) envValue(r *record, name, value string) string {
	if limit, ok := strings.CutPrefix(name, "SLURM_RLIMIT_"); ok {
		if soft, known := w.soft[limit]; known && value == soft {
			return "the caller's"
		} else if !known {
			return "not compared"
		}
		return value
	}
	switch {
	case (name == "SLURM_JOB_ID" || name == "SLURM_JOBID") && value == w.job:
		return "JOB"
	case name == "SLURM_SRUN_COMM_PORT" || name == "SLURM_STEP_LAUNCHER_PORT":
		return "a port"
	case name == "SLURM_TASK_PID":
		return w.pidText(value)
	case r.CB == "exit" && (name == "SLURM_PROCID" || name == "SLURM_LOCALID"):
		if last, ok := w.last[r.actor]; ok && value == strconv.Itoa(last) {
			return "that of the last exit"
		}
	case strings.HasPrefix(name, "PROBE_SET_"):
		return "pid of " + w.pidText(strings.TrimPrefix(value, "pid"))
	}
	return w.word(value)
}
