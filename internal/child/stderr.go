package child

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/internal/printable"
)

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

	mu   sync.Mutex
	last string // guarded by mu: the last line
}

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

func (e *Stderr) pass(b []byte) {
	text := strings.TrimRight(string(b), "\n")
	if text == "" {
		return
	}
	e.mu.Lock()
	e.last = text[strings.LastIndexByte(text, '\n')+1:]
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
// the last line, as Message has it, or "".
func (e *Stderr) Finish() string {
	_ = e.ours.SetReadDeadline(time.Unix(1, 0)) // fails only when closed
	<-e.done
	conn, err := e.ours.SyscallConn()
	for err == nil { // until EAGAIN: nothing is left
		if cerr := conn.Control(func(fd uintptr) { err = e.readOne(int(fd)) }); cerr != nil {
			break
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return Message(e.last)
}

// Close ends the copying; stepd goes on, and its writes fail.
func (e *Stderr) Close() {
	e.ours.Close()
	<-e.done
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
