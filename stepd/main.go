// Package stepd is stepd: it owns one job step, from the request to the exit
// status. noded starts it with the descriptors of package stepapi; it outlives
// noded. It serves the step that package wire has joined to its neighbours: Main is all of
// the program.
package stepd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/eventlog"
	"stepd/internal/build"
	"stepd/internal/linux"
	"stepd/internal/quickjson"
	"stepd/internal/stack"
	"stepd/mpi/spawn"
	"stepd/step"
	"stepd/step/launch"
	"stepd/stepd/report"
	"stepd/stepd/wire"
	"stepd/stepio/live"
	"stepd/stepio/relay"
	"stepd/task"
)

// ackPatience is how long stepd waits for noded to take the result.
const ackPatience = time.Second

// Main is the program; it does not return.
func Main() {
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
	log.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true, TimestampFormat: eventlog.LogTime})
	if len(os.Args) == 2 && (os.Args[1] == "--version" || os.Args[1] == "-V") {
		fmt.Println(build.Line())
		os.Exit(0)
	}
	_ = os.Unsetenv("GOMAXPROCS") // noded's word to this program; plugins get the rest of its environment
	if len(os.Args) > 1 {
		os.Exit(jobScript(log, os.Args[1:]))
	}
	done := make(chan error)
	go func() {
		stack.Grow()
		done <- run(log)
	}()
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
func run(log *logrus.Logger) error {
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
	if err := linux.SetSubreaper(); err != nil {
		return err
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
	return (&wiring{spec: spec, aud: aud}).serve(plan, control, listener)
}

// wiring is a step that noded and clients reach by their sockets. st and server exist
// before the step runs, and nothing acts on them before that.
type wiring struct {
	spec *step.Spec
	aud  *audience

	st     *task.Step
	server *stepapi.Server

	streams *relay.Relay
	output  *live.Live
}

// serve joins the step to its sockets and runs it.
func (w *wiring) serve(plan *task.Plan, control *stepapi.Conn, listener *net.UnixListener) (err error) {
	namespaces := jobNamespaces(w.spec)
	w.streams = newRelay(len(plan.Ranks), w.aud)
	w.output = live.New(w.spec, live.Config{
		Namespace: namespaces.Mount, Tap: func(t func(fd, rank int, data []byte)) { w.streams.SetTap(t) },
		Log: func(text string) { w.aud.Log(launch.LogError, text) },
	})
	w.st, err = wire.Step(plan, wire.Neighbours{
		Audience: w.aud, Streams: w.streams, Output: w.output, Namespaces: namespaces, Services: w.services,
		OnMain: func(f func()) { onMain <- f },
	})
	if err != nil {
		return err
	}
	h := handler{w.st, w.aud, w.streams, w.spec.User.UID, w.output}
	w.server = stepapi.NewServer(w.spec.ID, w.spec.User.UID, h)
	w.aud.server = w.server
	w.server.Add(control, stepapi.RoleNoded, true)
	w.server.Serve(listener)
	return lead(w.spec, h, w.server, listener)
}

// services are what an MPI plugin may ask of noded for the job.
func (w *wiring) services() (launch.MPIServices, task.Spawned) {
	s := spawn.New(spawn.Config{
		Spec: w.spec, Say: w.aud.Say, Log: func(text string) { w.aud.Log(launch.LogInfo, text) },
		Ask:    func(ctx context.Context, a *stepapi.Ask) (*stepapi.Answer, error) { return w.server.Ask(ctx, a) },
		Stream: func(rank, fd int) (int, error) { return w.st.TaskStream(rank, fd) },
		Abort:  func(rank, code int, text string) { w.st.SpawnedAborted(rank, code, text) },
		Ending: func() <-chan struct{} { return w.st.Ending() },
	})
	return s, s
}

// jobNamespaces are the namespaces of the job's container, as noded has handed them over.
func jobNamespaces(spec *step.Spec) (ns launch.Namespaces) {
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

// hearDebug makes the log as detailed as noded's, and of its form.
func hearDebug(log *logrus.Logger, c step.SpankConf) {
	if c.JSONLog {
		log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: eventlog.LogTime})
	}
	if c.Debug {
		log.SetLevel(logrus.DebugLevel)
	}
}

// lead runs the step, and tells noded what became of it.
func lead(spec *step.Spec, h handler, server *stepapi.Server, listener *net.UnixListener) error {
	ctx, stop := report.UntilSignalled("stepd")
	defer stop()
	rec := h.Run(ctx)
	h.aud.close()
	var err error
	// A result that no noded takes stays in the spool.
	if !server.Finish(&stepapi.Msg{Type: stepapi.TypeResult, State: rec.State, Record: &rec}, ackPatience) {
		err = leaveResult(spec.ResultFile, &rec)
	}
	listener.Close()
	server.Wait()
	return errors.Join(err, h.EndHelpers(ctx))
}

// readHanded reads the memfd that noded has sealed.
func readHanded(what string) ([]byte, error) {
	f := os.NewFile(stepapi.FDSpec, what)
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, stepapi.RecordMax))
	if err != nil {
		return nil, fmt.Errorf("cannot read %s from descriptor %d: %w (stepd is started by noded)", what, stepapi.FDSpec, err)
	}
	return b, nil
}

func readSpec() (*step.Spec, error) {
	// Ours, and whatever else noded was started with: nothing of it is the
	// host's or a task's.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("cannot keep descriptors from the tasks: close_range: %w (Linux 5.11 or newer is needed)", err)
	}
	b, err := readHanded("the step's spec")
	if err != nil {
		return nil, err
	}
	spec := new(step.Spec)
	if err := quickjson.Unmarshal(b, spec); err != nil {
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
	b, err := quickjson.Marshal(rec)
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
