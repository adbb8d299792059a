package proctrack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step/launch"
)

// Names of the leaves of a step's own cgroup.
const (
	leafStepd = "stepd"
	leafHost  = "host"
)

// Cgroup tracks a step by cgroups: of the v2 tree, or of v1's freezer. The
// kernel puts every descendant of a member there, so no process escapes,
// whatever it does.
type Cgroup struct {
	cfg CgroupConfig

	// mu is held for reading while the descriptors are in use, and for
	// writing only to open and to close them.
	mu    sync.RWMutex
	tasks *group // guarded by mu; nil before Create and after Destroy
	host  *group // guarded by mu; as tasks
	// spared are the children of stepd's that are not the step's.
	spared []int // guarded by mu

	// killed is set before the first cgroup.kill of the tasks' group (HostCgroup).
	killed atomic.Bool
}

// CgroupConfig says where a step's cgroups are, which noded has made.
type CgroupConfig struct {
	// Dir is the daemons' cgroup and Tasks the tasks', both absolute paths.
	Dir, Tasks string
	// PerTask gives each task a leaf of its own below Tasks, launch.TaskName(rank).
	PerTask bool
	// MainForks says that the caller's main thread, which lives as long as the program, has forked
	// whatever the step's processes descend from. Escaped reads that thread's children then, to
	// which the kernel adds orphans, and not each thread's: a list that was read slows down the
	// thread's end (2 ms of a step's end under load).
	MainForks bool
}

// NewCgroup returns the tracker of a step. Nothing is touched before Create.
func NewCgroup(cfg CgroupConfig) *Cgroup { return &Cgroup{cfg: cfg} }

// Create makes the leaf of the SPANK host, and opens the tasks' leaf. That
// the former does not exist yet is required: what is in there would not be this
// step's. Leaves of tasks are made by Add.
func (c *Cgroup) Create() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tasks != nil {
		return fmt.Errorf("internal error: cgroups below %q were created already", c.cfg.Dir)
	}
	tasks, err := openGroup(c.cfg.Tasks)
	if err != nil {
		return err
	}
	if err = c.splitTasks(tasks); err == nil {
		c.host, err = makeHostLeaf(c.cfg.Dir)
	}
	if err != nil {
		tasks.close()
		return err
	}
	c.tasks = tasks
	return nil
}

// splitTasks lets the tasks' leaves have the limits and figures that the step
// has; they come from the controllers that reach the step.
func (c *Cgroup) splitTasks(tasks *group) error {
	if !c.cfg.PerTask || tasks.v1 {
		return nil
	}
	missing, err := controllers{tasks}.delegate()
	for _, why := range missing {
		return errors.New(why)
	}
	return err
}

func makeHostLeaf(dir string) (leaf *group, err error) {
	err = in(dir, func(parent *group) (err error) { leaf, err = makeLeaf(parent, leafHost); return err })
	return leaf, err
}

func makeLeaf(parent *group, name string) (*group, error) {
	if err := parent.mkdir(name); err != nil {
		return nil, err
	}
	leaf, err := parent.child(name)
	if err != nil {
		return nil, errors.Join(err, parent.rmdir(name))
	}
	return leaf, nil
}

// errClosed is returned by methods that need what Create makes.
var errClosed = errors.New("the step's cgroups are not created, or removed already")

// HostCgroup is the leaf that the host is to be born in (CLONE_INTO_CGROUP):
// the tasks' leaf, with inside=true, so that they are born in it too; else the
// host's own. fd is -1 where it must be moved after its start. The descriptor
// stays the tracker's and is valid until Destroy.
//
// After a Kill nothing is born inside, and processes must be added: current
// kernels (seen: 6.18) compare the number of kills that the parent's own group
// has had with the target's, and kill a child that is cloned from one to the
// other. Nor before Linux 5.14, which brought cgroup.kill; the clone itself
// needs 5.7, and v2.
func (c *Cgroup) HostCgroup() (fd int, inside bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	switch {
	case c.tasks == nil || !c.tasks.has("cgroup.kill"):
		return -1, false
	case c.cfg.PerTask || c.killed.Load():
		return c.host.fd, false
	}
	return c.tasks.fd, true
}

// Add moves a process to the tasks: to the leaf of its own, where each has one.
// Its threads come along, its children that exist already do not.
func (c *Cgroup) Add(rank, pid int) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.tasks == nil || !c.cfg.PerTask {
		return c.tasks.take(pid)
	}
	leaf, err := c.tasks.ensure(launch.TaskName(rank))
	if err != nil {
		return err
	}
	defer leaf.close()
	return leaf.take(pid)
}

