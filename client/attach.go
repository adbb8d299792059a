package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/client/terminal"
	"stepd/internal/printable"
	"stepd/step"
	"stepd/stepio"
	"stepd/stepio/replay"
)

// attachOptions are the options of attach.
type attachOptions struct {
	readOnly, label, raw bool
	replay               string
	detachKeys           string
}

// AttachCommand is the verb attach.
func AttachCommand(d *Dialer) *cobra.Command {
	o := &attachOptions{}
	c := &cobra.Command{
		Use: "attach [options] JOB[.STEP]", Short: "see the output of a running step, or take up its terminal", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			id, err := d.oneStep(args[0])
			if err != nil {
				return err
			}
			code, err := d.attach(id, o)
			return terminal.Exit(code, err)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.readOnly, "read-only", "r", false, "type nothing (where standard input is no terminal, it is so in any case)")
	f.BoolVarP(&o.label, "label", "l", false, "put the rank before each line of output")
	f.BoolVar(&o.raw, "raw", false, rawHelp)
	f.StringVar(&o.replay, "replay", "all", "how much of what is kept comes first: all, none, or bytes such as 16K")
	f.StringVar(&o.detachKeys, "detach-keys", terminal.DefaultDetachKeys, "keys that leave a terminal; none for none")
	return c
}

// watch is what the options ask stepd for.
func (o *attachOptions) watch() (*stepapi.Watch, error) {
	w := &stepapi.Watch{ReadOnly: o.readOnly || !terminal.IsTerminal(os.Stdin)}
	var err error
	if w.Replay, err = parseReplay(o.replay); err != nil {
		return nil, fmt.Errorf("--replay=%s: %w", o.replay, err)
	}
	return w, nil
}

// parseReplay reads all, none, or a number of bytes with K, M or G; all is below 0.
func parseReplay(s string) (int64, error) {
	switch strings.ToLower(s) {
	case "all":
		return -1, nil
	case "none":
		return 0, nil
	}
	shift, number := 0, s
	if len(s) > 0 {
		if at := strings.IndexByte("KMG", s[len(s)-1]&^0x20); at >= 0 {
			shift, number = 10*(at+1), s[:len(s)-1]
		}
	}
	var n uint32
	if _, err := fmt.Sscanf(number, "%d", &n); err != nil || fmt.Sprint(n) != number {
		return 0, errors.New("write all, none, or bytes, for example 16K")
	}
	return int64(n) << shift, nil
}

// attached is one client's part in a step that another one has started.
type attached struct {
	o   *attachOptions
	rec *step.Record
	// last is the step's last record, as noded knows it soon.
	last   func() (*step.Record, error)
	conn   *stepapi.Conn
	screen *terminal.Screen // of a terminal
	// Of another step: what writes its lines, and the end of what comes.
	lines *stepio.Remote
	guard *terminal.Guard
	ended chan struct{}
	cut   bool // of lines: stepd has not sent all; to be read when ended is closed
	// A client whose own output takes no more, or that cannot read what comes, leaves with
	// a code.
	once   sync.Once
	gone   chan struct{} // closed then
	goneBy int           // of gone
}

func newAttached(o *attachOptions, rec *step.Record, last func() (*step.Record, error)) *attached {
	return &attached{o: o, rec: rec, last: last, ended: make(chan struct{}), gone: make(chan struct{})}
}

// attach shows the step until its end, or until the client leaves it.
func (d *Dialer) attach(id step.ID, o *attachOptions) (code int, err error) {
	watch, err := o.watch()
	if err != nil {
		return 0, err
	}
	keys, err := terminal.ParseDetachKeys(o.detachKeys)
	if err != nil {
		return 0, err
	}
	rec, err := d.running(id)
	if err != nil {
		return 0, err
	}
	return newAttached(o, rec, func() (*step.Record, error) { return d.last(id) }).show(d, watch, keys)
}

// show is attach of a step that ran when noded was asked.
func (a *attached) show(d *Dialer, watch *stepapi.Watch, keys *terminal.DetachKeys) (code int, err error) {
	watched, conn, err := a.connect(d, watch)
	if err != nil {
		rec, err := a.fate(err)
		if err == nil {
			err = errOver(rec)
		}
		return 0, err
	}
	defer a.conn.Close()
	if watched.Terminal && a.o.label {
		conn.Close()
		return 0, fmt.Errorf("--label: step %s has a terminal, whose output has no labels", a.rec.ID)
	}
	if watched.Terminal {
		return a.showTerminal(conn, keys, watch.ReadOnly)
	}
	if err := a.tellAbsent(watched); err != nil {
		conn.Close()
		return 0, err
	}
	return a.showLines(conn)
}

