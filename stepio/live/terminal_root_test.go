package live

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
	"stepd/step"
	"stepd/stepio/replay"
)

// terminalUID owns the terminals of these tests; there need be no such user.
const terminalUID = 7123

// startShell runs a script in a terminal of a Live, as its leader.
func startShell(t *testing.T, script string) (*Live, *client, *exec.Cmd) {
	t.Helper()
	testkit.RequireRoot(t)
	spec := &step.Spec{
		Request: step.Request{Terminal: &step.Terminal{Rows: 33, Cols: 101, Chars: []byte{3, 28, 8}}},
		User:    step.User{UID: terminalUID, GID: terminalUID}, OutputFile: filepath.Join(t.TempDir(), "kept"),
	}
	l := New(spec, Config{Log: func(text string) { t.Log(text) }})
	fd, err := l.OpenTerminal()
	if err != nil {
		t.Fatal(err)
	}
	c := watch(t, l.hub, Watching{Launcher: true, Replay: -1})
	tty := os.NewFile(uintptr(must(t)(unix.Dup(fd))), "tty")
	defer tty.Close()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	return l, c, cmd
}

func must(t *testing.T) func(int, error) int {
	return func(n int, err error) int {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

func (c *client) types(s string) {
	f := replay.Frame{Kind: replay.KindInput, Piece: replay.Piece{Data: []byte(s)}}
	c.conn.Write(f.Append(nil))
}

func (c *client) resize(rows, cols uint16, redraw bool) {
	f := replay.Frame{Kind: replay.KindSize, Rows: rows, Cols: cols, Redraw: redraw}
	c.conn.Write(f.Append(nil))
}

// sees waits for a text behind what was seen before.
func (c *client) sees(text string) {
	c.t.Helper()
	from := len(c.text)
	c.read(func() bool { return bytes.Contains(c.text[from:], []byte(text)) })
}

func TestRootTerminal(t *testing.T) {
	l, c, cmd := startShell(t, `stat -Lc '%u %a' /dev/stdin; stty size; stty -a | grep -o 'erase = [^;]*'
trap 'stty size; echo resized' WINCH; trap 'echo interrupted; exit 5' INT; echo ready; while :; do read x && echo "got $x"; done`)
	c.sees("ready")
	for _, want := range []string{fmt.Sprint(terminalUID, " 620"), "33 101", "erase = ^H"} {
		if !strings.Contains(string(c.text), want) {
			t.Errorf("want %q in %q", want, c.text)
		}
	}
	c.types("words\r")
	c.sees("got words\r\n")
	for _, size := range [][2]uint16{{50, 132}, {0, 0}, {65535, 65535}, {24, 80}} {
		c.resize(size[0], size[1], false)
		c.sees(fmt.Sprintf("%d %d\r\nresized", size[0], size[1]))
	}
	// The same size again sends no change, but with redraw two.
	c.resize(24, 80, true)
	c.sees("23 80\r\nresized")
	c.sees("24 80\r\nresized")
	c.types("\x03")
	c.sees("interrupted")
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("the shell has ended with %v", err)
	}
	l.Drain()
	f, err := os.Open(l.spec.OutputFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var kept []byte
	head, err := replay.ReadKept(f, func(p replay.Piece) error { kept = append(kept, p.Data...); return nil })
	if err != nil || !head.Terminal || !bytes.Contains(kept, []byte("interrupted")) {
		t.Errorf("kept %+v, %q, %v", head, kept, err)
	}
	if _, err := l.Watch(Watching{}); err == nil {
		t.Error("the step has ended, and can be watched")
	}
}

// Every byte that was written before the end comes, however fast the end comes.
func TestRootTerminalDrains(t *testing.T) {
	const lines = 20_000
	l, c, cmd := startShell(t, fmt.Sprintf("stty -opost; seq %d", lines))
	var drained sync.WaitGroup
	drained.Go(func() {
		cmd.Wait() // its output shows how it was
		l.Drain()
	})
	c.all()
	drained.Wait() // it writes into the test's folder, and logs
	if got := bytes.Count(c.text, []byte("\n")); got != lines || !bytes.HasSuffix(c.text, fmt.Appendf(nil, "%d\n", lines)) {
		t.Errorf("%d lines came, %d were written", got, lines)
	}
}

// The terminal goes on without clients, and while a program has closed its streams.
func TestRootTerminalWithoutClients(t *testing.T) {
	l, c, cmd := startShell(t, `exec 3<&0 0<&- 1>&- 2>&-; kill -STOP $$; exec 0<&3 1>&3 2>&3; echo still; read x; echo "$x"`)
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
		t.Fatalf("wait: %v, %v", ws, err)
	}
	c.conn.Close()
	cmd.Process.Signal(syscall.SIGCONT)
	again := watch(t, l.hub, Watching{Replay: -1})
	again.sees("still")
	again.types("here\r")
	again.sees("here\r\nhere")
	cmd.Wait() // its end is not what this test is about
	begin := time.Now()
	l.Drain()
	if took := time.Since(begin); took > patience/2 {
		t.Errorf("the end took %v", took)
	}
}

// What is typed before the terminal exists reaches it, and so does the last size.
func TestRootTerminalEarly(t *testing.T) {
	testkit.RequireRoot(t)
	l := New(&step.Spec{Request: step.Request{Terminal: &step.Terminal{Rows: 3, Cols: 10}}, User: step.User{UID: terminalUID, GID: terminalUID}},
		Config{Log: func(text string) { t.Log(text) }})
	c := watch(t, l.hub, Watching{Launcher: true, Replay: -1})
	c.resize(40, 90, false)
	c.resize(50, 100, true)
	c.types("typed ")
	c.types("ahead\r")
	// One byte more than is kept waits, and is not lost.
	for range earlyMax/1024 + 1 {
		c.types(strings.Repeat("x", 1023) + "\r")
	}
	kept := func() bool { l.hub.mu.Lock(); defer l.hub.mu.Unlock(); return len(l.hub.early.input) > earlyMax-1024 }
	for begin := time.Now(); !kept(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > patient {
			t.Fatal("what is typed is not kept")
		}
	}
	fd, err := l.OpenTerminal()
	if err != nil {
		t.Fatal(err)
	}
	w, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
	if err != nil || w.Row != 50 || w.Col != 100 {
		t.Errorf("the window is %+v, %v", w, err)
	}
	tty := bufio.NewReader(l.term.slave)
	if line, err := tty.ReadString('\n'); line != "typed ahead\n" {
		t.Errorf("read %q, %v", line, err)
	}
	for i := range earlyMax/1024 + 1 {
		if line, err := tty.ReadString('\n'); len(line) != 1024 {
			t.Fatalf("line %d: read %.20q of %d bytes, %v", i, line, len(line), err)
		}
	}
	c.conn.Close()
	l.Drain()
}

// What a launcher did not take is told; a process outside of the step that writes to
// the terminal for ever does not keep the step from ending.
func TestRootTerminalLost(t *testing.T) {
	l, _, cmd := startShell(t, `exec head -c 2000000 /dev/zero`)
	var told []string
	l.cfg.Log = func(text string) { told = append(told, text) }
	limit := time.AfterFunc(100*time.Millisecond, l.hub.release) // Drain does so after patience
	defer limit.Stop()
	cmd.Wait() // it has written all when it is released
	l.Drain()
	if len(told) != 1 || !strings.Contains(told[0], "bytes of output were not taken by the client") {
		t.Errorf("told is %q", told)
	}
}
