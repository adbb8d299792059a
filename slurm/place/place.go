// Package place holds a step of slurmd's on the machine: the cgroups in which it runs and is
// limited, and the removal of what dead step daemons have left in theirs.
//
// The root of these cgroups is named after slurmd's spool and lies apart from the trees that
// Slurm makes. Every step has cgroups where the machine has any that can be used: then nothing
// of a step outlives it. Only where there are none does slurm.conf's ProctrackType count.
//
// A step daemon holds its step's cgroup by a lock, and its keeper holds the same lock: a cgroup
// without a holder is what both have left. Begin with Make.
package place

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/proctrack"
	"stepd/slurmconf"
	"stepd/step"
	"stepd/step/launch"
	"stepd/task/cgroup"
	"stepd/task/confine"
	"stepd/task/device"
)

// Config is what slurmd and its files say of the node. All but Bindable and Denied are required.
type Config struct {
	// Spool is slurmd's own directory, absolute.
	Spool string
	// Node is the node's name, by which the steps' sockets are named.
	Node string
	// Site are the node's files: ProctrackType, TaskPlugin, cgroup.conf.
	Site *slurmconf.Config
	// MemoryMB is the node's memory. Bindable says that CPU numbers are the machine's.
	MemoryMB uint64
	Bindable bool
	// Denied says which devices of the site's generic resources are not the step's; nil is none. It
	// is called once; constrained says that they are kept from it (ConstrainDevices).
	Denied func(constrained bool) (confine.Denied, error)
}

// Place is where a step runs. One goroutine at a time may use it.
type Place struct {
	cfg   Config
	id    step.ID
	kind  string
	root  *proctrack.Root // nil without cgroups
	lock  *os.File        // nil where the place is not this process's, or is removed
	notes []string
}

// Make makes the place of a step, by its ID, memory, CPUs and MPI type, and writes its limits;
// it sets the Spec's Proctrack and Confine. What an earlier daemon of the same step has left is
// killed first, until ctx ends. The error says what cannot be had.
func Make(ctx context.Context, cfg Config, spec *step.Spec) (*Place, error) {
	if cfg.Denied == nil {
		cfg.Denied = func(bool) (confine.Denied, error) { return confine.Denied{}, nil }
	}
	p := &Place{cfg: cfg, id: spec.ID}
	if err := p.find(); err != nil {
		return nil, err
	}
	spec.Proctrack = step.Proctrack{Kind: p.kind}
	if p.root == nil {
		_, err := cfg.Denied(false)
		return p, err
	}
	if err := p.make(ctx, spec); err != nil {
		return nil, errors.Join(err, p.Remove(ctx))
	}
	return p, nil
}

// makeTries bounds how often a place is made whose job's cgroups the end of another step
// removes meanwhile.
const makeTries = 5

// make makes the step's cgroups and limits them.
func (p *Place) make(ctx context.Context, spec *step.Spec) error {
	v2, err := p.root.Controllers()
	if err != nil {
		return err
	}
	limits := confine.New(confine.Config{
		Site: p.cfg.Site, At: confine.Below(p.kind, p.root, v2), MemoryMB: p.cfg.MemoryMB, Bindable: p.cfg.Bindable, Devices: true,
	})
	denied, err := p.cfg.Denied(limits.Devices())
	if err != nil {
		return err
	}
	if !limits.Devices() {
		denied = confine.Denied{}
	}
	plan, err := limits.Plan(spec, denied)
	if err != nil {
		return fmt.Errorf("cannot confine the step: %w", err)
	}
	p.notes = append(p.notes, plan.Notes...)
	made, err := p.makeLocked(ctx, plan)
	if err != nil {
		return err
	}
	spec.Proctrack.Dir, spec.Proctrack.Tasks = made.Dir, made.Tasks
	spec.Confine, spec.Confine.V1 = plan.Confine, made.V1
	return cgroup.Apply(plan.WritesOf("step"), device.Attach)
}

