// Package client is what stepctl does with steps: it finds noded, asks it for a step, connects
// to the step's stepd, and passes streams, signals and a terminal until the step ends or the
// user leaves it. The verbs that only print are in client/report and client/top; what an
// option means is in client/options.
//
// Begin with Dialer (dial.go) and RunCommand (run.go); attach.go and jobs.go (alloc, batch) are
// the other verbs.
package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"stepd/api"
	"stepd/client/options"
	"stepd/client/plugins"
	"stepd/client/terminal"
	"stepd/internal/build"
	"stepd/spank"
	"stepd/step"
)

// DefaultSocket is the socket of noded where no other is named.
const DefaultSocket = "/run/stepd/noded.sock"

// Dialer finds noded.
type Dialer struct {
	Socket     string        // --socket
	standalone bool          // --standalone
	Plugins    *plugins.Host // of the verb, where it has them
	// Processors is how many Go is to use where bytes of a stream are copied; 0: as many as before.
	Processors int
	release    func() // hands the signals to the verb
	signals    signals

	mu      sync.Mutex     // for the goroutine of endOnSignal
	private *private       // guarded by mu
	session *spank.Session // guarded by mu
}

// Path is the socket to use, and whether it was named.
func (d *Dialer) Path() (path string, named bool) {
	if d.Socket != "" {
		// Absolute: alloc's command may go to another directory.
		if abs, err := filepath.Abs(d.Socket); err == nil {
			return abs, true
		}
		return d.Socket, true
	}
	if s := os.Getenv("NODED_SOCKET"); s != "" {
		return s, true
	}
	return DefaultSocket, false
}

// Client returns the client of the noded to ask: a noded that does not serve shows in the
// first call.
func (d *Dialer) Client() *api.Client {
	path, _ := d.Path()
	if p := d.privateSocket(); p != "" {
		path = p
	}
	return clientAt(path)
}

func clientAt(socket string) *api.Client {
	return &api.Client{Socket: socket, Program: "stepctl " + build.Version()}
}

// privateSocket is the socket of the private noded, "" without one.
func (d *Dialer) privateSocket() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.private == nil {
		return ""
	}
	return d.private.socket
}

// orStandalone starts a private noded for a step of run where that was asked for, or, and
// then it says so, where root has named no socket and no noded serves the default one.
func (d *Dialer) orStandalone() error {
	path, named := d.Path()
	switch {
	case d.standalone && d.Socket != "":
		return options.Exclude("standalone", "socket") // before one is started
	case d.standalone && os.Geteuid() != 0:
		return errors.New("--standalone: only root may start a private noded")
	case d.standalone:
		return d.startPrivate()
	case named || os.Geteuid() != 0:
		return nil
	}
	if clientAt(path).Reach(context.Background()) == nil {
		return nil
	}
	terminal.Say("no noded at %q: running this step by itself (--standalone)", path)
	return d.startPrivate()
}

// Close ends what the dialer has started: the plugins' host and the private
// noded.
func (d *Dialer) Close() {
	d.Plugins.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.private != nil {
		d.private.stop()
		d.private = nil
	}
}

// signals are the signals that the program gets. To ask the runtime for one, or to give it
// back, switches threads twice: so a run asks for each once, and gives none back.
type signals struct {
	c chan os.Signal

	mu sync.Mutex
	to func(syscall.Signal) // guarded by mu: what they are for; nil is the program's end
}

// lead gives the signals, and more, to f from now on; nil makes them the program's end again.
func (s *signals) lead(f func(syscall.Signal), more ...os.Signal) {
	s.mu.Lock()
	s.to = f
	s.mu.Unlock()
	if len(more) > 0 {
		signal.Notify(s.c, more...)
	}
}

// pass hands a signal on, and reports whether that was all.
func (s *signals) pass(sig syscall.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to != nil {
		s.to(sig)
	}
	return s.to != nil || sig == syscall.SIGCONT
}

// endOnSignal ends what was started when a signal comes, and the program with
// it. The returned function hands the signals back: a verb that knows better
// what they mean calls it, or has them led to it.
func (d *Dialer) endOnSignal() (release func()) {
	d.signals.c = make(chan os.Signal, 16) // a burst of signals must not be lost
	done := make(chan struct{})
	signal.Notify(d.signals.c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() { // ends with release, or the program
		for {
			select {
			case <-done:
				return
			case sig := <-d.signals.c:
				if sig := sig.(syscall.Signal); !d.signals.pass(sig) {
					d.end(sig)
				}
			}
		}
	}()
	return sync.OnceFunc(func() { signal.Stop(d.signals.c); close(done) })
}

// end ends the program, and what it has started.
func (d *Dialer) end(sig syscall.Signal) {
	d.mu.Lock() // for good: nothing is started any more
	if text := terminal.Waiting.Text(); text != "" {
		terminal.Say("interrupted: %s", strings.TrimPrefix(text, "stepctl: "))
	}
	if d.session != nil {
		d.session.Kill(fmt.Sprintf("was interrupted by %v", sig))
	}
	if d.private != nil {
		d.private.stop()
	}
	os.Exit(step.SignaledBy(sig).Code())
}

// hold lets a signal end the plugins' host, too.
func (d *Dialer) hold(s *spank.Session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session = s
}

// private is a noded for the length of one command.
type private struct {
	cmd    *exec.Cmd
	alive  *os.File // its standard input: our end of the pipe
	dir    string
	socket string
}

func (d *Dialer) startPrivate() error {
	prog, err := plugins.Beside("noded", "../sbin")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "stepctl-standalone-")
	if err != nil {
		return fmt.Errorf("cannot start a private noded: %w", err)
	}
	stderr, err := d.runPrivate(prog, dir)
	if err != nil {
		os.RemoveAll(dir)
		return fmt.Errorf("cannot start %q: %w", prog, err)
	}
	var said []string
	for sc := bufio.NewScanner(stderr); sc.Scan(); {
		if strings.Contains(sc.Text(), "noded: ready") {
			go io.Copy(io.Discard, stderr)
			return nil
		}
		said = append(said, sc.Text())
	}
	return fmt.Errorf("the private noded did not start: %s", strings.Join(said, "; "))
}

