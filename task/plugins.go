package task

import (
	"context"
	"errors"
	"fmt"

	"stepd/step"
)

// preSetuid lets the task plugins limit the step. Their PostStep is owed from
// here on.
func (s *Step) preSetuid(context.Context) error {
	for _, p := range s.d.Plugins {
		s.plugged++
		if err := p.PreSetuid(); err != nil {
			return pluginError(p, err)
		}
	}
	return nil
}

// preLaunchPriv lets them act on each task, which waits at the gate.
func (s *Step) preLaunchPriv(context.Context) error {
	for _, p := range s.d.Plugins {
		for id := range s.tasks {
			if err := p.PreLaunchPriv(id, s.tasks[id].pid); err != nil {
				return pluginError(p, err)
			}
		}
	}
	return nil
}

func (s *Step) postTerm(e step.TaskEnd) {
	for _, p := range s.d.Plugins {
		p.PostTerm(e)
	}
}

// postStep lets them take back what PreSetuid made, the last first.
func (s *Step) postStep() error {
	var errs []error
	for ; s.plugged > 0; s.plugged-- {
		p := s.d.Plugins[s.plugged-1]
		errs = append(errs, pluginError(p, p.PostStep()))
	}
	return errors.Join(errs...)
}

func pluginError(p Plugin, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", p.Name(), err)
}
