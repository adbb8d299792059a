package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

var shell = []string{"bash", "--norc", "--noediting"}

// fullScreen behaves as vi does: another screen, no cursor, drawn anew when the size
// changes.
const fullScreen = `draw() { printf '\033[H\033[2J[%s]' "$(stty size)"; }
trap draw WINCH; printf '\033[?1049h\033[?25l\033[?1h\033='; draw; until read -r x; do :; done; printf '\033[?1l\033>\033[?25h\033[?1049l'; echo left $x; exit 9`

func TestRootTerminals(t *testing.T) {
	n := startNode(t, site{Slurm: "KillWait=1\n"})
	t.Run("job control", func(t *testing.T) { terminalJobControl(t, n) })
	t.Run("attached again", func(t *testing.T) { terminalAttachedAgain(t, n) })
	t.Run("a full screen", func(t *testing.T) { terminalFullScreen(t, n) })
	t.Run("signals of the client", func(t *testing.T) { terminalSignals(t, n) })
	t.Run("other tasks", func(t *testing.T) {
		s := openTerminal(t, 24, 80)
		s.ctl(n, call{args: []string{"run", "--pty", "-n", "2", "-O", "sh", "-c", `[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal of $SLURM_PROCID; ls -l /proc/self/fd/0 >>seen.$SLURM_PROCID`}})
		s.sees("terminal of 0\r\n")
		s.ends(0)
		if strings.Contains(s.shown(), "terminal of 1") {
			t.Errorf("task 1 has it too: %q", s.shown())
		}
		if r := n.shell(t, n.wd, n.userFile(t, "see", "cat seen.1", 0o755)); !strings.Contains(r.out, "/dev/null") {
			t.Errorf("task 1 reads from %v", r)
		}
	})
	t.Run("within a labelled step", func(t *testing.T) {
		s := openTerminal(t, 24, 80)
		s.ctl(n, call{args: []string{"run", "--pty", "-n", "2", "-O", "-W", "1", "sh", "-c", `[ $SLURM_PROCID = 1 ] && { until [ -e seen.typed ]; do sleep 0.05; done; exit 3; }; read x; echo $x; sleep 60`}, env: []string{"SLURM_LABELIO=1"}})
		s.types("typed at once\n")
		s.sees("\r\ntyped at once\r\n")
		must(t, os.WriteFile(filepath.Join(n.wd, "seen.typed"), nil, 0o644))
		s.sees("First task exited 1s ago")
		s.sees("task 0: running")
		s.sees("task 1: exited abnormally")
		s.sees("task 1: Exited with exit code 3")
		if r := s.p.wait(t); r.code == 0 {
			t.Errorf("%v; the screen shows %q", r, s.shown())
		}
		s.restored()
	})
	t.Run("refusals", func(t *testing.T) { terminalRefusals(t, n) })
	t.Run("crowd", func(t *testing.T) { terminalCrowd(t, n) })
	t.Run("a stepd that dies", func(t *testing.T) {
		s := openTerminal(t, 24, 80)
		id := s.inTerminal(n, shell...)
		s.sees("$ ")
		must(t, syscall.Kill(n.show(t, id).StepdPID, syscall.SIGKILL))
		s.sees("SIGKILL")
		s.ends(1)
	})
}

func terminalJobControl(t *testing.T, n *node) {
	s := openTerminal(t, 33, 101)
	id := s.inTerminal(n, shell...)
	if want := "stepctl: Ctrl-] d leaves step " + id + ", which goes on\r\n"; !strings.HasPrefix(s.shown(), want) {
		t.Errorf("the terminal begins with %q, want %q", s.shown(), want)
	}
	if before := s.sees("$ "); strings.Contains(before, "no job control") {
		t.Errorf("bash says %q", before)
	}
	s.types("stat -c '%U %G %a' $(tty); stty size; echo $SLURM_PTY_WIN_ROW\n")
	s.sees(alice.name + " tty 620\r\n33 101\r\n33\r\n")
	s.sees("$ ")               // or it comes between what is typed and what cat writes
	s.types("cat\nin front\n") // it writes what it reads once it is in the foreground
	s.sees("in front\r\nin front\r\n")
	s.types("\x1a")
	s.sees("Stopped")
	s.sees("$ ")
	s.types("jobs; fg\n")
	s.sees("Stopped")
	s.sees("cat\r\n") // by jobs
	s.sees("cat\r\n") // by fg
	s.types("again\n")
	s.sees("again\r\nagain\r\n")
	s.types("\x03")
	s.sees("^C")
	s.sees("$ ")
	s.resized(50, 132)
	s.types("exit 7\n")
	s.sees("Exited with exit code 7")
	s.ends(7)
}

