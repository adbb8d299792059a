package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/node/scripts"
	"stepd/node/selection"
	"stepd/node/spool"
	"stepd/node/state"
	"stepd/step"
	"stepd/step/launch"
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
	// SlurmdSpool is SlurmdSpoolDir, "" where no file says it.
	SlurmdSpool string

	// Select is what jobs may have of the node. Its CPUs are ascending; without Memory.MB no job can
	// ask for memory. MemoryBytes is what the node has.
	Select      selection.Config
	MemoryBytes uint64
	// MaxTasks is MaxTasksPerNode; 0 is 512.
	MaxTasks int

	// InteractiveStep is what alloc without a command gives to run: InteractiveStepOptions,
	// where the site has use_interactive_step; "" is that it runs the shell where it is.
	InteractiveStep string
	// MemoryUnlimited is why a step may use more memory than it has asked for, "" where it
	// may not.
	MemoryUnlimited string

	// DebugFlags are the flags of slurm.conf(5) for which the log has more than otherwise:
	// Cgroup, CPU_Bind, Gres, JobAccountGather, JobContainer, Steps.
	DebugFlags []string
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
	// Programs are those without which no step starts, MPIPrograms those without which none of an
	// MPI type does.
	Programs    []string
	MPIPrograms map[string]string
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
	// Stack reads the plugin stack, and StackChanged tells that it may have changed. nil is none.
	Stack        func() (Stack, error)
	StackChanged <-chan struct{}

	// PerUser bounds what one user other than root has of the node; zero fields are
	// the defaults.
	PerUser PerUser
	// AllConnections and AllSteps bound what all users other than root have together, so that
	// root's requests and noded's own work find descriptors; 0 is a sixth and a twelfth of the
	// descriptors that noded may have. A connection takes up to 3, a step up to 5.
	AllConnections, AllSteps int
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
	c.MaxTasks = cmp.Or(c.MaxTasks, 512)
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
	case len(c.Select.CPUs) == 0:
		return fmt.Errorf("cannot start node %q without CPUs", c.NodeName)
	case !filepath.IsAbs(c.RunDir):
		return fmt.Errorf("cannot use run directory %q: not an absolute path", c.RunDir)
	case !filepath.IsAbs(c.SpoolDir):
		return fmt.Errorf("cannot use spool directory %q: not an absolute path", c.SpoolDir)
	case c.Users == nil || c.Tracker == nil || c.Containers == nil || c.Log == nil:
		return errors.New("internal error: node configured without users, tracker, containers or log")
	}
	c.PerUser.complete()
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("cannot read RLIMIT_NOFILE: %w", err)
	}
	c.AllConnections = cmp.Or(c.AllConnections, int(files.Cur/6))
	c.AllSteps = cmp.Or(c.AllSteps, int(files.Cur/12))
	if c.clock == nil {
		c.clock = state.HostClock()
	}
	if c.Scripts.StackID == nil {
		c.Scripts.StackID = func() (id, digest string, err error) { return "", "", nil }
	}
	if c.Meter == nil {
		c.Meter = noMeter{}
	}
	return nil
}

// Tracker is the node's side of process tracking: it makes the place where a
// step's stepd is born, and kills all that is left of a step whose stepd is
// gone. Methods may be called from several goroutines.
type Tracker interface {
	// Kind is the value of step.Proctrack.Kind, and of the node document.
	Kind() string
	// Prepare makes what all steps need. It is called once, when the spool is
	// known to be ours alone.
	Prepare() error
	// MakeJob makes the cgroups in which the job is limited, unless they exist: in
	// the tracker's own hierarchy, and in these v1 controllers'. MakeStep
	// does it too: it is of use where limits of the job come first.
	MakeJob(job uint32, v1 []string) error
	// MakeStep makes the step's place, in the hierarchies of these v1 controllers
	// as well.
	MakeStep(id step.ID, v1 []string) (StepPlace, error)
	// MakeScripts makes the place of a job's prolog and epilog, step
	// scripts.PlaceID, or finds it again; or the place of KeeperPlace. leaf is
	// as StepPlace's.
	MakeScripts(id step.ID) (leaf *os.File, err error)
	// Left says in words which processes are in the step's place: 'pid 12 "sleep"'.
	// nil where there is no place.
	Left(id step.ID) ([]string, error)
	// Adopt moves a process, which no step has started, among the tasks of a step that
	// runs, in each of its hierarchies; its children are not moved. Of rec it may use
	// what EndStep may. An error wraps errors.ErrUnsupported where steps have no cgroups.
	Adopt(rec *step.Record, pid int) error
	// AddStepd tracks a stepd that was not born in its place: it is called where
	// MakeStep gave no leaf.
	AddStepd(id step.ID, pid int) error
	// EndStep kills every process of the step that is left, stepd and host
	// included, returns when there is none, and removes the step's place. When
	// ctx ends first, the error names the survivors. Of rec it may use the id,
	// Cgroup, CgroupTasks, CgroupV1, StepdPID and StepdStart. It is idempotent.
	EndStep(ctx context.Context, rec *step.Record) error
	// EndJob removes the empty place of a job whose steps were ended.
	EndJob(job uint32) error
	// Steps lists the steps that have a place: leftovers after a crash.
	Steps() ([]step.ID, error)
	// Fallbacks lists what the tracker does in a lesser way than it was asked to.
	Fallbacks() []Fallback
	// Remove removes the tracker's own root, at the end, when no step is left.
	Remove() error
}

