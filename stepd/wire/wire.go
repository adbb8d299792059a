// Package wire joins one step to its neighbours: tracker, SPANK host, task plugins, MPI
// plugin and accounting. It knows neither noded's socket nor the client: what serves them
// comes from its caller. Begin with Step.
package wire

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/acct"
	"stepd/internal/linux"
	"stepd/mpi"
	"stepd/proctrack"
	"stepd/spank"
	"stepd/step"
	"stepd/step/launch"
	"stepd/task"
	"stepd/task/affinity"
	taskcgroup "stepd/task/cgroup"
	"stepd/task/device"
	"stepd/task/oom"
)

// Neighbours are what the caller of Step serves the step with. All but Services, Peers and Aborted are required.
type Neighbours struct {
	Audience task.Audience
	Streams  task.Streams
	Output   task.Output
	// Namespaces are the namespaces of the job's container.
	Namespaces launch.Namespaces
	// Services are what the job's steps share, and the steps that the tasks start. It is
	// called once, of a step with an MPI plugin; nil is none.
	Services func() (launch.MPIServices, task.Spawned)
	// Peers joins the step to its other nodes. It is called once, of a step of several nodes with an
	// MPI plugin, and its error ends the step's making; nil is none.
	Peers func() (launch.Peers, error)
	// Aborted is called once when MPI has ended the step on this node; nil does nothing.
	Aborted func(rank, code int, text string)
	// OnMain runs work on the program's main thread, and returns when that has begun: the
	// host dies with the thread that starts it (prctl(2)).
	OnMain func(func())
	// Plugins are called after the step's own.
	Plugins []task.Plugin
}

// Step makes the step of a plan. The process must be a subreaper, and has no other reaper.
// Nothing acts on the step before its Run.
func Step(plan *task.Plan, n Neighbours) (*task.Step, error) {
	spec := plan.Spec
	var st *task.Step
	made := make(chan struct{}) // st exists
	reaper := linux.NewReaper(func(e linux.Exit) {
		<-made
		st.ChildEnded(e.PID, step.ExitStatus(e.Status), usage(&e))
	}, acct.LastLook)
	tracker, err := openTracker(spec.Proctrack, spec.Confine.PerTask, reaper)
	if err != nil {
		return nil, err
	}
	plugin, err := mpiPlugin(spec, mpi.Deps{Start: startBeside(reaper, tracker), Namespace: n.Namespaces.Mount})
	if err != nil {
		return nil, err
	}
	deps := task.Deps{
		Tracker: tracker, Audience: n.Audience, Streams: n.Streams, Output: n.Output, Now: time.Now,
		NoChildren: reaper.NoChildren, Namespaces: n.Namespaces,
		StartHost: func(cgroupFD int) (task.Host, error) { return startHost(spec, cgroupFD, n.OnMain) },
		Accounting: acct.New(acct.Config{
			Acct: spec.Acct, Proctrack: spec.Proctrack, Confine: spec.Confine, Ranks: plan.Ranks, Whole: spec.ID.Step == step.ExternStep,
			MemoryBytes: spec.MemoryMB << 20, PIDs: tracker.PIDs,
			OverMemory: func(why string) { st.OverMemory(why) },
			Log:        func(text string) { n.Audience.Log(launch.LogError, text) },
		}),
		Plugins: append(taskPlugins(plan, n.Audience, func(k step.OOMKill) { st.OutOfMemory(k) }, func(text string) { st.TooManyProcesses(text) }), n.Plugins...),
	}
	if plugin != nil { // a nil one in an interface is not nil
		deps.MPI = plugin
		if n.Services != nil {
			deps.Job, deps.Spawned = n.Services()
		}
		if spec.MPISpec().Layout != nil && n.Peers != nil {
			if deps.Peers, err = n.Peers(); err != nil {
				return nil, err
			}
		}
		deps.Aborted = n.Aborted
	}
	st = task.New(plan, deps)
	close(made)
	return st, nil
}