// runPrivate starts the program. It lives as long as our end of its standard
// input is open: however this process ends, it ends its steps and itself, and
// removes dir.
func (d *Dialer) runPrivate(prog, dir string) (stderr io.Reader, err error) {
	// The tasks' users must reach the sockets.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	p := &private{dir: dir, socket: filepath.Join(dir, "run", "noded.sock"), alive: ours, cmd: exec.Command(prog, "--private", dir)}
	p.cmd.Stdin, p.cmd.Env = theirs, append(plugins.HelperEnv(), "SLURM_CONF="+os.Getenv("SLURM_CONF"))
	// The terminal's Ctrl-C is not for it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if stderr, err = p.cmd.StderrPipe(); err != nil {
		ours.Close()
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := p.cmd.Start(); err != nil {
		ours.Close()
		return nil, err
	}
	d.private = p
	return stderr, nil
}

func (p *private) stop() {
	p.alive.Close()
	p.cmd.Wait()
	os.RemoveAll(p.dir) // where it could not itself
}

// callTimeout bounds calls that noded answers at once.
const callTimeout = 30 * time.Second

// Call runs f with a client and the bound for calls that are answered at once.
func (d *Dialer) Call(f func(context.Context, *api.Client) error) error {
	client := d.Client()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return f(ctx, client)
}

// ParseRef reads "12.0", or "12" for all steps of a job.
func ParseRef(s string) (api.StepRef, error) {
	var ref api.StepRef
	if strings.Contains(s, ".") {
		id, err := step.ParseID(s)
		if err != nil {
			return ref, err
		}
		ref.JobID, ref.StepID = id.Job, &id.Step
		return ref, nil
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 0 {
		return ref, fmt.Errorf("cannot parse %q: want JOB or JOB.STEP, for example 12.0", s)
	}
	ref.JobID = uint32(n)
	return ref, nil
}

// UsesPlugins annotates verbs whose command line has the plugins' options: its
// value is the context.
const UsesPlugins = "spank-context"

// Prepare connects to noded, loads the plugins and makes their options flags of
// the verb c. args is the command line without the verb.
func (d *Dialer) Prepare(c *cobra.Command, args []string) error {
	seen := options.Peek(c, args)
	if seen.Topic != "" {
		fmt.Print(options.HelpOn(seen.Topic))
		return terminal.ExitError(0)
	}
	d.Socket, d.standalone = seen.Socket, seen.Standalone
	d.release = d.endOnSignal()
	if c.Flags().Lookup("standalone") != nil { // run
		if err := d.orStandalone(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if ContextOf(c) != spank.ContextLocal {
		seen.Job = 0 // it makes a job of its own
	}
	p, err := plugins.Load(ctx, d.Client(), ContextOf(c), seen.Job, d.hold)
	if err != nil {
		if seen.Help {
			terminal.Say("cannot list the plugins' options: %s", err)
			return nil
		}
		return err
	}
	d.Plugins = p
	p.AddFlags(c)
	// What was peeked at must be what is parsed.
	check := c.PreRunE
	c.PreRunE = func(c *cobra.Command, argv []string) error {
		if d.Socket != seen.Socket || d.standalone != seen.Standalone {
			return fmt.Errorf("write --socket and --standalone before the plugins' options")
		}
		if check != nil {
			return check(c, argv)
		}
		return nil
	}
	return nil
}

// FlagError words what the parser says of a command line, as options.FlagError does. An option
// that a plugin offers to other verbs alone is named as such.
func (d *Dialer) FlagError(c *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || d.Plugins == nil || d.Plugins.Session == nil || unknown.GetSpecifiedShortnames() != "" {
		return options.FlagError(c.CommandPath(), c.Flags(), err)
	}
	other, verbs := spank.ContextLocal, "run"
	if ContextOf(c) == spank.ContextLocal {
		other, verbs = spank.ContextAllocator, "alloc and batch"
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if there := plugins.Offered(ctx, d.Client(), other, callTimeout); there != nil {
		defer there.Close()
		for _, o := range there.Options {
			if o.Name == unknown.GetSpecifiedName() {
				return fmt.Errorf("unknown option --%s: plugin %q registers it for %s alone", o.Name, o.Plugin, verbs)
			}
		}
	}
	return options.FlagError(c.CommandPath(), c.Flags(), err)
}

// ContextOf is the context in which a verb loads plugins.
func ContextOf(c *cobra.Command) spank.Context {
	if c.Annotations[UsesPlugins] == spank.ContextAllocator.String() {
		return spank.ContextAllocator
	}
	return spank.ContextLocal
}
