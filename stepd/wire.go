package stepd

import (
	"context"
	"net"
	"os"
	"syscall"
	"time"

	"stepd/acct"
	"stepd/api/stepapi"
	"stepd/internal/linux"
	"stepd/mpi"
	"stepd/mpi/spawn"
	"stepd/proctrack"
	"stepd/step"
	"stepd/stepio/live"
	"stepd/stepio/relay"
	"stepd/task"
	"stepd/task/affinity"
	taskcgroup "stepd/task/cgroup"
	"stepd/task/oom"
)

// wiring is a step that is joined to its neighbours. Many of them act on the step,
// and the step needs all of them: st and server exist before it runs, and none
// acts before that.
type wiring struct {
	spec *step.Spec
	plan *task.Plan
	aud  *audience

	st     *task.Step
	server *stepapi.Server

	namespaces step.Namespaces
	streams    *relay.Relay
	output     *live.Live
}

// serve wires the step to its neighbours and runs it.
func serve(w *wiring, control *stepapi.Conn, listener *net.UnixListener) error {
	made := make(chan struct{}) // w.st exists
	reaper := linux.NewReaper(func(e linux.Exit) {
		<-made
		w.st.ChildEnded(e.PID, step.ExitStatus(e.Status), usage(&e))
	}, acct.LastLook)
	tracker, err := proctrack.Open(w.spec.Proctrack, w.spec.Confine.PerTask, os.Getpid(), reaper)
	if err != nil {
		return err
	}
	w.namespaces = jobNamespaces(w.spec)
	plugin, err := mpiPlugin(w.spec, mpi.Deps{Start: startBeside(reaper, tracker), Namespace: w.namespaces.Mount})
	if err != nil {
		return err
	}
	deps := task.Deps{
		Tracker: tracker, Audience: w.aud, Now: time.Now, NoChildren: reaper.NoChildren, Namespaces: w.namespaces,
		StartHost:  func(cgroupFD int) (task.Host, error) { return startHost(w.spec, cgroupFD) },
		Accounting: w.accounting(tracker),
		Plugins:    taskPlugins(w.spec, w.plan, w.aud, func(k step.OOMKill) { w.st.OutOfMemory(k) }),
	}
	w.joinStreams(&deps)
	w.joinMPI(&deps, plugin)
	w.st = task.New(w.plan, deps)
	close(made)
	h := handler{w.st, w.aud, w.streams, w.spec.User.UID, w.output}
	w.server = stepapi.NewServer(w.spec.ID, w.spec.User.UID, h)
	w.aud.server = w.server
	w.server.Add(control, stepapi.RoleNoded, true)
	w.server.Serve(listener)
	return lead(w.spec, h, w.server, listener)
}

// logError reports to noded's log a failure that no caller waits for.
func (w *wiring) logError(text string) { w.aud.Log(step.LogError, text) }

func (w *wiring) accounting(tracker proctrack.Tracker) *acct.Gatherer {
	return acct.New(acct.Config{
		Acct: w.spec.Acct, Proctrack: w.spec.Proctrack, Confine: w.spec.Confine, Ranks: w.plan.Ranks,
		MemoryBytes: w.spec.MemoryMB << 20, PIDs: tracker.PIDs,
		OverMemory: func(why string) { w.st.OverMemory(why) },
		Log:        w.logError,
	})
}

// joinStreams leads the tasks' streams to the launcher, and to those who watch.
func (w *wiring) joinStreams(deps *task.Deps) {
	w.streams = newRelay(len(w.plan.Ranks), w.aud)
	w.output = live.New(w.spec, live.Config{Namespace: w.namespaces.Mount, Tap: func(t func(fd, rank int, data []byte)) { w.streams.SetTap(t) }, Log: w.logError})
	deps.Streams, deps.Output = w.streams, w.output
}

// joinMPI gives the step its MPI plugin, nil of one that has none, and what the
// plugin may ask of noded for the job.
func (w *wiring) joinMPI(deps *task.Deps, plugin mpi.Plugin) {
	if plugin == nil {
		return
	}
	services := spawn.New(spawn.Config{
		Spec: w.spec, Say: w.aud.Say, Log: func(text string) { w.aud.Log(step.LogInfo, text) },
		Ask:    func(ctx context.Context, a *stepapi.Ask) (*stepapi.Answer, error) { return w.server.Ask(ctx, a) },
		Stream: func(rank, fd int) (int, error) { return w.st.TaskStream(rank, fd) },
		Abort:  func(rank, code int, text string) { w.st.SpawnedAborted(rank, code, text) },
		Ending: func() <-chan struct{} { return w.st.Ending() },
	})
	deps.MPI, deps.Job, deps.Spawned = plugin, services, services
}

// taskPlugins are the step's, in an order that each of them needs. killed is called for
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
	// Last, so that its PostStep comes first: while the cgroups of the tasks can
	// be read.
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

// mpiPlugin is the step's, nil of one that has none: batch, extern and interactive
// steps are no MPI programs, whatever MpiDefault says.
func mpiPlugin(spec *step.Spec, deps mpi.Deps) (mpi.Plugin, error) {
	switch spec.ID.Step {
	case step.BatchStep, step.ExternStep, step.InteractiveStep:
		return nil, nil
	}
	return mpi.New(spec.MPI, spec.MPIConf, deps)
}

// jobNamespaces are the namespaces of the job's container, as noded has handed them over.
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

// usage is what the kernel reported about a child.
func usage(e *linux.Exit) *step.Usage {
	ru := &e.Usage
	return &step.Usage{
		User: time.Duration(ru.Utime.Nano()), System: time.Duration(ru.Stime.Nano()),
		MaxRSSBytes: ru.Maxrss << 10, MinorFaults: ru.Minflt, MajorFaults: ru.Majflt,
		BlocksRead: ru.Inblock, BlocksOut: ru.Oublock, IO: e.Last,
	}
}
