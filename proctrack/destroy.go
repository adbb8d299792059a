package proctrack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// destroyPasses bounds how often a removal begins again because something
// appeared below: each pass kills and waits first, so a second one is rare.
const destroyPasses = 100

// destroyChild kills what is in the child and below it, waits for its end and
// removes all of it, groups that a task made included. A child that is gone
// is done.
func (g *group) destroyChild(ctx context.Context, name string) error {
	var err error
	var p pauser
	for range destroyPasses {
		err = g.destroyOnce(ctx, name)
		// A process or a group came in after the kill.
		if err == nil || !busy(err) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
		if !g.v1 {
			continue
		}
		// Or a process of v1 has ended and is not out of its group yet.
		if pauseErr := p.pause(ctx); pauseErr != nil {
			return fmt.Errorf("%w (%w)", err, pauseErr)
		}
	}
	return fmt.Errorf("%w, after %d attempts", err, destroyPasses)
}

func (g *group) destroyOnce(ctx context.Context, name string) error {
	child, err := g.child(name)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer child.close()
	// Kill the whole of it before the first rmdir: cgroup.kill reaches all
	// groups below, and nothing is left that could make new ones. If it
	// had to be frozen it stays so: newcomers need not run.
	if err := child.killKeepingFrozen(ctx); err != nil {
		return err
	}
	if err := child.removeBelow(); err != nil {
		return err
	}
	if err := g.rmdir(name); err != nil && !gone(err) {
		return err
	}
	return nil
}

// removeBelow removes all groups below g, the lowest first.
func (g *group) removeBelow() error {
	return g.walk(nil, func(parent *group, name string) error {
		if err := parent.rmdir(name); err != nil && !gone(err) {
			return err
		}
		return nil
	})
}

// mkdirError names the knob behind a refused mkdir (cgroup-v2.rst: EAGAIN
// where cgroup.max.depth or cgroup.max.descendants of an ancestor is reached).
func mkdirError(path string, cause error) error {
	err := fmt.Errorf("cannot create cgroup %q: %w", path, cause)
	var hint string
	switch {
	case errors.Is(cause, unix.EAGAIN):
		hint = limitHint(filepath.Dir(path))
	case errors.Is(cause, unix.ENOSPC):
		hint = dyingHint(filepath.Dir(path))
	case errors.Is(cause, unix.EROFS):
		hint = "the cgroup file system is mounted read-only here"
	}
	if hint == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, hint)
}
