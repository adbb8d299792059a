package slurmstepd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"stepd/slurm/spec"
	"stepd/slurm/wire"
	"stepd/step"
)

// writeScript puts a batch job's script where its shell finds it, as the user's alone.
func writeScript(conf *wire.Conf, b *wire.Batch, user *step.User) error {
	path := spec.ScriptPath(conf.Spool, b.Job)
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot keep the script of job %d: %w", b.Job, err)
	}
	// A requeued job's is replaced: no process of that run is left.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot keep the script of job %d: %w", b.Job, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return fmt.Errorf("cannot keep the script of job %d: %w", b.Job, err)
	}
	_, err = f.WriteString(b.Script)
	err = errors.Join(err, f.Chmod(0o700), f.Chown(int(user.UID), int(user.GID)), f.Close(),
		os.Chown(dir, -1, int(user.GID)), os.Chmod(dir, 0o750))
	if err != nil {
		removeScript(conf.Spool, b.Job)
		return fmt.Errorf("cannot write the script of job %d: %w", b.Job, err)
	}
	return nil
}

// removeScript takes it away, with its directory where nothing else is in it.
func removeScript(spool string, job uint32) error {
	path := spec.ScriptPath(spool, job)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the script of job %d: %w", job, err)
	}
	if err := os.Remove(filepath.Dir(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the directory of job %d: %w", job, err)
	}
	return nil
}
