// Package proctrack holds the processes of a job step together, so that none
// escapes or outlives it. It is Slurm's proctrack: cgroup (on cgroup v2, also
// that of a hybrid host), linuxproc and pgid.
//
// stepd calls Open for its own step and uses the Tracker. noded makes a Root,
// and in it the directory of each step; it kills and removes what a dead stepd
// left. What the node can do is found out by package detect, which only noded
// needs.
//
// On cgroup v2 the tree is
//
//	ROOT/job_N/step_S/stepd   the stepd process; made by noded
//	ROOT/job_N/step_S/tasks   the tasks; made by stepd
//	ROOT/job_N/step_S/host    the SPANK host, once it was evicted; made by stepd
//
// and only leaves hold processes. The package limits no resource.
package proctrack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// The kinds of tracker: the values of step.Proctrack.Kind and of node status.
const (
	KindCgroupV2     = "cgroup/v2"
	KindCgroupHybrid = "cgroup/hybrid" // the v2 mount of a host with v1 controllers
	KindLinuxProc    = "linuxproc"
	KindPGID         = "pgid"
)

// Tracker is what every tracker of this package offers: task.Tracker, and what
// suspend, accounting and adoption need besides. Methods may be called from
// several goroutines.
type Tracker interface {
	Create() error
	HostCgroup() (fd int, ok bool)
	Add(rank, pid int) error
	EvictHost(pid int) error
	Helpers() (*os.File, error)
	PIDs() ([]int, error)
	Signal(sig syscall.Signal) error
	Kill(ctx context.Context) error
	Destroy(ctx context.Context) error

	// Freeze stops every process of the tasks and returns when all stand
	// still; Thaw lets them go on.
	Freeze(ctx context.Context) error
	Thaw() error
	// HasPID tells whether the process is one of the tasks'.
	HasPID(pid int) (bool, error)
	// ContainerID is the id that Slurm's job container and task plugins know
	// the tasks by. It never is 0 between Create and Destroy.
	ContainerID() (uint64, error)
}

// Reaper tells a tracker without cgroups that no descendant of stepd is left;
// *linux.Reaper is one.
type Reaper interface {
	// NoChildren returns a channel that is closed as soon as the process has
	// no children.
	NoChildren() <-chan struct{}
}

// Open returns the tracker of a step, for stepd. kind and dir are those of
// step.Proctrack, stepdPID is the caller's own process id. The cgroup trackers
// do not need reaper.
func Open(kind, dir string, stepdPID int, reaper Reaper) (Tracker, error) {
	switch kind {
	case KindCgroupV2, KindCgroupHybrid:
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("cannot open tracker %q: its directory %q is not absolute", kind, dir)
		}
		return NewCgroup(filepath.Clean(dir)), nil
	case KindLinuxProc:
		return NewLinuxProc(stepdPID, reaper), nil
	case KindPGID:
		return NewPGID(), nil
	}
	return nil, fmt.Errorf("cannot open tracker %q: want %s, %s, %s or %s",
		kind, KindCgroupV2, KindCgroupHybrid, KindLinuxProc, KindPGID)
}
