package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/node/scripts"
	"stepd/node/selection"
	"stepd/node/spool"
	"stepd/node/state"
	"stepd/step"
)

// Config is all that a Node is told; main fills it in. Fields without a
// comment on their zero value are required.
type Config struct {
	// Version is the program's, for clients of other releases; "" is not known.
	Version string
	// NodeName is this node's name in slurm.conf, or the host's.
	NodeName string
	// Site is what the settings mean for every step. In it 0 KillWaitS is 30, and 0
	// UnkillableS is 60.
	Site step.Site

	// RunDir and SpoolDir are absolute. The spool belongs to one noded.
	RunDir, SpoolDir string

	// CPUs are the numbers that steps may be given, ascending.
	CPUs        []int
	MemoryBytes uint64
	// Cores are the cores of the CPUs by socket and number; nil where they are not
	// known: requests for cores have then no effect here.
	Cores []selection.Core
	// Memory is how it is given out; without MB no job can ask for any. Gres are
	// the node's generic resources.
	Memory selection.Memory
	Gres   []selection.Gres
	// MaxTasks is MaxTasksPerNode; 0 is step.TasksMax.
	MaxTasks int

	// InteractiveStep is what alloc without a command gives to run: InteractiveStepOptions,
	// where the site has use_interactive_step; "" is that it runs the shell where it is.
	InteractiveStep string

	// MPIDefault is MpiDefault; "" is "none". MPITypes are the types that exist here.
	MPIDefault string
	MPITypes   []string
	// SpawnMax bounds the spawned steps of a job that run at a time (SpawnStepsMax);
	// 0 is 128. NamesMax bounds the names that the programs of a job have published
	// (PublishedNamesMax); 0 is 1024.
	SpawnMax, NamesMax int

	// UnkillableProgram is run, as root, for a step whose processes outlive
	// UnkillableS (UnkillableStepProgram); "" is none.
	UnkillableProgram string
	// SpoolTimeout is how long the spool may take to answer before it is done without;
	// 0 is 20 s.
	SpoolTimeout time.Duration
	// MinJobAge keeps ended steps visible; 0 is 300 s. KeepSteps are kept
	// whatever their age; 0 is 1000.
	MinJobAge time.Duration
	KeepSteps int
	// Scripts are the site's prolog and epilog.
	Scripts scripts.Config
	// QuarantineAfter crashes in a row a plugin is left out, or drains the node
	// where it is required; 0 is never.
	QuarantineAfter int
	// NoNewPrivs sets no_new_privs for the tasks of every step.
	NoNewPrivs bool

	// StepdPath is the stepd program, absolute.
	StepdPath string
	// StepdLog is a log file that stepds append to by themselves. nil: what they
	// write to their standard error comes through noded to Log.Out.
	StepdLog *os.File
	// ContainerType is "none", "tmpfs" or "linux".
	ContainerType string

	// LeftUsage returns the figures in the cgroups of a step whose stepd is
	// dead, before they are removed; nil where they know nothing. The field may be nil.
	LeftUsage func(rec *step.Record) (*step.StepUsage, error)

	Users      Users
	Tracker    Tracker
	Containers Containers
	// Limits confines jobs and steps; nil confines nothing.
	Limits Limits
	// Binding says in words where each task of a step would run, for DryRun; nil:
	// unknown.
	Binding func(spec *step.Spec) ([]string, error)
	// Preview adds to a DryRun what the tasks would see: environment, limits, mounts. The
	// field may be nil.
	Preview func(spec *step.Spec, d *api.DryRun) error

	// DrainReason drains the node at start: what its files promise and it has
	// not. "" is nothing.
	DrainReason string
	// Fallbacks were taken at start: less than the configuration asks for.
	Fallbacks []Fallback
	// Plugins lists the plugin stack for the node document; nil is none.
	Plugins func(ctx context.Context) []Plugin
	// StackDigest reads the plugin stack and returns the digest that clients must read too;
	// nil is no stack.
	StackDigest func() (string, error)

	// PerUser bounds what one user other than root has of the node; zero fields are
	// the defaults.
	PerUser PerUser
	// Meter gets the events, for figures over time; nil: none.
	Meter Meter

	Log *logrus.Logger

	// unkillable is Site.UnkillableS; tests have a shorter one. clock is the host's; tests
	// have another.
	unkillable time.Duration
	clock      *state.Clock
}

// Fallback and Plugin are parts of the node document that the wiring of noded fills in.
type (
	Fallback = api.NodeFallback
	Plugin   = api.NodePlugin
)

// complete fills in the defaults and checks what New relies on.
func (c *Config) complete() error {
	c.MaxTasks = cmp.Or(c.MaxTasks, step.TasksMax)
	c.MPIDefault = cmp.Or(c.MPIDefault, "none")
	c.Site.KillWaitS = cmp.Or(c.Site.KillWaitS, 30)
	c.Site.UnkillableS = cmp.Or(c.Site.UnkillableS, 60)
	c.unkillable = cmp.Or(c.unkillable, time.Duration(c.Site.UnkillableS)*time.Second)
	c.SpoolTimeout = cmp.Or(c.SpoolTimeout, spool.Patience)
	c.MinJobAge = cmp.Or(c.MinJobAge, 300*time.Second)
	c.KeepSteps = cmp.Or(c.KeepSteps, 1000)
	c.SpawnMax = cmp.Or(c.SpawnMax, 128)
	c.NamesMax = cmp.Or(c.NamesMax, 1024)
	c.ContainerType = cmp.Or(c.ContainerType, "none")
	switch {
	case c.NodeName == "":
		return errors.New("cannot start a node without a name")
	case len(c.CPUs) == 0:
		return fmt.Errorf("cannot start node %q without CPUs", c.NodeName)
	case !filepath.IsAbs(c.RunDir):
		return fmt.Errorf("cannot use run directory %q: not an absolute path", c.RunDir)
	case !filepath.IsAbs(c.SpoolDir):
		return fmt.Errorf("cannot use spool directory %q: not an absolute path", c.SpoolDir)
	case c.Users == nil || c.Tracker == nil || c.Containers == nil || c.Log == nil:
		return errors.New("internal error: node configured without users, tracker, containers or log")
	}
	c.PerUser.complete()
	if c.clock == nil {
		c.clock = state.HostClock()
	}
	if c.Scripts.StackID == nil {
		c.Scripts.StackID = func() (string, error) { return "", nil }
	}
	if c.Meter == nil {
		c.Meter = noMeter{}
	}
	return nil
}
