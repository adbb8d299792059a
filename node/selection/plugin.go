// Package selection decides what a job gets of a node, and a step of its job: CPUs, cores,
// memory and generic resources (gres). It has the functions of Slurm's select plugin API that mean
// something on one node, and two plugins: select/linear and select/cons_tres. docs/select.md has
// the table of all functions.
//
// It is arithmetic on plain data: it takes no lock, knows no process and decides nothing about
// users, waiting requests or time. Its caller, the registry of package node, guards every value
// with one lock.
//
// Begin with Plugin.
package selection

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"stepd/api"
	"stepd/step"
)

// Plugin is a select plugin of one node. It is not safe for concurrent use.
type Plugin interface {
	// Test finds what a new job of the request would get, and takes nothing (select_p_job_test). An
	// error says why the job cannot begin.
	Test(req *step.Request, mode Mode) (Share, error)
	// WillRun finds when a request that Test refuses now would fit at the latest, as the jobs are
	// (select_p_job_test with SELECT_MODE_WILL_RUN). ends is when a job gives back what it has, nil
	// where that is not known.
	WillRun(req *step.Request, ends func(*Job) *time.Time) Wait
	// Begin gives a job the share that Test has found since the last change; it cannot fail
	// (select_p_job_begin).
	Begin(sh Share) *Job
	// JobInit gives a job that runs already what was saved of it (select_p_job_init,
	// select_p_state_restore), whatever else is taken: Confirm finds what does not fit.
	JobInit(id uint32, saved Saved) *Job
	// Fini takes back all that the job has (select_p_job_fini). A second call does nothing.
	Fini(j *Job)
	// Suspend frees the CPUs of a job that stands still until its user or root resumes it
	// (select_p_job_suspend with indf_susp). Memory and gres stay with the job.
	Suspend(j *Job)
	// Resume gives the job its CPUs back (select_p_job_resume with indf_susp). A *HeldError names
	// the jobs that have them, and then nothing changes.
	Resume(j *Job) error
	// Confirm finds the jobs that have CPUs, memory or gres which the node does not have for jobs, by
	// their numbers (select_p_reconfigure, select_p_job_mem_confirm, select_p_update_node_config).
	// jobs are all that run. nil is that all fit.
	Confirm(jobs []*Job) []Excess
	// Info counts what is used and free (select_p_select_nodeinfo_get).
	Info() Info
}

// Mode says what Test compares a request with.
type Mode string

const (
	RunNow   Mode = "run now"   // the node as it is: SELECT_MODE_RUN_NOW
	TestOnly Mode = "test only" // the node without jobs: SELECT_MODE_TEST_ONLY
)

// Share is what a job has of its node, or a step of its job. The zero value is nothing.
type Share struct {
	CPUs []int
	MB   uint64 // memory; 0 is none of its own
	Gres []step.GresAlloc
	// Shared: other jobs may have the job's CPUs too (--overcommit).
	Shared bool
	// Held are the generic resources that no other step of the job gets. Alone: no other step
	// gets the CPUs.
	Held  []step.GresAlloc
	Alone bool
}

// Saved is what the state keeps of a job, as select_p_state_save does of all.
type Saved struct {
	Share
	// Suspended: the job's CPUs are free for other jobs.
	Suspended bool
}

// Wait is when a request would fit that does not fit now.
type Wait struct {
	// Err is why not now; nil is that the request fits now. Never: nor on the empty node.
	Err   error
	Never bool
	// Holders are the jobs whose ends make room, in the order of these ends.
	Holders []*Job
	// At is the end of the last of them, nil where it is not known.
	At *time.Time
}

// HeldError refuses the resume of a job.
type HeldError struct {
	CPUs []int
	Jobs []uint32 // that have them; 0 is a job that is being started
}

func (e *HeldError) Error() string {
	var jobs []string
	for _, id := range slices.Compact(slices.Clone(e.Jobs)) {
		name := fmt.Sprintf("job %d", id)
		if id == 0 {
			name = "a job that is being started"
		}
		jobs = append(jobs, name)
	}
	return fmt.Sprintf("its CPUs %s were given to other jobs while it was suspended: %s", step.FormatCPUList(e.CPUs), strings.Join(jobs, ", "))
}

// Excess is what a job has and its node does not have for jobs: after a reload or a restart with less.
type Excess struct {
	Job  *Job
	What string // "CPUs 2-3 (the node has CPUs 0-1), gpu:1(IDX:1) (the node has none)"
}

// Info is what is used and free of a node.
type Info struct {
	api.NodeSelect
	FreeCPUs int
	UsedMB   uint64
	Gres     []api.NodeGres
}

// Config is a node as its files describe it.
type Config struct {
	// Type is "select/linear" or "select/cons_tres", the zero value.
	Type string
	Policy
	CPUs []int
	// Cores are the cores of the CPUs, in their order; nil where they are not known: each CPU then
	// counts as a core.
	Cores []Core
	// Spec are the CPUs that no job gets (CoreSpecCount, CpuSpecList), for Info. They are not among
	// CPUs.
	Spec   []int
	Memory Memory
	Gres   []Gres
}

// Linear is the type of the plugin that gives each job the whole node.
const Linear = "select/linear"

// New is select_p_node_init: the plugin of the configured type for a node without jobs.
func New(cfg Config) Plugin {
	n := &node{spec: cfg.Spec, cpus: newCPUPool(cfg.CPUs, cfg.Cores...), mem: memPool{Memory: cfg.Memory}, gres: newGresPool(cfg.Gres), jobs: make(map[*Job]bool)}
	n.cpus.Policy = cfg.Policy
	if cfg.Type == Linear {
		n.cpus.Policy.Unit = UnitCPU // of a job's steps
		return &linear{n}
	}
	return &consTres{n}
}
