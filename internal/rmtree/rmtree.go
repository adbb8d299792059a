// Package rmtree removes directories in which users have worked, who may have made anything at all:
// it follows no link, enters no mount, and needs no more descriptors and stack for millions of
// nested directories than for one. Begin with Remove.
package rmtree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
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
	// trashName is where deep directories are moved to, in the directory that is to go.
	trashName = ".trash"
)

// remover empties a directory. What is in there is a user's work, who
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

// RemovePath is Remove by the directory's path.
func RemovePath(ctx context.Context, dir string) error {
	folder, err := os.Open(path.Dir(dir))
	if err != nil {
		return err
	}
	defer folder.Close()
	return Remove(ctx, folder, path.Base(dir))
}

// Remove removes the directory name in dir and everything below it, or what else has that name.
// That it does not exist is no error. dir is root's, and no user may write to it.
func Remove(ctx context.Context, dir *os.File, name string) error {
	top, err := openDir(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return removeAt(dir, name, 0)
	}
	if err != nil {
		return err
	}
	defer top.Close()
	// From here on no user makes anything in it, where the trash is to be; and what one has made of
	// that name is none.
	if err := errors.Join(top.Chown(os.Geteuid(), -1), top.Chmod(0o700)); err != nil {
		return err
	}
	_ = unix.Unlinkat(int(top.Fd()), trashName, 0)
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
		if err = unix.Mkdirat(int(r.top.Fd()), trashName, 0o700); err == nil || errors.Is(err, unix.EEXIST) {
			r.trash, err = openDir(r.top, trashName)
		}
		if err != nil {
			return false, &fs.PathError{Op: "make", Path: path.Join(r.top.Name(), trashName), Err: err}
		}
	}
	for {
		r.moved++
		err := unix.Renameat(int(d.Fd()), name, int(r.trash.Fd()), strconv.Itoa(r.moved))
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return true, nil
		case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOTDIR):
			continue // of an earlier attempt, or the user's
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

// removeAt removes a file, or with unix.AT_REMOVEDIR a directory. One that does not exist
// is no error.
func removeAt(dir *os.File, name string, flags int) error {
	if err := unix.Unlinkat(int(dir.Fd()), name, flags); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: path.Join(dir.Name(), name), Err: err}
	}
	return nil
}

// openDir opens a directory to be listed, wherever no link and no mount leads.
func openDir(dir *os.File, name string) (*os.File, error) {
	full := path.Join(dir.Name(), name)
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: full, Err: err}
	}
	return os.NewFile(uintptr(fd), full), nil
}
