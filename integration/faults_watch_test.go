package integration

import (
	byteorder "encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// logWatch reads the event log of the step that is made next, as it is written: what
// happens to it needs nothing in the programs.
type logWatch struct {
	dir    string
	notice *os.File
	id     string // of the step, "" before it has a log
	log    *os.File
	seen   strings.Builder
}

// watchLogs begins before the step is asked for.
func watchLogs(t testing.TB, n *node) *logWatch {
	t.Helper()
	w := &logWatch{dir: n.path("spool", "events")}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	w.notice = os.NewFile(uintptr(fd), "inotify")
	_, err = unix.InotifyAddWatch(fd, w.dir, unix.IN_CREATE|unix.IN_MODIFY)
	must(t, err)
	return w
}

func (w *logWatch) close() {
	w.notice.Close()
	if w.log != nil {
		w.log.Close()
	}
}

// until returns when the log has the text; meanwhile is called after each piece of it.
func (w *logWatch) until(text string, limit time.Duration, meanwhile func()) error {
	if err := w.notice.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		if strings.Contains(w.seen.String(), text) {
			return nil
		}
		k, err := w.notice.Read(buf)
		if err != nil {
			return fmt.Errorf("%q is not in the log of step %q after %v (%w):\n%s", text, w.id, limit, err, w.seen.String())
		}
		if err := w.open(buf[:k]); err != nil {
			return err
		}
		if err := w.read(); err != nil {
			return err
		}
		meanwhile()
	}
}

// open takes the first log that is made.
func (w *logWatch) open(events []byte) error {
	for len(events) >= unix.SizeofInotifyEvent && w.log == nil {
		mask, size := byteorder.NativeEndian.Uint32(events[4:]), byteorder.NativeEndian.Uint32(events[12:])
		end := unix.SizeofInotifyEvent + int(size)
		name := strings.TrimRight(string(events[unix.SizeofInotifyEvent:end]), "\x00")
		events = events[end:]
		id, isLog := strings.CutSuffix(name, ".jsonl")
		if mask&unix.IN_CREATE == 0 || !isLog {
			continue
		}
		var err error
		if w.log, err = os.Open(filepath.Join(w.dir, name)); err != nil {
			return err
		}
		w.id = id
	}
	return nil
}

func (w *logWatch) read() error {
	if w.log == nil {
		return nil
	}
	buf := make([]byte, 16<<10)
	for {
		k, err := w.log.Read(buf)
		w.seen.Write(buf[:k])
		if k == 0 || err != nil {
			return nil // its end, for now
		}
	}
}

// over reports whether the step has come further than to the moment, by its log.
func (w *logWatch) over(m moment) bool {
	if m.line == "" || m.next == "" {
		return false // it hangs there, or there is nothing further
	}
	if err := w.read(); err != nil {
		return true
	}
	_, since, _ := strings.Cut(w.seen.String(), m.line)
	return strings.Contains(since, m.next)
}

// childNamed finds the child of a process whose command line begins so; 0 is none.
func childNamed(pid int, begin string) int {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, path := range threads {
		b, _ := os.ReadFile(path) // a thread that has ended has none
		for _, field := range strings.Fields(string(b)) {
			cmdline, _ := os.ReadFile("/proc/" + field + "/cmdline")
			if strings.HasPrefix(string(cmdline), begin) {
				child, _ := strconv.Atoi(field)
				return child
			}
		}
	}
	return 0
}

// victims finds the processes of the step as soon as they exist, so that there is
// nothing to look for at the moment itself.
type victims struct {
	noded, stepctl           int
	stepd, spankhost, script int
	pmixhost                 int
}

func (v *victims) look(w *logWatch) {
	log := w.seen.String()
	job, _, _ := strings.Cut(w.id, ".") // the title of a batch step has a word for its number
	if v.stepd == 0 && strings.Contains(log, `"state":"STARTING"`) {
		v.stepd = childNamed(v.noded, "stepd: ["+job+".")
	}
	if v.spankhost == 0 && v.stepd != 0 && strings.Contains(log, `"stage_end","phase":"spankhost"`) {
		v.spankhost = childNamed(v.stepd, "spankhost: ["+job+".")
	}
	if v.pmixhost == 0 && v.stepd != 0 && strings.Contains(log, `"stage_end","phase":"mpi_prefork"`) {
		v.pmixhost = childNamed(v.stepd, "pmixhost")
	}
}

// kill kills the process with that name. It reports whether it existed.
func (v *victims) kill(name string) (bool, error) {
	pid := map[string]int{"noded": v.noded, "stepctl": v.stepctl, "stepd": v.stepd, "spankhost": v.spankhost, "pmixhost": v.pmixhost}[name]
	if pid == 0 {
		pid = v.script
	}
	if pid == 0 {
		return false, fmt.Errorf("no process %q was seen", name)
	}
	there := alive(pid)
	err := killNow(pid)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if name == "stepctl" && err == nil {
		// Its connections end with it, which on a busy machine takes longer than to start a task.
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		}
		if errors.Is(err, unix.ECHILD) { // it is waited for already
			err = nil
		}
	}
	return there && err == nil, err
}
