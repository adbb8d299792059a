package proctrack

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// Root is the cgroup below which one noded keeps its steps. Its name carries a
// hash of the spool's path, so several nodeds never touch each other's. Root
// holds no descriptor; its methods may be called from several goroutines.
type Root struct {
	dir string
}

// RootName is the name of the root cgroup of the noded with this spool: the
// same before and after a restart. spool must be absolute.
func RootName(spool string) (string, error) {
	if !filepath.IsAbs(spool) {
		return "", fmt.Errorf("cannot name the cgroup root: spool %q is not absolute", spool)
	}
	sum := sha256.Sum256([]byte(filepath.Clean(spool)))
	return fmt.Sprintf("stepd-%x", sum[:4]), nil
}

// NewRoot returns the root of the noded with this spool below the cgroup
// directory parent (detect.Answer.Parent). Nothing is touched before Ensure.
func NewRoot(parent, spool string) (*Root, error) {
	name, err := RootName(spool)
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(parent) {
		return nil, fmt.Errorf("cannot place the cgroup root: %q is not absolute", parent)
	}
	return &Root{dir: filepath.Join(parent, name)}, nil
}

// RootOf returns the root that a step's directory, as MakeStep returned it,
// lies in. A noded that was started again elsewhere has a root of its own, and
// finds by this the steps that the former one started.
func RootOf(stepDir string, id step.ID) (*Root, error) {
	suffix := filepath.Join("/", jobName(id.Job), stepName(id.Step))
	dir, ok := strings.CutSuffix(filepath.Clean(stepDir), suffix)
	if !ok || !filepath.IsAbs(dir) || !strings.HasPrefix(filepath.Base(dir), "stepd-") {
		return nil, fmt.Errorf("cannot find the cgroup root of step %s: %q is not one of its cgroups", id, stepDir)
	}
	return &Root{dir: dir}, nil
}

// Dir is the root's absolute path.
func (r *Root) Dir() string { return r.dir }

// StepDir is the path of the step's cgroup, whether it exists or not.
func (r *Root) StepDir(id step.ID) string {
	return filepath.Join(r.dir, jobName(id.Job), stepName(id.Step))
}

func jobName(job uint32) string   { return "job_" + strconv.FormatUint(uint64(job), 10) }
func stepName(step uint32) string { return "step_" + strconv.FormatUint(uint64(step), 10) }

// Ensure makes the root unless it exists: a former noded's steps may be in it.
func (r *Root) Ensure() error {
	parent, err := openGroup(filepath.Dir(r.dir))
	if err != nil {
		return err
	}
	defer parent.close()
	return ensureChild(parent, filepath.Base(r.dir))
}

func ensureChild(parent *group, name string) error {
	err := parent.mkdir(name)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// MakeStep makes the step's cgroup, its job's where it is the first, and the
// leaf that stepd is born in. It returns the step's directory, for
// step.Proctrack.Dir. fs.ErrExist is in the error when the step has one.
func (r *Root) MakeStep(id step.ID) (dir string, err error) {
	job, err := r.ensureJob(id.Job)
	if err != nil {
		return "", err
	}
	defer job.close()
	name := stepName(id.Step)
	if err := job.mkdir(name); err != nil {
		return "", err
	}
	err = makeStepdLeaf(job, name)
	if err != nil {
		return "", errors.Join(err, job.rmdir(name))
	}
	return r.StepDir(id), nil
}

func (r *Root) ensureJob(job uint32) (*group, error) {
	root, err := openGroup(r.dir)
	if err != nil {
		return nil, err
	}
	defer root.close()
	if err := ensureChild(root, jobName(job)); err != nil {
		return nil, err
	}
	return root.child(jobName(job))
}

func makeStepdLeaf(job *group, name string) error {
	dir, err := job.child(name)
	if err != nil {
		return err
	}
	defer dir.close()
	return dir.mkdir(leafStepd)
}

// KillStep kills all of the step, its stepd and host included, waits for its
// end and removes its cgroup; a step without one is done. The error is a
// *SurvivorsError when ctx ends first.
func (r *Root) KillStep(ctx context.Context, id step.ID) error {
	job, err := openGroup(filepath.Join(r.dir, jobName(id.Job)))
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer job.close()
	return job.destroyChild(ctx, stepName(id.Step))
}

// RemoveJob removes the job's cgroup, whose steps KillStep removed; it kills
// nothing: a step that is left makes it fail with EBUSY.
func (r *Root) RemoveJob(job uint32) error {
	root, err := openGroup(r.dir)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.close()
	if err := root.rmdir(jobName(job)); err != nil && !gone(err) {
		return err
	}
	return nil
}

// Remove removes the root and the empty cgroups of jobs in it; it kills
// nothing: a step that is left makes it fail with EBUSY.
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
	parent, err := openGroup(filepath.Dir(r.dir))
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.close()
	if err := parent.rmdir(filepath.Base(r.dir)); err != nil && !gone(err) {
		return err
	}
	return nil
}
