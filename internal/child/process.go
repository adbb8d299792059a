// Package child starts the programs that noded runs, and follows them by their pidfds: a
// step's stepd, which outlives noded and is found again by its record, and the site's
// scripts. What a stepd writes to its standard error comes through a socket to noded's log.
//
// It does not decide what is run, for which user or in which cgroup. Begin with Program.Start
// and Process.
package child

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/internal/linux"
	"stepd/internal/printable"
	"stepd/step"
)

// Environ is noded's own environment for the programs that it starts, with vars in the place of
// its own variables of these names. It lacks those by which systemd and noded know each other: a
// program that has them speaks for noded.
func Environ(vars ...string) []string {
	drop := []string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}
	for _, v := range vars {
		name, _, _ := strings.Cut(v, "=")
		drop = append(drop, name)
	}
	return append(slices.DeleteFunc(os.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(drop, name)
	}), vars...)
}

// Process is a process that noded follows. Its pidfd names it, whatever becomes of the
// number. The caller closes it; until then each method may be called from any goroutine.
type Process struct {
	PID   int
	Start uint64 // clock ticks since boot
	pidfd int
	ours  bool // a child of noded, which reaps it
	// stderr is nil where the process writes to a file.
	stderr *Stderr
}

// ErrGone says that a process has ended, or that its number belongs to another one.
var ErrGone = errors.New("is gone")

// Program is what Start runs.
type Program struct {
	Path string
	Argv []string // Argv[0] is the name that the process shows
	Env  []string
	Dir  string
	// Files are its descriptors, from 0; nil is /dev/null.
	Files []*os.File
	// Leaf is the directory of the cgroup in which the process is born; nil is noded's own.
	Leaf *os.File
	// Stderr is the socket whose other end is among Files; nil is none. The process owns
	// it once it was started.
	Stderr *Stderr
}

// Start runs the program in a session of its own. The kernel's own error is returned as it
// is: the caller names the program.
func (c Program) Start() (*Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	fds := make([]uintptr, len(c.Files))
	for i, f := range c.Files {
		fds[i] = cmp.Or(f, null).Fd()
	}
	pidfd := -1
	sys := &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if c.Leaf != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(c.Leaf.Fd())
	}
	pid, _, err := syscall.StartProcess(c.Path, c.Argv, &syscall.ProcAttr{Dir: c.Dir, Env: c.Env, Files: fds, Sys: sys})
	if err != nil {
		return nil, err
	}
	p := &Process{PID: pid, pidfd: pidfd, ours: true, stderr: c.Stderr}
	if pidfd < 0 {
		err := errors.New("the kernel gave no pidfd (Linux 5.2 or newer is needed)")
		return nil, errors.Join(fmt.Errorf("cannot follow process %d: %w", pid, err), syscall.Kill(pid, syscall.SIGKILL), p.Reap())
	}
	if p.Start, err = linux.StartTime(pid); err != nil {
		// A process that was not reaped has a start time: /proc is not mounted.
		return nil, errors.Join(err, syscall.Kill(pid, syscall.SIGKILL), p.Reap(), unix.Close(pidfd))
	}
	return p, nil
}

// Find opens the stepd of a record, or returns ErrGone. boot is the present boot's id.
func Find(rec *step.Record, boot string) (*Process, error) {
	pidfd, err := Open(rec.StepdPID, rec.StepdStart, rec.BootID, boot)
	if err != nil {
		return nil, err
	}
	return &Process{PID: rec.StepdPID, pidfd: pidfd, Start: rec.StepdStart, ours: isChild(pidfd)}, nil
}

// Attach follows the process that has the number pid now; the caller knows that it lives.
func Attach(pid int) (*Process, error) {
	pidfd, err := linux.PidfdOpen(pid)
	if err != nil {
		return nil, err
	}
	start, err := linux.StartTime(pid)
	if err != nil {
		unix.Close(pidfd)
		return nil, err
	}
	return &Process{PID: pid, Start: start, pidfd: pidfd}, nil
}

// isChild reports whether noded has to reap the process: a noded that was reloaded has the
// children of the noded before it.
func isChild(pidfd int) bool {
	err := linux.IgnoringEINTR(func() error {
		return unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	})
	return err == nil
}

// Open returns a pidfd of the process that had the number pid, the start time and the boot
// id of when they were noted; the caller closes it. boot is the present boot's id. A process that
// has ended is ErrGone; a zombie, too, since not every process 1 reaps at once.
func Open(pid int, start uint64, of, boot string) (pidfd int, err error) {
	if pid <= 0 || !linux.SameBoot(of, boot) {
		return -1, ErrGone
	}
	pidfd, err = linux.PidfdOpen(pid)
	if linux.IsGone(err) {
		return -1, ErrGone
	}
	if err != nil {
		return -1, err
	}
	// The pidfd comes first: if the number still has the right start time now,
	// the pidfd is that process's.
	exited, err := linux.PidfdExited(pidfd)
	if err == nil && !exited {
		if now, err := linux.StartTime(pid); err == nil && now == start {
			return pidfd, nil
		}
	}
	if exited {
		// This fails for a process that is not a child of noded, which has none to reap.
		_ = unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED|unix.WNOHANG, nil)
	}
	unix.Close(pidfd)
	return -1, ErrGone
}

