package integration

import (
	"slices"
	"strings"
)

// processFacts are relations between pids, groups and sessions.
func (w *world) processFacts(facts *table, c string, r *record) {
	facts.set(c, "tid", map[bool]string{true: "main thread", false: "other thread"}[r.TID == r.PID])
	if r.Ctx != 2 || r.inChild() {
		facts.set(c, "Threads", r.Status["Threads"])
	}
	if r.inChild() {
		facts.set(c, "ppid", w.pid(r.PPID))
		facts.set(c, "sid", map[bool]string{true: "the parent's", false: "another"}[r.SID == w.sessions[r.PPID]])
		switch name := w.pid(r.PGID); {
		case r.CB == "task_init_privileged" && (r.PGID == w.groups[r.PPID] || name == r.actor+" task 0"):
			// A race in the original: the parent's setpgid may have come first.
			facts.set(c, "pgid", "the parent's or task 0's")
		default:
			facts.set(c, "pgid", name)
		}
		return
	}
	facts.set(c, "pid", w.pid(r.PID))
	facts.set(c, "pgid", leads(r.PGID, r.PID, w.groups[r.PID]))
	facts.set(c, "sid", leads(r.SID, r.PID, w.sessions[r.PID]))
}

func leads(id, pid, first int) string {
	switch {
	case id != first:
		return "changed"
	case id == pid:
		return "leads it"
	}
	return "in another's"
}

// stateFacts are the masks, capabilities, limits and descriptors.
func (w *world) stateFacts(facts *table, c string, r *record) {
	for _, name := range []string{"Name", "Umask", "TracerPid", "Uid", "Gid", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt",
		"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"} {
		value := strings.TrimLeft(r.Status[name], "0")
		if value == "" || value[0] == ' ' || name == "Umask" {
			value = "0" + value
		}
		if strings.HasPrefix(name, "Cap") && r.Status[name] == w.capBnd {
			value = "FULL"
		}
		facts.set(c, "status."+name, value)
	}
	facts.set(c, "status.Cpus_allowed_list", map[bool]string{true: "ALL", false: r.Status["Cpus_allowed_list"]}[r.Status["Cpus_allowed_list"] == w.cpus])
	for _, name := range []string{"stack", "memlock", "nproc", "as"} {
		value := r.Rlimit[name]
		if value == w.limits[name] {
			value = "inherited"
		}
		facts.set(c, "rlimit."+name, value)
	}
	w.fdFacts(facts, c, r)
}

// fdFacts are what the standard descriptors are, where they are not the
// caller's own, and which others a program would inherit.
func (w *world) fdFacts(facts *table, c string, r *record) {
	callers := r.Ctx == 1 || r.Ctx == 3 || r.Ctx == 4
	for _, fd := range []string{"0", "1", "2"} {
		kind, open := r.FDs[fd]
		kind = strings.TrimSuffix(kind, closedByExec)
		switch i := strings.IndexByte(kind, ':'); {
		case callers:
			continue
		case !open:
			kind = "closed"
		case i > 0:
			kind = kind[:i]
		case kind != "/dev/null":
			kind = "file"
		}
		facts.set(c, "fds."+fd, kind)
	}
	var others []string
	for fd := range openDescriptors(r.FDs) {
		if fd != "0" && fd != "1" && fd != "2" && !(callers && w.inherited[fd]) {
			others = append(others, fd)
		}
	}
	slices.Sort(others)
	facts.set(c, "fds.others", "all but these closed by exec:"+strings.Join(others, ","))
}
