package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// privateLeft reports what is left of private nodeds: processes and directories.
func privateLeft(dir string) error {
	var left []string
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, f := range procs {
		b, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(b), dir+"/stepctl-standalone-") {
			left = append(left, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	dirs, err := filepath.Glob(dir + "/stepctl-standalone-*")
	if left = append(left, dirs...); err != nil || len(left) > 0 {
		return fmt.Errorf("left: %q, %v", left, err)
	}
	return nil
}

// TestRootStandaloneEnds: a private noded ends with its command, however that
// ends and wherever it is, and takes its steps with it.
func TestRootStandaloneEnds(t *testing.T) {
	waits(t)
	n := startNode(t, site{}) // for its place and its leak check
	so, marks := buildClient(t, n), n.markFile(t)
	tmp := n.path("tmp")
	must(t, os.Mkdir(tmp, 0o755))
	must(t, os.Mkdir(n.path("other"), 0o755))
	conf := n.write(t, "other/slurm.conf", "ClusterName=c\nNodeName=vm CPUs=4\nKillWait=1\n")
	plugstack := func(text string) { n.write(t, "other/plugstack.conf", text+"\n") }
	waitMark := func(what string) {
		t.Helper()
		eventually(t, callTimeout, what, func() error {
			if !strings.Contains(readFile(t, marks), what) {
				return errors.New("not yet")
			}
			return nil
		})
	}
	for _, c := range []struct {
		hook string
		sig  syscall.Signal
		code int
	}{
		{"", 0, 3},
		{"init", syscall.SIGINT, 130}, {"local_user_init", syscall.SIGTERM, 143}, {"init_post_opt", syscall.SIGKILL, 137},
		{"init", syscall.SIGHUP, 129},
		{"the task", syscall.SIGKILL, 137},
	} {
		t.Run(fmt.Sprintf("%v in %s", c.sig, c.hook), func(t *testing.T) {
			must(t, os.Truncate(marks, 0))
			plugstack(fmt.Sprintf("required %s ctx=1 hook=%s do=hang mark=%s", so, c.hook, marks))
			script := "exit 3"
			if c.hook == "the task" {
				script = "echo the task >>" + marks + "; exec sleep 86399"
			}
			p := n.start(t, call{root: true, args: []string{"run", "--standalone", "sh", "-c", script}, env: []string{"SLURM_CONF=" + conf, "TMPDIR=" + tmp, "NODED_SOCKET="}})
			if c.sig != 0 {
				waitMark(c.hook)
				must(t, p.cmd.Process.Signal(c.sig))
			}
			if r := p.wait(t); r.code != c.code {
				t.Errorf("want %d, got %v", c.code, r)
			}
			eventually(t, callTimeout, "the end of noded", func() error { return privateLeft(tmp) })
		})
	}
}
