package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// launcher starts MPI programs.
type launcher struct {
	name string
	// command is the command line of a test in a suite's folder.
	command func(ctx context.Context, folder string, t test) *exec.Cmd
	// spare is how much longer than its limit a test may take: of a launcher that
	// ends it by itself. Then the launcher gets SIGTERM.
	spare time.Duration
}

// here is the command of a launcher on this machine.
func here(argv func(np int) []string) func(context.Context, string, test) *exec.Cmd {
	return func(ctx context.Context, folder string, t test) *exec.Cmd {
		line := append(argv(t.np), append([]string{"./" + t.program}, t.args...)...)
		cmd := exec.CommandContext(ctx, line[0], line[1:]...)
		cmd.Dir = filepath.Join(folder, t.dir)
		return cmd
	}
}

// outcome is how one test ended under one launcher.
type outcome struct {
	// why is "" for a test that has passed.
	why    string
	took   time.Duration
	output string
}

// noErrors is what a test prints when it has passed.
var noErrors = regexp.MustCompile(`(?i)^\s*(No errors|Test passed)\s*$`)

// run runs a test in its folder, and judges it by MPICH's own rules.
func (l launcher) run(folder string, t test) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), t.limit+l.spare)
	defer cancel()
	cmd := l.command(ctx, folder, t)
	cmd.Env = append(append(cmd.Environ(), fmt.Sprintf("MPIEXEC_TIMEOUT=%.0f", t.limit.Seconds())), t.env...)
	// A launcher's own signals go to its group; who hangs is asked to end first, so
	// that nothing of it stays.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var both bytes.Buffer
	cmd.Stdout, cmd.Stderr = &both, &both
	started := time.Now()
	err := cmd.Run()
	o := outcome{took: time.Since(started), output: both.String()}
	// What the group has left, after a WaitDelay; it has no other process.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil && t.want == "":
		o.why = fmt.Sprintf("no end after %v", t.limit)
	case err != nil && !errors.As(err, &exit):
		o.why = err.Error()
	default:
		o.why = judge(t.want, cmd.ProcessState.ExitCode(), o.output)
	}
	return o
}

// judge says what is wrong with an end, by the rule of that name.
func judge(rule string, code int, output string) string {
	var good bool
	var other string
	for line := range strings.Lines(output) {
		switch {
		case noErrors.MatchString(line):
			good = true
		case strings.TrimSpace(line) != "" && other == "":
			other = strings.TrimSpace(line)
		}
	}
	switch rule {
	case "TestStatus", "TestErrFatal":
		if code == 0 {
			return "exit code 0 of a program that is to fail"
		}
		return ""
	case "":
		if code != 0 {
			return fmt.Sprintf("exit code %d", code)
		}
		if !good {
			return "no \"No Errors\""
		}
		if other != "" {
			return "says " + strconv.Quote(other)
		}
		return ""
	}
	return fmt.Sprintf("rule %q is not known", rule)
}