func terminalAttachedAgain(t *testing.T, n *node) {
	s := openTerminal(t, 24, 80)
	id := s.inTerminal(n, shell...)
	s.sees("$ ")
	s.types("number=41; echo hello\n")
	s.sees("\r\nhello\r\n$ ")
	must(t, s.p.cmd.Process.Kill()) // no program can restore the terminal now
	s.p.wait(t)

	again, reader := openTerminal(t, 30, 90), openTerminal(t, 24, 80)
	again.ctl(n, call{args: []string{"attach", id}})
	again.sees("Ctrl-] d")
	again.sees("hello\r\n$ ")
	reader.ctl(n, call{args: []string{"attach", "--read-only", "--replay", "none", id}})
	again.types("echo $((number+1)); stty size\n")
	again.sees("42\r\n30 90\r\n$ ")
	eventually(t, callTimeout, "two clients at once", func() error {
		again.types("echo both\n")
		again.sees("both\r\n$ ")
		if !strings.Contains(reader.shown(), "\nboth\r") {
			return fmt.Errorf("the reader sees %q", reader.shown())
		}
		return nil
	})
	if strings.Contains(reader.shown(), "hello") {
		t.Errorf("--replay=none shows what was before: %q", reader.shown())
	}
	reader.types("echo typed by a reader\n")
	must(t, reader.p.cmd.Process.Signal(syscall.SIGTERM))
	reader.ends(143)
	if r := n.ctl(t, "output", id); r.code != 0 || !strings.Contains(r.out, "\r\n42\r\n") || strings.Contains(r.out, "typed by") {
		t.Errorf("output of a running step: %v", r)
	}
	refused(t, "another user's attach", n.do(t, call{args: []string{"attach", id}, uid: bob.uid}), "permission denied")
	refused(t, "another user's output", n.do(t, call{args: []string{"output", id}, uid: bob.uid}), "permission denied")
	again.types("\x1d\x1dd") // the first key twice is the key itself
	again.types("\x1dd")
	again.sees("detached; step " + id + " goes on")
	again.ends(0)

	last := openTerminal(t, 24, 80)
	last.ctl(n, call{args: []string{"attach", "--detach-keys", "none", id}})
	last.sees("$ ")
	last.types("\x15exit 3\n")
	last.sees("exit code 3")
	last.ends(3)
	if r := n.ctl(t, "output", id); r.code != 0 || !strings.Contains(r.out, "exit 3") {
		t.Errorf("output of an ended step: %v", r)
	}
	refused(t, "attach to an ended step", n.ctl(t, "attach", id), "has ended")
	refused(t, "another user's output, ended", n.do(t, call{args: []string{"output", id}, uid: bob.uid}), "permission denied")
}

func terminalFullScreen(t *testing.T, n *node) {
	s := openTerminal(t, 24, 80)
	id := s.inTerminal(n, "sh", "-c", fullScreen)
	s.sees("[24 80]")
	must(t, s.p.cmd.Process.Signal(syscall.SIGHUP))
	s.ends(129)
	s.sees("\x1b[?1049l\x1b[?1l\x1b[?25h\x1b>") // the window is usable again
	again := openTerminal(t, 24, 80)
	again.ctl(n, call{args: []string{"attach", id}})
	again.sees("\x1b[?1049h\x1b[?25l")
	again.sees("[24 80]") // replayed
	again.sees("[24 80]") // and drawn anew; a slow program does not see the size that is between
	for _, size := range [][2]uint16{{0, 0}, {65535, 65535}} {
		again.size(size[0], size[1])
		again.sees(fmt.Sprintf("[%d %d]", size[0], size[1]))
	}
	again.types("over\n")
	again.sees("\x1b[?1049lleft over")
	again.ends(9)
}

