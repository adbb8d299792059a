package proctrack

import (
	"errors"
	"fmt"
	"path/filepath"

	"stepd/step"
)

// placeTries bounds how often a place is made again that was removed
// while it was made: the end of an earlier step takes its job's cgroup with it.
const placeTries = 5

// MakeJob makes the cgroups in which the job is limited, unless they exist: in
// the tracker's hierarchy, and in the v1 controllers' hierarchies. MakeStep does it
// as well; it is of use where the job's limits are to hold before any step's
// cgroup exists (a v1 cpuset takes nothing that its children exceed).
func (r *Root) MakeJob(job uint32, v1 []string) error {
	return again(func() error {
		root, err := openGroup(r.dir)
		if err != nil {
			return err
		}
		defer root.close()
		j, tasks, err := root.ensureJob(job)
		if err != nil {
			return err
		}
		j.close()
		tasks.close()
		_, err = r.makeV1(v1, jobName(job))
		return err
	})
}

// again does something that another's removal may disturb.
func again(do func() error) (err error) {
	for range placeTries {
		if err = do(); !gone(err) {
			return err
		}
	}
	return err
}

// ensureJob makes and opens the job's cgroup and its tasks' cgroup.
func (g *group) ensureJob(job uint32) (j, tasks *group, err error) {
	enabled, err := controllers{g}.delegated()
	if err != nil {
		return nil, nil, err
	}
	if j, err = g.ensure(jobName(job)); err != nil {
		return nil, nil, err
	}
	if err = (controllers{j}).enable(enabled); err == nil {
		tasks, err = j.ensure(j.jobTasks())
	}
	if err == nil {
		if err = (controllers{tasks}).enable(enabled); err == nil {
			return j, tasks, nil
		}
		tasks.close()
	}
	j.close()
	return nil, nil, err
}

// MakeStep makes the step's cgroups, the job's where they do not exist yet, and
// the leaf that stepd is born in. fs.ErrExist is in the error when the step has
// one.
func (r *Root) MakeStep(id step.ID, v1 []string) (StepCgroups, error) {
	var out StepCgroups
	err := again(func() (err error) {
		out, err = r.makeStep(id, v1)
		return err
	})
	return out, err
}

func (r *Root) makeStep(id step.ID, v1 []string) (StepCgroups, error) {
	root, err := openGroup(r.dir)
	if err != nil {
		return StepCgroups{}, err
	}
	defer root.close()
	job, tasks, err := root.ensureJob(id.Job)
	if err != nil {
		return StepCgroups{}, err
	}
	defer job.close()
	defer tasks.close()
	name := stepName(id.Step)
	if err := job.makeDaemons(name); err != nil {
		return StepCgroups{}, err
	}
	undo := func() error { return errors.Join(job.removeChild(name)) }
	if err := tasks.mkdir(name); err != nil {
		return StepCgroups{}, errors.Join(err, undo())
	}
	dirs, err := r.makeV1(v1, jobName(id.Job), name)
	if err != nil {
		return StepCgroups{}, errors.Join(err, tasks.rmdir(name), undo())
	}
	return StepCgroups{Dir: r.StepDir(id), Tasks: r.TasksDir(id), V1: dirs}, nil
}

// MakeScripts makes a place beside a job's steps, or finds it again: the
// daemons' place of step step.ScriptsPlace or step.KeeperPlace, with no tasks.
func (r *Root) MakeScripts(id step.ID) error {
	return again(func() error {
		root, err := openGroup(r.dir)
		if err != nil {
			return err
		}
		defer root.close()
		j, err := root.ensure(jobName(id.Job))
		if err != nil {
			return err
		}
		defer j.close()
		dir, err := j.ensure(stepName(id.Step))
		if err != nil {
			return err
		}
		defer dir.close()
		leaf, err := dir.ensure(leafStepd)
		if err != nil {
			return err
		}
		leaf.close()
		return nil
	})
}

// makeDaemons makes the cgroup of a step's daemons, with the leaves of stepd and
// of the host.
func (g *group) makeDaemons(name string) error {
	if err := g.mkdir(name); err != nil {
		return err
	}
	dir, err := g.child(name)
	if err == nil {
		err = dir.mkdir(leafStepd)
		dir.close()
	}
	if err != nil {
		return errors.Join(err, g.rmdir(name))
	}
	return nil
}

// removeChild removes an empty child with what is empty below it.
func (g *group) removeChild(name string) error {
	child, err := g.child(name)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = child.removeBelow()
	child.close()
	if err == nil {
		err = g.rmdir(name)
	}
	if gone(err) {
		return nil
	}
	return err
}

// makeV1 makes a path below the v1 roots of these controllers and returns its
// end, by controller. What exists stays as it is.
func (r *Root) makeV1(controllers []string, path ...string) (map[string]string, error) {
	if len(controllers) == 0 {
		return nil, nil
	}
	dirs := make(map[string]string, len(controllers))
	made := make(map[string]bool)
	for _, c := range controllers {
		root, ok := r.v1[c]
		if !ok {
			return nil, fmt.Errorf("cannot make a cgroup of controller %q: no v1 hierarchy of it can be used here", c)
		}
		dirs[c] = filepath.Join(append([]string{root}, path...)...)
		if made[root] {
			continue
		}
		made[root] = true
		if err := makeV1Path(root, path); err != nil {
			return nil, err
		}
	}
	return dirs, nil
}

func makeV1Path(root string, path []string) error {
	at, err := openGroup(filepath.Dir(root))
	if err != nil {
		return err
	}
	defer func() { at.close() }()
	for _, name := range append([]string{filepath.Base(root)}, path...) {
		child, err := at.ensure(name)
		if err != nil {
			return err
		}
		err = child.prepareV1(at)
		at.close()
		at = child
		if err != nil {
			return err
		}
	}
	return nil
}
