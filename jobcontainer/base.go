package jobcontainer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/internal/printable"
	"stepd/step/launch"
)

const (
	// markerName says in BASE/TAG which node the directory belongs to.
	markerName = ".node"
	// tryName is the file that Try writes there. No node's own name begins with a dot.
	tryName = markerName + "..try"
	// markerMax bounds what is read of it.
	markerMax = 4096
)

// makeTag opens BASE/TAG and makes it where it is missing. It refuses a
// BasePath that others can write to, and one that another node uses.
func makeTag(cfg *Config) (*os.File, error) {
	m := failMissing
	if cfg.AutoBasePath {
		m = makeMissing
	}
	base, err := openBase(cfg, m)
	if err != nil {
		return nil, err
	}
	defer base.Close()
	tag, err := ownDir(makeDir(base, cfg.NodeTag, 0o700))
	if err != nil {
		return nil, baseError(cfg, err)
	}
	if err := claimTag(tag, cfg.NodeName); err != nil {
		tag.Close()
		return nil, baseError(cfg, err)
	}
	return tag, nil
}

// baseError adds the knob, and the remedy for the usual mistake. That there is no room, of a disk or
// of another kind, is no fault of the node's: a job may have taken it, and its end gives it back.
func baseError(cfg *Config, err error) error {
	hint := "BasePath= in job_container.conf"
	if errors.Is(err, unix.ENOENT) && !cfg.AutoBasePath {
		hint += ": make it or set AutoBasePath=true"
	}
	full := slices.ContainsFunc([]error{unix.ENOSPC, unix.EDQUOT, unix.ENOMEM, unix.ENFILE, unix.EMFILE}, func(e error) bool { return errors.Is(err, e) })
	if err = fmt.Errorf("cannot use job container directory %q: %w (%s)", cfg.BasePath, err, hint); full {
		return err
	}
	return &launch.FaultError{Err: err}
}

// openTag opens an existing BASE/TAG for removing from it; nil when there is none.
func openTag(basePath, nodeTag string) (*os.File, error) {
	base, err := openTrusted(basePath, failMissing)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer base.Close()
	tag, err := ownDir(openDir(base, nodeTag))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return tag, err
}

// claimTag writes the node's name into the directory, or checks that it is
// ours already. The spool's hash alone would be equal on all nodes of a
// cluster, and two nodes on one shared BasePath would remove each other's jobs.
func claimTag(tag *os.File, node string) error {
	owner, err := readSmall(tag, markerName)
	if errors.Is(err, unix.ENOENT) {
		// linkat never replaces and is atomic on NFS as well: of two nodes
		// that come here at once, one finds the other's name.
		tmp := markerName + "." + node
		if err := writeSmall(tag, tmp, node+"\n"); err != nil {
			return err
		}
		err := unix.Linkat(int(tag.Fd()), tmp, int(tag.Fd()), markerName, 0)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return &fs.PathError{Op: "link", Path: path.Join(tag.Name(), markerName), Err: err}
		}
		owner, err = readSmall(tag, markerName)
		if err != nil {
			return err
		}
		if err := removeAt(tag, tmp, 0); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if name := strings.TrimSuffix(owner, "\n"); name != node {
		return fmt.Errorf("%q belongs to node %q, and this is %q: each node needs a directory of its own, use %%n; or remove it if the node was renamed",
			tag.Name(), name, node)
	}
	return nil
}

// dropTag removes BASE/TAG if it is this node's and no job is left in it. In a
// BasePath that cannot be used there is nothing of ours, and makeTag says why.
func dropTag(basePath, nodeTag, node string) error {
	tag, err := openTag(basePath, nodeTag)
	if err != nil || tag == nil {
		return nil
	}
	defer tag.Close()
	owner, err := readSmall(tag, markerName)
	if err == nil && owner != node+"\n" {
		return nil
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	names, err := tag.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if !strings.HasPrefix(n, markerName) {
			return nil
		}
	}
	for _, n := range names {
		if err := removeAt(tag, n, 0); err != nil {
			return err
		}
	}
	// openTag has found the way to be root's alone: the path leads there still.
	if err := unix.Rmdir(tag.Name()); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: tag.Name(), Err: err}
	}
	return nil
}

// jobNames lists the entries of dir that are job ids; all else is not ours.
func jobNames(dir *os.File) ([]uint32, error) {
	names, err := readNames(dir)
	if err != nil {
		return nil, err
	}
	var jobs []uint32
	for _, n := range names {
		id, err := strconv.ParseUint(n, 10, 32)
		if err == nil && id != 0 && jobName(uint32(id)) == n {
			jobs = append(jobs, uint32(id))
		}
	}
	return jobs, nil
}

// readNames lists a directory that may be open with O_PATH only.
func readNames(dir *os.File) ([]string, error) {
	d, err := openDir(dir, ".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

func jobName(job uint32) string { return strconv.FormatUint(uint64(job), 10) }

// readSmall reads a regular file of ours.
func readSmall(dir *os.File, name string) (string, error) {
	f, err := openBeneath(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, markerMax))
	return string(b), err
}

// writeSmall makes or replaces a regular file of ours; not atomic.
func writeSmall(dir *os.File, name, text string) error {
	full := path.Join(dir.Name(), name)
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "create", Path: full, Err: err}
	}
	f := os.NewFile(uintptr(fd), full)
	_, werr := f.WriteString(text)
	return printable.JoinErrors(werr, f.Close())
}

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

// ownDir is a directory that was opened, unless others than root could have made entries
// in it.
func ownDir(dir *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	if err := checkOwn(dir); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
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
