package task

import (
	"context"
	"errors"
	"fmt"

	"stepd/step/launch"
)

// pluginChain are the task plugins of the step. Only Run's goroutine uses it.
type pluginChain struct {
	list  []Plugin
	tasks *taskTable
	owed  int // as many of the list are owed their PostStep
}

// preSetuid lets the task plugins limit the step. Their PostStep is owed from
// here on.
func (c *pluginChain) preSetuid(context.Context) error {
	for _, p := range c.list {
		c.owed++
		if err := p.PreSetuid(); err != nil {
			return pluginError(p, err)
		}
	}
	return nil
}

// preLaunch lets them add what the tasks do to themselves.
func (c *pluginChain) preLaunch(l *launch.Launch) error {
	var errs []error
	for _, p := range c.list {
		errs = append(errs, pluginError(p, p.PreLaunch(l)))
	}
	return errors.Join(errs...)
}

// preLaunchPriv lets them act on each task, which waits at the gate.
func (c *pluginChain) preLaunchPriv(context.Context) error {
	for _, p := range c.list {
		for id := range c.tasks.list {
			if err := p.PreLaunchPriv(id, c.tasks.list[id].pid); err != nil {
				return pluginError(p, err)
			}
		}
	}
	return nil
}

func (c *pluginChain) postTerm(e launch.TaskEnd) {
	for _, p := range c.list {
		p.PostTerm(e)
	}
}

// postStep lets them take back what PreSetuid made, the last first.
func (c *pluginChain) postStep() error {
	var errs []error
	for ; c.owed > 0; c.owed-- {
		p := c.list[c.owed-1]
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
