package stepd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/sirupsen/logrus"

	"stepd/api/stepapi"
	"stepd/spank/jobscript"
	"stepd/step"
	"stepd/step/launch"
	"stepd/stepd/report"
)

// jobScript is `stepd spank prolog|epilog`, run by noded: the job_script
// context of a job's plugins. What it is to do is on descriptor stepapi.FDSpec
// as a stepapi.JobScript, a stepapi.JobScriptResult goes to stdout, words for the log
// to stderr. It returns the exit code: 1 where a required plugin has failed.
func jobScript(log *logrus.Logger, args []string) int {
	hook := ""
	if len(args) == 2 && args[0] == "spank" {
		hook = jobscript.HookOf(args[1])
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
	entry := log.WithField("job", job.Job.ID.Job)
	env := make([]string, len(job.Env))
	for i, e := range job.Env {
		env[i] = string(e)
	}
	done, err := jobscript.Run(jobscript.Config{
		Hook: hook, Job: &job.Job, State: job.State, Env: env, JobControl: job.JobControl,
		Log: func(level launch.LogLevel, text string) { report.Log(entry, level, text) },
	})
	res := stepapi.JobScriptResult{Schema: step.Schema, Hooks: done.Hooks, Crashes: done.Crashes}
	if err != nil {
		entry.Info(err) // noded drains the node by it, as an error
		res.Failure = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(res); err != nil {
		entry.Errorf("cannot tell the result: %v", err)
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
