package integration

import (
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
)

// onTerminal is a program on a terminal of its own, whose keys the test presses.
type onTerminal struct {
	cmd    *exec.Cmd
	master *os.File
	slave  *os.File // stays open: its modes are looked at after the program's end
	before unix.Termios
	done   chan struct{}

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

// terminal runs cmd on a new terminal of so many columns and rows.
func terminal(t testing.TB, cmd *exec.Cmd, columns, rows uint16) *onTerminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	must(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}))
	p := &onTerminal{cmd: cmd, master: master, slave: slave, done: make(chan struct{})}
	p.before = p.modes(t)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	cmd.Env = append(cmd.Env, "TERM=xterm", "LANG=C.UTF-8", "PATH="+os.Getenv("PATH"))
	must(t, cmd.Start())
	go func() { // ends when the terminal is closed
		defer close(p.done)
		buf := make([]byte, 32<<10)
		for {
			n, err := master.Read(buf)
			p.mu.Lock()
			p.out.Write(buf[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has mostly ended
		slave.Close()
		master.Close()
	})
	return p
}

func (p *onTerminal) modes(t testing.TB) unix.Termios {
	t.Helper()
	tio, err := unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS)
	must(t, err)
	return *tio
}

func (p *onTerminal) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// shows waits until the last picture has a text, and returns that picture's lines.
func (p *onTerminal) shows(t testing.TB, want string) []string {
	t.Helper()
	var lines []string
	eventually(t, callTimeout, "the text "+want, func() error {
		lines = lastPicture(p.text())
		if !strings.Contains(strings.Join(lines, "\n"), want) {
			return fmt.Errorf("the screen is %q", lines)
		}
		return nil
	})
	return lines
}

// reads waits until what came after the last whole picture has a text.
func (p *onTerminal) reads(t testing.TB, want string) {
	t.Helper()
	eventually(t, callTimeout, "the text "+want, func() error {
		out := p.text()
		if last := out[strings.LastIndex(out, "\x1b[J")+1:]; !strings.Contains(last, want) {
			return fmt.Errorf("after the last picture comes %q", last)
		}
		return nil
	})
}

// runs reports whether the program has a child that runs a verb, and sleeps in it.
func (p *onTerminal) runs(verb string) error {
	pid := p.cmd.Process.Pid
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return err
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return err
	}
	for _, of := range tasks {
		more, _ := os.ReadFile(of) // a thread may have ended
		children = append(append(children, ' '), more...)
	}
	for _, child := range strings.Fields(string(children)) {
		line, _ := os.ReadFile("/proc/" + child + "/cmdline")
		fds, _ := filepath.Glob("/proc/" + child + "/fd/*")
		if strings.Contains(string(line), "\x00"+verb+"\x00") && len(fds) > 5 {
			return nil // it has connected
		}
	}
	return fmt.Errorf("its children are %q", children)
}

func (p *onTerminal) press(t testing.TB, keys string) {
	t.Helper()
	_, err := p.master.WriteString(keys)
	must(t, err)
}

// ends waits for the program, and wants this code, -1 any but 0, and the terminal as it
// was.
func (p *onTerminal) ends(t testing.TB, code int) {
	t.Helper()
	over := make(chan error, 1)
	go func() { over <- p.cmd.Wait() }()
	select {
	case <-over:
	case <-time.After(callTimeout):
		t.Fatalf("it does not end; the screen is %q", lastPicture(p.text()))
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code && (code >= 0 || got == 0) {
		t.Errorf("exit code %d, want %d: %q", got, code, p.text())
	}
	if after := p.modes(t); after != p.before {
		t.Errorf("the terminal's modes were %+v and are %+v", p.before, after)
	}
}

// lastPicture are the lines of the last picture of a program that draws all of its
// screen from its first line on, without escapes.
func lastPicture(out string) []string {
	pictures := strings.Split(out, "\x1b[H")
	last := pictures[len(pictures)-1]
	if !strings.Contains(last, "\x1b[J") && len(pictures) > 2 {
		last = pictures[len(pictures)-2] // it is still being drawn
	}
	last, _, _ = strings.Cut(last, "\x1b[J")
	return strings.Split(strings.ReplaceAll(escapes.ReplaceAllString(last, ""), "\r", ""), "\n")
}
