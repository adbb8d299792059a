package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// watches waits until a client waits for noded's socket, or has ended.
func (n *node) watches(t *testing.T, p *process) {
	t.Helper()
	eventually(t, callTimeout, "a client that waits for noded", func() error {
		fds := fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid)
		entries, err := os.ReadDir(fds)
		for _, e := range entries {
			if to, _ := os.Readlink(filepath.Join(fds, e.Name())); to == "anon_inode:inotify" {
				return nil
			}
		}
		if state, _ := os.ReadFile(filepath.Join(filepath.Dir(fds), "stat")); err != nil || strings.Contains(string(state), ") Z ") {
			t.Fatalf("the client has not waited: %v", p.wait(t))
		}
		return errors.New("it watches nothing")
	})
}

// TestRootRestartWaits: clients wait for the next noded where one has served, after its end and
// after a kill, and no longer than for 5 s.
func TestRootRestartWaits(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	n.serves(t)
	refused := fmt.Sprintf("stepctl: error: cannot connect to noded at %q: start it (systemctl start noded)\n", n.socket())
	for name, end := range map[string]func(){
		"ended":  func() { must(t, n.cmd.Process.Signal(syscall.SIGTERM)); <-n.done },
		"killed": func() { n.kill9(t) },
	} {
		t.Run(name, func(t *testing.T) {
			for try := 0; ; try++ { // a busy machine may take longer than 5 s to start noded
				end()
				p := n.start(t, call{args: []string{"run", "echo", "next"}})
				n.watches(t, p)
				n.boot(t)
				r := p.wait(t)
				if r.code == 0 && r.out == "next\n" && r.err == "" {
					break
				}
				if try == 10 || r.code != 1 || r.err != refused {
					t.Fatalf("a client over a restart: %v", r)
				}
			}
		})
	}
	n.kill9(t)
	if r := n.ctl(t, "run", "true"); r.code != 1 || r.err != refused {
		t.Errorf("where none comes: %v", r)
	}
	n.boot(t)
}

// TestRootSocketActivation: noded serves the socket that systemd has opened, and leaves it where
// it is: clients wait there while no noded runs.
func TestRootSocketActivation(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	stop := func() {
		t.Helper()
		must(t, n.cmd.Process.Signal(syscall.SIGTERM))
		<-n.done
		if code := n.cmd.ProcessState.ExitCode(); code != 0 {
			t.Fatalf("noded has ended with %d: %s", code, n.log)
		}
	}
	stop()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.socket()}) // as systemd does
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, os.Chmod(n.socket(), 0o666))
	file, err := l.File()
	must(t, errors.Join(err, l.Close()))
	defer file.Close()
	was, err := os.Stat(n.socket())
	must(t, err)
	activate := []string{"sh", "-c", `export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"`, "sh"}
	n.before, n.extra = activate, []*os.File{file}
	clients := func() (all []*process) {
		for range 4 {
			all = append(all, n.start(t, call{args: []string{"run", "sh", "-c", "exit 5"}}))
		}
		return all
	}
	served := func(all []*process) {
		t.Helper()
		for i, c := range all {
			if r := c.wait(t); r.code != 5 {
				t.Errorf("client %d: %v", i, r)
			}
		}
	}
	first := clients()
	n.boot(t)
	served(first)
	p, step := startStubborn(t, n)
	over := clients()
	stop()
	over = append(over, clients()...)
	n.boot(t)
	served(over)
	n.hup(t, "noded: ready")
	served(clients())
	n.kill9(t)
	over = clients()
	n.boot(t)
	served(over)
	n.letGo(t)
	if r := p.wait(t); r.code != 3 {
		t.Errorf("a client over three restarts: %v", r)
	}
	n.ended(t, step.id())
	n.idle(t)
	n.hup(t, "noded: ready") // and its end after that leaves it as well
	stop()
	if now, err := os.Stat(n.socket()); err != nil || !os.SameFile(was, now) {
		t.Errorf("systemd's socket has become %v, %v", now, err)
	}
	must(t, os.Rename(n.socket(), n.socket()+".moved"))
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.path("other.sock")})
	must(t, err)
	elsewhere, err := other.File()
	must(t, errors.Join(err, other.Close()))
	defer elsewhere.Close()
	code, out := runActivated(t, n, activate, elsewhere)
	if code != 1 || !strings.Contains(out, fmt.Sprintf("cannot serve systemd's socket %q: noded's is %q: correct ListenStream=", n.path("other.sock"), n.socket())) {
		t.Errorf("another path: exit code %d: %s", code, out)
	}
}