// EvictHost moves the host to its own leaf; a frozen host goes on running
// there. A host that has ended needs no move.
func (c *Cgroup) EvictHost(pid int) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	err := c.host.take(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// Helpers opens cgroup.procs of the host's leaf, for processes that plugins
// fork while the host is among the tasks. The caller closes it.
func (c *Cgroup) Helpers() (*os.File, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.host == nil {
		return nil, fmt.Errorf("cannot place the plugins' helpers: %w", errClosed)
	}
	return c.host.procs()
}

// take moves one process into the group; a nil group is one that is closed.
func (g *group) take(pid int) error {
	if g == nil {
		return fmt.Errorf("cannot track process %d: %w", pid, errClosed)
	}
	// The kernel would take 0 for the writer, which must never land there.
	if pid <= 0 {
		return fmt.Errorf("cannot track process %d: not a process id", pid)
	}
	return g.write("cgroup.procs", strconv.Itoa(pid))
}

// PIDs lists the processes of the tasks, those in cgroups that a task made
// included. Until EvictHost, the host is among them. After Destroy there are none.
func (c *Cgroup) PIDs() ([]int, error) {
	var pids []int
	err := c.onTasks(func(tasks *group) (err error) { pids, err = tasks.pids(); return err })
	return pids, err
}

// hostPatience is how long SIGKILL beside the host waits for the processes' ends: to move the
// host takes as long.
const hostPatience = 30 * time.Millisecond

// Signal sends sig to every process of the tasks, but for the host where that is still
// among them (else 0). SIGKILL reaches also those that are being forked; beside the host it is
// repeated until none is left, and its error may be that some were after a while: then the
// host is to be moved.
func (c *Cgroup) Signal(sig syscall.Signal, host int) error {
	return c.onTasks(func(tasks *group) error {
		list := func() ([]int, error) {
			pids, err := tasks.pids()
			return slices.DeleteFunc(pids, func(pid int) bool { return pid == host }), err
		}
		switch {
		case sig != unix.SIGKILL:
			pids, err := list()
			if err != nil {
				return err
			}
			return signalEach(pids, sig, list)
		case host != 0:
			ctx, cancel := context.WithTimeout(context.Background(), hostPatience)
			defer cancel()
			return hunt(ctx, fmt.Sprintf("cgroup %q", tasks.path), list)
		}
		c.killed.Store(true)
		return tasks.strikeEach()
	})
}

// onTasks does something with the tasks' group, unless there is none any more.
func (c *Cgroup) onTasks(do func(tasks *group) error) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.tasks == nil {
		return nil
	}
	return do(c.tasks)
}

// Kill kills every process of the tasks, frozen and stopped ones too, and
// waits for the kernel to say that the leaf is empty. Before EvictHost this
// kills the host as well. The error is a *SurvivorsError when ctx ends first.
func (c *Cgroup) Kill(ctx context.Context) error {
	return c.onTasks(func(tasks *group) error {
		c.killed.Store(true)
		return tasks.kill(ctx)
	})
}

// Freeze stops the tasks by the freezer, which they cannot see or undo.
func (c *Cgroup) Freeze(ctx context.Context) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.tasks == nil {
		return fmt.Errorf("cannot freeze the tasks: %w", errClosed)
	}
	if err := c.tasks.freezeAll(ctx); err != nil {
		return fmt.Errorf("cannot freeze cgroup %q: %w", c.tasks.path, err)
	}
	return nil
}

// Thaw undoes Freeze.
func (c *Cgroup) Thaw() error {
	return c.onTasks(func(tasks *group) error {
		if tasks.v1 {
			return tasks.write(v1State, v1Thawed)
		}
		return tasks.write("cgroup.freeze", "0")
	})
}

// KeepHelpers kills what is left of the step and has started before since, in
// linux.StartTime's ticks; kept counts the others. It does not wait.
func (c *Cgroup) KeepHelpers(since uint64) (kept int, err error) {
	err = c.onTasks(func(tasks *group) error {
		kept, err = keepSince(func() ([]int, error) {
			// While the host was among the tasks, so are children of its system(3).
			pids, err := tasks.pids()
			helpers, herr := c.host.pids()
			return append(pids, helpers...), errors.Join(err, herr)
		}, since)
		return err
	})
	return kept, err
}

// Destroy kills tasks, host and helpers, and removes their groups; the step's
// own directory, in which stepd itself lives, is noded's. On error the tracker
// stays as it is, and Destroy may be called again.
func (c *Cgroup) Destroy(ctx context.Context) error {
	if err := c.destroyLeaves(ctx); err != nil {
		return err
	}
	// Every Kill that waits has seen the end of the processes by now.
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range []*group{c.tasks, c.host} {
		if g != nil {
			g.close()
		}
	}
	c.tasks, c.host = nil, nil
	return nil
}

