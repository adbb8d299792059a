package oci

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestCreateStart: a container that is created and started has the task's streams, its signals
// and its exit code; a runtime that fails, and one whose container is no child of the task's, end
// the task with their reason.
func TestCreateStart(t *testing.T) {
	const (
		made   = " & echo $! > %b/pid"
		begin  = "mkfifo %b/go; exec 3<&0; setsid sh -c 'read x <%b/go; "
		create = begin + `trap "kill \$! 2>/dev/null; echo got; exit 6" USR1; read line; echo $line; while :; do sleep 60 & wait; done' <&3` + made
		query  = `echo "{\"status\": \"created\", \"pid\": $(cat %b/pid)}"`
	)
	for name, tc := range map[string]struct {
		create, query, start, out, err string
		code                           int
	}{
		"signal":    {create: create, out: "in\ngot\n", code: 6},
		"code":      {create: begin + "echo out; exit 5'" + made, out: "out\n", code: 5},
		"killed":    {create: begin + "kill -9 $$'" + made, code: 137},
		"no create": {create: "echo no >&2; exit 3", err: `cannot run "echo no >&2; exit 3": exit status 3`, code: 1},
		"no start":  {create: "true" + made, start: "exit 4", err: `cannot run "exit 4": exit status 4`, code: 1},
		"no query":  {create: ":", query: "exit 2", err: `cannot run "exit 2"`, code: 1},
		"no answer": {create: ":", query: "echo no", err: "cannot read the answer of RunTimeQuery", code: 1},
		"no pid":    {create: ":", query: "echo {}", err: "RunTimeQuery names no process", code: 1},
		"another's": {create: ":", start: ":", query: `echo "{\"pid\": $PPID}"`, err: "cannot wait for the container", code: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Step{Dir: t.TempDir(), Speaker: "x", Terminal: -1, Env: os.Environ(), Conf: Conf{Create: tc.create, Query: query, Start: "echo > %b/go", IgnoreConfig: true}}
			if tc.query != "" {
				s.Conf.Query = tc.query
			}
			if tc.start != "" {
				s.Conf.Start = tc.start
			}
			text, err := json.Marshal(s)
			if err == nil {
				err = os.WriteFile(filepath.Join(s.Dir, settings), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			out, said, code := runTask(t, s)
			if out != tc.out || !strings.Contains(said, tc.err) || tc.err == "" && said != "" || code != tc.code {
				t.Errorf("%q %q %d", out, said, code)
			}
		})
	}
}

// runTask is a task of a step, which gets SIGUSR1 when it has printed its line of stdin.
func runTask(t *testing.T, s *Step) (out, said string, code int) {
	cmd := exec.Command(os.Args[0], append(s.Command("", partRun)[1:], "0", "program")...)
	cmd.Stdin = strings.NewReader("in\n")
	var errs strings.Builder
	cmd.Stderr = &errs
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(pipe)
	out, _ = lines.ReadString('\n')
	if out == "in\n" {
		_ = cmd.Process.Signal(syscall.SIGUSR1)
	}
	rest, err := io.ReadAll(lines)
	if err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // its code is looked at
	return out + string(rest), errs.String(), cmd.ProcessState.ExitCode()
}
