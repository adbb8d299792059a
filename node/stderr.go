package node

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

	"stepd/internal/printable"
	"stepd/step"
)

// words carries what one stepd writes to its standard error to noded's log.
//
// It is a pair of datagram sockets, and neither noded's own descriptor nor a
// pipe: stepd outlives noded, and must neither hold open what noded's log goes
// to, nor be killed by SIGPIPE when nobody reads any more. A write to a
// datagram socket whose peer is gone fails, and that is all.
type words struct {
	ours *os.File
	out  io.Writer
	json bool          // the log is of JSON lines
	done chan struct{} // closed when copy has ended

	mu   sync.Mutex
	last string // guarded by mu: the last line
}

// wordsMax bounds one write of stepd's that is passed on.
const wordsMax = 64 << 10

func newWords(out io.Writer, json bool) (w *words, theirs *os.File, err error) {
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
	w = &words{ours: os.NewFile(uintptr(fds[0]), "stepd's log"), out: out, json: json, done: make(chan struct{})}
	go w.copy()
	return w, os.NewFile(uintptr(fds[1]), "log"), nil
}

// wordsRoom is what is read into: a stepd that says nothing, as most do, has none of it.
var wordsRoom = sync.Pool{New: func() any { return new([wordsMax]byte) }}

// copy passes on what comes, until finish or close.
func (w *words) copy() {
	defer close(w.done)
	conn, err := w.ours.SyscallConn()
	for err == nil {
		var readErr error
		err = conn.Read(func(fd uintptr) bool {
			readErr = w.readOne(int(fd))
			return !errors.Is(readErr, unix.EAGAIN)
		})
		if err == nil { // else the deadline of finish, or closed
			err = readErr
		}
	}
}

// readOne passes on one write of stepd's. EAGAIN: there is none.
func (w *words) readOne(fd int) error {
	buf := wordsRoom.Get().(*[wordsMax]byte)
	defer wordsRoom.Put(buf)
	n, err := unix.Read(fd, buf[:])
	switch {
	case err == nil:
		w.pass(buf[:n])
	case errors.Is(err, unix.EINTR):
		err = nil
	}
	return err
}

func (w *words) pass(b []byte) {
	text := strings.TrimRight(string(b), "\n")
	if text == "" {
		return
	}
	w.mu.Lock()
	w.last = text[strings.LastIndexByte(text, '\n')+1:]
	w.mu.Unlock()
	if w.json {
		text = jsonLines(text, time.Now())
	}
	// A log that cannot be written has nowhere to say so.
	_, _ = io.WriteString(w.out, text+"\n")
}

// jsonLines makes JSON of those lines that are none: what stepd's runtime says when
// it dies, and what plugins print.
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
		}{now.Format(step.LogTime), "error", strings.ToValidUTF8(line, "?"), "stepd"})
		if err == nil { // strings can be encoded
			lines[i] = string(b)
		}
	}
	return strings.Join(lines, "\n")
}

// finish is called when stepd has ended. It passes on what is left and returns
// the last line, cut and made harmless, "" if there was none.
func (w *words) finish() string {
	_ = w.ours.SetReadDeadline(time.Unix(1, 0)) // fails only when closed
	<-w.done
	conn, err := w.ours.SyscallConn()
	for err == nil { // until EAGAIN: nothing is left
		if cerr := conn.Control(func(fd uintptr) { err = w.readOne(int(fd)) }); cerr != nil {
			break
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return message(w.last)
}

func (w *words) close() {
	w.ours.Close()
	<-w.done
}

// message takes the message out of a log line of logrus (msg="...", or JSON), or the
// line as it is, cut to a reason's length.
func message(line string) string {
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