func (c *Cgroup) destroyLeaves(ctx context.Context) error {
	return c.onTasks(func(*group) error {
		return errors.Join(
			destroyIn(ctx, filepath.Dir(c.cfg.Tasks), filepath.Base(c.cfg.Tasks)),
			destroyIn(ctx, c.cfg.Dir, leafHost),
		)
	})
}

// Spare makes Escaped pass over a child of stepd that is no task and in none of the step's
// cgroups. It may have ended.
func (c *Cgroup) Spare(pid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spared = append(c.spared, pid)
}

// Escaped finds living processes of the step that are in none of its cgroups:
// of tasks, and of the descendants of the caller, stepd, to which all orphans of
// the step come (PR_SET_CHILD_SUBREAPER). Processes that start meanwhile are passed over: where the
// step's fork without end, one more is always found.
func (c *Cgroup) Escaped(tasks []int) ([]launch.Escape, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.tasks == nil {
		return nil, nil
	}
	began := linux.TicksSinceBoot()
	below, err := descendantsBy(func(pid int) ([]int, error) {
		pids, err := c.children(pid)
		return slices.DeleteFunc(pids, func(pid int) bool {
			start, err := linux.StartTime(pid)
			return err != nil || start > began // it has ended, or is new
		}), err
	}, os.Getpid())
	if err != nil {
		return nil, err
	}
	var out []launch.Escape
	seen := make(map[int]bool)
	for _, pid := range append(append([]int(nil), tasks...), below...) {
		if seen[pid] || slices.Contains(c.spared, pid) {
			continue
		}
		seen[pid] = true
		e, ok, err := c.escape(pid)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, e)
		}
	}
	return out, nil
}

// children returns the children of the process, of the caller itself by MainForks.
func (c *Cgroup) children(pid int) ([]int, error) {
	if c.cfg.MainForks && pid == os.Getpid() {
		return childrenOfThread(pid, strconv.Itoa(pid))
	}
	return childrenOf(pid)
}

// escape looks at one process; most are where they belong, which costs one read.
func (c *Cgroup) escape(pid int) (launch.Escape, bool, error) {
	at, ok, err := cgroupOf(pid, c.tasks.v1)
	if err != nil || !ok || c.owns(at) {
		return launch.Escape{}, false, err
	}
	// It may have ended, and its number may be another's by now.
	living, err := livingPIDs([]int{pid})
	if err != nil || len(living) == 0 {
		return launch.Escape{}, false, err
	}
	comm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	if noProcess(err) {
		return launch.Escape{}, false, nil
	}
	return launch.Escape{PID: pid, Comm: strings.TrimSuffix(string(comm), "\n"), Cgroup: at}, err == nil, err
}

// owns reports whether a path of /proc/PID/cgroup is one of the step's: below
// ROOT/job_N/step_S or ROOT/job_N/tasks/step_S. What comes before depends on the
// cgroup namespace.
func (c *Cgroup) owns(path string) bool {
	path = strings.TrimSuffix(path, " (deleted)") + "/"
	return strings.Contains(path, lastOf(c.cfg.Dir, 3)) || strings.Contains(path, lastOf(c.cfg.Tasks, 4))
}

// lastOf is the end of a path, n names long, between slashes.
func lastOf(path string, n int) string {
	names := strings.Split(path, "/")
	return "/" + strings.Join(names[max(0, len(names)-n):], "/") + "/"
}

// cgroupOf reads where a process is: in v2, or in v1's freezer.
func cgroupOf(pid int, v1 bool) (path string, ok bool, err error) {
	file := filepath.Join("/proc", strconv.Itoa(pid), "cgroup")
	data, err := os.ReadFile(file)
	if noProcess(err) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("cannot read %q: %w", file, err)
	}
	if path = placeIn(data, v1); path == "" {
		return "", false, fmt.Errorf("cannot find the cgroup of process %d: %s does not tell", pid, file)
	}
	return path, true, nil
}

// placeIn finds a process's path in v2, or in v1's freezer, in its /proc/PID/cgroup
// (cgroups(7)); "" where it is in none.
func placeIn(membership []byte, v1 bool) string {
	byController, unified, err := cgroups.ParseCgroupFromReaderUnified(bytes.NewReader(membership))
	path := unified
	if v1 {
		path = byController["freezer"]
	}
	if err != nil || !strings.HasPrefix(path, "/") {
		return ""
	}
	return path
}
