package client

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/client/plugins"
	"stepd/client/terminal"
	"stepd/srunopt"
	"stepd/step"
	"stepd/stepio"
	"stepd/stepio/replay"
)

// OutputCommand is the verb output.
func OutputCommand(d *Dialer) *cobra.Command {
	var o outputOptions
	c := &cobra.Command{
		Use: "output [-l] JOB[.STEP]", Short: "print what is kept of a step's output", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			id, err := d.oneStep(args[0])
			if err != nil {
				return err
			}
			return d.output(id, o)
		},
	}
	c.Flags().BoolVarP(&o.label, "label", "l", false, "put the rank before each line of output")
	c.Flags().BoolVar(&o.raw, "raw", false, rawHelp)
	return c
}

// rawHelp describes --raw.
const rawHelp = "let another user's output control the terminal"

// outputOptions are the options of output.
type outputOptions struct{ label, raw bool }

// printer writes pieces of output to standard output and error.
type printer struct {
	lines *stepio.Remote
	guard *terminal.Guard
	// Of a terminal: what it was made to be, and what not to ask of ours.
	terminal bool
	modes    replay.Modes
	quiet    replay.Quiet
}

func newPrinter(rec *step.Record, o outputOptions, onTerminal bool) *printer {
	spec := &step.Spec{Request: step.Request{NTasks: rec.NTasks}}
	return &printer{terminal: onTerminal, guard: terminal.NewGuard(rec.UID, o.raw), lines: stepio.NewRemote(spec, stepio.Options{
		Stdout: os.Stdout, Stderr: os.Stderr, Label: o.label, Unbuffered: !o.label,
		Failed: func(err error) {
			// There is nothing to leave behind: it is no terminal.
			if !errors.Is(err, unix.EPIPE) {
				terminal.Say("error: %s", err)
				os.Exit(1)
			}
			os.Exit(brokenPipe)
		},
	})}
}

func (p *printer) piece(piece replay.Piece) error {
	if p.terminal && !p.guard.On[1] && terminal.IsTerminal(os.Stdout) {
		out := p.quiet.Append(nil, piece.Data)
		p.modes.Feed(out)
		_, err := os.Stdout.Write(out)
		return err
	}
	p.lines.Output(piece.FD, piece.Rank, p.guard.Pass(piece.FD, piece.Rank, piece.Data), false)
	return nil
}

// end leaves the terminal as it was found.
func (p *printer) end() {
	p.guard.End(func(fd, rank int, b []byte) { p.lines.Output(fd, rank, b, false) })
	p.lines.End()
	if undo := p.modes.Undo(); undo != "" {
		os.Stdout.WriteString(undo)
	}
}

// output prints what can be had of a step's output.
func (d *Dialer) output(id step.ID, o outputOptions) error {
	rec, err := d.record(id)
	if err != nil {
		return err
	}
	if err := printFiles(rec, o); !errors.Is(err, errNoFiles) {
		return err
	}
	ended := rec.State.Final()
	if !ended {
		a := newAttached(nil, rec, func() (*step.Record, error) { return d.last(id) })
		if err = a.printLive(d, o); err != nil {
			_, err = a.fate(err)
			ended = err == nil
		}
	}
	if ended {
		err = d.printKept(rec, o)
	}
	if err != nil {
		return fmt.Errorf("%w%s%s", err, streamDestination("stdout", rec.Stdout), streamDestination("stderr", rec.Stderr))
	}
	return nil
}

// streamDestination reports where a stream goes that is not kept.
func streamDestination(name string, p *step.OutputPlace) string {
	switch {
	case p == nil:
		return ""
	case p.Kind == step.StreamClient:
		return "; " + name + " goes to the file or pipe of the client that has started it"
	case p.Kind == step.StreamNull:
		return "; " + name + " goes to /dev/null"
	case p.Kind == step.StreamFile:
		return fmt.Sprintf("; %s goes to %q", name, p.Pattern)
	}
	return ""
}

// printKept prints what stepd has left of an ended step.
func (d *Dialer) printKept(rec *step.Record, o outputOptions) error {
	kept, err := d.Client().Output(context.Background(), rec.ID)
	if err != nil {
		return err
	}
	defer kept.Close()
	var p *printer
	head, err := replay.ReadKept(kept, func(piece replay.Piece) error {
		if p == nil {
			p = newPrinter(rec, o, rec.Stdout != nil && rec.Stdout.Kind == step.StreamTerminal)
		}
		return p.piece(piece)
	})
	if p != nil {
		p.end()
	}
	if err == nil && head.Skipped > 0 {
		terminal.Say("the first %d of %d bytes are not kept", head.Skipped, head.Bytes)
	}
	return err
}

