package task

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"stepd/srunopt"
	"stepd/step"
)

// jobEnv is the user's environment with Slurm's variables of the job over it,
// as recorded of srun. What the client alone knows is in the request already.
func jobEnv(s *step.Spec) []string {
	env := newEnvList(s.Env)
	keepLimits(env, s)
	hidePriority(env, s)
	job, stepID := u32(s.ID.Job), u32(s.ID.Step)
	ntasks, nnodes := strconv.Itoa(s.NTasks), strconv.Itoa(s.NodeCount())
	tasksPerNode := countList(s.TaskCounts())
	if s.SlurmConf != "" {
		env.set("SLURM_CONF", s.SlurmConf)
	}
	env.add("SLURM_CLUSTER_NAME="+s.Cluster, "SLURM_JOB_NAME="+cmp.Or(s.JobName, s.Name))
	setJobNodes(env, s)
	env.add("SLURM_NTASKS="+ntasks, "SLURM_NPROCS="+ntasks)
	if s.CPUsPerTask > 1 {
		env.set("SLURM_CPUS_PER_TASK", strconv.Itoa(s.CPUsPerTask))
	}
	setBinding(env, &s.Binding, s.NTasks, s.NodeCount())
	env.add(
		"SLURM_JOB_ID="+job, "SLURM_JOBID="+job, "SLURM_STEP_ID="+stepID, "SLURM_STEPID="+stepID,
		"SLURM_NNODES="+nnodes, "SLURM_JOB_PARTITION="+s.Partition, "SLURM_TASKS_PER_NODE="+tasksPerNode,
		"SLURM_JOB_UID="+u32(s.User.UID), "SLURM_JOB_USER="+s.User.Name,
		"SLURM_STEP_NODELIST="+s.NodeList, "SLURM_STEP_NUM_NODES="+nnodes,
		"SLURM_STEP_NUM_TASKS="+ntasks, "SLURM_STEP_TASKS_PER_NODE="+tasksPerNode,
	)
	if s.MPI != "" && s.MPI != "none" {
		env.set("SLURM_MPI_TYPE", s.MPI)
	} else {
		env.unset("SLURM_MPI_TYPE")
	}
	setResources(env, s)
	setArray(env, s)
	// Inner stepctl commands find this node's daemon.
	env.set("NODED_SOCKET", s.RunDir+"/noded.sock")
	if s.PreserveEnv {
		preserve(env, s.Env)
	}
	return env.list
}

// setArray sets the job's place in a job array, and how often it has run.
func setArray(env *envList, s *step.Spec) {
	env.add(s.Array.Env()...)
	if s.RestartCount > 0 {
		env.set("SLURM_RESTART_COUNT", u32(s.RestartCount))
	}
}

// preserve gives the numbers of tasks and nodes back that the client had.
func preserve(env *envList, own []string) {
	for _, e := range own {
		switch name, value, _ := strings.Cut(e, "="); name {
		case "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES":
			env.set(name, value)
		}
	}
}

// setJobNodes sets the variables of the job's nodes, of which the step may have some.
func setJobNodes(env *envList, s *step.Spec) {
	nodes, cpus := cmp.Or(s.JobNodeList, s.NodeList), s.JobNodeCPUs
	if len(cpus) == 0 && jobNodes(s) == 1 {
		cpus = []int{s.NCPUs}
	}
	if len(cpus) > 0 {
		env.set("SLURM_JOB_CPUS_PER_NODE", countList(cpus))
	} else {
		env.unset("SLURM_JOB_CPUS_PER_NODE") // the other nodes' are unknown
	}
	env.add("SLURM_JOB_NUM_NODES="+strconv.Itoa(jobNodes(s)), "SLURM_NODELIST="+nodes, "SLURM_JOB_NODELIST="+nodes)
}

// jobNodes counts the job's nodes.
func jobNodes(s *step.Spec) int { return max(s.JobNNodes, len(s.JobNodeCPUs), s.NodeCount()) }

// setBinding sets the variables of the requested binding. What they got is
// task/affinity's to tell.
func setBinding(env *envList, b *step.Binding, ntasks, nnodes int) {
	if b.Distribution != (step.Distribution{}) {
		env.set("SLURM_DISTRIBUTION", srunopt.DistributionText(b.Distribution, ntasks, nnodes))
	}
	for _, v := range []struct {
		name string
		n    int
	}{
		{"SLURM_DIST_PLANESIZE", b.Distribution.Plane}, {"SLURM_THREADS_PER_CORE", b.ThreadsPerCore},
		{"SLURM_NTASKS_PER_CORE", b.NTasksPerCore}, {"SLURM_NTASKS_PER_SOCKET", b.NTasksPerSocket},
	} {
		if v.n > 0 {
			env.set(v.name, strconv.Itoa(v.n))
		}
	}
}

// hostEnv is what plugins find in the host's environ over noded's own environment: nothing of
// the user's, since they run as root there.
func hostEnv(s *step.Spec) []string {
	env := []string{"SLURMD_NODENAME=" + s.NodeName}
	if s.SlurmConf != "" {
		env = append(env, "SLURM_CONF="+s.SlurmConf)
	}
	if isBatch(s) || s.EnvComplete && s.MPI == "" {
		return env // a script is no MPI program
	}
	mpi := cmp.Or(s.MPI, "none")
	return append(env, "SLURM_MPI_TYPE="+mpi)
}

// maxArgStrlen is what execve(2) takes of one string (MAX_ARG_STRLEN).
const maxArgStrlen = 128 << 10

