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
		"early exits":          reapEarlyExits,
		"raw status and usage": reapRawStatus,
		"orphans":              reapOrphans,
		"no children":          reapNoChildren,
		"spared children":      reapSpared,
		"inherited SIG_IGN":    reapIgnored,
		"close":                reapClose,
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
	// No other wait has taken the status.
	_, err = syscall.Wait4(pid, nil, 0, nil)
	return err
}
