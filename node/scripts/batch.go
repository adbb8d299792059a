package scripts

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// WriteBatch makes a batch script: a file that user alone may read, change and execute. A file
// of that name, left by an earlier noded, is replaced.
func WriteBatch(dir, name string, content []byte, user step.User) error {
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
	// No fork of ours may keep the file open that was closed before: the user's execve of it
	// would fail with ETXTBSY. A fork has the lock until it has called exec. The file is not
	// written under the lock, because a disk that hangs would keep noded from forking.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return err
}
