// Package jobscript calls one hook of a job's plugins, slurm_spank_job_prolog or
// slurm_spank_job_epilog, in hosts of its own: the job_script context. The programs that do
// so on a daemon's word are stepd and slurmstepd, each with an argument for it. Begin with
// Run.
package jobscript

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"stepd/spank"
	"stepd/step"
	"stepd/step/launch"
)

// Config is what Run needs.
type Config struct {
	// Hook is the name of the hook.
	Hook string
	// Job has the job's own fields of a step, and the plugins. State is RUNNING, and for the
	// epilog how the job has ended.
	Job   *step.Spec
	State step.State
	// Env is the plugins' own environ.
	Env []string
	// JobControl is the job control environment, NAME=VALUE without a prefix,
	// with options as srunopt.OptionVariable names them.
	JobControl [][]byte
	// Log takes what is wrong with plugins, and what they say: they have no other reader in
	// this context. Any goroutine calls it until Run returns.
	Log func(level launch.LogLevel, text string)
}

// Result is what a caller of Run may report further, with or without an error.
type Result struct {
	// Hooks are the hooks that the stack has in its plugins, each once; nil where it
	// could not be loaded.
	Hooks []string
	// Crashes are the plugins that took their host down.
	Crashes []step.PluginCrash
}

// HookOf is the hook of an argument, "prolog" or "epilog", of the programs; "" is no argument.
func HookOf(arg string) string {
	if arg != "prolog" && arg != "epilog" {
		return ""
	}
	return "slurm_spank_job_" + arg
}

// Run calls the hook of every plugin. An optional plugin that takes the host
// down is left out, and the plugins behind it are called in a new one. The error is a
// required plugin's failure.
func Run(c Config) (res Result, err error) {
	stack, err := spank.StackOf(c.Job.Spank)
	if err != nil {
		return res, err
	}
	whole := true
	for _, line := range stack.LeaveOut(&c.Job.Spank) {
		c.Log(launch.LogWarning, line)
		whole = false
	}
	for len(stack.Plugins) > 0 {
		err := c.call(stack, &res, whole)
		whole = false // behind a crash there is but the rest of it
		hook, ok := errors.AsType[*launch.HookError](err)
		if !ok || hook.RC != nil {
			return res, err
		}
		res.Crashes = append(res.Crashes, step.PluginCrash{Path: hook.Path, Hook: hook.Hook, Required: hook.Required})
		at := slices.IndexFunc(stack.Plugins, func(p spank.Plugin) bool { return p.Path == hook.Path })
		if hook.Required || at < 0 {
			return res, err
		}
		c.Log(launch.LogError, fmt.Sprintf("%v; the plugin is optional: going on without it", err))
		if hook.Hook != c.Hook {
			at = -1 // while they were loaded: none has been called
		}
		stack.Plugins = slices.DeleteFunc(stack.Plugins[at+1:], func(p spank.Plugin) bool { return p.Path == hook.Path })
		stack.Problems = nil // they were told
	}
	return res, nil
}

// call is one host. Where it has loaded every plugin of the whole stack, the result says
// which hooks exist: noded starts no host for missing ones.
func (c *Config) call(stack spank.Stack, res *Result, whole bool) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find spankhost: %w", err)
	}
	s, problems, err := spank.Open(context.Background(), spank.SessionConfig{
		Program: filepath.Join(filepath.Dir(self), "spankhost"), Context: spank.ContextJobScript,
		Stack: stack, AllowReleases: c.Job.Spank.AllowReleases, Daemon: os.Environ(), Env: c.Env, JobControl: c.JobControl,
		Job: c.Job, JobState: c.State, NodeName: c.Job.NodeName, User: c.Job.User,
		HookTimeout: time.Duration(c.Job.Spank.HookTimeoutS) * time.Second,
		StopTimeout: time.Duration(c.Job.UnkillableS) * time.Second,
		Log:         func(r launch.HostRecord) { c.Log(r.Level, r.Line()) },
	})
	for _, p := range problems {
		c.Log(launch.LogWarning, p)
	}
	if err != nil {
		return err
	}
	if _, err = s.Init(); err == nil {
		if whole && s.Whole() {
			res.Hooks = s.Hooks()
		}
		err = s.Hook(c.Hook)
	}
	return errors.Join(err, s.Close())
}
