package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRootBecomeFails: where a system call that gives up root fails, or says that it
// has done so and has not, no task runs.
func TestRootBecomeFails(t *testing.T) {
	waits(t)
	n := startNode(t, site{Stepd: "NoNewPrivs=yes\n"})
	n.shutdown(t)
	deny := n.path("deny")
	compile(t, "testdata/tasks/deny.c", "-o", deny)
	uid, gid := fmt.Sprint(alice.uid), fmt.Sprint(alice.gid)
	for _, c := range []struct{ name, call, how, first string }{
		{"groups fail", "setgroups", "errno", "-"},
		{"groups lie", "setgroups", "lie", "-"},
		{"the effective gid lies", "setresgid", "lie", "0xffffffff"},
		{"the effective uid lies", "setresuid", "lie", "0xffffffff"},
		{"the gid fails", "setresgid", "errno", gid},
		{"the gid lies", "setresgid", "lie", gid},
		{"the uid fails", "setresuid", "errno", uid},
		{"the uid lies", "setresuid", "lie", uid},
		{"root is taken back", "setuid", "lie", "0"},
		{"capabilities are not told", "capget", "errno", "-"},
		{"no_new_privs lies", "prctl", "lie", "38"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.before = []string{deny, c.call, c.how, c.first}
			n.boot(t)
			ran := filepath.Join(n.wd, "ran")
			r := n.ctl(t, "run", "touch", ran)
			if r.code == 0 || r.err == "" {
				t.Errorf("got %v", r)
			}
			if _, err := os.Lstat(ran); err == nil {
				t.Errorf("the task ran: %v", r)
				must(t, os.Remove(ran))
			}
			n.shutdown(t)
		})
	}
}

// TestRootPrologWritesNothing: where the prolog fails, nothing is written to where the
// user has told a job's output to go, as it is not root's to follow the user's links.
func TestRootPrologWritesNothing(t *testing.T) {
	n := startNode(t, site{Slurm: "Prolog=/bin/false\n"})
	victim := n.write(t, "victim", "untouched")
	link, hard := filepath.Join(n.wd, "out"), filepath.Join(n.wd, "hard")
	must(t, os.Symlink(victim, link))
	must(t, os.Link(victim, hard))
	script := n.userFile(t, "job.sh", "#!/bin/sh\necho ran\n", 0o755)
	for _, out := range []string{link, hard} {
		for _, args := range [][]string{{"run", "-o", out, "echo", "ran"}, {"batch", "-W", "-o", out, script}} {
			if r := n.ctl(t, args...); r.code == 0 {
				t.Errorf("stepctl %q: %v", args, r)
			}
			n.idle(t)
			must(t, n.ctlErrorRoot(t, "node", "resume"))
		}
	}
	if got := readFile(t, victim); got != "untouched" {
		t.Errorf("root has written %q", got)
	}
}

// TestRootScriptsEnvironment: what makes a shell or the loader do things is not passed
// from a user to root's scripts, by whatever name.
func TestRootScriptsEnvironment(t *testing.T) {
	n := startNode(t, site{})
	seen := n.path("seen")
	path := n.write(t, "script.sh", "#!/bin/sh\nenv >> "+seen+"\n")
	must(t, os.Chmod(path, 0o755))
	n.restartWith(t, "Prolog="+path+"\nEpilog="+path+"\n")
	bad := []string{
		"LD_PRELOAD=/tmp/evil.so", "LD_LIBRARY_PATH=/tmp", "LD_AUDIT=/tmp/evil.so", "BASH_ENV=/tmp/evil", "ENV=/tmp/evil", "IFS=evil", "PATH=/tmp/evil:/usr/bin:/bin",
		"PS4=$(evil)", "PYTHONPATH=/tmp/evil", "PERL5LIB=/tmp/evil", "SHELLOPTS=xtrace", "BASH_FUNC_echo%%=() { evil; }", "GCONV_PATH=/tmp/evil", "NODED_EVIL=evil", "MALLOC_CHECK_=evil",
	}
	if r := n.do(t, call{args: []string{"run", "true"}, env: bad}); r.code != 0 {
		t.Error(r)
	}
	n.idle(t)
	text := readFile(t, seen)
	if strings.Count(text, "SLURM_JOB_ID=1\n") != 2 {
		t.Errorf("prolog and epilog have not both run: %s", text)
	}
	for _, line := range strings.Split(text, "\n") {
		if strings.Contains(line, "evil") || strings.HasPrefix(line, "LD_") {
			t.Errorf("a root script has %q", line)
		}
	}
}

// TestRootDeadSpool: a spool on a file system that does not answer is told, at the start
// and by --check, and neither is silent for long.
func TestRootDeadSpool(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	n.shutdown(t)
	h := n.mountHang(t)
	spool := filepath.Join(h.dir, "spool")
	must(t, h.cmd.Process.Signal(syscall.SIGSTOP)) // now it answers nothing at all
	args := []string{"-f", n.path("slurm.conf"), "--run-dir", n.path("run2"), "--spool-dir", spool}
	cmd := exec.Command(binary(t, "noded"), args...)
	log := &logBuffer{want: "has not answered for", seen: make(chan struct{})}
	cmd.Stderr = log
	must(t, cmd.Start())
	select {
	case <-log.seen:
		contains(t, "noded's log", log.String(), spool, "its file system waits for a server or a disk")
	case <-time.After(callTimeout):
		t.Errorf("noded says nothing of the spool: %s", log)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	code, out := runNoded(t, nil, append(args, "--check")...)
	if code != 1 {
		t.Errorf("--check: exit code %d: %s", code, out)
	}
	contains(t, "--check", out, "error: spool: no answer within", "error: disk: no answer within", "ok: programs: ", "ok: run directory: ")
}

// TestRootBadSpool: a spool that is read-only or full, or another noded's, is named when
// noded starts, and noded does not start.
func TestRootBadSpool(t *testing.T) {
	n := startNode(t, site{})
	tiny := n.path("tiny")
	must(t, os.Mkdir(tiny, 0o755))
	must(t, command("mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs", tiny))
	t.Cleanup(func() { must(t, command("umount", tiny)) })
	start := func(spool string, more ...string) (int, string) {
		return runNoded(t, nil, append([]string{"-f", n.path("slurm.conf"), "--run-dir", n.path("run2"), "--spool-dir", spool}, more...)...)
	}
	for _, c := range []struct {
		name, spool string
		do          func()
		says, check string
	}{
		{"another noded's", n.path("spool"), func() {}, fmt.Sprintf("in use by noded (pid %d)", n.cmd.Process.Pid), fmt.Sprintf("ok: spool: %s, in use by noded (pid %d)", n.path("spool"), n.cmd.Process.Pid)},
		{"full", filepath.Join(tiny, "full"), func() {
			_ = os.WriteFile(filepath.Join(tiny, "fill"), make([]byte, 64<<10), 0o600) // as much as there is room for
		}, "no space left on device", "error: disk: the file system of the spool"},
		{"read-only", filepath.Join(tiny, "ro"), func() { must(t, command("mount", "-o", "remount,ro", tiny)) }, "read-only file system", "is on a file system that is mounted read-only; mount -o remount,rw"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.do()
			if code, out := start(c.spool); code != 1 || !strings.Contains(out, c.says) || !strings.Contains(out, c.spool) {
				t.Errorf("exit code %d: %s", code, out)
			}
			if _, out := start(c.spool, "--check"); !strings.Contains(out, c.check) {
				t.Errorf("--check lacks %q: %s", c.check, out)
			}
		})
	}
	n.serves(t)
}
