package slurmstepd

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program is the program with its arguments, behind another's where prefix has one.
func program(t *testing.T, args string, prefix ...string) *exec.Cmd {
	t.Helper()
	c := self(t, "mode")
	argv := append(append(prefix, c.Path), strings.Fields(args)...)
	c = exec.Command(argv[0], argv[1:]...)
	c.Env = []string{"SLURMSTEPD_TEST=mode", "A=1", "B=x y"}
	return c
}

// TestGetenv prints what the original does, the limits in its order, and these the ones that
// a shell has set.
func TestGetenv(t *testing.T) {
	c := program(t, "getenv", "/bin/sh", "-c", `ulimit -S -n 77; ulimit -S -c 0; exec "$0" "$@"`)
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	var names []string
	for _, l := range lines {
		name, _, _ := strings.Cut(l, "=")
		names = append(names, strings.TrimPrefix(name, "SLURM_RLIMIT_"))
	}
	want := []string{"CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE", "MEMLOCK", "AS"}
	if len(names) < len(want) || !slices.Equal(names[:len(want)], want) {
		t.Errorf("%q", names)
	}
	for _, l := range []string{"SLURM_RLIMIT_NOFILE=77", "SLURM_RLIMIT_CORE=0", "A=1", "B=x y"} {
		if !slices.Contains(lines, l) {
			t.Errorf("no line %q in %q", l, lines)
		}
	}
}

// TestWrongArguments are refused, and nothing waits.
func TestWrongArguments(t *testing.T) {
	for _, args := range []string{"spank", "spank other", "spank prolog epilog", "getenv x", "other"} {
		out, err := program(t, args).CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "slurmstepd: cannot ") {
			t.Errorf("%s: %v, %q", args, err, out)
		}
	}
}

// TestPrologWithoutSlurmd: an empty stdin is an error and no wait.
func TestPrologWithoutSlurmd(t *testing.T) {
	for _, in := range []string{"", "\x04\x00\x00\x00", "\x02\x00\x00\x00\x00\x01"} {
		c := program(t, "spank prolog")
		c.Stdin = strings.NewReader(in)
		out, err := c.CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "slurmstepd: cannot ") {
			t.Errorf("%q: %v, %q", in, err, out)
		}
	}
}

// TestPrologLog: the lines of a job's prolog are marked as such.
func TestPrologLog(t *testing.T) {
	stream, err := os.Open("../wire/testdata/22.05/tasks.stream")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	c := program(t, "spank prolog")
	c.Env = append(c.Env, "SLURM_CONF=/none/slurm.conf")
	c.Stdin = stream
	out, err := c.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "] [spank-prolog] error: ") {
		t.Errorf("%v, %q", err, out)
	}
}

// TestInfinity ends by a signal alone.
func TestInfinity(t *testing.T) {
	c := program(t, "infinity")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	title := fmt.Sprintf("/proc/%d/cmdline", c.Process.Pid)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if b, _ := os.ReadFile(title); strings.HasPrefix(string(b), "slurmstepd: [infinity]") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it has no title")
		}
	}
	c.Process.Signal(syscall.SIGTERM)
	if err := c.Wait(); err == nil || err.Error() != "signal: terminated" {
		t.Errorf("%v", err)
	}
}
