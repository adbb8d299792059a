package spec

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"stepd/slurm/wire"
	"stepd/slurmconf"
	"stepd/step"
)

// Job is a job as its plugins meet it in the prolog and the epilog.
type Job struct {
	// Spec has the job's own fields of a step.
	Spec *step.Spec
	// State is RUNNING, and in the epilog how the job has ended.
	State step.State
	// JobControl is the job control environment, NAME=VALUE without a prefix.
	JobControl [][]byte
}

// controlPrefix begins the variables by which slurmd passes on the job control environment.
const controlPrefix = "SPANK_"

// OfJob reads a job from the environment in which slurmd starts a program for its prolog or
// epilog, which has nothing else of it.
func OfJob(conf *wire.Conf, c *slurmconf.Config, env []string) (*Job, error) {
	value := make(map[string]string, len(env))
	j := &Job{State: step.Running}
	for _, e := range env {
		name, v, _ := strings.Cut(e, "=")
		value[name] = v
		if control, ok := strings.CutPrefix(e, controlPrefix); ok {
			j.JobControl = append(j.JobControl, []byte(control))
		}
	}
	var err error
	number := func(names ...string) uint32 {
		text := ""
		for _, name := range names {
			text = cmp.Or(text, value[name])
		}
		n, perr := strconv.ParseUint(text, 10, 32)
		if perr != nil && err == nil {
			err = fmt.Errorf("cannot read the job: slurmd has set %s to %q", names[0], text)
		}
		return uint32(n)
	}
	j.Spec = &step.Spec{
		NodeName: conf.Node, NodeList: conf.Node,
		ID:          step.ID{Job: number("SLURM_JOB_ID", "SLURM_JOBID")},
		User:        step.User{Name: value["SLURM_JOB_USER"], UID: number("SLURM_JOB_UID", "SLURM_UID"), GID: number("SLURM_JOB_GID")},
		JobNodeList: cmp.Or(value["SLURM_JOB_NODELIST"], value["SLURM_NODELIST"]), Site: site(c),
	}
	if err != nil {
		return nil, err
	}
	j.Spec.Partition = cmp.Or(value["SLURM_JOB_PARTITION"], j.Spec.Partition)
	j.Spec.Schema, j.Spec.JobName, j.Spec.Cwd = step.Schema, value["SLURM_JOB_NAME"], value["SLURM_JOB_WORK_DIR"]
	j.details(value)
	return j, nil
}

// details are what a plugin may ask of slurm_load_job, and what a release may leave out.
func (j *Job) details(value map[string]string) {
	count := func(name string) int {
		n, _ := strconv.ParseUint(value[name], 10, 31)
		return int(n)
	}
	s := j.Spec
	s.JobNNodes, s.JobNTasks, s.RestartCount = count("SLURM_JOB_NUM_NODES"), count("SLURM_JOB_NTASKS"), uint32(count("SLURM_JOB_RESTART_COUNT"))
	if start := count("SLURM_JOB_START_TIME"); start > 0 {
		s.JobStarted = time.Unix(int64(start), 0)
	}
	if id := count("SLURM_ARRAY_JOB_ID"); id > 0 {
		s.Array = &step.ArrayTask{Job: uint32(id), Task: uint32(count("SLURM_ARRAY_TASK_ID"))}
	}
	if status, ok := value["SLURM_JOB_EXIT_CODE"]; ok {
		j.State = step.Failed
		if status == "0" {
			j.State = step.Completed
		}
	}
}
