// Command noded is the node daemon: it takes requests on a unix socket, starts
// one stepd for each step and follows it to its result. See package node.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"stepd/internal/manual"
	"stepd/node"
)

func main() {
	c := command()
	if err := c.Execute(); err != nil {
		sayLast(c, err)
		os.Exit(1)
	}
}

// sayLast tells why noded ends, in the form of its log.
func sayLast(c *cobra.Command, err error) {
	if f := c.Flags().Lookup("log-format"); f != nil && f.Value.String() == "json" {
		if log, lerr := newLog(options{logFormat: "json"}); lerr == nil {
			log.WithField("source", "noded").Error(err)
			return
		}
	}
	fmt.Fprintf(os.Stderr, "noded: %v\n", err)
}

// options are the command line.
type options struct {
	file      string
	runDir    string
	spoolDir  string
	logFormat string
	private   string
	node      string
	bootstrap string
	check     bool
	checkConf bool
	verbose   bool
	manual    bool
}

func command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "noded [-f FILE] [--run-dir DIR] [--spool-dir DIR]",
		Short: "Node daemon: starts job steps and follows them",
		Args: func(c *cobra.Command, args []string) error {
			if o.bootstrap != "" {
				return nil
			}
			return cobra.NoArgs(c, args)
		},
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, args []string) error {
			if o.bootstrap != "" {
				return bootstrapCA(o.bootstrap, args)
			}
			if o.manual {
				_, err := io.WriteString(c.OutOrStdout(), page(c).Roff())
				return err
			}
			if o.checkConf {
				return check(c.OutOrStdout(), o)
			}
			if o.check {
				return diagnose(c.OutOrStdout(), o)
			}
			return run(o)
		},
	}
	f := c.Flags()
	f.StringVarP(&o.file, "file", "f", "", "configuration `FILE` (default $SLURM_CONF, else /etc/stepd/slurm.conf, else none)")
	f.StringVar(&o.runDir, "run-dir", "", "`DIR`ectory for sockets (default /run/stepd)")
	f.StringVar(&o.spoolDir, "spool-dir", "", "`DIR`ectory for state (default SlurmdSpoolDir/stepd, else /var/spool/stepd)")
	f.StringVarP(&o.node, "node-name", "N", "", "this node's `NAME` in the configuration (default: that of this host)")
	f.StringVar(&o.bootstrap, "bootstrap-ca", "", "make a CA in `DIR`, and a certificate and key for each node named behind it, for a lab; and exit")
	f.StringVar(&o.private, "private", "", "live below `DIR` and as long as standard input is open; then end all steps and remove DIR")
	f.StringVar(&o.logFormat, "log-format", "text", "`FORMAT` of the log: text or json")
	f.BoolVar(&o.check, "check", false, "check the configuration and this host, print mistakes with their remedies and the keys that are ignored, and exit")
	f.BoolVar(&o.checkConf, "check-config", false, "check the configuration alone, and exit: a reload and an upgrade ask so first")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log more")
	f.BoolVar(&o.manual, "manual", false, "print the man page, for make install")
	_ = f.MarkHidden("manual") // it is there
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
		o.runDir, o.spoolDir = filepath.Join(o.private, "run"), filepath.Join(o.private, "spool")
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
	log, err := newLog(o)
	if err != nil {
		return err
	}
	var site *site
	err = told(log, "the configuration", "bring the server of its file system back", func() (err error) {
		site, err = loadSite(o)
		return err
	})
	if err != nil {
		return err
	}
	if err := site.mistakes(); err != nil {
		return err
	}
	logFile, err := site.logTo(log, o)
	if err != nil {
		return err
	}
	if logFile != nil {
		defer logFile.Close()
	}
	site.warn(log)
	plugins, fallbacks := watchPlugstack(site.lint(), log)
	defer plugins.close()
	cfg, err := site.config(log, logFile, plugins)
	if err != nil {
		return err
	}
	cfg.Fallbacks = append(cfg.Fallbacks, fallbacks...)
	return runNode(site, cfg, log, starter)
}

// runNode is the daemon's life from the opening of the spool on.
func runNode(site *site, cfg node.Config, log *logrus.Logger, starter <-chan struct{}) error {
	page := newPage(site)
	if page != nil {
		cfg.Meter = page.metrics
	}
	var n *node.Node
	err := told(log, fmt.Sprintf("the spool %q or the run directory %q", site.spool, site.run), "its file system waits for a server or a disk: bring that back, or put it on a local file system", func() (err error) {
		n, err = node.New(cfg)
		return err
	})
	if err != nil {
		return err
	}
	// As soon as there is something to ask: it tells that noded is starting.
	err = page.serve(n, log)
	defer page.close()
	var spank *slurmd
	if err == nil {
		// When the spool is known to be ours alone: plugins do things to the node.
		spank, err = startSlurmd(site, log, n)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
		defer cancel()
		return errors.Join(err, n.Close(ctx))
	}
	defer spank.stop()
	return serve(n, log, starter)
}

const (
	// stopGrace is how long calls that are under way may take after SIGTERM.
	stopGrace = 3 * time.Second
	// closeGrace bounds the rest of the stop.
	closeGrace = 10 * time.Second
)

func serve(n *node.Node, log *logrus.Logger, starter <-chan struct{}) error {
	// Before the socket is there: nobody may see it and kill us untidily.
	sigs := make(chan os.Signal, 1)
	signal.Notify(sigs, syscall.SIGTERM, syscall.SIGINT)
	// Caught and forgotten: what is ignored would be ignored in prolog and
	// epilog, too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGPIPE)

	err := n.Recover(context.Background())
	if err == nil {
		err = serveUntil(n, log, sigs, starter)
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	return errors.Join(err, n.Close(ctx))
}

// endOfInput is closed at the end of standard input: whoever holds its other
// end is gone, however he went.
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
func serveUntil(n *node.Node, log *logrus.Logger, sigs <-chan os.Signal, starter <-chan struct{}) error {
	l, err := n.Listen()
	if err != nil {
		return err
	}
	peers, err := n.ListenPeers(context.Background())
	if err != nil {
		l.Close()
		return err
	}
	server := n.Server()
	failed := make(chan error, 2) // both servers may
	go func() { failed <- server.Serve(l) }()
	if peers != nil {
		others := n.PeerServer()
		go func() { failed <- others.Serve(peers) }()
		defer stopServer(others)
		log.Infof("serving other nodes at %s", peers.Addr())
	}
	if err := n.Publish(); err != nil {
		server.Stop()
		return err
	}
	log.Info("noded: ready")
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Warnf("cannot notify systemd: %v", err)
	}
	select {
	case err := <-failed:
		return fmt.Errorf("cannot serve: %w", err)
	case sig := <-sigs:
		log.Infof("stopping on %v; steps go on", sig)
	case <-starter:
		ctx, cancel := context.WithTimeoutCause(context.Background(), endGrace, fmt.Errorf("still there after %v", endGrace))
		defer cancel()
		if err := n.EndAll(ctx, "the command that has started this noded is gone"); err != nil {
			log.Error(err)
		}
	}
	// An error here could only say that nobody listens.
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	n.Stop()
	stopServer(server)
	return nil
}

// stopServer lets the calls end that are under way, but not for ever.
func stopServer(server *grpc.Server) {
	timer := time.AfterFunc(stopGrace, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}
