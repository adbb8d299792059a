package task

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"stepd/step"
)

// endHeldBack ends the tasks that are dead and whose parent does not hear of it:
// the end of a traced process is its tracer's first (ptrace(2)), and one that is
// stopped or hangs, outside of the step, keeps it for ever. The host waits for
// such a task inside the kernel and is of no use any more. It tells whether all
// tasks that have not ended are such.
func (s *Step) endHeldBack() bool {
	type held struct {
		end    step.TaskEnd
		tracer int
	}
	var all []held
	for id := range s.tasks {
		if s.tasks[id].ended {
			continue
		}
		tracer, status, ok := heldZombie(s.tasks[id].pid)
		if !ok {
			return false
		}
		all = append(all, held{step.TaskEnd{LocalID: id, Status: status}, tracer})
	}
	s.hostBusy = true
	for _, h := range all {
		s.sayError(fmt.Sprintf("task %d (pid %d) is dead, and its tracer, pid %d %q, has not taken its end: it stays a zombie until that process ends or detaches",
			s.rank(h.end.LocalID), s.tasks[h.end.LocalID].pid, h.tracer, comm(h.tracer)))
		s.taskEnded(h.end)
	}
	return true
}

// heldZombie tells of a zombie that is traced, how it ended and by whom. Its
// number cannot have come again: nobody has reaped it.
func heldZombie(pid int) (tracer int, status step.ExitStatus, ok bool) {
	st, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, false
	}
	for line := range bytes.Lines(st) {
		if v, found := strings.CutPrefix(string(line), "TracerPid:"); found {
			tracer, _ = strconv.Atoi(strings.TrimSpace(v)) // 0 is nobody
		}
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || tracer == 0 {
		return 0, 0, false
	}
	status, ok = parseZombie(stat)
	return tracer, status, ok
}

// parseZombie finds the wait status in the stat line of a zombie: field 52 of
// proc_pid_stat(5). The name before the last ')' is the user's.
func parseZombie(stat []byte) (status step.ExitStatus, ok bool) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, false
	}
	f := bytes.Fields(stat[end+1:])
	if len(f) < 50 || string(f[0]) != "Z" {
		return 0, false
	}
	code, err := strconv.ParseUint(string(f[49]), 10, 16)
	if err != nil {
		return 0, false
	}
	return step.ExitStatus(code), true
}

// comm is a process's name, "?" where it is gone.
func comm(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "?"
	}
	return strings.TrimSuffix(string(b), "\n")
}
