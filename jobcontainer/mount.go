package jobcontainer

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"sync"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/internal/printable"
)

const (
	pinName  = "ns"
	pidName  = "pid"
	userName = "user"
	baseName = "base"
	uidName  = "uid"
	// nsGetNSType is NS_GET_NSTYPE of linux/nsfs.h, _IO(0xb7, 3).
	nsGetNSType = 0xb703
)

// pinRoot is RUN/jobs. A pin is a mount, and a mount below a shared one would
// be copied into every other mount namespace of the host and hold the job's
// namespace there; so RUN/jobs is bind-mounted on itself and made private for
// as long as it is in use.
type pinRoot struct {
	path string
	// last is called under the lock after the last user has gone: no caller
	// can begin to use BASE/TAG meanwhile.
	last func() error

	mu    sync.Mutex
	users int      // guarded by mu
	dir   *os.File // guarded by mu; root of the bind mount while users > 0
}

// acquire returns the mounted directory; each call needs one release. The lock
// is held over the mount calls because a second user must find them done.
func (p *pinRoot) acquire() (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 {
		dir, err := mountPinRoot(p.path)
		if err != nil {
			return nil, err
		}
		p.dir = dir
	}
	p.users++
	return p.dir, nil
}

// release undoes one acquire, and the last one the mount.
func (p *pinRoot) release() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users > 0 {
		return nil
	}
	dir := p.dir
	p.dir = nil
	return printable.JoinErrors(linux.Unmount(dir), dir.Close(), p.last())
}

// leave closes the directory and leaves the mount to the next noded.
func (p *pinRoot) leave() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 {
		return nil
	}
	p.users = 0
	return p.dir.Close()
}

// mountPinRoot makes the bind mount, or takes over one that an earlier noded
// left: RUN is ours, so any mount at RUN/jobs is.
func mountPinRoot(p string) (*os.File, error) {
	if err := os.MkdirAll(p, 0o755); err != nil {
		return nil, fmt.Errorf("cannot create directory %q: %w", p, err)
	}
	fd, err := unix.Open(p, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open directory %q: %w", p, err)
	}
	dir := os.NewFile(uintptr(fd), p)
	if err := checkOwn(dir); err != nil {
		dir.Close()
		return nil, fmt.Errorf("cannot use directory %q: %w", p, err)
	}
	if dir, err = mountOnItself(dir); err != nil {
		return nil, err
	}
	return dir, nil
}

// mountOnItself bind-mounts a directory on itself, if it is no mount yet, and makes the mount
// private. It returns its root; dir is closed, after an error as well.
func mountOnItself(dir *os.File) (*os.File, error) {
	p := dir.Name()
	mounted, err := linux.IsMount(dir)
	if err != nil {
		dir.Close()
		return nil, err
	}
	if !mounted {
		tree, err := cloneMount(dir, 0)
		if err == nil {
			if err = linux.Attach(tree, dir); err != nil {
				tree.Close()
			}
		}
		dir.Close()
		if err != nil {
			return nil, fmt.Errorf("cannot mount %q on itself: %w", p, err)
		}
		dir = tree // attached: it now names the root of the mount
	}
	// Only now: attaching to a shared parent makes the new mount shared.
	if err := setPrivate(dir); err != nil {
		err = printable.JoinErrors(err, linux.Unmount(dir))
		dir.Close()
		return nil, fmt.Errorf("cannot make mount %q private: %w", p, err)
	}
	return dir, nil
}

// cloneMount returns a detached bind mount of dir alone: not of what is
// mounted below it. It is gone when the file is closed unattached.
func cloneMount(dir *os.File, attrs uint64) (*os.File, error) {
	tree, err := linux.CloneMount(dir)
	if err != nil {
		return nil, err
	}
	// A clone joins the peer group of its origin. Without this, what is mounted
	// in the job's /tmp would appear in BasePath on the host.
	attr := unix.MountAttr{Attr_set: attrs, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH, &attr); err != nil {
		tree.Close()
		return nil, fmt.Errorf("mount_setattr: %w", err)
	}
	return tree, nil
}

func setPrivate(dir *os.File) error {
	attr := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	return unix.MountSetattr(int(dir.Fd()), "", unix.AT_EMPTY_PATH, &attr)
}

func procFD(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// pin keeps the namespace ns alive at dir/name.
func pin(dir *os.File, name string, ns *os.File) error {
	if err := writeSmall(dir, name, ""); err != nil {
		return err
	}
	target, err := openBeneath(dir, name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer target.Close()
	// mount(2) and not open_tree: kernels differ in whether they clone a
	// namespace's file that is not mounted yet.
	if err := unix.Mount(procFD(ns), procFD(target), "", unix.MS_BIND, ""); err != nil {
		return &fs.PathError{Op: "bind mount namespace on", Path: target.Name(), Err: err}
	}
	return nil
}

// openPin opens the namespace of a kind (CLONE_NEWNS and its kin) at dir/name;
// fs.ErrNotExist where there is none.
func openPin(dir *os.File, name string, kind int) (*os.File, error) {
	full := path.Join(dir.Name(), name)
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: full, Err: err}
	}
	f := os.NewFile(uintptr(fd), full)
	is, err := unix.IoctlRetInt(fd, nsGetNSType)
	if err != nil || is != kind {
		f.Close()
		return nil, &fs.PathError{Op: "open namespace at", Path: full, Err: unix.ENOENT}
	}
	return f, nil
}

// unpin removes dir/name, mounted or not.
func unpin(dir *os.File, name string) error {
	if err := linux.UnmountAt(dir, name); err != nil {
		return err
	}
	return removeAt(dir, name, 0)
}
