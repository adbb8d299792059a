// Command noded is the node daemon: it takes requests on a unix socket, starts
// one stepd for each step and follows it to its result. See package node.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"stepd/internal/build"
	"stepd/internal/linux"
	"stepd/internal/manual"
	"stepd/internal/pid1"
	"stepd/node"
	"stepd/node/serve"
	"stepd/site"
)

func main() {
	c := command()
	err := c.Execute()
	if again, ok := errors.AsType[errReload](err); ok {
		err = again.begin()
	}
	if code, only := errors.AsType[pid1.Exit](err); only {
		os.Exit(int(code))
	}
	if err != nil {
		sayLast(c, err)
		os.Exit(site.ExitCode(err))
	}
}

// sayLast says why noded ends, in the form of its log.
func sayLast(c *cobra.Command, err error) {
	if f := c.Flags().Lookup("log-format"); f != nil && f.Value.String() == "json" {
		if log, lerr := site.NewLog(site.Options{LogFormat: "json"}); lerr == nil {
			log.WithField("source", "noded").Error(err)
			return
		}
	}
	fmt.Fprintf(os.Stderr, "noded: %v\n", err)
}

// options are the command line.
type options struct {
	site.Options
	private                  string
	check, checkConf, manual bool
}

func command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:           "noded [-f FILE] [--run-dir DIR] [--spool-dir DIR]",
		Short:         "Node daemon: starts job steps and follows them",
		Version:       build.Line(),
		Args:          manual.NoArguments,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case o.manual:
				_, err := io.WriteString(c.OutOrStdout(), page(c).Roff())
				return err
			case o.checkConf:
				return site.Check(c.OutOrStdout(), o.Options, linux.Columns(os.Stdout))
			case o.check:
				return site.Diagnose(c.OutOrStdout(), o.Options, linux.Columns(os.Stdout))
			case os.Getpid() == 1:
				log, err := site.NewLog(o.Options)
				if err != nil {
					return err
				}
				return pid1.Run(log)
			}
			return run(o)
		},
	}
	f := c.Flags()
	f.StringVarP(&o.File, "file", "f", "", "configuration `FILE` (default $SLURM_CONF, else /etc/stepd/slurm.conf, else none)")
	f.StringVar(&o.RunDir, "run-dir", "", "`DIR`ectory for sockets (default /run/stepd)")
	f.StringVar(&o.SpoolDir, "spool-dir", "", "`DIR`ectory for state (default SlurmdSpoolDir/stepd, else /var/spool/stepd)")
	f.StringVarP(&o.Node, "node-name", "N", "", "this node's `NAME` in the configuration (default: this host's)")
	f.StringVar(&o.private, "private", "", "live below `DIR` and as long as standard input is open; then end all steps and remove DIR")
	f.StringVar(&o.LogFormat, "log-format", "text", "`FORMAT` of the log: text or json")
	f.BoolVar(&o.check, "check", false, "check the configuration and this host, print mistakes with their remedies and the keys that are ignored, and exit")
	f.BoolVar(&o.checkConf, "check-config", false, "check the configuration alone, and exit: a reload and an upgrade ask so first")
	f.BoolVarP(&o.Verbose, "verbose", "v", false, "log more")
	f.BoolP("version", "V", false, "print the version and exit")
	c.SetVersionTemplate("{{.Version}}\n")
	f.BoolVar(&o.manual, "manual", false, "print the man page, for make install")
	_ = f.MarkHidden("manual") // it exists
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return manual.Mistake(c.CommandPath(), c.Flags(), err) })
	c.SetHelpFunc(func(c *cobra.Command, _ []string) { fmt.Fprint(c.OutOrStdout(), page(c).Text(manual.Style{})) })
	return c
}

