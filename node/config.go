package node

import (
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
	"stepd/node/state"
	"stepd/step"
)

// Config is all that a Node is told; main fills it in. Fields without a
// comment on their zero value are required.
type Config struct {
	// Version is the program's, for clients of other releases; "" is not known.
	Version string
	// NodeName is this node's name in slurm.conf, or the host's.
	NodeName  string
	Cluster   string // "" is no name
	Partition string // "" is none

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

	// SlurmConf is the file that was read, "" without one.
	SlurmConf string
	Spank     step.SpankConf
	// MPIDefault is MpiDefault; "" is "none". MPITypes are the types that exist here.
	MPIDefault string
	MPITypes   []string
	// MPI is what the site's files say to MPI plugins.
	MPI step.MPIConf
	// SpawnMax bounds the spawned steps of a job that run at a time (SpawnStepsMax);
	// 0 is 128. NamesMax bounds the names that the programs of a job have published
	// (PublishedNamesMax); 0 is 1024.
	SpawnMax, NamesMax int

	// Propagate are the resource limits that are passed on from the client to the
	// tasks, in upper case without RLIMIT_; nil is all. TaskScripts run around each
	// task.
	Propagate   []string
	TaskScripts step.TaskScripts
	// PropagatePrio is PropagatePrioProcess.
	PropagatePrio int

	// KillWait is the time between SIGTERM and SIGKILL; 0 is 30 s.
	KillWait time.Duration
	// UnkillableTimeout bounds the wait for the end of killed processes; 0 is 60 s.
	UnkillableTimeout time.Duration
	// UnkillableProgram is run for a step that has such processes, as root
	// (UnkillableStepProgram); "" is none.
	UnkillableProgram string
	// SpoolTimeout is how long the spool may take to answer before it is done without;
	// 0 is 20 s.
	SpoolTimeout time.Duration
	// MinJobAge keeps ended steps visible; 0 is 300 s. KeepSteps are kept
	// whatever their age; 0 is 1000.
	MinJobAge time.Duration
	KeepSteps int
	// ReplayBytes of each step's output are kept for clients that attach, and after its
	// end; 0 are none but a terminal's.
	ReplayBytes int64
	// Scripts are the site's prolog and epilog.
	Scripts scripts.Config
	// QuarantineAfter crashes in a row a plugin is left out, or drains the node
	// where it is required; 0 is never.
	QuarantineAfter int
	// Acct is how steps are accounted for; the zero value samples nothing.
	Acct step.Accounting
	// NoNewPrivs sets no_new_privs for the tasks of every step.
	NoNewPrivs bool

	// StepdPath is the stepd program, absolute.
	StepdPath string
	// StepdLog is a log file that stepds append to by themselves. nil: what they
	// write to their standard error comes through noded to Log.Out.
	StepdLog *os.File
	// Affinity is what the site says about the binding of tasks; nil binds none.
	Affinity *step.AffinityConf
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

	// clock is the host's; tests have another.
	clock *state.Clock
}

// Fallback and Plugin are parts of the node document that the wiring of noded fills in.
type (
	Fallback = api.NodeFallback
	Plugin   = api.NodePlugin
)

// complete fills in the defaults and checks what New relies on.
func (c *Config) complete() error {
	setDefault(&c.MaxTasks, step.TasksMax)
	setDefault(&c.MPIDefault, "none")
	setDefault(&c.KillWait, 30*time.Second)
	setDefault(&c.UnkillableTimeout, 60*time.Second)
	setDefault(&c.SpoolTimeout, spoolPatience)
	setDefault(&c.MinJobAge, 300*time.Second)
	setDefault(&c.KeepSteps, 1000)
	setDefault(&c.SpawnMax, 128)
	setDefault(&c.NamesMax, 1024)
	setDefault(&c.ContainerType, "none")
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
	if c.Meter == nil {
		c.Meter = noMeter{}
	}
	_, c.Spank.JSONLog = c.Log.Formatter.(*logrus.JSONFormatter)
	c.Spank.Debug = c.Log.IsLevelEnabled(logrus.DebugLevel)
	return nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
