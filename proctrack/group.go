package proctrack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// group is one cgroup directory, held by descriptor: all names below it are
// resolved from there, and none of them follows a symlink. Its methods keep no
// state and may be called from several goroutines, until close.
type group struct {
	fd   int
	path string // for messages only
	v1   bool   // in a v1 hierarchy
}

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// openGroup opens an absolute path, and refuses what is not a cgroup
// directory: what follows kills and removes.
func openGroup(path string) (*group, error) {
	fd, err := openat(unix.AT_FDCWD, path, dirFlags)
	if err != nil {
		return nil, fmt.Errorf("cannot open cgroup %q: %w", path, err)
	}
	var fs unix.Statfs_t
	err = linux.IgnoringEINTR(func() error { return unix.Fstatfs(fd, &fs) })
	if err == nil && fs.Type != unix.CGROUP2_SUPER_MAGIC && fs.Type != unix.CGROUP_SUPER_MAGIC {
		err = errors.New("not on a cgroup file system")
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot open cgroup %q: %w", path, err)
	}
	return &group{fd: fd, path: path, v1: fs.Type == unix.CGROUP_SUPER_MAGIC}, nil
}

func (g *group) close() { unix.Close(g.fd) }

// child opens a group below g; "." is g once more, ".." the group above it.
func (g *group) child(name string) (*group, error) {
	path := filepath.Join(g.path, name)
	fd, err := openat(g.fd, name, dirFlags)
	if err != nil {
		return nil, fmt.Errorf("cannot open cgroup %q: %w", path, err)
	}
	return &group{fd: fd, path: path, v1: g.v1}, nil
}

// The modes of cgroups. What a step daemon may lock (flock(2)) is private: to lock a directory
// is to open it, and a user who holds the lock would hold up every step of the node. Its files
// can be read by their paths, as in the others.
const (
	modeShown   = 0o755
	modePrivate = 0o711
)

// mkdir makes a child. fs.ErrExist is in the error when there is one already.
func (g *group) mkdir(name string) error { return g.mkdirAs(name, modeShown) }

func (g *group) mkdirAs(name string, mode uint32) error {
	err := linux.IgnoringEINTR(func() error { return unix.Mkdirat(g.fd, name, mode) })
	if err != nil {
		return mkdirError(filepath.Join(g.path, name), err)
	}
	return nil
}

func (g *group) rmdir(name string) error {
	err := linux.IgnoringEINTR(func() error { return unix.Unlinkat(g.fd, name, unix.AT_REMOVEDIR) })
	if err != nil {
		return fmt.Errorf("cannot remove cgroup %q: %w", filepath.Join(g.path, name), err)
	}
	return nil
}

