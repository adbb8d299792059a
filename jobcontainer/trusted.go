package jobcontainer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// linksMax is the kernel's own bound on symbolic links in one path.
const linksMax = 40

// missing says what openTrusted does about a path that does not exist.
type missing string

const (
	failMissing missing = "fail"
	makeMissing missing = "make" // directories, mode 0755
)

// openTrusted opens an administrator's path with O_PATH, so that only root
// can have decided what it leads to: every directory on the way belongs
// to root and is writable by root alone, or has the sticky bit (/tmp), and a
// symbolic link counts only if root made it. What is found at the end is the
// caller's to check. The error names the component at fault.
func openTrusted(p string, m missing) (*os.File, error) {
	full := p
	for range linksMax {
		f, redirect, err := walkTrusted(full, m)
		if err != nil || f != nil {
			return f, err
		}
		full = redirect
	}
	return nil, &fs.PathError{Op: "open", Path: p, Err: unix.ELOOP}
}

// walkTrusted goes from the root to the end of p, or to the first link: then
// it returns where that leads. The directory's name is free of links at any
// time, so ".." in a link's target may be taken off it as text.
func walkTrusted(p string, m missing) (f *os.File, redirect string, err error) {
	at, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", &fs.PathError{Op: "open", Path: "/", Err: err}
	}
	dir := os.NewFile(uintptr(at), "/")
	names := strings.Split(p, "/")
	for i, name := range names {
		rest := strings.Join(names[i+1:], "/")
		switch name {
		case "", ".":
			continue
		case "..":
			dir.Close()
			return nil, path.Dir(dir.Name()) + "/" + rest, nil
		}
		next, target, err := stepInto(dir, name, m)
		dir.Close()
		switch {
		case err != nil:
			return nil, "", err
		case path.IsAbs(target):
			return nil, target + "/" + rest, nil
		case target != "":
			return nil, dir.Name() + "/" + target + "/" + rest, nil
		}
		dir = next
	}
	return dir, "", nil
}

// stepInto opens name in dir, or returns the target of a link that root made.
func stepInto(dir *os.File, name string, m missing) (next *os.File, link string, err error) {
	full := path.Join(dir.Name(), name)
	if err := checkKept(dir); err != nil {
		return nil, "", err
	}
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	at, err := unix.Openat(int(dir.Fd()), name, flags, 0)
	if errors.Is(err, unix.ENOENT) && m == makeMissing {
		if err := mkdirAt(dir, name, 0o755); err != nil {
			return nil, "", err
		}
		at, err = unix.Openat(int(dir.Fd()), name, flags, 0)
	}
	if err != nil {
		return nil, "", &fs.PathError{Op: "open", Path: full, Err: err}
	}
	f := os.NewFile(uintptr(at), full)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		f.Close()
		return nil, "", &fs.PathError{Op: "stat", Path: full, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return f, "", nil
	}
	defer f.Close()
	if st.Uid != 0 {
		return nil, "", fmt.Errorf("symbolic link %q belongs to uid %d, not to root", full, st.Uid)
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at, "", buf)
	if err != nil {
		return nil, "", &fs.PathError{Op: "readlink", Path: full, Err: err}
	}
	return nil, string(buf[:n]), nil
}

// checkKept refuses a directory in which a user other than root could
// replace an entry that is root's.
func checkKept(dir *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return &fs.PathError{Op: "open", Path: dir.Name(), Err: unix.ENOTDIR}
	}
	if st.Uid != 0 {
		return fmt.Errorf("directory %[1]q belongs to uid %[2]d, not to root: chown root %[1]s", dir.Name(), st.Uid)
	}
	if writableByOthers(&st) && st.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("directory %[1]q has mode %#[2]o: others than root may write there: chmod go-w %[1]s", dir.Name(), st.Mode&0o7777)
	}
	return nil
}

// checkOwn is checkKept for the end of the path, where not even the sticky bit
// is enough: others could make an entry before us.
func checkOwn(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	if st.Uid != 0 {
		return fmt.Errorf("%[1]q belongs to uid %[2]d, not to root: chown root %[1]s", f.Name(), st.Uid)
	}
	if writableByOthers(&st) {
		return fmt.Errorf("%[1]q has mode %#[2]o: others than root may write there: chmod go-w %[1]s", f.Name(), st.Mode&0o7777)
	}
	return nil
}

func writableByOthers(st *unix.Stat_t) bool {
	return st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && st.Gid != 0
}

// mkdirAt makes a directory with exactly this mode, whatever the umask is. A
// directory that exists is left alone.
func mkdirAt(dir *os.File, name string, mode uint32) error {
	full := path.Join(dir.Name(), name)
	err := unix.Mkdirat(int(dir.Fd()), name, mode)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "mkdir", Path: full, Err: err}
	}
	// The name cannot be swapped in between: dir is root's alone.
	if err := unix.Fchmodat(int(dir.Fd()), name, mode, 0); err != nil {
		return &fs.PathError{Op: "chmod", Path: full, Err: err}
	}
	return nil
}

// makeDir makes a directory, or finds it, and opens it.
func makeDir(dir *os.File, name string, mode uint32) (*os.File, error) {
	if err := mkdirAt(dir, name, mode); err != nil {
		return nil, err
	}
	return openDir(dir, name)
}

// removeAt removes a file, or with unix.AT_REMOVEDIR a directory. One that does not exist
// is no error.
func removeAt(dir *os.File, name string, flags int) error {
	if err := unix.Unlinkat(int(dir.Fd()), name, flags); err != nil && !errors.Is(err, unix.ENOENT) {
		op := "unlink"
		if flags&unix.AT_REMOVEDIR != 0 {
			op = "rmdir"
		}
		return &fs.PathError{Op: op, Path: path.Join(dir.Name(), name), Err: err}
	}
	return nil
}

// openDir is openBeneath for a directory that is to be listed.
func openDir(dir *os.File, name string) (*os.File, error) {
	return openBeneath(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openBeneath opens the directory name in dir for reading. It follows no link
// and crosses no mount, whatever a user has put there.
func openBeneath(dir *os.File, name string, flags uint64) (*os.File, error) {
	full := path.Join(dir.Name(), name)
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: full, Err: err}
	}
	return os.NewFile(uintptr(fd), full), nil
}
