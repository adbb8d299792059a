package jobcontainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"stepd/internal/printable"
	"stepd/internal/rmtree"
)

// Delete removes the job's container: what lives in its pid namespace, the pins, the
// private directories with all that is in them, and the mount of RUN/jobs with the
// last one. Processes that are still in the mount namespace keep it, emptied, until
// they end. A job without a container is no error, so Delete may be repeated after
// one; the error names what could not be removed. A long removal ends early with ctx.
// A pid namespace that SIGKILL does not end within killMax, or half of ctx's time, is
// an error too, which holds up nothing: it ends with its last process.
func (t *Tmpfs) Delete(ctx context.Context, job uint32) error {
	c := t.lock(job)
	defer t.unlock(job, c)
	pins, err := t.pins.acquire()
	if err != nil {
		return fmt.Errorf("cannot delete the container of job %d: %w", job, err)
	}
	errs := []error{t.clear(ctx, pins, job)}
	if c.ns != nil {
		if errs[0] != nil {
			errs = append(errs, c.survivors(job))
		}
		errs = append(errs, c.ns.Close(), t.pins.release())
		c.forget()
	}
	c.lost = nil
	return printable.JoinErrors(append(errs, t.pins.release())...)
}

// clear removes what there is of a job. That CloneNSEpilog fails holds up nothing.
func (t *Tmpfs) clear(ctx context.Context, pins *os.File, job uint32) error {
	return printable.JoinErrors(t.epilog(ctx, pins, job), t.clearAll(ctx, pins, job))
}

// epilog runs CloneNSEpilog for what there is of a job.
func (t *Tmpfs) epilog(ctx context.Context, pins *os.File, job uint32) error {
	dir, err := openDir(pins, jobName(job))
	if err != nil {
		return nil // clearAll says what hinders, if anything
	}
	defer dir.Close()
	return cloneEpilog(ctx, dir, job, &t.cfg)
}

// clearAll removes what there is of a job, in the order in which a kill between
// two steps leaves enough for the next attempt: the record of BasePath goes last.
func (t *Tmpfs) clearAll(ctx context.Context, pins *os.File, job uint32) error {
	var late error
	bases := []string{t.cfg.BasePath}
	dir, err := openDir(pins, jobName(job))
	switch {
	case err == nil:
		defer dir.Close()
		if err := t.endSpaces(ctx, dir); err != nil {
			err = fmt.Errorf("cannot end the pid namespace of job %d: %w", job, err)
			if !errors.Is(err, errLingers) {
				return err
			}
			late = err // it was killed: what it had can go
		}
		for _, name := range []string{pidName, userName, pinName} {
			if err := unpin(dir, name); err != nil {
				return fmt.Errorf("cannot remove the namespaces of job %d: %w", job, err)
			}
		}
		base, err := readSmall(dir, baseName)
		// Cut off by a kill while it was written, it is no BasePath yet and
		// nothing was made below it.
		if err == nil && checkPath("BasePath", base) == nil && !slices.Contains(bases, base) {
			bases = append(bases, base)
		}
	case !errors.Is(err, unix.ENOENT):
		return fmt.Errorf("cannot delete the container of job %d: %w", job, err)
	}
	if err := t.hook("unpinned"); err != nil {
		return err
	}
	for _, base := range bases {
		if err := clearBase(ctx, base, t.cfg.NodeTag, job); err != nil {
			return printable.JoinErrors(late, fmt.Errorf("cannot remove the private directories of job %d: %w", job, err))
		}
		if base == t.cfg.BasePath {
			continue // its own directory goes with the last user of the pins
		}
		if err := dropTag(base, t.cfg.NodeTag, t.cfg.NodeName); err != nil {
			return fmt.Errorf("cannot leave BasePath %q: %w", base, err)
		}
	}
	if err := t.hook("removed"); err != nil {
		return err
	}
	if dir == nil {
		return nil
	}
	if err := rmtree.Remove(ctx, pins, jobName(job)); err != nil {
		return printable.JoinErrors(late, fmt.Errorf("cannot delete the container of job %d: %w", job, err))
	}
	return late
}

func clearBase(ctx context.Context, base, nodeTag string, job uint32) error {
	tag, err := openTag(base, nodeTag)
	if err != nil {
		return fmt.Errorf("%w (BasePath= in job_container.conf)", err)
	}
	if tag == nil {
		return nil
	}
	defer tag.Close()
	return rmtree.Remove(ctx, tag, jobName(job))
}