// tellAbsent reports which streams do not pass through stepd; that none does is an error.
func (a *attached) tellAbsent(w *stepapi.Watched) error {
	stdout, stderr := streamDestination("stdout", a.rec.Stdout), streamDestination("stderr", a.rec.Stderr)
	if a.rec.Stderr != nil && a.rec.Stderr.Kind == step.StreamSame {
		stderr = ""
	}
	switch {
	case !w.Stdout && !w.Stderr:
		return fmt.Errorf("nothing of the output of step %s (%s) passes by its stepd%s%s", a.rec.ID, StateWord(a.rec), stdout, stderr)
	case !w.Stdout:
		terminal.Say("stdout is not seen here%s", stdout)
	case !w.Stderr && stderr != "":
		terminal.Say("stderr is not seen here%s", stderr)
	}
	return nil
}

// running is the record of a step that can be attached to.
func (d *Dialer) running(id step.ID) (*step.Record, error) {
	rec, err := d.record(id)
	switch {
	case err != nil:
		return nil, err
	case rec.State.Final():
		return nil, errOver(rec)
	case rec.State == step.Pending || rec.State == step.Starting:
		return nil, fmt.Errorf("cannot attach to step %s: it is %s and writes nothing yet", id, rec.State)
	}
	return rec, nil
}

// errOver is that a step has ended, whose last record is rec.
func errOver(rec *step.Record) error {
	return fmt.Errorf("step %s has ended (%s): `stepctl output %s` shows what is kept of its output", rec.ID, rec.State, rec.ID)
}

// errLost is the loss of the connection to a step's stepd. noded knows, or will know soon,
// what became of the step.
type errLost struct {
	id    step.ID
	cause error // nil where stepd has closed it
}

func (e *errLost) Error() string {
	if e.cause == nil {
		return fmt.Sprintf("the connection to the stepd of step %s is lost", e.id)
	}
	return fmt.Sprintf("the connection to the stepd of step %s is lost: %s", e.id, e.cause)
}

func (e *errLost) Unwrap() error { return e.cause }

// recv reads a record of stepd's: an error is an errLost, or that the record makes no
// sense.
func (a *attached) recv(conn *stepapi.Conn) (*stepapi.Msg, []int, error) {
	m, fds, err := conn.Recv()
	switch {
	case err == nil:
		return m, fds, nil
	case errors.Is(err, io.EOF):
		return nil, nil, &errLost{id: a.rec.ID}
	case errors.Is(err, net.ErrClosed), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ENOTCONN):
		return nil, nil, &errLost{a.rec.ID, err}
	}
	return nil, nil, a.malformed(err)
}

func (a *attached) malformed(err error) error {
	return fmt.Errorf("cannot read what the stepd of step %s says: %w", a.rec.ID, err)
}

// fate is what noded knows of the step where err is its end or the loss of its stepd. Any
// other error it returns.
func (a *attached) fate(err error) (*step.Record, error) {
	if _, lost := errors.AsType[*errLost](err); !lost && !errors.Is(err, step.ErrEnded) {
		return nil, err
	}
	rec, unknown := a.last()
	if unknown != nil {
		return nil, fmt.Errorf("%w, and what became of the step is not known: %s", err, unknown)
	}
	return rec, nil
}

