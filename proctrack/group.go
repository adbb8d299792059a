package proctrack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

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

func (g *group) child(name string) (*group, error) {
	fd, err := openat(g.fd, name, dirFlags)
	if err != nil {
		return nil, fmt.Errorf("cannot open cgroup %q: %w", filepath.Join(g.path, name), err)
	}
	return &group{fd: fd, path: filepath.Join(g.path, name), v1: g.v1}, nil
}

// mkdir makes a child. fs.ErrExist is in the error when there is one already.
func (g *group) mkdir(name string) error {
	err := linux.IgnoringEINTR(func() error { return unix.Mkdirat(g.fd, name, 0o755) })
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
	case gone(err):
		return nil, nil
	case errors.Is(err, unix.EOPNOTSUPP):
		// A threaded group: its processes are listed in its domain, above.
		return nil, nil
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
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
}

func openat(dir int, name string, flags int) (fd int, err error) {
	err = linux.IgnoringEINTR(func() (err error) {
		fd, err = unix.Openat(dir, name, flags, 0)
		return err
	})
	return fd, err
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
