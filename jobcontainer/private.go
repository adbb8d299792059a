package jobcontainer

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// devShm is served from memory, as the node's own is.
const devShm = "/dev/shm"

// private is one private directory: a detached mount, and the path in the
// job's namespace that it covers.
type private struct {
	tree   *os.File
	target string
}

// makePrivate makes a directory, or a file system in memory, for each of Dirs.
func (p *plan) makePrivate(jobDir *os.File, user step.User) error {
	for i, target := range p.cfg.Dirs {
		var tree *os.File
		var err error
		if target == devShm {
			tree, err = newTmpfs()
		} else {
			tree, err = makePrivateDir(jobDir, privateName(i, target), user)
		}
		if err != nil {
			return fmt.Errorf("cannot make the private %q of job %d: %w", target, p.job, err)
		}
		p.private = append(p.private, private{tree, target})
	}
	return nil
}

// makePrivateDir makes one directory of the user's and returns a mount of it.
// It was made by us in a directory of root's, so the name cannot be swapped;
// the owner is set through the descriptor all the same (CVE-2023-41914).
func makePrivateDir(jobDir *os.File, name string, user step.User) (*os.File, error) {
	if err := mkdirAt(jobDir, name, 0o700); err != nil {
		return nil, err
	}
	dir, err := openBeneath(jobDir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := unix.Fchown(int(dir.Fd()), int(user.UID), int(user.GID)); err != nil {
		return nil, &fs.PathError{Op: "chown", Path: dir.Name(), Err: err}
	}
	// As on the node's own /tmp of any distribution.
	return cloneMount(dir, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

// privateName is "0-tmp" for /tmp: the index keeps "/a/b" and "/a-b" apart.
func privateName(i int, target string) string {
	name := fmt.Sprintf("%d-%s", i, strings.ReplaceAll(strings.TrimPrefix(target, "/"), "/", "-"))
	return name[:min(len(name), unix.NAME_MAX)]
}

// close drops the descriptors. A mount that was not attached goes with them.
func (p *plan) close() {
	for _, d := range p.private {
		d.tree.Close()
	}
}
