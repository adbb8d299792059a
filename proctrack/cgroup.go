package proctrack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Names of the leaves of a step's cgroup.
const (
	leafStepd = "stepd"
	leafTasks = "tasks"
	leafHost  = "host"
)

// Cgroup tracks a step by a cgroup of the v2 tree. The kernel puts every
// descendant of a member there, so no process escapes, whatever it does.
type Cgroup struct {
	dir string

	// mu is held for reading while the descriptors are in use, and for
	// writing only to open and to close them.
	mu    sync.RWMutex
	tasks *group // guarded by mu; nil before Create and after Destroy
	host  *group // guarded by mu; as tasks

	// killed is set before the first SIGKILL to the tasks' group (HostCgroup).
	killed atomic.Bool
}

// NewCgroup returns a tracker below dir, the step's cgroup, which noded made.
// Nothing is touched before Create.
func NewCgroup(dir string) *Cgroup { return &Cgroup{dir: dir} }

// Create makes the leaves for the tasks and for the SPANK host. That they do
// not exist yet is required: what is in there would not be this step's.
func (c *Cgroup) Create() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tasks != nil {
		return fmt.Errorf("internal error: cgroups below %q were created already", c.dir)
	}
	parent, err := openGroup(c.dir)
	if err != nil {
		return err
	}
	defer parent.close()
	tasks, err := makeLeaf(parent, leafTasks)
	if err != nil {
		return err
	}
	host, err := makeLeaf(parent, leafHost)
	if err != nil {
		tasks.close()
		return errors.Join(err, parent.rmdir(leafTasks))
	}
	c.tasks, c.host = tasks, host
	return nil
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

// HostCgroup is the tasks' leaf for CLONE_INTO_CGROUP. The descriptor stays
// the tracker's and is valid until Destroy.
//
// After a Kill there is none, and processes must be added: current kernels
// (seen: 6.18) compare the number of kills that the parent's own group has had
// with the target's, and kill a child that is cloned from one to the other.
// Nor is there one before Linux 5.14, which brought cgroup.kill; the clone
// itself needs 5.7.
func (c *Cgroup) HostCgroup() (fd int, ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.tasks == nil || c.killed.Load() || !c.tasks.has("cgroup.kill") {
		return -1, false
	}
	return c.tasks.fd, true
}

// Add moves a process to the tasks. Its threads come along, its children that
// exist already do not.
func (c *Cgroup) Add(rank, pid int) error { return c.move(pid, func() *group { return c.tasks }) }

// EvictHost moves the host to its own leaf; a frozen host goes on running
// there. A host that has ended needs no move.
func (c *Cgroup) EvictHost(pid int) error {
	err := c.move(pid, func() *group { return c.host })
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

// move writes one pid; leaf is called under the lock.
func (c *Cgroup) move(pid int, leaf func() *group) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	g := leaf()
	if g == nil {
		return fmt.Errorf("cannot track process %d: %w", pid, errClosed)
	}
	// The kernel would take 0 for the writer, which must never land there.
	if pid <= 0 {
		return fmt.Errorf("cannot track process %d: not a process id", pid)
	}
	return g.write("cgroup.procs", fmt.Sprint(pid))
}

// PIDs lists the processes of the tasks, those in cgroups that a task made
// included. Until EvictHost, the host is among them. After Destroy there are none.
func (c *Cgroup) PIDs() ([]int, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.tasks == nil {
		return nil, nil
	}
	return c.tasks.pids()
}

// HasPID tells whether the process is in the tasks' leaf or below it.
func (c *Cgroup) HasPID(pid int) (bool, error) {
	pids, err := c.PIDs()
	return set(pids)[pid], err
}

// Signal sends sig to every process of the tasks. SIGKILL reaches also those
// that are being forked.
func (c *Cgroup) Signal(sig syscall.Signal) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.tasks == nil {
		return nil
	}
	if sig == unix.SIGKILL {
		c.killed.Store(true)
		return c.tasks.strike()
	}
	return c.tasks.signal(sig)
}

// Kill kills every process of the tasks, frozen and stopped ones too, and
// waits for the kernel to say that the leaf is empty. Before EvictHost this
// kills the host as well. The error is a *SurvivorsError when ctx ends first.
func (c *Cgroup) Kill(ctx context.Context) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.tasks == nil {
		return nil
	}
	c.killed.Store(true)
	return c.tasks.kill(ctx)
}

// Freeze stops the tasks by cgroup.freeze, which they cannot see or undo.
func (c *Cgroup) Freeze(ctx context.Context) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.tasks == nil {
		return fmt.Errorf("cannot freeze the tasks: %w", errClosed)
	}
	if err := c.tasks.write("cgroup.freeze", "1"); err != nil {
		return err
	}
	err := c.tasks.await(ctx, func(ev events) (bool, error) {
		return ev.frozen || !ev.populated, nil
	})
	if err != nil {
		return fmt.Errorf("cannot freeze cgroup %q: %w", c.tasks.path, err)
	}
	return nil
}

// Thaw undoes Freeze.
func (c *Cgroup) Thaw() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.tasks == nil {
		return nil
	}
	return c.tasks.write("cgroup.freeze", "0")
}

// ContainerID is the inode number of the tasks' leaf, which on v2 is the
// kernel's 64-bit id of the cgroup.
func (c *Cgroup) ContainerID() (uint64, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.tasks == nil {
		return 0, fmt.Errorf("cannot tell the container id: %w", errClosed)
	}
	var st unix.Stat_t
	if err := unix.Fstat(c.tasks.fd, &st); err != nil {
		return 0, &os.PathError{Op: "fstat", Path: c.tasks.path, Err: err}
	}
	return st.Ino, nil
}

// Destroy kills tasks, host and helpers, and removes both leaves; the step's
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
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.tasks == nil {
		return nil
	}
	parent, err := openGroup(c.dir)
	if gone(err) {
		return nil // noded killed and removed all of it
	}
	if err != nil {
		return err
	}
	defer parent.close()
	return errors.Join(parent.destroyChild(ctx, leafTasks), parent.destroyChild(ctx, leafHost))
}