// Until returns a context for waiting, which ends with ctx, or with cause as soon as one of the
// channels is closed. The caller calls stop when it waits no more.
func Until(ctx context.Context, cause error, ends ...<-chan struct{}) (until context.Context, stop func()) {
	until, cancel := context.WithCancelCause(ctx)
	for _, end := range ends {
		go func() { // ends with until
			select {
			case <-end:
				cancel(cause)
			case <-until.Done():
			}
		}()
	}
	return until, func() { cancel(nil) }
}

// Wait returns nil when the process has ended, or ctx's cause.
func (p *Process) Wait(ctx context.Context) error { return linux.PidfdWait(ctx, p.pidfd) }

// Kill sends SIGKILL. A process that has ended is no error.
func (p *Process) Kill() error {
	err := linux.PidfdSignal(p.pidfd, syscall.SIGKILL)
	if linux.IsGone(err) {
		return nil
	}
	return err
}

// Ending describes how a stepd, which has ended without a result, ended, and reaps it. The
// kernel keeps the status of a process that is not noded's child from noded, and none is
// made up.
func (p *Process) Ending() string {
	who := fmt.Sprintf("stepd (pid %d) ", p.PID)
	ws, err := p.status()
	switch {
	case !p.ours || err != nil:
		return who + "is gone"
	case ws.Signaled():
		return who + "was killed by " + signalName(ws.Signal())
	}
	text := who + fmt.Sprintf("exited with code %d and left no result", ws.ExitStatus())
	if p.stderr == nil {
		return text
	}
	if last := p.stderr.Finish(); last != "" {
		text += ": " + last
	}
	return text
}

// Run waits for the end of a child and reaps it. When ctx ends first, the process group
// that the child leads is killed, and the error is ctx's cause.
func (p *Process) Run(ctx context.Context) error {
	err := p.Wait(ctx)
	if err != nil {
		// The child was not reaped yet, so that the number is still its group's.
		if kerr := syscall.Kill(-p.PID, syscall.SIGKILL); kerr != nil && !errors.Is(kerr, syscall.ESRCH) {
			err = printable.JoinErrors(err, fmt.Errorf("cannot kill process group %d: %w", p.PID, kerr))
		}
		err = printable.JoinErrors(err, p.Wait(context.Background()))
	}
	ws, werr := p.status()
	switch {
	case err != nil:
		return err
	case werr != nil:
		return fmt.Errorf("cannot wait for process %d: %w", p.PID, werr)
	case ws.Signaled():
		return fmt.Errorf("was killed by %s", signalName(ws.Signal()))
	case ws.ExitStatus() != 0:
		return fmt.Errorf("exited with code %d", ws.ExitStatus())
	}
	return nil
}

// Reap takes the status of a child that has ended, and drops it.
func (p *Process) Reap() error {
	_, err := p.status()
	return err
}

// status reaps the process where it is a child of noded.
func (p *Process) status() (ws unix.WaitStatus, err error) {
	if p.ours {
		err = linux.IgnoringEINTR(func() error {
			_, err := unix.Wait4(p.PID, &ws, 0, nil)
			return err
		})
	}
	return ws, err
}

// Close releases what the Process holds; the process goes on.
func (p *Process) Close() {
	unix.Close(p.pidfd)
	if p.stderr != nil {
		p.stderr.Close()
	}
}

// signalName is the name that users know: SIGKILL, SIGRTMIN+1.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); strings.HasPrefix(name, "SIG") {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}

// Stderr carries what one stepd writes to its standard error to noded's log.
//
// It is a pair of datagram sockets, and neither noded's own descriptor nor a
// pipe: stepd outlives noded, and must neither hold open the file of noded's log,
// nor be killed by SIGPIPE once noded has ended. A write to a datagram socket whose
// peer is closed fails, and has no other effect.
type Stderr struct {
	ours *os.File
	out  io.Writer
	json bool          // the log is of JSON lines
	done chan struct{} // closed when copy has ended
	part string        // of a line whose end has not come; copy's alone, until it has ended

	mu    sync.Mutex
	last  string // guarded by mu: the last line
	crash string // guarded by mu: the first line of a crash
}

// crashLine is how the text of a crash begins that Go's runtime writes, before goroutines and
// registers.
var crashLine = regexp.MustCompile(`(?m)^(panic|fatal error|SIG[A-Z0-9]+): .*$`)

// writeMax bounds one write of stepd, in bytes; the rest of a longer one is lost.
const writeMax = 64 << 10

