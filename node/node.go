// Package node is what noded does: it admits steps, numbers them for ever, starts one stepd for
// each and follows it to its result, and finds running steps again after its own restart.
//
// It is not the step: all that happens after stepd was started is stepd's, and
// goes on without noded. It knows the mechanisms (proctrack, jobcontainer,
// the user lookup) only by the interfaces in config.go, and serves no socket: package serve does,
// by Node.API.
//
// Begin with New. Run (run.go) is the path of a request; follower (follow.go) is the loop that
// owns one step's state; control.go is how a running step is ended; Recover (recover.go) finds
// what an earlier noded left.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/internal/child"
	"stepd/internal/linux"
	"stepd/node/exchange"
	"stepd/node/health"
	"stepd/node/scripts"
	"stepd/node/selection"
	"stepd/node/spool"
	"stepd/node/state"
	"stepd/step"
)

// Node is one noded. Make it with New; then Recover, and Server.
type Node struct {
	cfg  Config
	log  *logrus.Logger
	boot string
	// leaveMax, reserveMax and askMax are the constants; tests shorten them.
	leaveMax, reserveMax, askMax time.Duration
	// killStepd is child.Process.Kill; tests have one that SIGKILL does not end.
	killStepd func(*child.Process) error

	locks []*os.File
	store *state.State
	spool *spool.Spool
	// published is the file with what clients take from the configuration.
	published publishedConfig
	reg       *registry
	turns     *turns // of launches
	gate      *health.Gate
	health    *health.Health
	places    places
	scripts   *scripts.Runner
	// fallbacks guards the configuration's Fallbacks.
	fallbacks sync.Mutex
	// watches are of the event logs that are followed.
	watches linux.Watches
	// connections counts the clients' connections, for figures.
	connections atomic.Pointer[func() int]
	// spoolWatch and runWatch ask after the directories, serving reports that requests are served.
	spoolWatch, runWatch *spool.Room
	opened               os.FileInfo // the spool's directory
	serving              atomic.Bool

	// stopping is closed by Stop: followers leave their steps.
	stopping <-chan struct{}
	stop     func() // closes stopping
	// keepSocket: the next noded after Close serves the existing socket.
	keepSocket atomic.Bool
	// work counts the followers and what they started.
	work sync.WaitGroup
}

// New makes the directories, locks them and opens the state. A second noded on
// the same spool or run directory gets an error that names the first one's pid.
// The caller ends it with Close.
func New(cfg Config) (*Node, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	boot, err := linux.BootID()
	if err != nil {
		return nil, err
	}
	stopping := make(chan struct{})
	n := &Node{
		cfg: cfg, log: cfg.Log, boot: boot,
		turns: newTurns(runtime.NumCPU()), leaveMax: leaveMax, reserveMax: reserveMax, askMax: askMax, killStepd: (*child.Process).Kill,
		reg: newRegistry(selection.New(cfg.Select)), stopping: stopping, stop: sync.OnceFunc(func() { close(stopping) }),
	}
	n.gate = n.reg.gate
	n.reg.users.limits, n.reg.users.all = cfg.PerUser, cfg.AllSteps
	n.reg.log = n.log
	n.reg.exchanges = exchange.Config{
		NamesMax: cfg.NamesMax, Stopping: stopping,
		Store: func(job uint32, names []state.Name) error { return n.store.SetNames(job, names) },
	}
	n.spool = spool.New(spool.Layout{Run: cfg.RunDir, Dir: cfg.SpoolDir, Slurmd: cfg.SlurmdSpool}, cfg.Log)
	n.gate.Silence = n.silence
	n.spoolWatch = &spool.Room{What: "spool", Dir: cfg.SpoolDir}
	n.runWatch = &spool.Room{What: "run directory", Dir: cfg.RunDir}
	n.reg.killWait = time.Duration(cfg.Site.KillWaitS) * time.Second
	n.scripts = n.newScripts()
	n.places = places{&n.cfg, func(reason string) { n.health.Drain(reason) }, func(reason string) { n.health.Fault(reason) }}
	if err := n.open(); err != nil {
		n.unlock()
		return nil, err
	}
	return n, nil
}

