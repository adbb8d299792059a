package jobcontainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"stepd/internal/printable"
)

const (
	// depthMax bounds descriptors and recursion: a directory deeper than this
	// is moved up first. A user can nest millions of them.
	depthMax = 32
	// batchMax is how many names are read at a time.
	batchMax = 1024
	// passesMax bounds how often a directory is read again because it has new
	// entries. File systems may skip some in a listing that is being emptied,
	// but only a process that adds files needs this many.
	passesMax = 64
	// reportMax bounds the paths that an error names.
	reportMax = 4
	// trashName is where deep directories are moved to, beside the private
	// directories: no user can reach it.
	trashName = ".trash"
)

// remover empties a job's directory. What is in there is a user's work, who
// may have made anything at all: it follows no link, enters no mount, and its
// needs do not grow with what it finds.
type remover struct {
	ctx    context.Context
	trash  *os.File // nil until something deep is found
	top    *os.File
	moved  int
	failed []error
	more   int // failures beyond those kept
}

// RemoveTree removes a directory in which a user has worked, of a folder that is root's, and all that
// is in it, as the job's are removed. That it does not exist is no error.
func RemoveTree(ctx context.Context, dir string) error {
	folder, err := os.Open(path.Dir(dir))
	if err != nil {
		return err
	}
	defer folder.Close()
	return removeTree(ctx, folder, path.Base(dir))
}

// removeTree removes the directory name in dir and everything below it. That
// it does not exist is no error.
func removeTree(ctx context.Context, dir *os.File, name string) error {
	top, err := openDir(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer top.Close()
	r := &remover{ctx: ctx, top: top}
	defer r.close()
	if err := r.empty(top, 0); err != nil {
		return err
	}
	if err := r.emptyTrash(); err != nil {
		return err
	}
	if err := r.report(); err != nil {
		return err
	}
	return removeAt(dir, name, unix.AT_REMOVEDIR)
}

func (r *remover) close() {
	if r.trash != nil {
		r.trash.Close()
	}
}

// empty removes all entries of d. It returns an error only if it must stop;
// entries that cannot be removed are noted, and the others removed.
func (r *remover) empty(d *os.File, depth int) error {
	for range passesMax {
		removed, err := r.pass(d, depth)
		if err != nil || removed == 0 {
			return err
		}
	}
	return fmt.Errorf("cannot empty directory %q: new files after %d passes: a process goes on writing there", d.Name(), passesMax)
}

// emptyTrash empties and removes the trash, one of an interrupted attempt
// included. Each pass may move deeper directories into it, so passes are not
// bounded; each one also takes depthMax levels off the tree.
func (r *remover) emptyTrash() error {
	if r.trash == nil {
		trash, err := openDir(r.top, trashName)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		r.trash = trash
	}
	for {
		removed, err := r.pass(r.trash, 1)
		if err != nil {
			return err
		}
		if removed == 0 {
			break
		}
	}
	if err := removeAt(r.top, trashName, unix.AT_REMOVEDIR); len(r.failed) == 0 {
		return err
	}
	return nil
}

// pass goes once through the entries of d and counts the removed ones.
func (r *remover) pass(d *os.File, depth int) (removed int, err error) {
	if _, err := d.Seek(0, io.SeekStart); err != nil {
		return 0, &fs.PathError{Op: "rewind", Path: d.Name(), Err: err}
	}
	for {
		if r.ctx.Err() != nil {
			return 0, fmt.Errorf("cannot empty directory %q: %w", d.Name(), context.Cause(r.ctx))
		}
		names, err := d.Readdirnames(batchMax)
		for _, name := range names {
			if depth == 0 && name == trashName {
				continue // in use until the rest is empty
			}
			ok, err := r.entry(d, name, depth)
			if err != nil {
				return 0, err
			}
			if ok {
				removed++
			}
		}
		if errors.Is(err, io.EOF) {
			return removed, nil
		}
		if err != nil {
			return 0, &fs.PathError{Op: "list", Path: d.Name(), Err: err}
		}
	}
}

// entry removes one entry, a directory with all that is in it.
func (r *remover) entry(d *os.File, name string, depth int) (removed bool, err error) {
	fd := int(d.Fd())
	uerr := unix.Unlinkat(fd, name, 0)
	if uerr == nil || errors.Is(uerr, unix.ENOENT) {
		return true, nil
	}
	// EISDIR is Linux's answer for a directory, EPERM is POSIX's; an
	// immutable file says EPERM too, and then it is no directory.
	if errors.Is(uerr, unix.EISDIR) || errors.Is(uerr, unix.EPERM) {
		rerr := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
		switch {
		case rerr == nil || errors.Is(rerr, unix.ENOENT):
			return true, nil
		case errors.Is(rerr, unix.ENOTEMPTY), errors.Is(rerr, unix.EEXIST):
			return r.directory(d, name, depth)
		case !errors.Is(rerr, unix.ENOTDIR):
			uerr = rerr
		}
	}
	if errors.Is(uerr, unix.EBUSY) {
		uerr = fmt.Errorf("%w: something is mounted there", uerr)
	}
	r.note(&fs.PathError{Op: "remove", Path: path.Join(d.Name(), name), Err: uerr})
	return false, nil
}

// directory empties and removes a directory that is not empty, or moves it up.
func (r *remover) directory(d *os.File, name string, depth int) (removed bool, err error) {
	if depth >= depthMax {
		return r.move(d, name)
	}
	sub, err := openDir(d, name)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return true, nil
		}
		r.note(err)
		return false, nil
	}
	defer sub.Close()
	if err := r.empty(sub, depth+1); err != nil {
		return false, err
	}
	err = unix.Unlinkat(int(d.Fd()), name, unix.AT_REMOVEDIR)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return true, nil
	}
	// What is in there has been noted by its own name, if that is the reason.
	if !errors.Is(err, unix.ENOTEMPTY) || len(r.failed) == 0 {
		r.note(&fs.PathError{Op: "rmdir", Path: sub.Name(), Err: err})
	}
	return false, nil
}

// move takes a deep directory to the trash, so that it is no longer deep.
func (r *remover) move(d *os.File, name string) (bool, error) {
	if r.trash == nil {
		var err error
		if r.trash, err = makeDir(r.top, trashName, 0o700); err != nil {
			return false, err
		}
	}
	for {
		r.moved++
		err := unix.Renameat(int(d.Fd()), name, int(r.trash.Fd()), strconv.Itoa(r.moved))
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return true, nil
		case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
			continue // of an earlier attempt
		}
		r.note(&fs.PathError{Op: "move up", Path: path.Join(d.Name(), name), Err: err})
		return false, nil
	}
}

// note keeps a failure for the report.
func (r *remover) note(err error) {
	if len(r.failed) < reportMax {
		for _, f := range r.failed {
			if f.Error() == err.Error() {
				return // tried again by a second pass
			}
		}
		r.failed = append(r.failed, err)
		return
	}
	r.more++
}

func (r *remover) report() error {
	if len(r.failed) == 0 {
		return nil
	}
	if r.more > 0 {
		return fmt.Errorf("%w (and about %d more)", printable.JoinErrors(r.failed...), r.more)
	}
	return printable.JoinErrors(r.failed...)
}

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
	if err := removeTree(ctx, pins, jobName(job)); err != nil {
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
	return removeTree(ctx, tag, jobName(job))
}
