package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"stepd/slurm/wire"
	"stepd/slurmconf"
	"stepd/srunopt"
	"stepd/step"
)

// Variable is the value of a variable, "" without one.
func Variable(env []string, name string) string {
	for _, e := range slices.Backward(env) {
		if key, value, _ := strings.Cut(e, "="); key == name {
			return value
		}
	}
	return ""
}

// environment is srun's, without what is srun's alone.
func environment(env []string, s *wire.Stream) []string {
	env = slices.Clone(env)
	interactive := s.Launch != nil && s.Launch.Step.Step == wire.StepInteractive // no MPI type is looked for there
	for i, e := range env {
		// srun marks a limit that the user has named (--propagate) by a U before the number.
		if name, value, _ := strings.Cut(e, "="); strings.HasPrefix(name, srunopt.LimitPrefix) {
			env[i] = name + "=" + strings.TrimPrefix(value, "U")
		}
	}
	return slices.DeleteFunc(env, func(e string) bool {
		name, value, ok := strings.Cut(e, "=")
		switch name {
		case "SLURM_MPI_TYPE":
			return value == "none" && !interactive
		case "SLURM_UMASK": // or a command of the session would take it for the user's choice
			return interactive
		case "SLURM_PMIXP_ABORT_AGENT_PORT":
			return true
		}
		// srun's own servers are not the tasks' to ask, and an srun of theirs is not the spawned one.
		return !ok || name == "" || strings.HasPrefix(name, pmi2Prefix) && name != pmi2Prefix+"TREE_WIDTH"
	})
}

// topology are the variables of the node's place in the network (slurmd).
func topology(c *wire.Conf) (env []string) {
	if c.TopoAddr != "" {
		env = []string{"SLURM_TOPOLOGY_ADDR=" + c.TopoAddr, "SLURM_TOPOLOGY_ADDR_PATTERN=" + c.TopoPattern}
	}
	return env
}

// batchEnv is what the step daemon adds to a batch job's environment (sbatch(1)), in which
// sbatch has said what it knew before the job had its nodes.
func batchEnv(env []string, s *wire.Stream, c *slurmconf.Config) []string {
	b := s.Batch
	nodes := strconv.Itoa(int(max(1, b.Cred.JobNodes)))
	job := strconv.FormatUint(uint64(b.Job), 10)
	var cpus, tasks []string
	for _, n := range b.CPUs {
		cpus = append(cpus, repeated(int(n.Value), int(n.Nodes)))
		tasks = append(tasks, repeated(max(1, int(n.Value)/cpusPerTask(b.CPUsPerTask)), int(n.Nodes)))
	}
	perNode := strings.Join(tasks, ",")
	if n := int(b.Tasks); n > 0 && b.Cred.JobNodes <= 1 {
		perNode = strconv.Itoa(n)
	}
	set := []string{
		"ENVIRONMENT=BATCH", "HOSTNAME=" + s.Conf.Host, "SLURM_CLUSTER_NAME=" + c.ClusterName,
		"SLURM_JOB_CPUS_PER_NODE=" + strings.Join(cpus, ","), "SLURM_JOB_ID=" + job, "SLURM_JOBID=" + job,
		"SLURM_JOB_NODELIST=" + b.Hosts, "SLURM_JOB_NUM_NODES=" + nodes, "SLURM_JOB_PARTITION=" + b.Partition,
		"SLURM_NNODES=" + nodes, "SLURM_NODELIST=" + b.Hosts, "SLURM_TASKS_PER_NODE=" + perNode,
	}
	set = append(set, byRelease(s)...)
	if b.Tasks > 0 { // sbatch has said it, but in a heterogeneous job
		n := strconv.FormatUint(uint64(b.Tasks), 10)
		set = append(set, "SLURM_NTASKS="+n, "SLURM_NPROCS="+n)
	}
	if b.ArrayTask != wire.NoVal {
		set = append(set, fmt.Sprintf("SLURM_ARRAY_JOB_ID=%d", b.ArrayJob), fmt.Sprintf("SLURM_ARRAY_TASK_ID=%d", b.ArrayTask))
	}
	for name, value := range map[string]string{"ACCOUNT": b.Account, "QOS": b.QOS, "RESERVATION": b.Reservation} {
		if value != "" {
			set = append(set, "SLURM_JOB_"+name+"="+value)
		}
	}
	if b.Restarts > 0 {
		set = append(set, fmt.Sprintf("SLURM_RESTART_COUNT=%d", b.Restarts))
	}
	drop := func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return name == "SLURM_UMASK" || slices.ContainsFunc(set, func(o string) bool { return strings.HasPrefix(o, name+"=") })
	}
	return append(slices.DeleteFunc(env, drop), set...)
}