// printLive prints what stepd keeps of a running step.
func (a *attached) printLive(d *Dialer, o outputOptions) error {
	watched, out, err := a.connect(d, &stepapi.Watch{ReadOnly: true, Once: true, Replay: -1})
	if err != nil {
		return err
	}
	defer a.conn.Close()
	defer out.Close()
	p := newPrinter(a.rec, o, watched.Terminal)
	defer p.end()
	var skipped terminal.Skipped
	defer skipped.End()
	for f, err := range replay.Frames(out) {
		switch {
		case errors.Is(err, replay.ErrCut):
			return fmt.Errorf("the rest of the output of step %s is missing: its stepd is gone", a.rec.ID)
		case err != nil:
			return fmt.Errorf("cannot read the output of step %s: %w", a.rec.ID, err)
		case f.Kind == replay.KindGap:
			skipped.Add(f.N)
		case f.Kind == replay.KindOutput:
			if err := p.piece(f.Piece); err != nil {
				return err
			}
		}
	}
	return nil
}

// errNoFiles says that the tasks write to no files.
var errNoFiles = errors.New("the tasks write to no files")

// filesMax bounds how many files of one stream are printed.
const filesMax = 4096

// printFiles prints the files that the tasks have written to, standard output's
// first.
func printFiles(rec *step.Record, o outputOptions) error {
	isFile := func(p *step.OutputPlace) bool { return p != nil && p.Kind == step.StreamFile }
	if !isFile(rec.Stdout) && !isFile(rec.Stderr) {
		return errNoFiles
	}
	p := newPrinter(rec, o, false)
	defer p.end()
	reader, err := newFileReader(rec.UID)
	if err != nil {
		return err
	}
	defer reader.close()
	for i, place := range []*step.OutputPlace{rec.Stdout, rec.Stderr} {
		if isFile(place) && err == nil {
			err = p.files(reader, rec, i+1, place)
		}
	}
	return err
}

// files prints the files of one stream, in the order of their ranks.
func (p *printer) files(reader fileReader, rec *step.Record, fd int, place *step.OutputPlace) error {
	spec := &step.Spec{ID: rec.ID, Request: step.Request{Name: rec.Name, NTasks: rec.NTasks, Array: rec.Array}, User: step.User{Name: rec.User, UID: rec.UID}, NodeName: rec.Node}
	first, last := 0, 0
	switch {
	case place.Rank != nil:
		first, last = *place.Rank, *place.Rank
	case srunopt.PatternHas(place.Pattern, "t"):
		last = min(rec.NTasks, filesMax) - 1
	}
	for rank := first; rank <= last; rank++ {
		path, err := srunopt.ExpandPattern(place.Pattern, spec, rank)
		if err != nil {
			return err
		}
		err = reader.read(path, func(b []byte) { p.lines.Output(fd, rank, p.guard.Pass(fd, rank, b), false) })
		if err != nil {
			return fmt.Errorf("cannot read the output: %w", err)
		}
		p.guard.EndOf(fd, rank, func(b []byte) { p.lines.Output(fd, rank, b, false) })
		p.lines.Output(fd, rank, nil, true)
	}
	if last+1 == filesMax && rec.NTasks > filesMax {
		terminal.Say("the files of tasks from %d on are not shown: %q", filesMax, place.Pattern)
	}
	return nil
}

// fileReader reads files that a step's tasks have written.
type fileReader interface {
	// read gives take what is in a regular file.
	read(path string, take func(b []byte)) error
	close()
}

// newFileReader reads as the user of the step, who has chosen the paths: root reads
// nothing there that the user could not.
func newFileReader(uid uint32) (fileReader, error) {
	if os.Geteuid() != 0 || uid == 0 {
		return ownFiles{}, nil
	}
	return newUserFiles(uid)
}

// ownFiles reads as the caller.
type ownFiles struct{}

func (ownFiles) close() {}

func (ownFiles) read(path string, take func(b []byte)) error {
	// To open a device, or one end of a FIFO, is an act of its own: look before.
	at, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %q: %w", path, err)
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return fmt.Errorf("stat %q: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%q is no regular file", path)
	}
	f, err := os.Open(fmt.Sprint("/proc/self/fd/", at))
	if err != nil {
		if errors.Is(err, os.ErrPermission) {
			err = os.ErrPermission
		}
		return fmt.Errorf("open %q: %w", path, err)
	}
	defer f.Close()
	buf := make([]byte, answerMax)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			take(buf[:n])
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %q: %w", path, err)
		}
	}
}

