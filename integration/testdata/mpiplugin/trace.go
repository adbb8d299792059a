// Package trace is an MPI plugin that notes its calls, in the file that the
// step's environment names: what a plugin's author has to write, beside a line in
// mpi.Types.
package trace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"stepd/step"
	"stepd/step/launch"
)

// Plugin is the part in stepd.
type Plugin struct{ spec *step.Spec }

// New is init.
func New() *Plugin { return &Plugin{} }

// Prefork is slurmstepd_prefork; what it returns for each task is slurmstepd_task.
func (p *Plugin) Prefork(_ context.Context, job launch.MPIJob) (tasks launch.MPITasks, err error) {
	p.spec = job.Spec
	note(p.spec.Env, "prefork %s for %s", p.spec.ID, lookup(p.spec.Env, "TRACE_CLIENT"))
	if lookup(p.spec.Env, "TRACE_FAIL") == "prefork" {
		return tasks, errors.New("the trace wants to fail")
	}
	tasks.Env = []string{"TRACE_JOB=" + p.spec.ID.String()}
	for _, rank := range p.spec.LocalRanks() {
		read, write, err := os.Pipe()
		if err != nil {
			return tasks, err
		}
		fmt.Fprintf(write, "for rank %d\n", rank)
		write.Close()
		tasks.TaskEnv = append(tasks.TaskEnv, []string{fmt.Sprintf("TRACE_TASK=%d", rank)})
		tasks.TaskFDs = append(tasks.TaskFDs, []launch.TaskFD{{File: read, Var: "TRACE_FD"}})
		job.Progress(rank, step.MPIProgress{Phase: step.PhaseStarted, Protocol: "trace"})
	}
	return tasks, nil
}

// TaskExited is called at a task's end.
func (p *Plugin) TaskExited(rank int, status step.ExitStatus) {
	note(p.spec.Env, "exited %d: %s", rank, status.Describe())
}

// Close is fini. It is called after a Prefork that failed, too.
func (p *Plugin) Close() error {
	note(p.spec.Env, "close")
	return nil
}

// Client is the part in stepctl.
type Client struct{ env []string }

// NewClient is init in the client.
func NewClient() *Client { return &Client{} }

// Prelaunch is client_prelaunch.
func (c *Client) Prelaunch(_ context.Context, spec *step.Spec, env []string) ([]string, error) {
	c.env = os.Environ()
	note(c.env, "prelaunch %s, %d tasks on %s", spec.ID, spec.NTasks, spec.NodeList)
	if os.Getenv("TRACE_FAIL") == "prelaunch" {
		return nil, errors.New("the trace wants to fail")
	}
	env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, "TRACE_GONE=") })
	return append(env, "TRACE_CLIENT="+spec.ID.String()), nil
}

// Fini is client_fini.
func (c *Client) Fini() error {
	note(c.env, "fini")
	if os.Getenv("TRACE_FAIL") == "fini" {
		return errors.New("the trace wants to fail")
	}
	return nil
}

func lookup(env []string, name string) (value string) {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			value = v
		}
	}
	return value
}

func note(env []string, format string, args ...any) {
	f, err := os.OpenFile(lookup(env, "TRACE_FILE"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return
	}
	defer f.Close()
	fmt.Fprintf(f, format+"\n", args...)
}