// byRelease are the variables that have come and gone.
func byRelease(s *wire.Stream) (set []string) {
	v, b := s.Conf.Release, s.Batch
	if v < wire.V2311 {
		set = append(set, "SLURM_NODE_ALIASES=(null)")
	}
	switch memory := b.NodeMemory; {
	case memory&memPerCPU != 0:
		set = append(set, "SLURM_MEM_PER_CPU="+strconv.FormatUint(memory&^memPerCPU, 10))
	case memory > 0:
		set = append(set, "SLURM_MEM_PER_NODE="+strconv.FormatUint(memory, 10))
	}
	if b.Overcommit {
		set = append(set, "SLURM_OVERCOMMIT=1")
	}
	return set
}

// taskEnv are the variables that Slurm's own step daemon sets when a task's privileged hook
// has returned, and which of them are still set when it ends.
func taskEnv(out *step.Spec, v wire.Release, cred *wire.Cred, oomKillStep bool) {
	if v >= wire.V2302 {
		out.TaskEnv = append(out.TaskEnv, fmt.Sprintf("SLURM_JOB_END_TIME=%d", cred.End.Unix()), fmt.Sprintf("SLURM_JOB_START_TIME=%d", cred.Begin.Unix()))
	}
	// srun inside a job takes the user from the job's environment, where he may be another.
	stay := []string{fmt.Sprintf("SLURM_JOB_UID=%d", cred.UID)}
	if cred.Name != "" {
		stay = append(stay, "SLURM_JOB_USER="+cred.Name)
	}
	if v >= wire.V2411 {
		stay = append(stay, "SLURM_OOM_KILL_STEP="+flag(oomKillStep))
	}
	out.TaskEnv, out.ExitEnv = append(out.TaskEnv, stay...), append(out.ExitEnv, stay...)
}

// interactiveEnv are the variables that an interactive step has beside them.
func interactiveEnv(out *step.Spec, v wire.Release) {
	if v >= wire.V2605 {
		out.TaskEnv = append(out.TaskEnv, "SLURM_STEP_ID=-6", "SLURM_STEPID=-6") // the step's number, as a signed one
	}
}

// batchTaskEnv are the same variables of a batch script.
func batchTaskEnv(out *step.Spec, s *wire.Stream, c *slurmconf.Config) {
	v, b := s.Conf.Release, s.Batch
	taskEnv(out, v, b.Cred, b.OOMKillStep)
	if v < wire.V2311 && len(c.Control.Addrs) > 0 {
		// Cluster, controller, protocol, and the number of the select plugin.
		cluster := fmt.Sprintf("SLURM_WORKING_CLUSTER=%s:%s:%d:%d", c.ClusterName, c.Control.Addrs[0], uint16(v), selectNumber)
		out.TaskEnv, out.ExitEnv = append(out.TaskEnv, cluster), append(out.ExitEnv, cluster)
	}
	if v >= wire.V2605 {
		// The batch step's number, as a signed one.
		out.TaskEnv = append(out.TaskEnv, "SLURM_JOB_SLUID="+sluid(b.Cred.Step.SLUID), "SLURM_STEP_ID=-5", "SLURM_STEPID=-5")
	}
}

// memPerCPU marks memory that is each CPU's, and not the node's (slurm.h).
const memPerCPU = 1 << 63

func flag(set bool) string {
	if set {
		return "1"
	}
	return "0"
}

// sluid is a job's number over all clusters as Slurm writes it: in base 32, with the
// letters of Crockford.
func sluid(n uint64) string {
	text := []byte("s0000000000000")
	for i := len(text) - 1; n > 0; i-- {
		text[i] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"[n&31]
		n >>= 5
	}
	return string(text)
}

// selectNumber is the number of select/cons_tres.
const selectNumber = 109

// repeated is a count of so many nodes as Slurm writes it: "4(x2)".
func repeated(n, nodes int) string {
	if nodes > 1 {
		return fmt.Sprintf("%d(x%d)", n, nodes)
	}
	return strconv.Itoa(n)
}
