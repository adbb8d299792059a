package place

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// Sweep kills and removes what dead step daemons have left below this spool's root, whose
// keepers have died as well, and the sockets of these steps. It returns the steps that it has
// killed, and calls clean for each while no daemon of the same step can begin. Steps that run,
// start or end are none of them: their daemons hold their cgroups. Where there is nothing to
// sweep it costs a look at each living step.
func (p *Place) Sweep(ctx context.Context, clean func(step.ID) error) ([]step.ID, error) {
	if p.root == nil {
		return nil, nil
	}
	dead, err := p.dead()
	var swept []step.ID
	for _, d := range dead {
		err = errors.Join(err, p.removeSocket(d.id))
		if killErr := p.root.KillStep(ctx, d.id); killErr != nil {
			err = errors.Join(err, killErr)
		} else {
			swept = append(swept, d.id)
			err = errors.Join(err, p.removeJob(d.id.Job), clean(d.id))
		}
		d.lock.Close()
	}
	return swept, err
}

// left is a step without a holder, that this process holds now: no other sweep and no new
// daemon of the same step disturbs the kill.
type left struct {
	id   step.ID
	lock *os.File
}

// dead locks the cgroups that no process holds. No step can begin meanwhile.
func (p *Place) dead() (dead []left, err error) {
	deciding, err := lock(p.root.Dir(), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer deciding.Close()
	ids, jobs, err := p.root.Scan()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		held, lockErr := lock(p.root.StepDir(id), unix.LOCK_EX|unix.LOCK_NB)
		if lockErr == nil {
			// Another sweep may have removed it between its opening and its lock: this id is then the
			// next step's, which makes its cgroup as soon as this decision is over.
			if _, lockErr = os.Stat(p.root.StepDir(id)); lockErr != nil {
				held.Close()
			}
		}
		switch {
		case lockErr == nil:
			dead = append(dead, left{id, held})
		case errors.Is(lockErr, unix.EWOULDBLOCK): // it lives
		case errors.Is(lockErr, fs.ErrNotExist): // it has ended meanwhile
		default:
			err = errors.Join(err, lockErr)
		}
	}
	for _, job := range jobs {
		if !slices.ContainsFunc(ids, func(id step.ID) bool { return id.Job == job }) {
			err = errors.Join(err, p.removeJob(job))
		}
	}
	return dead, err
}

// removeSocket removes the socket of a dead step, by which slurmd would take it for a living
// one, and the sockets of the components of a heterogeneous step.
func (p *Place) removeSocket(id step.ID) error {
	name := fmt.Sprintf("%s_%d.%d", p.cfg.Node, id.Job, id.Step)
	files, err := os.ReadDir(p.cfg.Spool)
	for _, f := range files {
		rest, ok := strings.CutPrefix(f.Name(), name)
		if !ok || rest != "" && rest[0] != '.' { // a component's number follows a dot
			continue
		}
		if removeErr := os.Remove(filepath.Join(p.cfg.Spool, f.Name())); !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot remove the socket of a dead step: %w", err)
	}
	return nil
}
