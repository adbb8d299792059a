package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"

	"stepd/internal/linux"
)

// createStart has the runtime create a container and start it, where oci.conf has no command that
// does both, and returns the exit code of its program. This process stays in the task's place: it
// is the reaper of what the runtime leaves behind, which gives it the code, and passes signals on.
func (p *place) createStart() (int, error) {
	if err := linux.SetSubreaper(); err != nil {
		return 1, err
	}
	signals := make(chan os.Signal, 64) // what comes before there is a container waits here
	signal.Notify(signals)
	if err := p.stage(p.Conf.Create); err != nil {
		return 1, err
	}
	out, err := p.command(p.Conf.Query)
	if err != nil {
		return 1, err
	}
	var container struct{ Pid int }
	if err := json.Unmarshal(out, &container); err != nil {
		return 1, fmt.Errorf("cannot read the answer of RunTimeQuery: %w", err)
	}
	if container.Pid <= 1 {
		return 1, fmt.Errorf("cannot start the container: RunTimeQuery names no process (pid)")
	}
	program, err := os.FindProcess(container.Pid)
	if err != nil {
		return 1, fmt.Errorf("cannot start the container: %w", err)
	}
	go passOn(signals, program)
	if err := p.stage(p.Conf.Start); err != nil {
		return 1, err
	}
	end, err := program.Wait()
	if err != nil {
		return 1, fmt.Errorf("cannot wait for the container: %w (RunTimeCreate must leave it behind as its own child)", err)
	}
	if status := end.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal()), nil // what RunTimeRun's runtimes return
	}
	return end.ExitCode(), nil
}

// stage runs a command with the task's streams, which the container has from it.
func (p *place) stage(pattern string) error {
	line := p.expand(pattern)
	cmd := exec.Command("/bin/sh", "-c", line)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, os.Stdout, os.Stderr, p.Env
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("cannot run %q: %w", line, err)
	}
	return nil
}

// passOn sends the task's signals to the container, but for those that are this process's own.
func passOn(signals <-chan os.Signal, program *os.Process) {
	own := []os.Signal{syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPIPE}
	for s := range signals {
		if !slices.Contains(own, s) {
			_ = program.Signal(s) // it may have ended
		}
	}
}
