package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// NewTmpfs returns a detached, empty file system in memory without set-user-ID programs and
// devices, and with the flags besides (MOUNT_ATTR_NOEXEC). source is its name in the table of
// mounts, and options are pairs of tmpfs(5). It is gone when the file is closed unattached.
func NewTmpfs(source string, flags int, options ...[2]string) (*os.File, error) {
	ctx, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(ctx)
	for _, o := range append([][2]string{{"source", source}}, options...) {
		if err := unix.FsconfigSetString(ctx, o[0], o[1]); err != nil {
			return nil, fmt.Errorf("fsconfig %s=%s: %w", o[0], o[1], err)
		}
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return nil, fmt.Errorf("fsconfig create: %w", err)
	}
	fd, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|flags)
	if err != nil {
		return nil, fmt.Errorf("fsmount: %w", err)
	}
	return os.NewFile(uintptr(fd), source), nil
}

// CloneMount returns a detached bind mount of dir alone: not of what is mounted below it. It
// is gone when the file is closed unattached. dir must be in the calling thread's mount namespace.
func CloneMount(dir *os.File) (*os.File, error) {
	fd, err := unix.OpenTree(int(dir.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, fmt.Errorf("open_tree: %w", err)
	}
	return os.NewFile(uintptr(fd), dir.Name()), nil
}

// Attach mounts a detached tree on target, which must be in the calling thread's mount
// namespace. The tree's file then is the root of the mount.
func Attach(tree, target *os.File) error {
	err := unix.MoveMount(int(tree.Fd()), "", int(target.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// IsMount reports whether f is the root of a mount.
func IsMount(f *os.File) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, 0, &st); err != nil {
		return false, fmt.Errorf("cannot stat %q: %w", f.Name(), err)
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// Unmount unmounts the mount whose root f is, in use or not. The magic link keeps the path out
// of it: what was opened is what is unmounted.
func Unmount(f *os.File) error {
	if err := unix.Unmount(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot unmount %q: %w", f.Name(), err)
	}
	return nil
}

// UnmountAt unmounts all that is mounted at dir/name, in use or not; name need not exist. More
// than one mount can be there only if another process mounted; all go.
//
// Other mount namespaces keep their copies until dir/name is removed: the kernel then takes
// them away everywhere (since Linux 3.18).
func UnmountAt(dir *os.File, name string) error {
	full := path.Join(dir.Name(), name)
	for {
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return &fs.PathError{Op: "open", Path: full, Err: err}
		}
		f := os.NewFile(uintptr(fd), full)
		mounted, err := IsMount(f)
		if err == nil && mounted {
			err = Unmount(f)
		}
		f.Close()
		if err != nil || !mounted {
			return err
		}
	}
}
