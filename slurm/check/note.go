package check

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// noteName is the file of the digest with which the list was logged last.
const noteName = "checked"

// Note logs the list of Site, one line for each, by the first step after a change of the
// configuration: digest is slurmconf.Control.Digest, dir the step daemons' directory in the
// spool. Steps that start together do it once.
func Note(dir, digest, path, nodeName string, log func(line string)) error {
	file := filepath.Join(dir, noteName)
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(dir, 0o755); err == nil {
			f, err = os.OpenFile(file, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot note what was checked: %w", err)
	}
	defer f.Close()
	noted, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return fmt.Errorf("cannot read what was checked: %w", err)
	}
	if string(noted) == digest {
		return nil
	}
	err = linux.IgnoringEINTR(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil // another step does it
	}
	if err != nil {
		return fmt.Errorf("cannot lock %q: %w", file, err)
	}
	if noted, err := os.ReadFile(file); err == nil && string(noted) == digest {
		return nil // another step has done it
	}
	gaps, err := Site(path, nodeName)
	if err != nil {
		return err
	}
	for _, g := range gaps {
		log(g.String())
	}
	// After the log: a step daemon that is killed here leaves the lines to the next one.
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("cannot note what was checked: %w", err)
	}
	if _, err := f.WriteAt([]byte(digest), 0); err != nil {
		return fmt.Errorf("cannot note what was checked: %w", err)
	}
	return nil
}
