// Package daemon is stepd: it owns one job step, from the request to the exit
// status. noded starts it with the descriptors of package stepapi; it outlives
// noded. It wires the step to its neighbours: Main is all of the program.
package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/opencontainers/runc/libcontainer/system"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/acct"
	"stepd/api/stepapi"
	"stepd/bcast"
	"stepd/internal/linux"
	"stepd/mpi"
	"stepd/mpi/spawn"
	"stepd/proctrack"
	"stepd/spank"
	"stepd/step"
	"stepd/stepio/live"
	"stepd/task"
	"stepd/task/affinity"
	taskcgroup "stepd/task/cgroup"
	"stepd/task/oom"
)

// ackPatience is how long stepd waits for noded to take the result.
const ackPatience = time.Second

// Main is the program; it does not return. others is for steps of several nodes, nil
// where the program is not for them.
func Main(others *Several) {
	// The host's parent-death signal fires when the thread ends that forked
	// it (prctl(2)): only the main thread lives as long as the process. It
	// does nothing else: a goroutine that is locked to a thread costs two
	// thread switches each time it runs.
	runtime.LockOSThread()
	// One processor: the work is short and comes one event at a time, and the
	// others belong to the tasks. noded says so in the environment, which the
	// runtime reads before it starts more threads.
	if runtime.GOMAXPROCS(0) != 1 {
		runtime.GOMAXPROCS(1)
	}
	unix.Prctl(unix.PR_SET_NAME, nameBytes("stepd"), 0, 0, 0)
	unix.Umask(0o022)
	// What is read from users and from noded is in our memory: no other process reads
	// it, and no core file has it. execve takes it back (prctl(2)), so the tasks are
	// what they were.
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	log := logrus.New()
	if len(os.Args) > 1 {
		os.Exit(jobScript(log, os.Args[1:]))
	}
	done := make(chan error)
	go func() { done <- run(log, others) }()
	for {
		select {
		case f := <-onMain:
			f()
		case err := <-done:
			if err != nil {
				log.Error(err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
}

// onMain hands work to the main thread. It is the one thing of this program
// that is global, as the main thread is.
var onMain = make(chan func())

// run is one step. Its error means that there was no step to run.
func run(log *logrus.Logger, others *Several) error {
	spec, err := readSpec()
	if err != nil {
		return err
	}
	hearDebug(log, spec.Spank)
	aud, err := newAudience(log, spec)
	if err != nil {
		return err
	}
	plan, err := task.MakePlan(spec)
	if err != nil {
		return err
	}
	// Every orphan of the step becomes our child, so that none is lost.
	if err := system.SetSubreaper(1); err != nil {
		return fmt.Errorf("cannot become a subreaper: %w", err)
	}
	// noded's listening socket, and its end of the control pair.
	control, err := stepapi.FromFD(stepapi.FDControl, "control")
	if err != nil {
		return err
	}
	listener, err := listener()
	if err != nil {
		return err
	}
	if spec.Layout != nil {
		if others == nil {
			return fmt.Errorf("cannot run step %s of %d nodes: this is the stepd for one node, and stepd-net is not beside it", spec.ID, len(spec.Layout.Nodes))
		}
		if aud.net, err = others.Join(spec, func(text string) { aud.Log(step.LogError, text) }); err != nil {
			return err
		}
	}
	return serve(spec, plan, aud, control, listener, others.reach())
}

// hearDebug makes the log as detailed as noded's, and of its form.
func hearDebug(log *logrus.Logger, c step.SpankConf) {
	if c.JSONLog {
		log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: step.LogTime})
	}
	if c.Debug {
		log.SetLevel(logrus.DebugLevel)
	}
}

// serve wires the step to its neighbours and runs it.
func serve(spec *step.Spec, plan *task.Plan, aud *audience, control *stepapi.Conn, listener *net.UnixListener, reach spawn.Reach) error {
	var st *task.Step
	made := make(chan struct{}) // st is there
	reaper := linux.NewReaper(func(e linux.Exit) {
		<-made
		st.ChildEnded(e.PID, step.ExitStatus(e.Status), usage(&e))
	}, acct.LastLook)
	tracker, err := proctrack.Open(spec.Proctrack, spec.Confine.PerTask, os.Getpid(), reaper)
	if err != nil {
		return err
	}
	spaces := jobNamespaces(spec)
	namespace := spaces.Mount
	plugin, err := mpiPlugin(spec, mpi.Deps{Start: startBeside(reaper, tracker), Namespace: namespace})
	if err != nil {
		return err
	}
	deps := task.Deps{
		Tracker: tracker, Audience: aud, Now: time.Now, NoChildren: reaper.NoChildren,
		StartHost: func(cgroupFD int) (task.Host, error) { return startHost(spec, cgroupFD) },
	}
	if plugin != nil {
		deps.MPI = plugin
	}
	deps.Accounting = acct.New(acct.Config{
		Acct: spec.Acct, Proctrack: spec.Proctrack, Confine: spec.Confine, Ranks: plan.Ranks,
		MemoryBytes: spec.MemoryMB << 20, PIDs: tracker.PIDs,
		OverMemory: func(why string) { st.OverMemory(why) },
		Log:        func(text string) { aud.Log(step.LogError, text) },
	})
	deps.Plugins = taskPlugins(spec, plan, aud, func(k step.OOMKill) { st.OutOfMemory(k) })
	streams := newRelay(len(plan.Ranks), aud)
	if aud.net != nil {
		deps.Network, deps.Peers, deps.Streams = aud.net, aud.net, aud.net
	} else {
		deps.Streams = streams
	}
	deps.Namespaces = spaces
	if len(spec.Sent) > 0 {
		files := bcast.New(spec, namespace)
		defer aud.closeFiles(files)
		deps.Files = files
	}
	tap := func(t func(fd, rank int, data []byte)) { streams.SetTap(t) }
	if aud.net != nil {
		tap = aud.net.SetTap
	}
	output := live.New(spec, live.Config{
		Namespace: namespace, Tap: tap, Elsewhere: spec.Layout != nil && !seenHere(spec),
		Log: func(text string) { aud.Log(step.LogError, text) },
	})
	if aud.net == nil || output.Terminal() {
		deps.Output = output // else other nodes' tasks may write on: runOnAll ends it
	}
	var server *stepapi.Server
	if plugin != nil {
		services := spawn.New(spawn.Config{
			Spec: spec, Say: aud.Say, Log: func(text string) { aud.Log(step.LogInfo, text) },
			Ask:    func(ctx context.Context, a *stepapi.Ask) (*stepapi.Answer, error) { return server.Ask(ctx, a) },
			Stream: func(rank, fd int) (int, error) { return st.TaskStream(rank, fd) },
			Abort:  func(rank, code int, text string) { st.SpawnedAborted(rank, code, text) },
			Ending: func() <-chan struct{} { return st.Ending() }, Reach: reach,
		})
		deps.Job, deps.Spawned = services, services
	}
	st = task.New(plan, deps)
	close(made)
	h := handler{st, aud, streams, spec.User.UID, newOverdue(), output}
	server = stepapi.NewServer(spec.ID, spec.User.UID, h)
	aud.server = server
	server.Add(control, stepapi.RoleNoded, true)
	server.Serve(listener)
	return lead(spec, h, server, listener)
}

// seenHere tells whether the output of a step of several nodes comes by here: that of the
// tasks on its way to the launcher, or the terminal of rank 0.
func seenHere(spec *step.Spec) bool {
	if spec.Terminal != nil {
		return slices.Contains(spec.LocalRanks(), 0)
	}
	return spec.NodeID == 0
}

// jobNamespaces are those of the job's container, as noded has handed them over.
func jobNamespaces(spec *step.Spec) (ns step.Namespaces) {
	if spec.ContainerNS {
		ns.Mount = os.NewFile(stepapi.FDContainer, "mount namespace")
	}
	if spec.PIDNamespace {
		ns.PID = os.NewFile(stepapi.FDPIDNamespace, "pid namespace")
	}
	if spec.UserNamespace {
		ns.User = os.NewFile(stepapi.FDUserNamespace, "user namespace")
	}
	return ns
}

// closeFiles takes away what was sent for the step.
func (a *audience) closeFiles(files *bcast.Receiver) {
	if err := files.Close(); err != nil {
		a.Log(step.LogError, err.Error())
	}
}

// lead runs the step, and tells noded what became of it.
func lead(spec *step.Spec, h handler, server *stepapi.Server, listener *net.UnixListener) error {
	ctx, stop := untilSignalled()
	defer stop()
	rec, err := runOnAll(ctx, h)
	if err != nil {
		return err
	}
	h.aud.close()
	// A result that no noded takes stays in the spool.
	if !server.Finish(&stepapi.Msg{Type: stepapi.TypeResult, State: rec.State, Record: &rec}, ackPatience) {
		err = leaveResult(spec.ResultFile, &rec)
	}
	listener.Close()
	server.Wait()
	return err
}

// untilSignalled ends with the first signal that ends stepd: the host's going down,
// with an administrator's stopping of the scope, is the usual reason for one.
func untilSignalled() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1) // the first one counts
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	go func() {
		select {
		case got := <-signals:
			cancel(fmt.Errorf("stepd got %s: the host goes down, or stepd was stopped", unix.SignalName(got.(syscall.Signal))))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// taskPlugins are the step's, in an order that each of them needs. killed hears of
// what the kernel ends for want of memory, once the step runs.
func taskPlugins(spec *step.Spec, plan *task.Plan, aud *audience, killed func(step.OOMKill)) (list []task.Plugin) {
	info := func(text string) { aud.Log(step.LogInfo, text) }
	// First: to enter a v1 cpuset undoes a binding.
	if len(spec.Confine.V1) > 0 || spec.Confine.OOMGroup == step.OOMGroupTask {
		list = append(list, taskcgroup.New(spec.Confine, spec.Proctrack.Tasks, plan.Ranks))
	}
	if spec.Affinity != nil {
		// After task/cgroup, whatever the site's order is: affinity.Plugin says why.
		list = append(list, affinity.New(affinity.Config{Spec: spec, Sys: os.DirFS("/sys"), Say: aud.Say, Log: info}))
	}
	// Last, so that its PostStep comes first: while the cgroups of the tasks are
	// there to be read.
	return append(list, oom.New(oom.Config{
		Confine: spec.Confine, Tasks: spec.Proctrack.Tasks, Ranks: plan.Ranks, Command: spec.Argv[0],
		Killed: killed, Problem: info,
	}))
}

// startBeside runs programs that serve the tasks and are none: what ends the tasks
// spares them.
func startBeside(reaper *linux.Reaper, tracker proctrack.Tracker) func(string, []string, *syscall.ProcAttr) (int, <-chan linux.Exit, error) {
	return func(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan linux.Exit, error) {
		pid, exited, err := reaper.StartSpared(path, argv, attr)
		if s, ok := tracker.(interface{ Spare(pid int) }); ok && err == nil {
			s.Spare(pid)
		}
		return pid, exited, err
	}
}

// mpiPlugin is the step's, nil of one that has none: batch and extern steps are no
// MPI programs, whatever MpiDefault says.
func mpiPlugin(spec *step.Spec, deps mpi.Deps) (mpi.Plugin, error) {
	if spec.ID.Step == step.BatchStep || spec.ID.Step == step.ExternStep {
		return nil, nil
	}
	return mpi.New(spec.MPI, spec.MPIConf, deps)
}

// startHost runs the spankhost beside this program, or in the libexec folder
// that it is installed in: never one found by PATH.
func startHost(spec *step.Spec, cgroupFD int) (task.Host, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find spankhost: %w", err)
	}
	var h *spank.Host
	started := make(chan error)
	onMain <- func() {
		var err error
		h, err = spank.Start(spank.StartConfig{
			Program:  filepath.Join(filepath.Dir(self), "spankhost"),
			Title:    fmt.Sprintf("spankhost: [%s]", spec.ID.Name()),
			CgroupFD: cgroupFD,
			OwnGroup: true,
		})
		started <- err
	}
	if err := <-started; err != nil {
		return nil, err // not h: a nil *Host in an interface is not nil
	}
	return h, nil
}

// readSpec reads the memfd that noded has sealed.
func readSpec() (*step.Spec, error) {
	f := os.NewFile(stepapi.FDSpec, "spec")
	defer f.Close()
	// Ours, and whatever else noded was started with: nothing of it is the
	// host's or a task's.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("cannot keep descriptors from the tasks: close_range: %w (Linux 5.11 or newer is needed)", err)
	}
	b, err := io.ReadAll(io.LimitReader(io.NewSectionReader(f, 0, stepapi.RecordMax), stepapi.RecordMax))
	if err != nil {
		return nil, fmt.Errorf("cannot read the step's spec from descriptor %d: %w (stepd is started by noded)", stepapi.FDSpec, err)
	}
	spec := new(step.Spec)
	if err := json.Unmarshal(b, spec); err != nil {
		return nil, fmt.Errorf("cannot parse the step's spec: %w", err)
	}
	if err := spec.Unpack(); err != nil {
		return nil, fmt.Errorf("cannot parse the step's spec: %w", err)
	}
	if spec.Schema != step.Schema {
		return nil, fmt.Errorf("cannot run a spec of schema %d: this stepd knows %d", spec.Schema, step.Schema)
	}
	return spec, nil
}

func listener() (*net.UnixListener, error) {
	f := os.NewFile(stepapi.FDListen, "listen")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on descriptor %d: %w", stepapi.FDListen, err)
	}
	ul, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, errors.New("cannot listen: the descriptor is no unix socket")
	}
	ul.SetUnlinkOnClose(false) // noded made the name, noded removes it
	return ul, nil
}

// leaveResult writes the record where noded will look for it, whole or not at all.
func leaveResult(path string, rec *step.Record) error {
	b, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("cannot encode the result of step %s: %w", rec.ID, err)
	}
	err = linux.WriteWhole(path, true, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot leave the result of step %s in %q: %w", rec.ID, path, err)
	}
	return nil
}

// usage is what the kernel told of a child.
func usage(e *linux.Exit) *step.Usage {
	ru := &e.Usage
	return &step.Usage{
		User: time.Duration(ru.Utime.Nano()), System: time.Duration(ru.Stime.Nano()),
		MaxRSSBytes: ru.Maxrss << 10, MinorFaults: ru.Minflt, MajorFaults: ru.Majflt,
		BlocksRead: ru.Inblock, BlocksOut: ru.Oublock, IO: e.Last,
	}
}