// ask asks for the output, and waits for the answer. stepd speaks first: what it says
// to a client that it refuses would be lost if the client had sent something that it does not
// read.
func (a *attached) ask(conn *stepapi.Conn, w *stepapi.Watch) (*stepapi.Watched, *os.File, error) {
	asked := false
	for {
		m, fds, err := a.recv(conn)
		if err != nil {
			return nil, nil, err
		}
		if err := m.Err(); err != nil {
			stepapi.CloseAll(fds)
			return nil, nil, fmt.Errorf("cannot see the output of step %s: %w", a.rec.ID, err)
		}
		switch {
		case m.Seq == watchSeq && m.Watched != nil && len(fds) == 1:
			return m.Watched, os.NewFile(uintptr(fds[0]), "the step's output"), nil
		case m.Seq == watchSeq:
			stepapi.CloseAll(fds)
			return nil, nil, a.malformed(fmt.Errorf("the answer has %d descriptors of the output, want 1", len(fds)))
		case !asked:
			asked = true
			err := conn.Send(&stepapi.Msg{Type: stepapi.TypeHello, Version: stepapi.Version, Role: stepapi.RoleTool})
			if err == nil {
				err = askToWatch(conn, w)
			}
			// A stepd that ends just now takes nothing more: why is read next, or that it has gone.
			if err != nil && !errors.Is(err, unix.EPIPE) {
				stepapi.CloseAll(fds)
				return nil, nil, fmt.Errorf("cannot see the output of step %s: %w", a.rec.ID, err)
			}
		}
		stepapi.CloseAll(fds)
	}
}

// showTerminal shows the step's terminal in the client's.
func (a *attached) showTerminal(conn *os.File, keys *terminal.DetachKeys, readOnly bool) (int, error) {
	a.screen = terminal.NewScreen(os.Stdin, os.Stdout, keys, readOnly)
	if terminal.NewGuard(a.rec.UID, a.o.raw).On[1] {
		a.screen.Escaper = &terminal.Escaper{}
		terminal.Say("step %s is another user's (%s): its control characters are shown as ^X, with --raw they control this terminal", a.rec.ID, a.rec.User)
	}
	if !readOnly && keys != nil {
		terminal.Say("attached to step %s: %s leaves it", a.rec.ID, keys.Words())
	}
	defer a.screen.Restore()
	if err := a.screen.Begin(conn, true); err != nil {
		return 0, err
	}
	stop := a.catch(func(sig syscall.Signal) { a.screen.Leave(terminal.Leaving{Code: 128 + int(sig)}) })
	defer stop()
	go a.screen.Guarded(func() { // ends with the client's part, or with the process
		<-a.screen.Left
		a.conn.Close()
	})
	rec, err := a.hear()
	a.screen.End(drainLimit)
	if why, left := a.screen.LeftBy(); left {
		if why.Words != "" {
			terminal.Say("%s; step %s goes on", why.Words, a.rec.ID)
		}
		return why.Code, nil
	}
	if err == nil && a.screen.Cut() {
		terminal.SayCut()
	}
	return a.conclude(rec, err)
}

// catch ends the client's part by a signal; the step hears nothing of it.
func (a *attached) catch(leave func(syscall.Signal)) (stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	done := make(chan struct{})
	go func() {
		select {
		case sig := <-c:
			leave(sig.(syscall.Signal))
		case <-done:
		}
	}()
	return sync.OnceFunc(func() { signal.Stop(c); close(done) })
}

// showLines writes what the tasks write to standard output and error.
func (a *attached) showLines(conn *os.File) (int, error) {
	spec := &step.Spec{Request: step.Request{NTasks: a.rec.NTasks}}
	a.lines = stepio.NewRemote(spec, stepio.Options{Stdout: os.Stdout, Stderr: os.Stderr, Label: a.o.label, Unbuffered: !a.o.label, Failed: a.leave})
	a.guard = terminal.NewGuard(a.rec.UID, a.o.raw)
	go func() { defer close(a.ended); defer conn.Close(); a.copyLines(conn) }()
	rec, err := a.hear()
	ended := false
	select {
	case <-a.ended:
		ended = true
	case <-a.gone:
	case <-time.After(drainLimit):
	}
	select {
	case <-a.gone: // copyLines ends then, too
		return a.goneBy, nil
	default:
	}
	if ended { // else copyLines is at them still
		a.lines.End()
	}
	if err == nil && (!ended || a.cut) {
		terminal.SayCut()
	}
	return a.conclude(rec, err)
}

// leave ends the client's part where its own output takes no more, or what comes cannot
// be read: by SIGPIPE's code where it has no reader, which is no error.
func (a *attached) leave(err error) {
	a.once.Do(func() {
		if a.goneBy = brokenPipe; !errors.Is(err, unix.EPIPE) {
			terminal.Say("error: %s", err)
			a.goneBy = 1
		}
		close(a.gone)
		a.conn.Close()
	})
}

// brokenPipe is the exit code of who has died of SIGPIPE.
const brokenPipe = 128 + int(syscall.SIGPIPE)

