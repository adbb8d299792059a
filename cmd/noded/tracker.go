package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/sirupsen/logrus"

	"stepd/internal/linux"
	"stepd/node"
	"stepd/proctrack"
	"stepd/proctrack/detect"
	"stepd/step"
)

var (
	_ node.Tracker = (*cgroupTracker)(nil)
	_ node.Tracker = (*plainTracker)(nil)
)

// newTracker finds out what the node can do, and announces what is not had.
func newTracker(log *logrus.Logger, proctrackType, spool string) (node.Tracker, []node.Fallback, error) {
	answer, err := detect.Detect(proctrackType)
	if err != nil {
		return nil, nil, err
	}
	var fallbacks []node.Fallback
	for _, f := range answer.Fallbacks {
		log.Warnf("fallback: no %s: %s", f.What, f.Why)
		fallbacks = append(fallbacks, node.Fallback(f))
	}
	if answer.Parent == "" {
		return &plainTracker{kind: answer.Kind}, fallbacks, nil
	}
	root, err := proctrack.NewRoot(answer.Parent, spool)
	if err != nil {
		return nil, nil, err
	}
	return &cgroupTracker{log: log, kind: answer.Kind, root: root}, fallbacks, nil
}

// cgroupTracker is proctrack.Root as noded wants it.
type cgroupTracker struct {
	log  *logrus.Logger
	kind string
	root *proctrack.Root
	// moved: stepds are moved into their leaves, since none can be born there.
	moved bool
}

func (t *cgroupTracker) Kind() string { return t.kind }

// Prepare makes the root and finds out whether stepds can be born below it.
func (t *cgroupTracker) Prepare() error {
	if err := t.root.Ensure(); err != nil {
		return err
	}
	ok, why, err := t.root.CanBeBornInside()
	if err != nil {
		return err
	}
	if !ok {
		t.log.Warnf("fallback: stepd is moved into its cgroup after its start: %s", why)
		t.moved = true
	}
	return nil
}

// AddStepd moves a stepd into its leaf.
func (t *cgroupTracker) AddStepd(id step.ID, pid int) error { return t.root.AddStepd(id, pid) }

func (t *cgroupTracker) MakeStep(id step.ID) (string, *os.File, error) {
	dir, err := t.root.MakeStep(id)
	if err != nil {
		return "", nil, err
	}
	if t.moved {
		return dir, nil, nil
	}
	leaf, err := t.root.OpenStepLeaf(id)
	return dir, leaf, err
}

// MakeScripts uses a step's place without a stepd: its leaf is the scripts'.
func (t *cgroupTracker) MakeScripts(job uint32) (*os.File, error) {
	id := step.ID{Job: job, Step: step.ExternStep}
	if _, err := t.root.MakeStep(id); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if t.moved {
		return nil, nil
	}
	return t.root.OpenStepLeaf(id)
}

func (t *cgroupTracker) Left(id step.ID) ([]string, error) {
	left, err := t.root.Processes(id)
	if err != nil {
		return nil, err
	}
	var words []string
	for _, p := range left {
		words = append(words, fmt.Sprintf("pid %d %q", p.PID, p.Comm))
	}
	return words, nil
}

func (t *cgroupTracker) EndStep(ctx context.Context, rec *step.Record) error {
	if rec.Cgroup == "" {
		return t.root.KillStep(ctx, rec.ID)
	}
	// An earlier noded, started elsewhere, may have had another root.
	root, err := proctrack.RootOf(rec.Cgroup, rec.ID)
	if err != nil {
		return err
	}
	if err := root.KillStep(ctx, rec.ID); err != nil || root.Dir() == t.root.Dir() {
		return err
	}
	return root.RemoveJob(rec.ID.Job)
}

func (t *cgroupTracker) EndJob(job uint32) error   { return t.root.RemoveJob(job) }
func (t *cgroupTracker) Steps() ([]step.ID, error) { return t.root.Steps() }
func (t *cgroupTracker) Remove() error             { return t.root.Remove() }

// plainTracker stands for the trackers without cgroups: a step has no place,
// and what is left of a dead stepd is found by its session.
type plainTracker struct{ kind string }

func (t *plainTracker) Kind() string   { return t.kind }
func (t *plainTracker) Prepare() error { return nil }

func (t *plainTracker) MakeStep(step.ID) (string, *os.File, error) { return "", nil, nil }

func (t *plainTracker) AddStepd(step.ID, int) error { return nil }

func (t *plainTracker) MakeScripts(uint32) (*os.File, error) { return nil, nil }
func (t *plainTracker) Left(step.ID) ([]string, error)       { return nil, nil }

func (t *plainTracker) EndStep(ctx context.Context, rec *step.Record) error {
	if rec.StepdPID == 0 {
		return nil // no stepd was ever started
	}
	boot, err := linux.BootID()
	if err != nil {
		return err
	}
	if rec.BootID != boot {
		return nil // its processes ended with that boot
	}
	err = proctrack.KillSession(ctx, proctrack.Process{PID: rec.StepdPID, Start: rec.StepdStart}, nil)
	if err != nil {
		return fmt.Errorf("step %s: %w", rec.ID, err)
	}
	return nil
}

func (t *plainTracker) EndJob(uint32) error       { return nil }
func (t *plainTracker) Steps() ([]step.ID, error) { return nil, nil }
func (t *plainTracker) Remove() error             { return nil }