func terminalSignals(t *testing.T, n *node) {
	s := openTerminal(t, 24, 80)
	id := s.inTerminal(n, "sleep", "1001")
	must(t, s.p.cmd.Process.Signal(syscall.SIGTSTP))
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(s.p.cmd.Process.Pid, &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
		t.Errorf("after SIGTSTP: %v, %v", ws, err)
	}
	s.restored()
	must(t, s.p.cmd.Process.Signal(syscall.SIGCONT))
	must(t, s.p.cmd.Process.Signal(syscall.SIGTERM)) // as with srun, the step's end
	s.ends(143)
	if d := n.ended(t, id); d.State != "CANCELLED" {
		t.Errorf("after SIGTERM of its client the step is %s", d.State)
	}
	s = openTerminal(t, 24, 80)
	id = s.inTerminal(n, "sleep", "1002")
	s.types("\x1dd")
	s.sees("`stepctl attach " + id + "` takes it up again")
	s.ends(0)
	if d := n.show(t, id); d.State != "RUNNING" {
		t.Errorf("after the detach keys the step is %s", d.State)
	}
	n.ctl(t, "cancel", id)
	// A window that is closed: its terminal hangs up.
	s = openTerminal(t, 24, 80)
	id = s.inTerminal(n, "sleep", "1003")
	s.slave.Close()
	s.master.Close()
	if r := s.p.wait(t); r.code != 129 {
		t.Errorf("the window was closed: exit code %d, want 129", r.code)
	}
	if d := n.show(t, id); d.State != "RUNNING" {
		t.Errorf("after the window was closed the step is %s", d.State)
	}
	n.ctl(t, "cancel", id)
}

func terminalRefusals(t *testing.T, n *node) {
	for _, args := range [][]string{{"-l"}, {"-o", "file"}, {"-e", "file"}, {"-i", "none"}} {
		r := n.ctl(t, append(append([]string{"run", "--pty"}, args...), "true")...)
		refused(t, fmt.Sprint("--pty ", args), r, "exclude each other")
	}
	refused(t, "keys that are none", n.ctl(t, "run", "--detach-keys=ctrl-1", "true"), "is no key")
	refused(t, "a replay that is none", n.ctl(t, "attach", "--replay=much", "1.0"), "--replay=much")
	refused(t, "a step that is not", n.ctl(t, "attach", "77.0"), `no such step "77.0"`)
	refused(t, "no step at all", n.ctl(t, "output", "77"), "77")
	// As srun: without a terminal the option is disregarded.
	r := n.do(t, call{args: []string{"run", "--pty", "cat"}, stdin: "plain"})
	if r.code != 0 || r.out != "plain" || !strings.Contains(r.err, "--pty is disregarded") {
		t.Errorf("--pty without a terminal: %v", r)
	}
}

// terminalCrowd: clients that do not read, and more of them than there may be, hold up
// neither the step nor who has started it.
func terminalCrowd(t *testing.T, n *node) {
	s := openTerminal(t, 24, 80)
	id := s.inTerminal(n, "sh", "-c", `stty -opost; read x; head -c 3000000 /dev/zero | tr '\0' 'x'; echo; echo end`)
	var clients []*exec.Cmd
	never, hold, err := os.Pipe() // it has no reader
	must(t, err)
	defer func() {
		for _, c := range clients {
			c.Process.Kill()
			c.Wait()
		}
		never.Close()
		hold.Close()
	}()
	for range 70 {
		c := exec.Command(n.bin, "attach", id)
		c.Dir, c.Env = n.wd, []string{"NODED_SOCKET=" + n.socket()}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: alice.uid, Gid: alice.gid}}
		said, err := os.CreateTemp(t.TempDir(), "said")
		must(t, err)
		defer said.Close()
		c.Stdout, c.Stderr = hold, said
		must(t, c.Start())
		clients = append(clients, c)
	}
	eventually(t, callTimeout, "the last clients", func() error {
		refused := 0
		for _, c := range clients {
			b, err := os.ReadFile(c.Stderr.(*os.File).Name())
			must(t, err)
			if strings.Contains(string(b), "64 clients are connected to step "+id) {
				refused++
			}
		}
		if refused < 7 { // 63, with the launcher, have their place
			return fmt.Errorf("%d of 70 were refused", refused)
		}
		return nil
	})
	s.types("go\n")
	s.sees("xxx\nend")
	s.ends(0)
	if got := strings.Count(s.shown(), "x"); got < 3_000_000 {
		t.Errorf("the launcher has %d of 3000000 bytes", got)
	}
}

