// Package mpi names the MPI plugins and makes the one that a step asks for
// (seeds: MPI plugin API). A plugin is a package of its own below this one,
// and a line in New and in Names; it serves the tasks within stepd.
//
// Begin with New.
package mpi

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"

	"stepd/internal/linux"
	"stepd/mpi/pmi2"
	"stepd/mpi/pmix"
	"stepd/step"
)

// Plugin is the part of an MPI plugin that runs in stepd.
type Plugin interface {
	// Prefork runs as root, once, before the first fork.
	Prefork(ctx context.Context, job step.MPIJob) (step.MPITasks, error)
	// TaskExited tells that the task ended.
	TaskExited(rank int, status step.ExitStatus)
	// Close ends the plugin's servers; it waits for their goroutines.
	Close() error
}

// Deps are what plugins need of stepd.
type Deps struct {
	// Start runs a program beside the tasks (linux.Reaper.Start).
	Start func(path string, argv []string, attr *syscall.ProcAttr) (pid int, exited <-chan linux.Exit, err error)
	// Namespace is the job's mount namespace, nil without a container.
	Namespace *os.File
}

// The plugins' names, as --mpi and MpiDefault give them.
const (
	None = "none"
	PMI2 = "pmi2"
	PMIx = "pmix"
)

// Names lists the plugins in the order in which --mpi=list shows them.
func Names() []string { return []string{None, PMI2, PMIx} }

// New makes the plugin for one step. none needs nothing in stepd, so its
// plugin is nil; the empty name means none. The error of an unknown name lists
// the known ones.
func New(name string, conf step.MPIConf, deps Deps) (Plugin, error) {
	switch name {
	case None, "":
		return nil, nil
	case PMI2:
		return pmi2.New(pmi2.Config(conf.PMI2)), nil
	case PMIx:
		return pmix.New(pmix.Config{PMIxConf: conf.PMIx, Start: deps.Start, Namespace: deps.Namespace}), nil
	}
	return nil, fmt.Errorf("cannot use MPI type %q: not one of %s (--mpi, MpiDefault)", name, strings.Join(Names(), ", "))
}
