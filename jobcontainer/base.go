package jobcontainer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/internal/printable"
)

const (
	// markerName says in BASE/TAG which node the directory belongs to.
	markerName = ".node"
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
	tag, err := makeDir(base, cfg.NodeTag, 0o700)
	if err != nil {
		return nil, baseError(cfg, err)
	}
	if err := checkOwn(tag); err != nil {
		tag.Close()
		return nil, baseError(cfg, err)
	}
	if err := claimTag(tag, cfg.NodeName); err != nil {
		tag.Close()
		return nil, baseError(cfg, err)
	}
	return tag, nil
}

// baseError adds the knob, and the remedy for the usual mistake.
func baseError(cfg *Config, err error) error {
	hint := "BasePath= in job_container.conf"
	if errors.Is(err, unix.ENOENT) && !cfg.AutoBasePath {
		hint += ": make it or set AutoBasePath=true"
	}
	return fmt.Errorf("cannot use job container directory %q: %w (%s)", cfg.BasePath, err, hint)
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
	tag, err := openDir(base, nodeTag)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := checkOwn(tag); err != nil {
		tag.Close()
		return nil, err
	}
	return tag, nil
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