// ReaderName is this program's name as a child that reads files as another user.
const ReaderName = "stepctl: reads output"

// A question is a path that ends with a NUL, an answer pieces: a kind, a length and as many
// bytes.
const (
	answerData  = 'd'
	answerEnd   = 'e'
	answerError = 'x'

	answerMax = 64 << 10
)

// userFiles reads in a child that is the user. The bytes are read there, too, and not
// by a descriptor of the child's: some files look at who reads them.
type userFiles struct {
	cmd *exec.Cmd
	to  io.WriteCloser
	raw io.ReadCloser
	out *bufio.Reader
}

func newUserFiles(uid uint32) (*userFiles, error) {
	cred, err := credentialOf(uid)
	if err != nil {
		return nil, err
	}
	// What the caller's shell has left open is nothing for the user.
	if err := closeOnExec(); err != nil {
		return nil, err
	}
	u := &userFiles{cmd: &exec.Cmd{Path: "/proc/self/exe", Args: []string{ReaderName}, Env: plugins.HelperEnv(), Dir: "/"}}
	// The user may trace the child, who is to reach nothing of the caller's by it, the
	// terminal first of all.
	u.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred, Setsid: true}
	if u.to, err = u.cmd.StdinPipe(); err == nil {
		u.raw, err = u.cmd.StdoutPipe()
	}
	if err == nil {
		err = u.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read as uid %d: %w", uid, err)
	}
	u.out = bufio.NewReaderSize(u.raw, answerMax)
	return u, nil
}

func (u *userFiles) close() {
	u.to.Close()
	u.raw.Close()
	_ = u.cmd.Process.Kill() // it may have ended
	_ = u.cmd.Wait()         // what it said is all that counts
}

func (u *userFiles) read(path string, take func(b []byte)) error {
	if _, err := io.WriteString(u.to, path+"\x00"); err != nil {
		return fmt.Errorf("ask for %q: %w", path, err)
	}
	for {
		var head [5]byte
		_, err := io.ReadFull(u.out, head[:])
		n := binary.BigEndian.Uint32(head[1:])
		if err == nil && n > answerMax {
			err = fmt.Errorf("an answer of %d bytes", n)
		}
		b := make([]byte, min(n, answerMax))
		if err == nil {
			_, err = io.ReadFull(u.out, b)
		}
		switch {
		case err != nil:
			return fmt.Errorf("read %q as its user: %w", path, err)
		case head[0] == answerData:
			take(b)
		case head[0] == answerError:
			return errors.New(terminal.Escape(string(b)))
		case head[0] == answerEnd:
			return nil
		}
	}
}

// ServeReader is the child: it answers until its input or output is closed.
func ServeReader(in io.Reader, out io.Writer) {
	gone := false
	put := func(kind byte, b []byte) {
		_, err := out.Write(append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(b))), b...))
		gone = gone || err != nil // a broken standard output ends a Go program even before
	}
	for questions := bufio.NewReader(in); !gone; {
		path, err := questions.ReadString(0)
		if err != nil {
			return
		}
		if err := (ownFiles{}).read(strings.TrimSuffix(path, "\x00"), func(b []byte) { put(answerData, b) }); err != nil {
			put(answerError, []byte(err.Error()))
		} else {
			put(answerEnd, nil)
		}
	}
}

// credentialOf is who a user is, with all groups, as the name service says.
func credentialOf(uid uint32) (*syscall.Credential, error) {
	answer, err := plugins.AskNames(fmt.Sprintf("uid %d", uid))
	if err != nil {
		return nil, fmt.Errorf("cannot look up uid %d: %w", uid, err)
	}
	cred := &syscall.Credential{Uid: uid}
	gid, err := strconv.ParseUint(answer["gid"], 10, 32)
	if err != nil || answer["uid"] != fmt.Sprint(uid) {
		return nil, fmt.Errorf("cannot look up uid %d: the name service's answer has uid %q and gid %q", uid, answer["uid"], answer["gid"])
	}
	cred.Gid = uint32(gid)
	for word := range strings.SplitSeq(answer["groups"], ",") {
		g, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("cannot look up uid %d: the name service's answer has groups %q", uid, answer["groups"])
		}
		cred.Groups = append(cred.Groups, uint32(g))
	}
	return cred, nil
}

// closeOnExec lets children have none of the descriptors that this process was given
// besides the first three.
func closeOnExec() error {
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("cannot mark inherited descriptors close-on-exec: %w", err)
	}
	return nil
}
