package linux

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestReaper(t *testing.T) {
	var roles []string
	for role := range reaperRoles() {
		roles = append(roles, role, role+looking)
	}
	for _, role := range roles {
		t.Run(role, func(t *testing.T) {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(self)
			// The race detector's exit would take a second of its own.
			cmd.Env = append(os.Environ(), roleVar+"="+role, "GORACE=atexit_sleep_ms=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// looking is the ending of a role whose reaper looks at each child before it
// reaps it.
const looking = ", looking"

// lastLook reads what only a process that is not reaped has.
func lastLook(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return string(data)
}

func reaperRoles() map[string]func(*Reaper, <-chan Exit) error {
	return map[string]func(*Reaper, <-chan Exit) error{
		"early exits":            reapEarlyExits,
		"raw status and usage":   reapRawStatus,
		"orphans":                reapOrphans,
		"no children":            reapNoChildren,
		"spared children":        reapSpared,
		"watched before exit":    reapWatched,
		"watched after exit":     reapWatchedLate,
		"stale exit of a number": reapStale,
		"inherited SIG_IGN":      reapIgnored,
		"close":                  reapClose,
	}
}

// playReaper runs in a process of its own.
func playReaper(role string) error {
	role, looks := strings.CutSuffix(role, looking)
	if role == "inherited SIG_IGN" {
		signal.Ignore(syscall.SIGCHLD)
	}
	if err := SetSubreaper(); err != nil {
		return err
	}
	orphans := make(chan Exit, 1000) // more than any role makes
	var last func(int) string
	if looks {
		last = lastLook
	}
	r := NewReaper(func(e Exit) { orphans <- e }, last)
	return reaperRoles()[role](r, orphans)
}

func sh(r *Reaper, script string) (int, <-chan Exit, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, nil, err
	}
	defer null.Close()
	fd := null.Fd()
	return r.Start("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{Files: []uintptr{fd, fd, 2}})
}

// take waits for an exit, for so long that only a lost one fails.
func take(exits <-chan Exit) (Exit, error) {
	select {
	case e := <-exits:
		return e, nil
	case <-time.After(30 * time.Second):
		return Exit{}, fmt.Errorf("an exit was lost")
	}
}

// wantCode takes an exit and compares it.
func wantCode(exits <-chan Exit, pid, code int) error {
	e, err := take(exits)
	if err != nil {
		return err
	}
	if e.PID != pid || e.Status.ExitStatus() != code {
		return fmt.Errorf("process %d ended with status %#x, want process %d with code %d", e.PID, e.Status, pid, code)
	}
	return nil
}

func reapEarlyExits(r *Reaper, _ <-chan Exit) error {
	type child struct {
		pid    int
		exited <-chan Exit
	}
	var children []child
	for i := range 200 {
		pid, exited, err := sh(r, fmt.Sprintf("exit %d", i))
		if err != nil {
			return err
		}
		children = append(children, child{pid, exited})
	}
	for i, c := range children {
		if err := wantCode(c.exited, c.pid, i); err != nil {
			return err
		}
	}
	return nil
}

func reapRawStatus(r *Reaper, _ <-chan Exit) error {
	_, exited, err := sh(r, "kill -USR1 $$")
	if err != nil {
		return err
	}
	e, err := take(exited)
	if err != nil {
		return err
	}
	if uint32(e.Status) != uint32(syscall.SIGUSR1) || e.Usage.Maxrss == 0 {
		return fmt.Errorf("got status %#x and maxrss %d, want the signal and a size", e.Status, e.Usage.Maxrss)
	}
	return nil
}

func reapOrphans(r *Reaper, orphans <-chan Exit) error {
	pid, exited, err := sh(r, "( (sleep 0.1; exit 7) & ); exit 3")
	if err != nil {
		return err
	}
	if err := wantCode(exited, pid, 3); err != nil {
		return err
	}
	e, err := take(orphans)
	if err != nil {
		return err
	}
	if e.Status.ExitStatus() != 7 {
		return fmt.Errorf("the orphan ended with status %#x, want code 7", e.Status)
	}
	if r.last != nil && !strings.HasPrefix(e.Last, fmt.Sprintf("%d (sh) Z ", e.PID)) {
		return fmt.Errorf("the last look at the orphan %d told %q", e.PID, e.Last)
	}
	return nil
}

// reapSpared: a child that serves others does not count, its own children, which
// it leaves behind, do.
func reapSpared(r *Reaper, _ <-chan Exit) error {
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	attr := &syscall.ProcAttr{Files: []uintptr{in.Fd(), 1, 2}}
	_, exited, err := r.StartSpared("/bin/cat", []string{"cat"}, attr)
	if err != nil {
		return err
	}
	in.Close()
	other, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	_, gone, err := r.Start("/bin/cat", []string{"cat"}, &syscall.ProcAttr{Files: []uintptr{other.Fd(), 1, 2}})
	if err != nil {
		return err
	}
	other.Close()
	none := r.NoChildren()
	select {
	case <-none:
		return fmt.Errorf("no children was told while one lived that is not spared")
	case <-time.After(50 * time.Millisecond):
	}
	theirs.Close()
	if _, err := take(gone); err != nil {
		return err
	}
	select {
	case <-none:
	case <-time.After(5 * time.Second):
		return fmt.Errorf("no children was not told while a spared one lived")
	}
	out.Close()
	_, err = take(exited)
	return err
}

func reapNoChildren(r *Reaper, _ <-chan Exit) error {
	<-r.NoChildren() // none yet
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	// The child is gone at once, its own child reads until the pipe ends.
	attr := &syscall.ProcAttr{Files: []uintptr{in.Fd(), null.Fd(), 2}}
	_, exited, err := r.Start("/bin/sh", []string{"sh", "-c", "exec 3<&0; cat <&3 & exit 0"}, attr)
	if err != nil {
		return err
	}
	in.Close()
	if _, err := take(exited); err != nil {
		return err
	}
	none := r.NoChildren()
	select {
	case <-none:
		return fmt.Errorf("no children was told while a descendant lived")
	case <-time.After(50 * time.Millisecond):
	}
	out.Close()
	select {
	case <-none:
	case <-time.After(30 * time.Second):
		return fmt.Errorf("no children was not told")
	}
	return nil
}

func reapWatched(r *Reaper, _ <-chan Exit) error {
	// A descendant becomes a child when its parent is killed.
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	told, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	attr := &syscall.ProcAttr{Files: []uintptr{in.Fd(), tell.Fd(), 2}}
	parent, killed, err := r.Start("/bin/sh", []string{"sh", "-c", "exec 3<&0; (cat <&3; exit 9) & echo $!; wait"}, attr)
	if err != nil {
		return err
	}
	in.Close()
	tell.Close()
	var child int
	if _, err := fmt.Fscan(told, &child); err != nil {
		return err
	}
	pidfd, err := PidfdOpen(child)
	if err != nil {
		return err
	}
	watched, err := r.Watch(child, pidfd)
	if err != nil {
		return err
	}
	if _, err := r.Watch(child, pidfd); err == nil {
		return fmt.Errorf("one process was watched twice")
	}
	if err := syscall.Kill(parent, syscall.SIGKILL); err != nil {
		return err
	}
	if _, err := take(killed); err != nil { // until then it could reap the child
		return err
	}
	out.Close()
	return wantCode(watched, child, 9)
}

func reapWatchedLate(r *Reaper, orphans <-chan Exit) error {
	child, pidfd, err := deadOrphan(r, orphans)
	if err != nil {
		return err
	}
	watched, err := r.Watch(child, pidfd)
	if err != nil {
		return err
	}
	return wantCode(watched, child, 9)
}

// deadOrphan returns a descendant, with code 9, that was reaped before anyone
// asked for it, and a pidfd of it.
func deadOrphan(r *Reaper, orphans <-chan Exit) (pid, pidfd int, err error) {
	in, out, err := os.Pipe()
	if err != nil {
		return 0, 0, err
	}
	defer in.Close()
	told, tell, err := os.Pipe()
	if err != nil {
		return 0, 0, err
	}
	attr := &syscall.ProcAttr{Files: []uintptr{in.Fd(), tell.Fd(), 2}}
	shell, ended, err := r.Start("/bin/sh", []string{"sh", "-c", "exec 3<&0; (cat <&3; exit 9) & echo $!"}, attr)
	tell.Close()
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Fscan(told, &pid); err != nil {
		return 0, 0, err
	}
	if pidfd, err = PidfdOpen(pid); err != nil {
		return 0, 0, err
	}
	// A shell that lives reaps its children between two commands.
	if err := wantCode(ended, shell, 0); err != nil {
		return 0, 0, err
	}
	out.Close()
	return pid, pidfd, wantCode(orphans, pid, 9)
}

// reapStale: an exit that was stashed under a number must not be taken for
// that of a living process which has the number now.
func reapStale(r *Reaper, _ <-chan Exit) error {
	pid, _, err := sh(r, "exec sleep 1000")
	if err != nil {
		return err
	}
	pidfd, err := PidfdOpen(pid)
	if err != nil {
		return err
	}
	r.Forget(pid)
	r.mu.Lock()
	r.early.put(Exit{PID: pid, Status: 5 << 8})
	r.mu.Unlock()
	watched, err := r.Watch(pid, pidfd)
	if err != nil {
		return err
	}
	select {
	case e := <-watched:
		return fmt.Errorf("got status %#x of a process that lives", e.Status)
	default:
	}
	if err := PidfdSignal(pidfd, syscall.SIGKILL); err != nil {
		return err
	}
	e, err := take(watched)
	if err == nil && e.Status.Signal() != syscall.SIGKILL {
		return fmt.Errorf("got status %#x, want SIGKILL", e.Status)
	}
	return err
}

func reapIgnored(r *Reaper, _ <-chan Exit) error {
	pid, exited, err := sh(r, "exit 4")
	if err != nil {
		return err
	}
	return wantCode(exited, pid, 4)
}

func reapClose(r *Reaper, _ <-chan Exit) error {
	r.Close()
	pid, err := syscall.ForkExec("/bin/true", []string{"true"}, nil)
	if err != nil {
		return err
	}
	// Nobody has stolen it.
	_, err = syscall.Wait4(pid, nil, 0, nil)
	return err
}

func TestStash(t *testing.T) {
	var s stash
	for pid := 1; pid <= 3*stashSize; pid++ {
		s.put(Exit{PID: pid})
		s.put(Exit{PID: 1 << 22, Status: syscall.WaitStatus(pid)})
		if len(s.exits) > stashSize {
			t.Fatalf("the stash holds %d exits, want at most %d", len(s.exits), stashSize)
		}
	}
	if e, ok := s.take(1 << 22); !ok || e.Status != 3*stashSize {
		t.Errorf("take = %v, %v; want the last exit", e, ok)
	}
	if _, ok := s.take(1 << 22); ok {
		t.Error("an exit was taken twice")
	}
	if _, ok := s.take(1); ok {
		t.Error("the oldest exit is still there")
	}
}