// commonEnv is what Slurm sets for every task between task_init_privileged and
// task_init; the ranks are beside it, and SLURM_TASK_PID is set by the task.
func commonEnv(s *step.Spec, ranks []int) []string {
	env := []string{
		"SLURM_CPUS_ON_NODE=" + strconv.Itoa(s.NCPUs),
		"SLURM_NODEID=" + u32(s.SeenNodeID()),
		"SLURM_LAUNCH_NODE_IPADDR=" + cmp.Or(s.LaunchAddr, "127.0.0.1"),
		"SLURM_JOB_GID=" + u32(s.User.GID),
		"SLURMD_NODENAME=" + s.NodeName,
	}
	// From about 22,000 tasks on no task could be exec'd with this list.
	if gtids := "SLURM_GTIDS=" + rankList(s, ranks); len(gtids) < maxArgStrlen {
		env = append(env, gtids)
	}
	return env
}

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
		// The client has reported what is too long.
		if name, value, ok := strings.Cut(srunopt.JobEnvPrefix+string(e), "="); ok && len(name)+len(value) < step.VariableMax {
			env.set(name, value)
		}
	}
	if s.CPUsPerTask > 1 {
		env.set("SLURM_CPUS_PER_TASK", strconv.Itoa(s.CPUsPerTask))
	}
	env.add("SLURM_NPROCS="+ntasks, "SLURM_NTASKS="+ntasks, "SLURM_CLUSTER_NAME="+s.Cluster, "SLURM_JOB_ID="+job)
	setJobNodes(env, s)
	env.add(
		"SLURM_JOB_PARTITION="+s.Partition, "SLURM_NODE_ALIASES=(null)", "SLURM_JOBID="+job,
		"SLURM_NNODES="+strconv.Itoa(jobNodes(s)), "SLURM_TASKS_PER_NODE="+batchTasksPerNode(s),
		"SLURM_TOPOLOGY_ADDR="+s.NodeName, "SLURM_TOPOLOGY_ADDR_PATTERN=node",
	)
	setResources(env, s)
	setArray(env, s)
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
	return countList(counts)
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
	return append(env, s.ExitEnv...)
}

// keepLimits leaves of the caller's resource limits the ones that the site passes on,
// where the user has not chosen himself (--propagate).
func keepLimits(env *envList, s *step.Spec) {
	if s.OwnLimits || s.Propagate == nil {
		return
	}
	for _, name := range srunopt.ResourceLimits() {
		if !slices.Contains(s.Propagate, name) {
			env.unset(srunopt.LimitPrefix + name)
		}
	}
}

// setResources sets the variables of the step's memory and generic
// resources (srun(1), sbatch(1)); the client's own values of these are not the step's.
func setResources(env *envList, s *step.Spec) {
	const perNode, perCPU = "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"
	switch {
	case s.MemPerCPU != nil && *s.MemPerCPU > 0:
		env.set(perCPU, strconv.FormatUint(*s.MemPerCPU, 10))
		env.unset(perNode)
	case s.MemoryMB > 0:
		env.set(perNode, strconv.FormatUint(s.MemoryMB, 10))
		env.unset(perCPU)
	default:
		env.unset(perNode)
		env.unset(perCPU)
	}
	for _, name := range s.GresUnset {
		env.unset(name)
	}
	env.add(s.GresEnv...)
}

// hidePriority takes the client's nice value out of the tasks' environment where it was
// used, as in Slurm.
func hidePriority(env *envList, s *step.Spec) {
	if s.PropagatePrio != prioOff {
		env.unset(prioVariable)
	}
}

// rankList is "0,1,2", as the tasks see the ranks.
func rankList(s *step.Spec, ranks []int) string {
	var b strings.Builder
	for i, rank := range ranks {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(s.SeenRank(rank)))
	}
	return b.String()
}

func u32(v uint32) string { return strconv.FormatUint(uint64(v), 10) }

// envList is an environment in its order, with the last setting of a name
// in the place of its first.
type envList struct {
	list []string
	at   map[string]int
}

func newEnvList(env []string) *envList {
	e := &envList{list: make([]string, 0, len(env)+32), at: make(map[string]int, len(env)+32)}
	for _, v := range env {
		name, _, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			continue // not a variable: execve(2) would pass it, no program reads it
		}
		e.put(name, v)
	}
	return e
}

func (e *envList) set(name, value string) { e.put(name, name+"="+value) }

// add sets variables, each NAME=VALUE.
func (e *envList) add(vars ...string) {
	for _, v := range vars {
		name, _, _ := strings.Cut(v, "=")
		e.put(name, v)
	}
}

func (e *envList) put(name, v string) {
	if i, ok := e.at[name]; ok {
		e.list[i] = v
		return
	}
	e.at[name] = len(e.list)
	e.list = append(e.list, v)
}

func (e *envList) unset(name string) {
	i, ok := e.at[name]
	if !ok {
		return
	}
	e.list = append(e.list[:i], e.list[i+1:]...)
	delete(e.at, name)
	for n, j := range e.at {
		if j > i {
			e.at[n] = j - 1
		}
	}
}

// countList writes counts by node as Slurm does: "4(x2),3".
func countList(counts []int) string {
	var b strings.Builder
	for i := 0; i < len(counts); {
		j := i + 1
		for j < len(counts) && counts[j] == counts[i] {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(counts[i]))
		if j-i > 1 {
			fmt.Fprintf(&b, "(x%d)", j-i)
		}
		i = j
	}
	return b.String()
}