func (a *attached) copyLines(conn *os.File) {
	defer a.guard.End(func(fd, rank int, b []byte) { a.lines.Output(fd, rank, b, false) })
	var skipped terminal.Skipped
	defer skipped.End()
	for f, err := range replay.Frames(conn) {
		switch {
		case errors.Is(err, replay.ErrCut):
			a.cut = true
		case err != nil:
			a.leave(fmt.Errorf("cannot read the output of step %s: %w", a.rec.ID, err))
		case f.Kind == replay.KindOutput:
			a.lines.Output(f.FD, f.Rank, a.guard.Pass(f.FD, f.Rank, f.Data), false)
		case f.Kind == replay.KindGap:
			skipped.Add(f.N)
		}
		select {
		case <-a.gone:
			return
		default:
		}
	}
}

// connect connects to the step's stepd, and asks to see its output.
func (a *attached) connect(d *Dialer, watch *stepapi.Watch) (*stepapi.Watched, *os.File, error) {
	path, _ := d.Path()
	conn, err := stepapi.DialDir(context.Background(), filepath.Join(filepath.Dir(path), "steps"), a.rec.ID.Key()+".sock") // beside noded's
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		err = &errLost{a.rec.ID, err}
	}
	if err != nil {
		return nil, nil, err
	}
	a.conn = conn
	watched, output, err := a.ask(conn, watch)
	if err != nil {
		conn.Close()
	}
	return watched, output, err
}

// hear says what is meant for the user, and returns the final record. It is an errLost
// where stepd is gone without one, or the client has left.
func (a *attached) hear() (*step.Record, error) {
	for {
		m, fds, err := a.recv(a.conn)
		if err != nil {
			return nil, err
		}
		stepapi.CloseAll(fds)
		switch {
		case m.Type == stepapi.TypeMessage:
			terminal.SayLine(terminal.Escape(m.Text))
		case m.Type == stepapi.TypeResult && m.Record == nil:
			return nil, a.malformed(errors.New("its result has no record"))
		case m.Type == stepapi.TypeResult:
			return m.Record, nil
		}
	}
}

// conclude ends as the step has ended: with the record that stepd has sent, or else noded
// has.
func (a *attached) conclude(rec *step.Record, heard error) (int, error) {
	if heard != nil {
		var err error
		if rec, err = a.fate(heard); err != nil {
			return 0, err
		}
		terminal.Say("%s", heard)
	}
	if rec.State != step.Completed || rec.NoTaskRan() {
		terminal.Say("step %s: %s: %s", a.rec.ID, rec.State, printable.Line(rec.Reason, 400))
	}
	if rec.ExitCode == nil {
		return 1, nil
	}
	return *rec.ExitCode, nil
}

// watchSeq is the number of the one Watch of a connection.
const watchSeq = 1<<32 - 1

// askToWatch asks for the output; it comes with the answer.
func askToWatch(conn *stepapi.Conn, w *stepapi.Watch) error {
	return conn.Send(&stepapi.Msg{Type: stepapi.TypeWatch, Seq: watchSeq, Watch: w})
}

// showTerminal begins to show the step's terminal in the client's own.
func (l *launch) showTerminal(conn *stepapi.Conn, fd int) {
	if err := l.screen.Begin(os.NewFile(uintptr(fd), "the step's terminal"), false); err != nil {
		l.screen.Leave(terminal.Leaving{Code: 1, Words: err.Error() + ": detached"})
	}
	go l.screen.Guarded(func() { // ends with the client's part, or with the process
		<-l.screen.Left
		conn.Close()
	})
}

// endScreen shows what is left of the step's terminal, and says where that was cut short;
// whole is whether the step's end was received. left: the user has detached, and the step
// goes on.
func (l *launch) endScreen(whole bool) (left bool) {
	if l.screen == nil {
		return false
	}
	l.screen.End(drainLimit)
	if _, left := l.screen.LeftBy(); left {
		return true
	}
	if whole && l.screen.Conn != nil && l.screen.Cut() {
		terminal.SayCut()
	}
	return false
}

// detached ends a run whose client has left the step.
func (l *launch) detached() (code int, left bool) {
	if l.screen == nil {
		return 0, false
	}
	why, left := l.screen.LeftBy()
	if left && why.Words != "" {
		terminal.Say("%s; step %s goes on: `stepctl attach %s` takes it up again", why.Words, l.id.Name(), l.id.Name())
	}
	return why.Code, left
}
