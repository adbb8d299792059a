// Package mpi is Slurm's plugin of kind mpi (seeds: MPI plugin API): the types
// that --mpi and MpiDefault name, and what they do in stepctl and in stepd. A
// plugin is a package of its own below this one, and a line in Types. It is
// compiled in: there is no file to load, and so no plugin_version to compare.
//
// Slurm's hooks are found here as
//
//	init                              the New of the plugin's package, for each step anew
//	fini                              Plugin.Close; the Client goes with stepctl
//	p_mpi_hook_client_prelaunch       Client.Prelaunch, by `stepctl run`, which has the step's number and has not launched it
//	mpi_plugin_client_state_t         the Client itself
//	p_mpi_hook_slurmstepd_prefork     Plugin.Prefork, in stepd as root, once, before anything runs as the user
//	p_mpi_hook_slurmstepd_task        launch.MPITasks.TaskEnv and TaskFDs, which Prefork returns: they are set in the
//	                                  task when it has become the user, before its task_init
//	p_mpi_hook_client_fini            Client.Fini, when all tasks have ended, however that was
//	mpi_plugin_client_info_t, stepd_step_rec_t, mpi_plugin_task_info_t
//	                                  step.Spec, whose LocalRanks are this node's tasks
//	char ***env                       Prelaunch's argument and result; in stepd step.Spec.Env to read, and what a hook
//	                                  returns is set over it
//	SLURM_MPI_TYPE                    set for the tasks by package task, for plugins in the SPANK host too
//
// Beyond Slurm's, Plugin.TaskExited is called at the tasks' ends, and launch.MPIJob
// ends the step, starts others, talks to the step's other nodes, and reports how
// far the ranks have come.
//
// slurmstepd_task is data because the task is a fork of a C program, where no Go
// runs: what a hook could find out there but the task's number is known before.
//
// Hooks are called for the steps of run, spawned ones among them (which have no
// client); never for batch and extern steps.
package mpi

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"stepd/internal/linux"
	"stepd/mpi/pmi2"
	"stepd/mpi/pmix"
	"stepd/step"
	"stepd/step/launch"
)

// Plugin is the part of an MPI plugin that runs in stepd.
type Plugin interface {
	// Prefork runs as root, once, before the first fork. Its error ends the launch.
	Prefork(ctx context.Context, job launch.MPIJob) (launch.MPITasks, error)
	// TaskExited reports that the task ended.
	TaskExited(rank int, status step.ExitStatus)
	// Close ends the plugin's servers; it waits for their goroutines.
	Close() error
}

// Client is the part of an MPI plugin that runs in `stepctl run`, as the caller.
// Its fields are the client's state. With one, a launch costs a request more.
type Client interface {
	// Prelaunch is called once, when the step has its number and its place and
	// before its launch. It gets the step's environment ("NAME=VALUE") and returns what it is
	// to be. An error gives the step back, and Fini is not called.
	Prelaunch(ctx context.Context, spec *step.Spec, env []string) ([]string, error)
	// Fini is called after Prelaunch, when the step has ended or its connection is
	// lost. Its error is reported and changes no exit code, as in Slurm.
	Fini() error
}

// Deps are what plugins need of stepd.
type Deps struct {
	// Start runs a program beside the tasks (linux.Reaper.Start).
	Start func(path string, argv []string, attr *syscall.ProcAttr) (pid int, exited <-chan linux.Exit, err error)
	// Namespace is the job's mount namespace, nil without a container.
	Namespace *os.File
}

// Type is one value of --mpi.
type Type struct {
	Name string
	// Stepd makes the plugin for one step; nil: there is nothing to do in stepd.
	Stepd func(site *step.Site, deps Deps) Plugin
	// Client makes the client's part for one step; nil: there is none.
	Client func() Client
}

// The plugins' names, as --mpi and MpiDefault give them.
const (
	None = "none"
	PMI2 = "pmi2"
	PMIx = "pmix"
)

// Types lists all of them, in the order in which --mpi=list shows them.
func Types() []Type {
	return []Type{
		{Name: None},
		{Name: PMI2, Stepd: func(site *step.Site, _ Deps) Plugin { return pmi2.New(site.MPIConf.PMI2) }},
		{Name: PMIx, Stepd: func(site *step.Site, deps Deps) Plugin {
			return pmix.New(pmix.Config{PMIxConf: site.MPIConf.PMIx, Start: deps.Start, Namespace: deps.Namespace})
		}},
	}
}

// Remove removes what the servers of a step have left below a run directory whose stepd was
// killed. No process of the step lives any more.
func Remove(runDir, key string) error { return pmix.RemoveFolder(runDir, key) }

// Names lists their names.
func Names() (names []string) {
	for _, t := range Types() {
		names = append(names, t.Name)
	}
	return names
}

// find returns the type of that name; the empty name is none's.
func find(name string) (Type, bool) {
	types := Types()
	i := slices.IndexFunc(types, func(t Type) bool { return t.Name == name || name == "" && t.Name == None })
	if i < 0 {
		return Type{}, false
	}
	return types[i], true
}

// New makes the plugin for one step, nil where its type needs none in stepd. The
// empty name means none. The error of an unknown name lists the known ones.
func New(name string, site *step.Site, deps Deps) (Plugin, error) {
	t, ok := find(name)
	if !ok {
		return nil, fmt.Errorf("cannot use MPI type %q: not one of %s (--mpi, MpiDefault)", name, strings.Join(Names(), ", "))
	}
	if t.Stepd == nil {
		return nil, nil
	}
	return t.Stepd(site, deps), nil
}

// NewClient makes the client's part for one step, nil where its type has none, and
// of a name that is unknown here: noded refuses that, and knows why.
func NewClient(name string) Client {
	t, ok := find(name)
	if !ok || t.Client == nil {
		return nil
	}
	return t.Client()
}
