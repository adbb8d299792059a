package stepd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api/stepapi"
	"stepd/spank"
	"stepd/step"
	"stepd/step/launch"
)

// jobScript is `stepd spank prolog|epilog`, run by noded: the job_script
// context of a job's plugins. What it is to do is on descriptor stepapi.FDSpec
// as a stepapi.JobScript, a stepapi.JobScriptResult goes to stdout, words for the log
// to stderr. It returns the exit code: 1 where a required plugin has failed.
func jobScript(log *logrus.Logger, args []string) int {
	hook := ""
	if len(args) == 2 && args[0] == "spank" && (args[1] == "prolog" || args[1] == "epilog") {
		hook = "slurm_spank_job_" + args[1]
	}
	if hook == "" {
		fmt.Fprintln(os.Stderr, "usage: stepd spank prolog|epilog (noded runs it, with the job on descriptor 3)")
		return 1
	}
	job, err := readJobScript()
	if err != nil {
		log.Error(err)
		return 1
	}
	hearDebug(log, job.Job.Spank)
	j := &jobHooks{job: job, hook: hook, log: log.WithField("job", job.Job.ID.Job)}
	res := stepapi.JobScriptResult{Schema: step.Schema}
	if err := j.run(&res); err != nil {
		j.log.Error(err)
		res.Failure = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(res); err != nil {
		j.log.Errorf("cannot tell the result: %v", err)
		return 1
	}
	if res.Failure != "" {
		return 1
	}
	return 0
}

func readJobScript() (*stepapi.JobScript, error) {
	b, err := readHanded("the job")
	if err != nil {
		return nil, err
	}
	job := new(stepapi.JobScript)
	if err := json.Unmarshal(b, job); err != nil {
		return nil, fmt.Errorf("cannot parse the job: %w", err)
	}
	if job.Schema != step.Schema {
		return nil, fmt.Errorf("cannot use a job of schema %d: this stepd knows %d", job.Schema, step.Schema)
	}
	if job.Job.ID.Job == 0 {
		return nil, errors.New("cannot use a job without a number: noded is of another release; restart it")
	}
	return job, nil
}

// jobHooks calls one hook of a job's plugins.
type jobHooks struct {
	job  *stepapi.JobScript
	hook string
	log  *logrus.Entry
}

// run calls the hook of every plugin. An optional plugin that takes the host
// down is left out, and the plugins behind it are called in a new one.
func (j *jobHooks) run(res *stepapi.JobScriptResult) error {
	stack, err := spank.StackOf(j.job.Job.Spank)
	if err != nil {
		return err
	}
	whole := true
	for _, line := range stack.LeaveOut(&j.job.Job.Spank) {
		j.log.Warn(line)
		whole = false
	}
	for len(stack.Plugins) > 0 {
		err := j.call(stack, res, whole)
		whole = false // behind a crash there is but the rest of it
		hook, ok := errors.AsType[*launch.HookError](err)
		if !ok || hook.RC != nil {
			return err
		}
		res.Crashes = append(res.Crashes, step.PluginCrash{Path: hook.Path, Hook: hook.Hook, Required: hook.Required})
		at := slices.IndexFunc(stack.Plugins, func(p spank.Plugin) bool { return p.Path == hook.Path })
		if hook.Required || at < 0 {
			return err
		}
		j.log.Errorf("%v; the plugin is optional: going on without it", err)
		if hook.Hook != j.hook {
			at = -1 // while they were loaded: none has been called
		}
		stack.Plugins = slices.DeleteFunc(stack.Plugins[at+1:], func(p spank.Plugin) bool { return p.Path == hook.Path })
		stack.Problems = nil // they were told
	}
	return nil
}

// call is one host. Where it has loaded every plugin of the whole stack, noded
// learns which hooks exist: it starts no host for missing ones.
func (j *jobHooks) call(stack spank.Stack, res *stepapi.JobScriptResult, whole bool) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find spankhost: %w", err)
	}
	env := make([]string, len(j.job.Env))
	for i, e := range j.job.Env {
		env[i] = string(e)
	}
	s, problems, err := spank.Open(context.Background(), spank.SessionConfig{
		Program: filepath.Join(filepath.Dir(self), "spankhost"), Context: spank.ContextJobScript,
		Stack: stack, AllowReleases: j.job.Job.Spank.AllowReleases, Daemon: os.Environ(), Env: env, JobControl: j.job.JobControl,
		Job: &j.job.Job, JobState: j.job.State, NodeName: j.job.Job.NodeName, User: j.job.Job.User,
		HookTimeout: time.Duration(j.job.Job.Spank.HookTimeoutS) * time.Second, Log: j.hear,
	})
	for _, p := range problems {
		j.log.Warn(p)
	}
	if err != nil {
		return err
	}
	if _, err = s.Init(); err == nil {
		if whole && s.Whole() {
			res.Hooks = s.Hooks()
		}
		err = s.Hook(j.hook)
	}
	return errors.Join(err, s.Close())
}

// hear logs the plugins' messages, which have no other reader in this context.
func (j *jobHooks) hear(r launch.HostRecord) { logAt(j.log, r.Level, r.Line()) }