// run is the daemon's life: configure, recover, serve, stop.
func run(o options) error {
	if os.Geteuid() != 0 {
		return errors.New("cannot run as a user: noded starts steps for all users and needs root")
	}
	// No other process may read our memory, and no core file has it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot make the daemon undumpable: %w", err)
	}
	var starter <-chan struct{}
	if o.private != "" {
		o.RunDir, o.SpoolDir = filepath.Join(o.private, "run"), filepath.Join(o.private, "spool")
		starter = endOfInput()
		defer os.RemoveAll(o.private)
	}
	// Files and sockets have the modes that they are made with, whatever the
	// administrator's shell says.
	syscall.Umask(0o022)
	// Nor do steps get what the one who started us left open.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("cannot mark inherited descriptors close-on-exec: %w", err)
	}
	given, err := givenSocket()
	if err != nil {
		return err
	}
	log, err := site.NewLog(o.Options)
	if err != nil {
		return err
	}
	var conf *site.Site
	err = site.Told(log, "the configuration", "bring the server of its file system back", func() (err error) {
		conf, err = site.Load(o.Options)
		return err
	})
	if err != nil {
		return err
	}
	if err := conf.Mistakes(); err != nil {
		return err
	}
	logFile, err := conf.LogTo(log, o.Options)
	if err != nil {
		return err
	}
	if logFile != nil {
		defer logFile.Close()
	}
	conf.Warn(log)
	plugins, fallbacks := site.WatchPlugstack(conf.Lint(), log)
	defer plugins.Close()
	cfg, err := conf.Config(log, logFile, plugins)
	if err != nil {
		return err
	}
	cfg.Fallbacks = append(cfg.Fallbacks, fallbacks...)
	return runNode(o, conf, cfg, log, starter, given)
}

// runNode is the daemon's life from the opening of the spool on.
func runNode(o options, conf *site.Site, cfg node.Config, log *logrus.Logger, starter <-chan struct{}, given given) error {
	page := site.NewPage(conf)
	if page != nil {
		cfg.Meter = page.Metrics
	}
	var n *node.Node
	err := site.Told(log, fmt.Sprintf("the spool %q or the run directory %q", conf.Spool, conf.Run), "its file system waits for a server or a disk: bring that back, or put it on a local file system", func() (err error) {
		n, err = node.New(cfg)
		return err
	})
	if err != nil {
		return err
	}
	// As soon as there is something to ask: it reports that noded is starting.
	again := given.again
	err = goesOn(again, n, log, "the page of metrics", page.Serve(n, log))
	defer page.Close()
	var spank *site.Slurmd
	if err == nil {
		err = given.check(filepath.Join(conf.Run, "noded.sock"))
	}
	if err == nil {
		// When the spool is known to be ours alone: plugins do things to the node.
		spank, err = site.StartSlurmd(conf, log, n)
		err = goesOn(again, n, log, "plugins in slurmd context", err)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
		defer cancel()
		return errors.Join(err, n.Close(ctx))
	}
	defer spank.Stop()
	s := &server{options: o, site: conf, node: n, log: log, starter: starter, given: given}
	return s.serve()
}

// goesOn reports that a noded that has begun anew, again, is without what, for cause: it has
// served without until now, or otherwise, and its end would be worse. It returns nil then, else
// the cause.
func goesOn(again bool, n *node.Node, log *logrus.Logger, what string, cause error) error {
	if cause == nil || !again {
		return cause
	}
	log.Errorf("%v; noded goes on without", cause)
	n.AddFallback(node.Fallback{What: what, Why: cause.Error()})
	return nil
}

const (
	// stopGrace is how long calls that are under way may take after SIGTERM.
	stopGrace = 3 * time.Second
	// closeGrace bounds the rest of the stop.
	closeGrace = 10 * time.Second
)

// server is a noded that serves.
type server struct {
	options options
	site    *site.Site
	node    *node.Node
	log     *logrus.Logger
	// starter is closed with the one who started a private noded; nil of others.
	starter <-chan struct{}
	given   given
	// listener is the given one; without one it is nil until noded serves.
	listener net.Listener
	sigs     chan os.Signal
	hups     chan os.Signal
}