// NewStderr returns the end that stepd writes to as well; the caller closes both. Lines go to
// out; json makes JSON of lines that are none.
func NewStderr(out io.Writer, json bool) (e *Stderr, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot create socket for stepd's log: %w", err)
	}
	// Ours alone: Go's poller waits for it. Stepd's end blocks, as a log does.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("cannot prepare socket for stepd's log: %w", err)
	}
	e = &Stderr{ours: os.NewFile(uintptr(fds[0]), "stepd's log"), out: out, json: json, done: make(chan struct{})}
	go e.copy()
	return e, os.NewFile(uintptr(fds[1]), "log"), nil
}

// buffers are shared by all stepds: most of them write nothing.
var buffers = sync.Pool{New: func() any { return new([writeMax]byte) }}

// copy passes on what stepd writes, until Finish or Close.
func (e *Stderr) copy() {
	defer close(e.done)
	conn, err := e.ours.SyscallConn()
	for err == nil {
		var readErr error
		err = conn.Read(func(fd uintptr) bool {
			readErr = e.readOne(int(fd))
			return !errors.Is(readErr, unix.EAGAIN)
		})
		if err == nil { // else the deadline of Finish, or closed
			err = readErr
		}
	}
}

// readOne passes on one write of stepd. EAGAIN says that there is none to read.
func (e *Stderr) readOne(fd int) error {
	buf := buffers.Get().(*[writeMax]byte)
	defer buffers.Put(buf)
	n, err := unix.Read(fd, buf[:])
	switch {
	case err == nil:
		e.pass(buf[:n])
	case errors.Is(err, unix.EINTR):
		err = nil
	}
	return err
}

// pass passes on whole lines: Go's runtime writes the text of a crash word by word.
func (e *Stderr) pass(b []byte) {
	text := e.part + string(b)
	end := strings.LastIndexByte(text, '\n') + 1
	if len(text) > writeMax {
		end = len(text)
	}
	text, e.part = text[:end], text[end:]
	e.passLines(text)
}

func (e *Stderr) passLines(text string) {
	if text = strings.TrimRight(text, "\n"); text == "" {
		return
	}
	e.mu.Lock()
	e.last = text[strings.LastIndexByte(text, '\n')+1:]
	if e.crash == "" {
		e.crash = crashLine.FindString(text)
	}
	e.mu.Unlock()
	if e.json {
		text = jsonLines(text, time.Now())
	}
	// A log that cannot be written cannot report it.
	_, _ = io.WriteString(e.out, text+"\n")
}

// jsonLines makes JSON of the lines that are none: a panic's text, and what plugins print.
func jsonLines(text string, now time.Time) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "{") && json.Valid([]byte(line)) {
			continue
		}
		b, err := json.Marshal(struct {
			Time   string `json:"time"`
			Level  string `json:"level"`
			Msg    string `json:"msg"`
			Source string `json:"source"`
		}{now.Format(eventlog.LogTime), "error", strings.ToValidUTF8(line, "?"), "stepd"})
		if err == nil { // strings can be encoded
			lines[i] = string(b)
		}
	}
	return strings.Join(lines, "\n")
}

// Finish is called when stepd has ended. It passes on what was not read yet and returns
// the first line of a crash, or the last line, as Message has it, or "".
func (e *Stderr) Finish() string {
	_ = e.ours.SetReadDeadline(time.Unix(1, 0)) // fails only when closed
	<-e.done
	conn, err := e.ours.SyscallConn()
	for err == nil { // until EAGAIN: nothing is left
		if cerr := conn.Control(func(fd uintptr) { err = e.readOne(int(fd)) }); cerr != nil {
			break
		}
	}
	e.flush()
	e.mu.Lock()
	defer e.mu.Unlock()
	return Message(cmp.Or(e.crash, e.last))
}

// Close ends the copying; stepd goes on, and its writes fail.
func (e *Stderr) Close() {
	e.ours.Close()
	<-e.done
	e.flush()
}

// flush passes on a line that has no end; copy has ended.
func (e *Stderr) flush() {
	e.passLines(e.part)
	e.part = ""
}

// Message is the message of a log line of logrus (msg="...", or JSON), or the line as it is,
// without control characters and cut to 300 bytes.
func Message(line string) string {
	var doc struct {
		Msg string `json:"msg"`
	}
	if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &doc) == nil && doc.Msg != "" {
		line = doc.Msg
	}
	if _, rest, ok := strings.Cut(line, " msg="); ok {
		if quoted, err := strconv.QuotedPrefix(rest); err == nil {
			line, _ = strconv.Unquote(quoted) // a QuotedPrefix always unquotes
		}
	}
	line = strings.Map(func(r rune) rune {
		if printable.Control(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(line, "?"))
	const most = 300
	if len(line) > most {
		line = strings.ToValidUTF8(line[:most], "") + "..."
	}
	return line
}
