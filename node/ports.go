package node

import (
	"context"
	"os"

	"stepd/step"
	"stepd/step/launch"
)

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
	// of the request cannot be had; a *FaultError, that the node is to blame. The
	// spec's id may be zero.
	Plan(spec *step.Spec) (*launch.LimitPlan, error)
	// Apply carries out writes of a plan, in their order, in places that were made
	// with its V1.
	Apply(writes []step.CgroupWrite) error
	// Devices reports whether a step sees its own devices alone.
	Devices() bool
}

// FaultError is the failure of a request for which the node is not what its
// files say: the node is drained, before it fails one job after the other.
type FaultError struct{ Err error }

func (e *FaultError) Error() string { return e.Err.Error() }
func (e *FaultError) Unwrap() error { return e.Err }

// Containers makes the private view of the node that the steps of a job share.
// *jobcontainer.Tmpfs and jobcontainer.None are such.
type Containers interface {
	// Create makes the job's container before its first step. It is called for
	// every step: a job keeps the one that it has, and one that lost it takes
	// no more.
	Create(ctx context.Context, job uint32, user step.User) error
	// Join returns the namespaces that processes of the job enter; Mount is nil
	// for a job without a container. The caller closes them. An error says why the
	// job can have no more processes.
	Join(job uint32) (launch.Namespaces, error)
	// EntireStepInNS reports whether the whole host joins it.
	EntireStepInNS() bool
	// AddCont adds a step's cgroup, by its id (the directory's inode), and AddPID a
	// process of the job: stepd, when it was started.
	AddCont(job uint32, cont uint64) error
	AddPID(job uint32, pid int) error
	// Delete removes the container after the job's last step.
	Delete(ctx context.Context, job uint32) error
	// Restore takes over the containers of running jobs and removes the others'.
	Restore(ctx context.Context, running []uint32) error
}

// Users answers who a user is, through the C library (design §4). *Lookup is one.
type Users interface {
	// ByUID returns the user, or an error that wraps ErrNoUser.
	ByUID(ctx context.Context, uid uint32) (step.User, error)
}