// makeLocked makes the step's cgroups and locks them. No sweep takes them for dead ones
// meanwhile.
func (p *Place) makeLocked(ctx context.Context, plan *launch.LimitPlan) (made proctrack.StepCgroups, err error) {
	making, err := lock(p.root.Dir(), unix.LOCK_SH)
	if err != nil {
		return made, err
	}
	defer making.Close()
	for range makeTries {
		// ENODEV is a cgroup that goes while its file is open.
		if made, err = p.makeOnce(ctx, plan); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			break
		}
	}
	if err != nil {
		return made, err
	}
	p.lock, err = lock(made.Dir, unix.LOCK_EX|unix.LOCK_NB)
	return made, err
}

func (p *Place) makeOnce(ctx context.Context, plan *launch.LimitPlan) (proctrack.StepCgroups, error) {
	// The job's limits come first: a v1 cpuset takes nothing that its children exceed.
	if job := plan.WritesOf("job"); len(job) > 0 {
		if err := p.root.MakeJob(p.id.Job, plan.V1); err != nil {
			return proctrack.StepCgroups{}, err
		}
		if err := cgroup.Apply(job, device.Attach); err != nil {
			return proctrack.StepCgroups{}, err
		}
	}
	made, err := p.root.MakeStep(p.id, plan.V1)
	if !errors.Is(err, fs.ErrExist) {
		return made, err
	}
	// An earlier daemon of the same step, of a job that was requeued, has left it.
	left, err := take(ctx, p.root.StepDir(p.id))
	if err != nil {
		return made, fmt.Errorf("cannot make the place of step %s, which exists: %w", p.id, err)
	}
	defer left.Close()
	if err := p.root.KillStep(ctx, p.id); err != nil {
		return made, err
	}
	return p.root.MakeStep(p.id, plan.V1)
}

// takePatience bounds the wait for a sweep that kills what a step starts to kill as well.
const takePatience = 2 * time.Second

// take locks a cgroup that a dead daemon has left, and waits for a sweep that has it. A
// directory that is gone needs no lock: the file is nil.
func take(ctx context.Context, dir string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, takePatience)
	defer cancel()
	type taken struct {
		f   *os.File
		err error
	}
	done := make(chan taken)
	go func() {
		f, err := lock(dir, unix.LOCK_EX)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		select {
		case done <- taken{f, err}:
		case <-ctx.Done(): // a wait that was given up ends with the holder, or with the process
			f.Close()
		}
	}()
	select {
	case t := <-done:
		return t.f, t.err
	case <-ctx.Done():
		return nil, fmt.Errorf("a living step daemon or its keeper holds cgroup %q", dir)
	}
}

// Kind is the tracker's: proctrack.KindCgroupV2.
func (p *Place) Kind() string { return p.kind }

// Notes say what the site asks for and the machine does not have.
func (p *Place) Notes() []string { return p.notes }

// Lock is the open file by which the step's cgroup is held, nil without cgroups: while the
// caller or a child that inherits it has it open, no sweep takes the step for dead. It stays
// the Place's.
func (p *Place) Lock() *os.File { return p.lock }

// Remove kills what is left of the step and removes its cgroups, and the job's with its last
// step's. It may be called again. The error is a *proctrack.SurvivorsError when ctx ends first.
func (p *Place) Remove(ctx context.Context) error {
	if p.lock == nil {
		return nil
	}
	if err := p.root.KillStep(ctx, p.id); err != nil {
		return err
	}
	p.lock.Close()
	p.lock = nil
	return p.removeJob(p.id.Job)
}

// removeJob removes a job's cgroups unless a step is in them.
func (p *Place) removeJob(job uint32) error {
	if err := p.root.RemoveJob(job); err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

// lock opens a cgroup's directory and locks it until the file is closed, here and in every
// process that has inherited it.
func lock(dir string, how int) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot lock cgroup: %w", err)
	}
	err = linux.IgnoringEINTR(func() error { return unix.Flock(int(f.Fd()), how) })
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot lock cgroup %q: %w", dir, err)
	}
	return f, nil
}