// newScripts returns what runs prologs and epilogs. The state is not open yet.
func (n *Node) newScripts() *scripts.Runner {
	c := &n.cfg
	return &scripts.Runner{
		Config:   c.Scripts,
		NodeName: c.NodeName, Cluster: c.Site.Cluster, Partition: c.Site.Partition, SlurmConf: c.Site.SlurmConf, Socket: n.spool.Socket(),
		Spank:     func(digest string) step.SpankConf { return n.stackOf(c.Site.Spank, digest) },
		StepdPath: c.StepdPath, StepdEnv: n.stepdEnv(), StepdLog: n.stepdLog,
		Quarantined:  func() []step.Quarantine { return n.health.Plugins.List() },
		CountCrashes: func(crashed []step.PluginCrash, called func(string) bool) { n.health.Plugins.Count(crashed, called) },
		Tracker:      c.Tracker, Control: func(job uint32) ([][]byte, error) { return n.store.JobControl(job) },
		Drain: func(reason string) { n.health.Drain(reason) }, Stopping: n.stopping, Linger: stopLinger, Log: c.Log,
		Started: func(job uint32, pid int) { n.places.addPID(job, pid, 0) },
	}
}

// Config returns the configuration with its defaults, which the caller does not change.
func (n *Node) Config() Config {
	n.fallbacks.Lock()
	defer n.fallbacks.Unlock()
	return n.cfg
}

// CountConnections makes the figures have the clients' connections, which the server counts.
func (n *Node) CountConnections(count func() int) { n.connections.Store(&count) }

// Scripts is what runs the node's prologs and epilogs.
func (n *Node) Scripts() *scripts.Runner { return n.scripts }

func (n *Node) open() error {
	if err := n.spool.Make(); err != nil {
		return err
	}
	var err error
	if n.opened, err = os.Stat(n.spool.Dir); err != nil {
		return err
	}
	// The spool first: it is what the message is about when a noded is started twice.
	dirs := []string{n.spool.Dir}
	if n.spool.Run != n.spool.Dir {
		dirs = append(dirs, n.spool.Run)
	}
	for _, dir := range dirs {
		lock, err := spool.Lock(dir)
		if err != nil {
			return err
		}
		n.locks = append(n.locks, lock)
	}
	// What an earlier noded has published may not hold any more.
	(&publishedConfig{path: n.spool.Published(), log: n.log}).remove()
	n.published = publishedConfig{path: n.spool.Published(), log: n.log}
	st, err := state.Open(state.Config{
		Spool: n.cfg.SpoolDir, Run: n.cfg.RunDir, Boot: n.boot, KeepAge: n.cfg.MinJobAge, KeepSteps: n.cfg.KeepSteps,
		Shown: n.spool.Jobs(), LogSize: n.spool.LogSize, Deadline: n.cfg.SpoolTimeout, Clock: n.cfg.clock, Log: n.log,
	})
	if err != nil {
		return err
	}
	n.store = st
	if n.health, err = health.New(health.Config{
		Gate: n.gate, Store: st, BootID: n.boot, DrainReason: n.cfg.DrainReason, QuarantineAfter: n.cfg.QuarantineAfter,
		EndStep: n.cfg.Tracker.EndStep, Timeout: n.cfg.unkillable,
		Found: func() { n.cfg.Meter.Leak(LeakProcess) }, Released: n.released, Able: n.able, Go: n.work.Go, Stopping: n.stopping, Log: n.log,
	}); err != nil {
		return errors.Join(err, st.Close())
	}
	if err := st.Unwritable(); err != nil {
		n.health.Fault(err.Error())
	}
	if err := n.cfg.Scripts.Check(); err != nil {
		n.log.Warnf("a job will drain the node: %v", err)
	}
	if err := n.cfg.Tracker.Prepare(); err != nil {
		return errors.Join(err, st.Close())
	}
	return nil
}

// silence returns why the spool is not to be asked for anything, nil is that it answers.
func (n *Node) silence() error { return cmp.Or(n.spool.Silence(), n.store.Silence()) }

func (n *Node) unlock() {
	for _, l := range n.locks {
		l.Close() // the lock goes with the descriptor
	}
}

// Stop refuses further requests and ends the calls that wait; the steps run
// on. It may be called more than once.
func (n *Node) Stop() {
	n.gate.Close()
	n.stop()
}

// KeepSocket makes Close leave the socket where it is: its listener was handed over,
// and clients wait there. It may be called at any time before Close.
func (n *Node) KeepSocket() { n.keepSocket.Store(true) }

