package task

import (
	"strconv"
	"strings"

	"stepd/step"
)

// isBatch tells whether the step is a job's batch script.
func isBatch(s *step.Spec) bool { return s.ID.Step == step.BatchStep }

// batchEnv is what a batch script sees of its job (traces/sbatch_reg.tsv):
// nothing of a step, and the job control environment, so that the commands in
// it give the job's options to their own plugins.
func batchEnv(s *step.Spec) []string {
	env := newEnvList(s.Env)
	keepLimits(env, s)
	hidePriority(env, s)
	job, ntasks := u32(s.ID.Job), strconv.Itoa(s.JobNTasks)
	if s.SlurmConf != "" {
		env.set("SLURM_CONF", s.SlurmConf)
	}
	env.set("SLURM_JOB_NAME", s.Name)
	for _, e := range s.JobControl {
		// The client has told what is too long.
		if name, value, ok := strings.Cut(step.JobEnvPrefix+string(e), "="); ok && len(name)+len(value) < step.VariableMax {
			env.set(name, value)
		}
	}
	if s.CPUsPerTask > 1 {
		env.set("SLURM_CPUS_PER_TASK", strconv.Itoa(s.CPUsPerTask))
	}
	env.set("SLURM_NPROCS", ntasks)
	env.set("SLURM_NTASKS", ntasks)
	env.set("SLURM_CLUSTER_NAME", s.Cluster)
	env.set("SLURM_JOB_ID", job)
	tellJobNodes(env, s)
	env.set("SLURM_JOB_PARTITION", s.Partition)
	env.set("SLURM_NODE_ALIASES", "(null)")
	env.set("SLURM_JOBID", job)
	env.set("SLURM_NNODES", strconv.Itoa(jobNodes(s)))
	env.set("SLURM_TASKS_PER_NODE", batchTasksPerNode(s))
	env.set("SLURM_TOPOLOGY_ADDR", s.NodeName)
	env.set("SLURM_TOPOLOGY_ADDR_PATTERN", "node")
	tellResources(env, s)
	tellArray(env, s)
	// It is no command of the step that it was submitted in.
	env.unset("SLURM_STEP_ID")
	env.unset("SLURM_STEPID")
	// Commands in the script find this node's daemon.
	env.set("NODED_SOCKET", s.RunDir+"/noded.sock")
	return env.list
}

// batchTasksPerNode is how srun would deal the job's tasks to its nodes: evenly as far as
// their CPUs go, then to all in turn.
func batchTasksPerNode(s *step.Spec) string {
	nodes := len(s.JobNodeCPUs)
	if nodes < 2 || s.JobNTasks < nodes {
		return strconv.Itoa(s.JobNTasks)
	}
	counts, left := make([]int, nodes), s.JobNTasks
	for full := false; left > 0; {
		begun := left
		for i, cpus := range s.JobNodeCPUs {
			if left > 0 && (full || (counts[i]+1)*max(1, s.CPUsPerTask) <= cpus) {
				counts[i]++
				left--
			}
		}
		full = left == begun
	}
	return step.CountList(counts)
}

// batchCommonEnv is what the script gets between task_init_privileged and
// task_init.
func batchCommonEnv(s *step.Spec) []string {
	return []string{
		"SLURM_CPUS_ON_NODE=" + strconv.Itoa(s.NCPUs),
		"SLURM_NODEID=" + u32(s.NodeID),
		"SLURM_GTIDS=0",
		"SLURM_JOB_UID=" + u32(s.User.UID),
		"SLURM_JOB_USER=" + s.User.Name,
		"SLURM_JOB_GID=" + u32(s.User.GID),
		"SLURMD_NODENAME=" + s.NodeName,
	}
}

// exitEnv is what task_exit and exit see beyond the job's environment.
func exitEnv(s *step.Spec) []string {
	env := []string{"SLURM_SCRIPT_CONTEXT=epilog_task"}
	if isBatch(s) {
		env = append(env, "SLURM_JOB_UID="+u32(s.User.UID), "SLURM_JOB_USER="+s.User.Name)
	}
	return env
}
