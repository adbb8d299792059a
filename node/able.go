package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/node/state"
	"stepd/step"
	"stepd/step/launch"
)

// ableMax is how long a file system may take to say whether it has room.
const ableMax = 2 * time.Second

// able returns why the node can start no step, nil where it can: it tries what a step needs.
func (n *Node) able() error {
	if err := n.helpers(slices.Sorted(maps.Keys(n.cfg.MPIPrograms))...); err != nil {
		return err
	}
	if err := n.store.Unwritable(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), ableMax)
	defer cancel()
	for _, t := range append(n.spoolWatch.Look(ctx), n.runWatch.Look(ctx)...) {
		return errors.New(t.Text)
	}
	if err := n.spool.Try(n.opened); err != nil {
		return err
	}
	return n.cfg.Containers.Try()
}

// helpers returns which program is missing without which no step of these MPI types starts.
func (n *Node) helpers(mpi ...string) error {
	paths := slices.Clone(n.cfg.Programs)
	for _, name := range mpi {
		if path, ok := n.cfg.MPIPrograms[name]; ok {
			paths = append(paths, path)
		}
	}
	for _, path := range paths {
		if err := unix.Access(path, unix.X_OK); err != nil {
			return fmt.Errorf("cannot start steps: cannot execute %q: %w", path, err)
		}
	}
	return nil
}

// faults are the errors of a file system that each step would have.
var faults = []syscall.Errno{unix.ENOSPC, unix.EROFS, unix.EIO, unix.ENOENT, unix.ENOTDIR, unix.EACCES}

// isFault reports whether err is the node's, and no step's own.
func isFault(err error) bool {
	if _, ok := errors.AsType[*launch.FaultError](err); ok {
		return true
	}
	errno, ok := errors.AsType[syscall.Errno](err)
	return ok && slices.Contains(faults, errno)
}

// blame drains the node, until it can start steps, where err is the node's.
func (n *Node) blame(err error) {
	if isFault(err) {
		n.health.Fault(err.Error())
	}
}

// refuse takes back a step that has its number and nothing else, for cause.
func (n launcher) refuse(f *follower, cause error) error {
	n.blame(cause)
	n.reg.add(f)
	f.claim()
	f.unreserve()
	return takeBack(f, cause)
}

// takeBack ends a step that is claimed and has not begun, and keeps nothing of it: it is refused for
// cause.
func takeBack(f *follower, cause error) error {
	f.mu.Lock()
	f.moveLocked(stepDropped)
	f.mu.Unlock()
	f.movedOff()
	if err := state.LogOwed(f.n.store.Revoke(f.id), f.log); err != nil {
		f.log.Errorf("%v: it is tried again", err)
	}
	f.storedIs()
	f.n.reg.settle(f)
	f.cleanup()
	f.n.spool.Forget([]step.ID{f.id})
	return api.NewError(api.Internal, cause.Error())
}