// Close ends what Stop has stopped: it waits for the followers (no longer than
// ctx), takes the socket away, removes the tracker's root when no step is left,
// and closes the state.
func (n *Node) Close(ctx context.Context) error {
	n.Stop()
	idle := make(chan struct{})
	go func() {
		n.work.Wait()
		close(idle)
	}()
	var errs []error
	select {
	case <-idle:
		n.cfg.debug(logrus.NewEntry(n.log), "JobContainer", "fini")
		errs = append(errs, n.cfg.Containers.Fini())
	case <-ctx.Done():
		errs = append(errs, fmt.Errorf("cannot wait for the end of all work: %w", context.Cause(ctx)))
	}
	n.published.remove()
	if n.keepSocket.Load() {
		n.log.Debug("the socket stays")
	} else if err := os.Remove(n.spool.Socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("cannot remove socket: %w", err))
	}
	if len(n.reg.followers()) == 0 {
		err := n.cfg.Tracker.Remove()
		if errors.Is(err, syscall.EBUSY) && (len(n.reg.all()) > 0 || n.health.HoldsJob(0)) {
			err = nil // the place of a prolog is its job's, as long as that is held; and what does not die is in one
		}
		errs = append(errs, err)
	}
	errs = append(errs, n.store.Close())
	n.unlock()
	return errors.Join(errs...)
}

// EndAll takes no more requests, cancels every step and allocation, and
// returns when nothing is left of them, or with ctx's cause.
func (n *Node) EndAll(ctx context.Context, reason string) error {
	n.gate.Close()
	jobs := n.reg.all()
	for _, j := range jobs {
		if j.Origin == step.OriginAlloc {
			n.endAlloc(j, reason)
		}
	}
	for _, f := range n.reg.followers() {
		n.cancelLater(f, reason)
	}
	for _, j := range jobs {
		select {
		case <-j.ended:
		case <-ctx.Done():
			return fmt.Errorf("cannot wait for the end of job %d: %w", j.ID, context.Cause(ctx))
		}
	}
	return nil
}

// API is what clients may ask of a node, for package serve: it implements serve.Backend. Make it
// with Node.API.
type API struct {
	launcher
	steps
	machine
}

// API returns the node's side of the API. Which client may do what is decided by its caller.
func (n *Node) API() API { return API{launcher{n}, steps{n}, machine{n}} }

// launcher makes steps and jobs; it decides for which user (run.go, reserve.go, launch.go,
// alloc.go, extern.go).
type launcher struct{ *Node }

// steps are the steps that a node knows, and what is asked of them (steps.go, control.go).
type steps struct{ *Node }

// machine is the node as a whole (status.go).
type machine struct{ *Node }

// backlog is how many connections may wait to be accepted: a burst of clients.
const backlog = 1024

// bindIn binds a listening unix socket of type typ as name in dir, mode 0666:
// peer credentials decide about a client, not the file. The path goes
// through dir's descriptor, because sun_path holds 108 bytes. A
// file of that name, left by an earlier noded, is replaced.
func bindIn(dir, name string, typ int) (*os.File, error) {
	path := filepath.Join(dir, name)
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open directory %q: %w", dir, err)
	}
	defer unix.Close(d)
	if err := unix.Unlinkat(d, name, 0); err != nil && err != unix.ENOENT {
		return nil, fmt.Errorf("cannot remove %q: %w", path, err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot create socket %q: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	if err := bindListen(d, fd, name); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot listen on %q: %w", path, err)
	}
	return f, nil
}

func bindListen(dir, fd int, name string) error {
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, name)}); err != nil {
		return err
	}
	// Before listen: no client connects while the mode is the umask's.
	if err := unix.Fchmodat(dir, name, 0o666, 0); err != nil {
		return err
	}
	return unix.Listen(fd, backlog)
}

// Listen binds noded's socket under a name that no client knows. Publish gives
// it its own name, when requests are served.
func (n *Node) Listen() (net.Listener, error) {
	f, err := bindIn(n.spool.Run, hiddenSocket, unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer f.Close() // FileListener has its own descriptor
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", f.Name(), err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // its name is a descriptor's
	return l, nil
}

const hiddenSocket = ".noded.sock.new"

// Publish makes the socket appear, in one step.
func (n *Node) Publish() error {
	if err := os.Rename(filepath.Join(n.spool.Run, hiddenSocket), n.spool.Socket()); err != nil {
		return fmt.Errorf("cannot publish socket: %w", err)
	}
	return nil
}

// Serving says that requests are served: until then NotReady says that noded starts.
// The program that serves the node calls it once, behind Publish or with a socket that
// exists already.
func (n *Node) Serving() { n.serving.Store(true) }
