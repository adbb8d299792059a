package node

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/node/state"
	"stepd/step"
)

// writeScript puts the batch script where the user can execute it, and makes
// it the step's command. Users can reach their own script in the directory, and
// make or remove nothing there.
func (n *Node) writeScript(spec *step.Spec) error {
	path := n.files.script(spec.ID.Job)
	dir, name, script, user := n.files.scriptsDir(), strconv.FormatUint(uint64(spec.ID.Job), 10), spec.Script, spec.User
	err := n.spool.do(func() error { return writeOwned(dir, name, script, user) })
	if err != nil {
		return fmt.Errorf("cannot write batch script %q: %w", path, err)
	}
	spec.Script = nil
	spec.Argv = append([]string{path}, spec.Argv[1:]...)
	return nil
}

// writeOwned makes a file that user alone may read, change and execute. A file
// of that name, left by an earlier noded, is replaced.
func writeOwned(dir, name string, content []byte, user step.User) error {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(d)
	if err := unix.Unlinkat(d, name, 0); err != nil && err != unix.ENOENT {
		return err
	}
	fd, err := unix.Openat(d, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o700)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(content)
	if err == nil {
		// Last: until then only root can open it.
		err = f.Chown(int(user.UID), int(user.GID))
	}
	err = errors.Join(err, f.Close())
	awaitForks()
	return err
}

// awaitForks returns when no fork of ours keeps a file open that was closed before: the
// user's execve of it would fail with ETXTBSY. A fork has the lock until it has called exec.
// The file is not written under the lock, because a disk that hangs would keep noded from
// forking.
func awaitForks() {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
}

// removeScript removes the batch script of a job that has ended, if it had one.
func (n *Node) removeScript(j *state.Job) error {
	if j.Origin != step.OriginBatch {
		return nil
	}
	if err := os.Remove(n.files.script(j.ID)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot remove batch script: %w", err)
	}
	return nil
}