// serve recovers, serves until the end, and puts everything away. It returns an
// errReload where noded is to begin anew.
func (s *server) serve() error {
	// Before the socket exists: no process may see it and kill us untidily.
	s.sigs, s.hups = make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(s.sigs, syscall.SIGTERM, syscall.SIGINT)
	signal.Notify(s.hups, syscall.SIGHUP)
	// Caught and forgotten: what is ignored would be ignored in prolog and
	// epilog, too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	err := site.Told(s.log, fmt.Sprintf("the spool %q or the run directory %q", s.site.Spool, s.site.Run), "its file system waits for a server or a disk: bring that back, or put it on a local file system", func() error {
		return s.node.Recover(context.Background())
	})
	if err == nil {
		err = s.serveUntil()
	}
	again, reload := errors.AsType[errReload](err)
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	closed := s.node.Close(ctx)
	if reload {
		if closed != nil { // the next noded finds what is left, as after a restart
			s.log.Warnf("%v", closed)
		}
		return again
	}
	return errors.Join(err, closed)
}

// endOfInput is closed at the end of standard input: the process that held
// its other end is gone, however it ended.
func endOfInput() <-chan struct{} {
	end := make(chan struct{})
	go func() { // ends with the process at the latest
		_, _ = io.Copy(io.Discard, os.Stdin) // an error is an end as well
		close(end)
	}()
	return end
}

// endGrace is how long the steps of a private noded may take to end.
const endGrace = 2 * time.Minute

// serveUntil serves requests until a signal comes, or the end of a private
// noded's starter.
func (s *server) serveUntil() error {
	n, log := s.node, s.log
	if s.listener = s.given.listener; s.listener == nil {
		var err error
		if s.listener, err = n.Listen(); err != nil {
			return err
		}
	}
	if s.given.systemd {
		n.KeepSocket()
	}
	c := n.Config()
	server := serve.New(n.API(), serve.Config{
		Version: c.Version, Connections: c.PerUser.Connections, AllConnections: c.AllConnections, RequestBytes: c.PerUser.RequestBytes, Meter: c.Meter, Log: log,
		Known: n.KnowsUser,
	})
	n.CountConnections(server.Connections)
	failed := make(chan error, 1) // size 1: it may come when untilEnd has returned
	go func() { failed <- server.Serve(s.listener) }()
	if s.given.listener == nil {
		if err := n.Publish(); err != nil {
			stopServer(server)
			return err
		}
	}
	n.Serving()
	log.Info("noded: ready")
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Warnf("cannot notify systemd: %v", err)
	}
	end := s.untilEnd(failed)
	_, reload := errors.AsType[errReload](end)
	switch {
	case reload:
		s.letThrough()
	case end != nil:
		return end
	case s.given.systemd:
		_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
		s.letThrough()
	default:
		// An error here could only say that no service manager listens.
		_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	}
	n.Stop()
	stopServer(server)
	return end
}

// untilEnd returns nil where noded is to stop, and an errReload where it is to begin
// anew.
func (s *server) untilEnd(failed <-chan error) error {
	var due <-chan struct{} // a reload is
	for {
		select {
		case err := <-failed:
			return fmt.Errorf("cannot serve: %w", err)
		case <-s.hups:
			due = s.reloadDue()
		case <-due:
			due = nil
			if again := s.reload(); again != nil {
				s.log.Info("reloading: noded begins anew; steps go on")
				return *again
			}
		case sig := <-s.sigs:
			s.log.Infof("stopping on %v; steps go on", sig)
			return nil
		case <-s.starter:
			ctx, cancel := context.WithTimeoutCause(context.Background(), endGrace, fmt.Errorf("still there after %v", endGrace))
			defer cancel()
			if err := s.node.EndAll(ctx, "the command that has started this noded is gone"); err != nil {
				s.log.Error(err)
			}
			return nil
		}
	}
}

// stopServer lets the requests end that are under way, no longer than stopGrace.
func stopServer(server *serve.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	server.Shutdown(ctx)
}

