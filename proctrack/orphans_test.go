package proctrack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// scriptOut starts a shell in a session or group of its own and returns its
// output's reader. The shell is killed at the end of the test.
func scriptOut(t *testing.T, attr *syscall.SysProcAttr, script string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = attr, w, os.Stderr
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, bufio.NewReader(r)
}

func process(t *testing.T, pid int) Process {
	t.Helper()
	start, err := linux.StartTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	return Process{pid, start}
}

// wantEnded fails unless all of pids are gone or zombies. One that was killed leaves its cgroup
// before it is a zombie: it gets the moment that it needs.
func wantEnded(t *testing.T, pids ...int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for _, pid := range pids {
		if fd, err := linux.PidfdOpen(pid); err == nil {
			_ = linux.PidfdWait(ctx, fd) // what has not ended is found below
			unix.Close(fd)
		}
	}
	left, err := livingPIDs(pids)
	if err != nil || len(left) != 0 {
		t.Errorf("processes %v (%v) are alive, want none", left, err)
	}
}

func ctx30(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestKillSession(t *testing.T) {
	// The leader is stepd; below it a daemon in its session, a known task in
	// a session of its own (as with a pty), and that task's child.
	cmd, out := scriptOut(t, &syscall.SysProcAttr{Setsid: true}, `
		( ( sh -c 'echo daemon $$; exec sleep 1000' & ) & )
		setsid sh -c 'echo task $$; sleep 1000 & echo child $!; wait' &
		wait; sleep 1000`)
	pids := map[string]int{}
	for range 3 {
		var name string
		var pid int
		if _, err := fmt.Fscanln(out, &name, &pid); err != nil {
			t.Fatal(err)
		}
		pids[name] = pid
	}
	stepd, task := process(t, cmd.Process.Pid), process(t, pids["task"])
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()

	// A task's number alone proves nothing, and a later stepd's neither.
	if err := KillSession(ctx30(t), Process{stepd.PID, stepd.Start + 1_000_000}, []Process{{task.PID, task.Start + 1}}); err != nil {
		t.Fatal(err)
	}
	if left, err := livingPIDs([]int{pids["daemon"], pids["task"], pids["child"]}); len(left) != 3 || err != nil {
		t.Fatalf("only %v (%v) live after a kill of other processes", left, err)
	}

	if err := KillSession(ctx30(t), stepd, []Process{task}); err != nil {
		t.Fatal(err)
	}
	wantEnded(t, pids["daemon"], pids["task"], pids["child"])
	if err := KillSession(ctx30(t), stepd, []Process{task}); err != nil {
		t.Errorf("a second KillSession = %v", err)
	}
}

func TestKillSessionOfReusedNumber(t *testing.T) {
	cmd, out := scriptOut(t, &syscall.SysProcAttr{Setsid: true}, `echo ready; sleep 1000 & wait`)
	if _, err := out.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	other := process(t, cmd.Process.Pid)
	other.Start-- // the stepd of old had this number, and started before
	if err := KillSession(ctx30(t), other, nil); err != nil {
		t.Fatal(err)
	}
	if left, err := livingPIDs([]int{cmd.Process.Pid}); len(left) != 1 || err != nil {
		t.Errorf("the leader of another session was killed (%v)", err)
	}
	if err := KillSession(ctx30(t), process(t, cmd.Process.Pid), nil); err != nil {
		t.Fatal(err)
	}
	wantEnded(t, cmd.Process.Pid)
}

func TestKillSessionRefuses(t *testing.T) {
	for _, p := range []Process{{}, {PID: 1, Start: 1}, {PID: 0, Start: 5}, {PID: -1, Start: 5}, {PID: 5}} {
		if err := KillSession(t.Context(), p, nil); err == nil {
			t.Errorf("KillSession(%+v) was accepted", p)
		}
	}
}

func TestPGID(t *testing.T) {
	tr := NewPGID()
	if _, ok := tr.HostCgroup(); ok || tr.Create() != nil {
		t.Error("a process group needs nothing made")
	}
	if err := errors.Join(tr.Signal(unix.SIGTERM, 0), tr.Kill(ctx30(t)), tr.Destroy(ctx30(t))); err != nil {
		t.Errorf("a kill of no group: %v", err)
	}
	for _, pid := range []int{-1, 0, 1} {
		if err := tr.Add(0, pid); err == nil {
			t.Errorf("Add(%d) was accepted", pid)
		}
	}

	cmd, out := scriptOut(t, &syscall.SysProcAttr{Setpgid: true}, `
		trap 'echo usr1' USR1; setsid sh -c 'echo $$; exec sleep 1000' & sleep 1000 & echo $!; while :; do read x </dev/null; done`)
	var a, b int
	if _, err := fmt.Fscan(out, &a, &b); err != nil {
		t.Fatal(err)
	}
	escaped, member := a, b
	if f, _, err := readFamily(escaped); err != nil || f.pgrp == cmd.Process.Pid {
		escaped, member = b, a
	}
	defer func() { _ = syscall.Kill(escaped, syscall.SIGKILL) }()
	if err := errors.Join(tr.Add(0, cmd.Process.Pid), tr.Add(0, member), tr.EvictHost(1)); err != nil {
		t.Fatal(err)
	}
	pids, err := tr.PIDs()
	for pid, want := range map[int]bool{cmd.Process.Pid: true, member: true, escaped: false} {
		if slices.Contains(pids, pid) != want || err != nil {
			t.Errorf("PIDs() = %v, %v; with %d: want %v", pids, err, pid, want)
		}
	}
	if err := tr.Signal(unix.SIGUSR1, 0); err != nil {
		t.Fatal(err)
	}
	for line := ""; !strings.Contains(line, "usr1"); {
		var err error
		if line, err = out.ReadString('\n'); err != nil {
			t.Fatalf("the group did not answer the signal: %v", err)
		}
	}
	if err := errors.Join(tr.Freeze(ctx30(t)), tr.Kill(ctx30(t))); err != nil {
		t.Fatal(err)
	}
	wantEnded(t, cmd.Process.Pid, member)
	if left, err := livingPIDs([]int{escaped}); len(left) != 1 || err != nil {
		t.Errorf("the process that left the group is gone (%v)", err)
	}
}
