package proctrack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"stepd/internal/linux"
)

// TestLinuxProc plays each scene in a process of its own, which is stepd.
func TestLinuxProc(t *testing.T) {
	for role := range stepdRoles() {
		t.Run(role, func(t *testing.T) {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(self)
			// The race detector's exit would take a second of its own.
			cmd.Env = append(os.Environ(), roleVar+"="+role, "GORACE=atexit_sleep_ms=0")
			// What a failed scene leaves may hold the output open.
			cmd.WaitDelay = 5 * time.Second
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// scene is one stepd with its tracker.
type scene struct {
	*LinuxProc
	reaper *linux.Reaper
	ctx    context.Context
}

func stepdRoles() map[string]func(scene) error {
	roles := map[string]func(scene) error{
		"evicted host survives": hostSurvives,
		"signal and freeze":     signalAndFreeze,
		"nothing to kill":       func(s scene) error { return errors.Join(s.Kill(s.ctx), s.Destroy(s.ctx), s.Destroy(s.ctx)) },
		"wrong process":         wrongProcess,
	}
	for _, w := range wild {
		roles["Kill: "+w.name] = func(s scene) error { return killWild(s, w.script, w.min, s.Kill) }
		roles["Destroy: "+w.name] = func(s scene) error { return killWild(s, w.script, w.min, s.Destroy) }
	}
	return roles
}

// playStepd runs in a process of its own.
func playStepd(role string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	r := linux.NewReaper(nil, nil)
	s := scene{NewLinuxProc(os.Getpid(), r), r, ctx}
	if err := s.Create(); err != nil {
		return err
	}
	err := stepdRoles()[role](s)
	// Whatever the scene was: Destroy leaves no child, and says so twice.
	if err := errors.Join(err, s.Destroy(ctx), s.Destroy(ctx)); err != nil {
		return err
	}
	select {
	case <-r.NoChildren():
		return nil
	case <-ctx.Done():
		return errors.New("a child is left after Destroy")
	}
}

// start runs a script as a child and returns when it says "ready".
func (s scene) start(script string) (pid int, out *bufio.Reader, err error) {
	in, w, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer w.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, nil, err
	}
	defer null.Close()
	pid, _, err = s.reaper.Start("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{null.Fd(), w.Fd(), 2}})
	if err != nil {
		return 0, nil, err
	}
	out = bufio.NewReader(in)
	if line, err := out.ReadString('\n'); line != "ready\n" {
		return 0, nil, fmt.Errorf("the script said %q (%v), want \"ready\"", line, err)
	}
	return pid, out, nil
}

func killWild(s scene, script string, atLeast int, kill func(context.Context) error) error {
	if _, _, err := s.start(script); err != nil {
		return err
	}
	pids, err := s.PIDs()
	if err != nil || len(pids) < atLeast {
		return fmt.Errorf("PIDs() = %d processes, %v; want at least %d", len(pids), err, atLeast)
	}
	if err := kill(s.ctx); err != nil {
		return err
	}
	if pids, err := s.PIDs(); err != nil || len(pids) != 0 {
		return fmt.Errorf("after the kill: PIDs() = %v, %v; want none", pids, err)
	}
	return nil
}

func hostSurvives(s scene) error {
	// The host's children are the tasks; a task's daemon is stepd's own child.
	host, out, err := s.start(`( ( sleep 1000 & ) & ); sleep 1000 & sleep 1000 & echo ready; wait; echo alive; read x; exec sleep 1000`)
	if err != nil {
		return err
	}
	if err := s.EvictHost(host); err != nil {
		return err
	}
	// The shell between host and daemon may be there still.
	if pids, err := s.PIDs(); len(pids) < 3 || slices.Contains(pids, host) || err != nil {
		return fmt.Errorf("PIDs() = %v, %v; want the 3 tasks at least, and not the host", pids, err)
	}
	if err := s.Kill(s.ctx); err != nil {
		return err
	}
	if line, err := out.ReadString('\n'); line != "alive\n" {
		return fmt.Errorf("the host said %q (%v) after the kill", line, err)
	}
	return nil
}

func signalAndFreeze(s scene) error {
	pid, out, err := s.start(`trap 'echo usr1' USR1; echo ready; while :; do read x </dev/null; done`)
	if err != nil {
		return err
	}
	if pids, err := s.PIDs(); !slices.Contains(pids, pid) || err != nil {
		return fmt.Errorf("PIDs() = %v, %v; without %d", pids, err, pid)
	}
	if err := s.Signal(syscall.SIGUSR1, 0); err != nil {
		return err
	}
	if line, err := out.ReadString('\n'); line != "usr1\n" {
		return fmt.Errorf("the task said %q (%v) to the signal", line, err)
	}
	if err := s.Freeze(s.ctx); err != nil {
		return err
	}
	// Sent while it is stopped, so handled after Thaw only.
	if err := s.Signal(syscall.SIGUSR1, 0); err != nil {
		return err
	}
	// Nothing reports when a process that is not a child has stopped.
	for state := ""; state != "T"; state = describe(pid).State {
		if s.ctx.Err() != nil {
			return fmt.Errorf("the task is %q after Freeze", state)
		}
		runtime.Gosched()
	}
	if err := s.Thaw(); err != nil {
		return err
	}
	if line, err := out.ReadString('\n'); line != "usr1\n" {
		return fmt.Errorf("the task said %q (%v) after Thaw", line, err)
	}
	return s.Freeze(s.ctx) // Destroy must end stopped processes too
}

func wrongProcess(scene) error {
	err := NewLinuxProc(1, nil).Create()
	if err == nil || !strings.Contains(err.Error(), "internal error") {
		return fmt.Errorf("Create for another process = %v", err)
	}
	return nil
}