// page is noded(8), and noded's help screen.
func page(c *cobra.Command) *manual.Page {
	p := manual.Of(c, 8, nil, nil)
	p.Short = "node daemon: starts job steps and follows them"
	p.Usage = []string{
		"noded [-f FILE] [--run-dir DIR] [--spool-dir DIR] [-v]",
		"noded --check | --check-config [-f FILE]",
		"noded --version",
	}
	p.About = []string{
		"noded runs on each node, as root, mostly as the service noded.service. It takes requests on its socket, starts one stepd for each step, runs prolog and epilog, and keeps the records of the steps. The kernel identifies its clients.",
		"It stays in the foreground, and reports to systemd when it serves. SIGTERM stops it and leaves the steps running: the next noded finds them again.",
		"As process 1, in a container, it starts itself once more, reaps what loses its parent, and starts noded again when it crashes. SIGTERM then ends the steps, too: they have KillWait, and the container's own time to stop.",
	}
	p.Topics = []manual.Topic{
		{Title: "Exit codes", Entries: []manual.Entry{
			{Name: "0", Text: "stopped by SIGTERM; with --check: no mistake was found"},
			{Name: "1", Text: "another noded on the same spool directory, no root, a file that cannot be read; with --check: a mistake on this host"},
			{Name: "78", Text: "a mistake in the configuration: noded.service is not started again"},
		}},
		{Title: "Environment", Entries: []manual.Entry{{Name: "SLURM_CONF", Text: "the configuration, where -f names none"}}},
		{Title: "Files", Entries: []manual.Entry{
			{Name: "/etc/stepd/slurm.conf", Text: "configuration; the other files stand beside it"},
			{Name: "/run/stepd/noded.sock", Text: "the socket for stepctl"},
			{Name: "/var/spool/stepd", Text: "the records of the steps, and events/JOB.STEP.jsonl, their event logs"},
		}},
	}
	p.See = []string{"stepctl(1)", "stepd.conf(5)", "stepd-slurm.conf(5)", "stepd-cgroup.conf(5)", "stepd-spank(7)"}
	return p
}

// reload is what SIGHUP asks for: nil is that noded is to begin anew. A private noded
// lives as long as its starter, and has no files that anybody would change.
func (s *server) reload() *errReload {
	if s.starter != nil {
		return nil
	}
	if err := site.CheckReload(s.options.Options, s.site); err != nil {
		s.log.Errorf("cannot reload: %v; noded goes on with the configuration that it has", err)
		s.node.AddFallback(node.Fallback{What: "reload", Why: fmt.Sprintf("refused at %s: %v", time.Now().Format(time.RFC3339), err)})
		return nil
	}
	l, ok := s.listener.(*net.UnixListener)
	if !ok {
		s.log.Errorf("cannot reload: the socket's listener is a %T", s.listener)
		return nil
	}
	file, err := l.File()
	if err != nil {
		s.log.Errorf("cannot reload: %v", err)
		return nil
	}
	s.node.KeepSocket()
	return &errReload{file, s.given.systemd}
}

// reloadDue is closed when noded may begin anew: when no prolog runs, which would be cut
// short, or when they have had their time.
func (s *server) reloadDue() <-chan struct{} {
	due := make(chan struct{})
	running, over := s.node.Scripts().Prologs()
	if running == 0 {
		close(due)
		return due
	}
	most := cmp.Or(s.node.Scripts().Timeout, prologGrace)
	s.log.Infof("to be reloaded: noded goes on until no prolog runs, of which there are %d now, %v at most", running, most)
	go func() { // ends with the time at the latest
		defer close(due)
		select {
		case <-over:
		case <-time.After(most):
			s.log.Warn("prologs still run: the reload interrupts them")
		}
	}()
	return due
}

const (
	// prologGrace is how long a reload waits for prologs without PrologEpilogTimeout.
	prologGrace = 5 * time.Minute
	// lastCalls is how long connections that were taken last may be without a call.
	lastCalls = 100 * time.Millisecond
	// launchGrace is how long clients may take to launch what they have reserved.
	launchGrace = 2 * time.Second
)

// letThrough serves the clients that are connected already and no others: these
// wait for the next noded at the socket. Reserved steps are launched, not given back.
func (s *server) letThrough() {
	if err := s.listener.Close(); err != nil {
		s.log.Warnf("cannot close the listener: %v", err)
	}
	<-time.After(lastCalls)
	ctx, cancel := context.WithTimeout(context.Background(), launchGrace)
	defer cancel()
	s.node.AwaitLaunches(ctx)
}