// StepPlace is where a step lives.
type StepPlace struct {
	// Dir and Tasks are as in step.Proctrack, V1 is as in step.Confinement; all
	// empty where there are no cgroups.
	Dir, Tasks string
	V1         map[string]string
	// Leaf is a directory descriptor for CLONE_INTO_CGROUP, in which stepd is
	// born; the caller closes it. nil where it cannot be born in one.
	Leaf *os.File
}

// Limits confines jobs and steps by cgroups. Methods may be called from several
// goroutines.
type Limits interface {
	// Plan decides what confines the step; it touches nothing. An error says what
	// of the request cannot be had; a *launch.FaultError, that the node is to blame. The
	// spec's id may be zero.
	Plan(spec *step.Spec) (*launch.LimitPlan, error)
	// Apply carries out writes of a plan, in their order, in places that were made
	// with its V1.
	Apply(writes []step.CgroupWrite) error
	// Devices reports whether a step sees its own devices alone.
	Devices() bool
}

// wants reports whether the site has set a flag of DebugFlags.
func (c *Config) wants(flag string) bool { return slices.Contains(c.DebugFlags, flag) }

// debug logs what a flag of DebugFlags asks for; without it the line is noded -v's.
func (c *Config) debug(log *logrus.Entry, flag, format string, args ...any) {
	level := logrus.DebugLevel
	if c.wants(flag) {
		level = logrus.InfoLevel
	}
	log.Logf(level, flag+": "+format, args...)
}

// Containers makes the private view of the node that the steps of a job share.
// *jobcontainer.Tmpfs and jobcontainer.None are such.
type Containers interface {
	// Create makes the job's container before its first step. It is called for
	// every step: a job keeps the one that it has, and one that lost it takes
	// no more. A *launch.FaultError drains the node until Try succeeds.
	Create(ctx context.Context, job uint32, user step.User) error
	// Join returns the namespaces that processes of the job enter; Mount is nil
	// for a job without a container. The caller closes them. An error says why the
	// job can have no more processes.
	Join(job uint32) (launch.Namespaces, error)
	// AddCont adds a step's cgroup, by its id (the directory's inode), and AddPID a process
	// of the job and whose it is: stepd and the programs of prolog and epilog when they were
	// started, a process that was adopted. Each is in its cgroup by then.
	AddCont(job uint32, cont uint64) error
	AddPID(job uint32, pid int, uid uint32) error
	// Delete removes the container after the job's last step.
	Delete(ctx context.Context, job uint32) error
	// Restore begins: it tries whether containers can be made, takes over the containers of
	// jobs that run and removes all others. A *launch.FaultError drains the node as Create's.
	Restore(ctx context.Context, running []uint32) error
	// Try returns why no container can be made, and makes none. It may be called before Restore.
	Try() error
	// Fini ends it, when nothing goes on any more; jobs keep their containers for the next
	// noded, which a reload begins at once, with the configuration as it is then.
	Fini() error
}

// Users answers who a user is, through the C library (design §4). *Lookup is one.
type Users interface {
	// ByUID returns the user, or an error that wraps ErrNoUser.
	ByUID(ctx context.Context, uid uint32) (step.User, error)
}
