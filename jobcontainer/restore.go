package jobcontainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"stepd/step"

	"golang.org/x/sys/unix"
)

// Restore finds the containers of an earlier noded: containers of running
// jobs are opened again, all others deleted. It also tries the configuration, so that a
// mistake shows when noded starts and not with the first job. It goes on after
// an error and returns all of them; a running job that it could not restore
// can start no more steps, but its processes are not touched.
func (t *Tmpfs) Restore(ctx context.Context, running []uint32) error {
	pins, err := t.pins.acquire()
	if err != nil {
		return fmt.Errorf("cannot restore job containers: %w", err)
	}
	var errs []error
	found, err := jobNames(pins)
	errs = append(errs, err)
	tag, err := makeTag(&t.cfg)
	errs = append(errs, err)
	if err == nil {
		more, err := jobNames(tag)
		errs = append(errs, err, tag.Close())
		found = append(found, more...)
	}
	slices.Sort(found)
	for _, job := range slices.Compact(found) {
		if !slices.Contains(running, job) {
			errs = append(errs, t.Delete(ctx, job))
		}
	}
	for _, job := range running {
		errs = append(errs, t.adopt(pins, job))
	}
	return step.JoinErrors(append(errs, t.pins.release())...)
}

// adopt opens the pinned namespace of a running job.
func (t *Tmpfs) adopt(pins *os.File, job uint32) error {
	c := t.lock(job)
	defer t.unlock(job, c)
	if c.ns != nil {
		return nil
	}
	ns, s, err := openJobPins(pins, job)
	if err != nil {
		c.lost = fmt.Errorf("cannot restore the container of running job %d: %w", job, err)
		return c.lost
	}
	c.ns, c.spaces, c.lost = ns, s, nil
	// One use for as long as the job has its container; it cannot fail, since
	// the root is mounted.
	_, err = t.pins.acquire()
	return err
}

func openJobPins(pins *os.File, job uint32) (*os.File, *spaces, error) {
	dir, err := openBeneath(pins, jobName(job), unix.O_RDONLY|unix.O_DIRECTORY)
	if err == nil {
		defer dir.Close()
		var ns *os.File
		if ns, err = openPin(dir, pinName, unix.CLONE_NEWNS); err == nil {
			s, err := openSpaces(dir)
			if err != nil {
				ns.Close()
			}
			return ns, s, err
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("no mount namespace is pinned at %q", path.Join(pins.Name(), jobName(job), pinName))
	}
	return nil, nil, err
}