// openTracker returns the tracker of a step.
func openTracker(place step.Proctrack, perTask bool, reaper proctrack.Reaper) (task.Tracker, error) {
	switch place.Kind {
	case proctrack.KindCgroupV2, proctrack.KindCgroupHybrid, proctrack.KindCgroupV1:
		for _, dir := range []string{place.Dir, place.Tasks} {
			if !filepath.IsAbs(dir) {
				return nil, fmt.Errorf("cannot open tracker %q: its directory %q is not absolute", place.Kind, dir)
			}
		}
		return proctrack.NewCgroup(proctrack.CgroupConfig{Dir: filepath.Clean(place.Dir), Tasks: filepath.Clean(place.Tasks), PerTask: perTask, MainForks: true}), nil
	case proctrack.KindLinuxProc:
		return proctrack.NewLinuxProc(os.Getpid(), reaper), nil
	case proctrack.KindPGID:
		return proctrack.NewPGID(), nil
	}
	return nil, fmt.Errorf("cannot open tracker %q: want %s, %s, %s, %s or %s", place.Kind, proctrack.KindCgroupV2,
		proctrack.KindCgroupHybrid, proctrack.KindCgroupV1, proctrack.KindLinuxProc, proctrack.KindPGID)
}

// taskPlugins are the step's, in an order that each of them needs. killed is called for
// what the kernel ends for want of memory, and crowded when it refuses processes, once the step
// runs.
func taskPlugins(plan *task.Plan, aud task.Audience, killed func(step.OOMKill), crowded func(string)) (list []task.Plugin) {
	spec := plan.Spec
	info := func(text string) { aud.Log(launch.LogInfo, text) }
	// First: to enter a v1 cpuset undoes a binding.
	if len(spec.Confine.V1) > 0 || spec.Confine.OOMGroup == step.OOMGroupTask || spec.Confine.TaskDeny != nil {
		list = append(list, taskcgroup.New(spec.Confine, spec.Proctrack.Tasks, plan.Ranks, device.Attach))
	}
	if spec.Affinity != nil {
		// After task/cgroup, whatever the site's order is: affinity.Plugin says why.
		list = append(list, affinity.New(affinity.Config{Spec: spec, Sys: os.DirFS("/sys"), Say: aud.Say, Log: info}))
	}
	// Last, so that their PostStep comes first: while the cgroups of the tasks can
	// be read.
	if spec.Confine.ProcessesMax != 0 {
		list = append(list, taskcgroup.NewProcesses(spec.Confine, plan.Ranks, crowded))
	}
	return append(list, oom.New(oom.Config{
		Confine: spec.Confine, Tasks: spec.Proctrack.Tasks, Ranks: plan.Ranks, Command: spec.Argv[0],
		Killed: killed, Problem: info,
	}))
}

// startHost runs the spankhost beside this program, or in the libexec folder
// that it is installed in: never one found by PATH.
func startHost(spec *step.Spec, cgroupFD int, onMain func(func())) (task.Host, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find spankhost: %w", err)
	}
	var h *spank.Host
	started := make(chan error)
	onMain(func() {
		var err error
		h, err = spank.Start(spank.StartConfig{
			Program:  filepath.Join(filepath.Dir(self), "spankhost"),
			Title:    fmt.Sprintf("spankhost: [%s]", spec.ID.Name()),
			Env:      os.Environ(), // noded's
			CgroupFD: cgroupFD,
			OwnGroup: true,
		})
		started <- err
	})
	if err := <-started; err != nil {
		return nil, err // not h: a nil *Host in an interface is not nil
	}
	// v1 has no births: what the host forks is to be in there from the start.
	if dir := spec.Confine.V1["pids"]; dir != "" {
		file := filepath.Join(dir, "cgroup.procs")
		if err := linux.WriteFile(unix.AT_FDCWD, file, file, strconv.Itoa(h.PID())); err != nil && !linux.IsGone(err) {
			h.Kill()
			return nil, fmt.Errorf("cannot limit the step's processes: %w", err)
		}
	}
	return h, nil
}

// startBeside runs programs that serve the tasks and are none: what ends the tasks
// spares them.
func startBeside(reaper *linux.Reaper, tracker task.Tracker) func(string, []string, *syscall.ProcAttr) (int, <-chan linux.Exit, error) {
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
	return mpi.New(spec.MPI, &spec.Site, deps)
}

// usage is what the kernel reported about a child.
func usage(e *linux.Exit) *launch.Usage {
	ru := &e.Usage
	return &launch.Usage{
		User: time.Duration(ru.Utime.Nano()), System: time.Duration(ru.Stime.Nano()),
		MaxRSSBytes: ru.Maxrss << 10, MinorFaults: ru.Minflt, MajorFaults: ru.Majflt,
		BlocksRead: ru.Inblock, BlocksOut: ru.Oublock, IO: e.Last,
	}
}