// TestRootBackground: a step that a shell has put in the background runs on where its client's
// input is the terminal, and has that when it is in the foreground again.
func TestRootBackground(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	cmd := exec.Command("bash", "--norc", "-i")
	cmd.Env = []string{"NODED_SOCKET=" + n.socket(), "PS1=ready> "}
	s := terminal(t, cmd, 80, 24)
	s.reads(t, "ready> ")
	s.press(t, n.bin+" run sh -c 'echo be''gins; cat; echo en''ds' &\n")
	s.reads(t, "begins")
	id := n.running(t).id()
	s.press(t, "jobs; echo sh''own\n") // the shell has read a line while the client waits for one
	s.reads(t, "shown")
	if strings.Contains(s.text(), "Stopped") || !strings.Contains(s.text(), "Running") {
		t.Errorf("the shell says %q", s.text())
	}
	s.press(t, "fg\n")
	s.reads(t, "fg\r\n")
	s.press(t, "typed\n")
	s.reads(t, "typed\r\ntyped\r\n") // by the terminal, and by cat
	s.press(t, "\x04")
	s.reads(t, "ends")
	s.press(t, "exit\n")
	s.ends(t, 0)
	if rec := n.show(t, id); rec.State != "COMPLETED" {
		t.Errorf("the step is %+v", rec)
	}
}

// TestRootTerminalTmux: as people use it.
func TestRootTerminalTmux(t *testing.T) {
	n := startNode(t, site{Slurm: "KillWait=1\n"})
	if _, err := exec.LookPath("tmux"); err != nil {
		missing(t, "tmux is not installed")
	}
	tmux := func(args ...string) string {
		t.Helper()
		r := n.do(t, call{program: "tmux", args: append([]string{"-S", n.path("home", "tmux"), "-f", "/dev/null"}, args...), env: []string{"TERM=xterm", "LANG=C.UTF-8"}})
		if r.code != 0 {
			t.Fatalf("tmux %q: %v", args, r)
		}
		return r.out
	}
	shows := func(text string) {
		t.Helper()
		var screen string
		eventually(t, callTimeout, "the screen", func() error {
			if screen = tmux("capture-pane", "-p", "-t", "w"); !strings.Contains(screen, text) {
				return fmt.Errorf("%q is not on it: %s", text, screen)
			}
			return nil
		})
	}
	tmux("new-session", "-d", "-s", "w", "-x", "100", "-y", "30", "PS1='$ ' "+n.bin+" run --pty bash --norc; sleep 1000")
	t.Cleanup(func() { tmux("kill-server") })
	shows("$")
	tmux("send-keys", "-t", "w", "stty size; echo $((40+2)) lines", "Enter")
	shows("30 100\n42 lines")
	id := n.last(t).id()
	n.cancelAtEnd(t, id)
	tmux("new-session", "-d", "-s", "keep", "sleep 1000")
	tmux("kill-session", "-t", "w")
	tmux("new-session", "-d", "-s", "w", "-x", "90", "-y", "20", n.bin+" attach "+id+"; sleep 1000")
	shows("42 lines")
	tmux("send-keys", "-t", "w", "stty size", "Enter")
	shows("20 90")
	tmux("send-keys", "-t", "w", "C-]", "d")
	shows("detached; step " + id + " goes on")
}
