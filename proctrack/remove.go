package proctrack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// KillStep kills all of the step, its stepd and host included, waits for its
// end and removes its cgroups, in every hierarchy; a step without one is done.
// Former versions had the tasks below the step's own cgroup, which is covered.
// The error is a *SurvivorsError when ctx ends first.
func (r *Root) KillStep(ctx context.Context, id step.ID) error {
	job, name := jobName(id.Job), stepName(id.Step)
	// Side by side: a process of one cgroup that does not end must not keep the
	// other's processes alive.
	var errs [2]error
	var both sync.WaitGroup
	for i, dir := range []string{job, filepath.Join(job, r.jobTasks)} {
		both.Go(func() { errs[i] = destroyIn(ctx, filepath.Join(r.dir, dir), name) })
	}
	both.Wait()
	err := errors.Join(errs[:]...)
	// What is left in there was moved out of the tracker's hierarchy.
	for _, root := range r.hierarchies {
		err = errors.Join(err, destroyIn(ctx, filepath.Join(root, job), name))
	}
	return err
}

func destroyIn(ctx context.Context, parent, name string) error {
	return within(parent, func(g *group) error { return g.destroyChild(ctx, name) })
}

// within does something in a group; a missing group is fine.
func within(path string, do func(*group) error) error {
	g, err := openGroup(path)
	if err == nil {
		err = do(g)
		g.close()
	}
	if gone(err) {
		return nil
	}
	return err
}

// RemoveJob removes the job's cgroups, whose steps KillStep removed; it kills
// nothing: a step that is left makes it fail with EBUSY.
func (r *Root) RemoveJob(job uint32) error {
	name := jobName(job)
	errs := []error{removeIn(filepath.Join(r.dir, name), r.jobTasks)}
	for _, root := range append([]string{r.dir}, r.hierarchies...) {
		errs = append(errs, removeIn(root, name))
	}
	return errors.Join(errs...)
}

// removeIn removes an empty group.
func removeIn(parent, name string) error {
	return within(parent, func(g *group) error { return g.rmdir(name) })
}

// Remove removes the root, in every hierarchy, and the empty cgroups of jobs in
// it; it kills nothing: a step that is left makes it fail with EBUSY.
func (r *Root) Remove() error {
	ids, jobs, err := r.scan()
	if err != nil {
		return err
	}
	if len(ids) > 0 {
		return fmt.Errorf("cannot remove cgroup %q: step %s and %d others are left: %w", r.dir, ids[0], len(ids)-1, unix.EBUSY)
	}
	for _, job := range jobs {
		if err := r.RemoveJob(job); err != nil {
			return err
		}
	}
	var errs []error
	for _, root := range append([]string{r.dir}, r.hierarchies...) {
		errs = append(errs, removeIn(filepath.Dir(root), filepath.Base(root)))
	}
	return errors.Join(errs...)
}