// children lists the names of the sub-cgroups. A group that was removed has none.
func (g *group) children() ([]string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(g.fd, &st); err == nil && st.Nlink == 2 {
		return nil, nil // kernfs counts them as links
	}
	fd, err := openat(g.fd, ".", dirFlags)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list cgroup %q: %w", g.path, err)
	}
	dir := os.NewFile(uintptr(fd), g.path)
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil && !gone(err) {
		return nil, fmt.Errorf("cannot list cgroup %q: %w", g.path, err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (g *group) read(file string) ([]byte, error) {
	fd, err := openat(g.fd, file, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot open %q: %w", filepath.Join(g.path, file), err)
	}
	f := os.NewFile(uintptr(fd), filepath.Join(g.path, file))
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("cannot read %q: %w", f.Name(), err)
	}
	return data, nil
}

// procs opens cgroup.procs for writing.
func (g *group) procs() (*os.File, error) {
	path := filepath.Join(g.path, "cgroup.procs")
	fd, err := openat(g.fd, "cgroup.procs", unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot open %q: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (g *group) write(file, value string) error {
	return linux.WriteFile(g.fd, file, filepath.Join(g.path, file), value)
}

// has reports whether the kernel gives the group such a file.
func (g *group) has(file string) bool {
	return linux.IgnoringEINTR(func() error { return unix.Faccessat(g.fd, file, unix.F_OK, 0) }) == nil
}

// pids lists the processes of the group and of all groups below it.
func (g *group) pids() ([]int, error) {
	var pids []int
	err := g.walk(func(g *group) error {
		own, err := g.ownPIDs()
		pids = append(pids, own...)
		return err
	}, nil)
	return pids, err
}

// ownPIDs leaves out the groups below.
func (g *group) ownPIDs() ([]int, error) {
	data, err := g.read("cgroup.procs")
	switch {
	case gone(err), errors.Is(err, unix.EOPNOTSUPP):
		return nil, nil // EOPNOTSUPP: a threaded group, whose processes are listed in its domain, above
	case err != nil:
		return nil, err
	}
	pids, err := parsePIDs(data)
	if err != nil {
		return nil, fmt.Errorf("cannot parse %q: %w", filepath.Join(g.path, "cgroup.procs"), err)
	}
	return pids, nil
}

// gone reports whether err says that the cgroup was removed: ENODEV comes from
// files of a removed group that were opened before (kernfs).
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) }

// unlessGone is err, nil where that says that the cgroup was removed.
func unlessGone(err error) error {
	if gone(err) {
		return nil
	}
	return err
}

// in does something in a group.
func in(path string, do func(*group) error) error {
	g, err := openGroup(path)
	if err != nil {
		return err
	}
	defer g.close()
	return do(g)
}

// within is in for a group that may be missing, or be removed meanwhile.
func within(path string, do func(*group) error) error { return unlessGone(in(path, do)) }

func openat(dir int, name string, flags int) (fd int, err error) {
	return linux.Uninterrupted(func() (int, error) { return unix.Openat(dir, name, flags, 0) })
}

// parsePIDs reads cgroup.procs and /proc/PID/task/TID/children: numbers
// between white space. A process of another pid namespace is shown as 0, and
// nothing can be done to it from here.
func parsePIDs(data []byte) ([]int, error) {
	fields := bytes.Fields(data)
	pids := make([]int, 0, len(fields))
	for _, field := range fields {
		pid, err := strconv.ParseInt(string(field), 10, 32)
		if err != nil || pid < 0 {
			return nil, fmt.Errorf("%q is not a process id", field)
		}
		if pid > 0 {
			pids = append(pids, int(pid))
		}
	}
	return pids, nil
}

// walkMax bounds how many groups a walk that removes none goes through. Users
// cannot make groups; a task that runs as root can make as many as the limits
// of the cgroups above allow (cgroup.max.descendants).
const walkMax = 100_000

// walk goes through g and all groups below it: enter is called with each before
// those below it, leave with each but g itself after them. Either may be nil.
// What is removed meanwhile is passed over.
func (g *group) walk(enter func(*group) error, leave func(parent *group, name string) error) error {
	at, err := g.child(".")
	if err != nil {
		return unlessGone(err)
	}
	w := &walker{at: at, enter: enter, leave: leave}
	defer func() { w.at.close() }()
	for err = w.arrive(); err == nil; err = w.next() {
		continue
	}
	if errors.Is(err, errWalked) {
		return nil
	}
	return err
}

// errWalked ends a walk.
var errWalked = errors.New("internal error: the walk has ended")

// walker is a place in a tree of groups. However deep that is, two descriptors
// are open and nothing recurses: the way up is "..", which no process can
// change in a cgroup file system.
type walker struct {
	at      *group
	names   []string // groups in it that are still to be gone through
	above   []level
	visited int
	enter   func(*group) error
	leave   func(parent *group, name string) error
}

// level is the way back up.
type level struct {
	name  string   // of the group that was entered
	names []string // of its siblings that are still to be visited
}

// next enters one group or leaves one.
func (w *walker) next() error {
	if len(w.names) == 0 {
		return w.ascend()
	}
	name := w.names[len(w.names)-1]
	w.names = w.names[:len(w.names)-1]
	child, err := w.at.child(name)
	if err != nil {
		return unlessGone(err)
	}
	w.above = append(w.above, level{name, w.names})
	w.at.close()
	w.at = child
	return w.arrive()
}

func (w *walker) arrive() (err error) {
	if w.visited++; w.leave == nil && w.visited > walkMax {
		return fmt.Errorf("cannot go through cgroup %q: it is one of more than %d", w.at.path, walkMax)
	}
	if w.enter != nil {
		if err := w.enter(w.at); err != nil {
			return err
		}
	}
	w.names, err = w.at.children()
	return err
}

func (w *walker) ascend() error {
	if len(w.above) == 0 {
		return errWalked
	}
	up, err := w.at.child("..")
	if err != nil {
		return err
	}
	w.at.close()
	w.at = up
	last := w.above[len(w.above)-1]
	w.above, w.names = w.above[:len(w.above)-1], last.names
	if w.leave == nil {
		return nil
	}
	return w.leave(w.at, last.name)
}

// busy reports whether err says that a group is not empty.
func busy(err error) bool { return errors.Is(err, unix.EBUSY) }

// limitHint lists the limits on the number and depth of cgroups that hold for
// children of dir: the limits of dir itself and of all its ancestors.
func limitHint(dir string) string {
	var limits []string
	for ; ; dir = filepath.Dir(dir) {
		for _, knob := range []string{"cgroup.max.descendants", "cgroup.max.depth"} {
			data, err := os.ReadFile(filepath.Join(dir, knob))
			if err != nil {
				continue // the root has none, and above it there is no cgroup
			}
			if value := strings.TrimSpace(string(data)); value != "max" {
				limits = append(limits, fmt.Sprintf("%s=%s in %q", knob, value, dir))
			}
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	if len(limits) == 0 {
		return ""
	}
	return strings.Join(limits, ", ") + ": raise it"
}

// dyingHint reports removed groups that the kernel still keeps: they count
// until the last reference to them is dropped.
func dyingHint(dir string) string {
	n, _ := linux.Value(filepath.Join(dir, "cgroup.stat"), "nr_dying_descendants")
	if n == "" {
		return ""
	}
	return fmt.Sprintf("%s removed cgroups below %q are not freed yet", n, dir)
}

// wanted are the v2 controllers that limits and accounting can use.
var wanted = [...]string{"cpu", "cpuset", "io", "memory", "pids"}

// controllers are the v2 controllers of a group, and those that it gives to its children.
type controllers struct{ *group }

// delegate enables the wanted controllers for the children of g, as far as g
// has them, and says why the others stay disabled.
func (g controllers) delegate() (missing map[string]string, err error) {
	missing = make(map[string]string)
	if g.v1 {
		return missing, nil
	}
	want, err := g.lacking()
	if err != nil || len(want) == 0 {
		return missing, err
	}
	why, err := g.keepsAll()
	if err != nil {
		return nil, err
	}
	if why == "" && g.enable(want) == nil {
		return missing, nil
	}
	for _, c := range want {
		if why != "" {
			missing[c] = why
		} else if err := g.enable([]string{c}); err != nil {
			missing[c] = err.Error()
		}
	}
	return missing, nil
}

// lacking lists the wanted controllers that g has and its children have not.
func (g controllers) lacking() ([]string, error) {
	has, err := g.listed("cgroup.controllers")
	if err != nil {
		return nil, err
	}
	enabled, err := g.listed("cgroup.subtree_control")
	return slices.DeleteFunc(has, func(c string) bool {
		return !slices.Contains(wanted[:], c) || slices.Contains(enabled, c)
	}), err
}

// keepsAll says why none may be enabled: where processes are in g itself, the
// kernel refuses memory and io, and takes cpu and pids for a wish to have threads
// in the children, which could hold no processes any more (cgroup-v2.rst,
// "Threads"). The root of all alone may have processes.
func (g controllers) keepsAll() (why string, err error) {
	if !g.has("cgroup.type") {
		return "", nil
	}
	pids, err := g.ownPIDs()
	if err != nil || len(pids) == 0 {
		return "", err
	}
	return fmt.Sprintf("%d processes are in cgroup %q itself, whose controllers can then limit nothing below it", len(pids), g.path), nil
}

// enable lets these controllers limit the children of g.
func (g controllers) enable(names []string) error {
	if len(names) == 0 {
		return nil
	}
	enabled, err := g.listed("cgroup.subtree_control")
	if err != nil {
		return err
	}
	var change []string
	for _, c := range names {
		if !slices.Contains(enabled, c) {
			change = append(change, "+"+c)
		}
	}
	if len(change) == 0 {
		return nil
	}
	return g.write("cgroup.subtree_control", strings.Join(change, " "))
}

// delegated lists the wanted controllers that limit the children of g.
func (g controllers) delegated() ([]string, error) {
	if g.v1 {
		return nil, nil
	}
	enabled, err := g.listed("cgroup.subtree_control")
	return slices.DeleteFunc(enabled, func(c string) bool { return !slices.Contains(wanted[:], c) }), err
}

// listed reads a file of controllers' names.
func (g controllers) listed(file string) ([]string, error) {
	data, err := g.read(file)
	return strings.Fields(string(data)), err
}

// prepareV1 makes a new v1 group fit for processes: a cpuset takes none, and
// says ENOSPC, before it has CPUs and memory nodes; memory counts what is below
// only if memory.use_hierarchy is set, before Linux 5.11. Values that are already set
// stay.
func (g *group) prepareV1(parent *group) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		if err := g.inherit(parent, file); err != nil {
			return err
		}
	}
	if !g.has("memory.use_hierarchy") {
		return nil
	}
	if data, err := g.read("memory.use_hierarchy"); err != nil || strings.TrimSpace(string(data)) == "1" {
		return err
	}
	return g.write("memory.use_hierarchy", "1")
}

// inherit fills an empty file with the parent's value.
func (g *group) inherit(parent *group, file string) error {
	if !g.has(file) {
		return nil
	}
	own, err := g.read(file)
	if err != nil || strings.TrimSpace(string(own)) != "" {
		return err
	}
	value, err := parent.read(file)
	if err != nil {
		return err
	}
	text := strings.TrimSpace(string(value))
	if text == "" {
		return fmt.Errorf("cannot use cgroup %q: %s of %q is empty", g.path, file, parent.path)
	}
	return g.write(file, text)
}
