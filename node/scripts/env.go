package scripts

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"

	"stepd/internal/child"
	"stepd/step"
)

// Facts are what the scripts are told about a job.
type Facts struct {
	User step.User // its name, uid and gid
	// CPUs is the list of the job's CPUs, GresEnv the variables of its generic resources.
	CPUs     string
	GresEnv  []string
	NTasks   int
	WorkDir  string
	Restarts uint32
	Array    *step.ArrayTask // nil: in no array
	// Stdin and Stdout are a batch job's patterns; "" for other jobs.
	Stdin, Stdout string
}

// End is how a job has ended, as its epilog is told: raw wait statuses.
type End struct {
	Exit    step.ExitStatus // of the step that the job was made for
	Derived step.ExitStatus // the highest of all other steps
}

func (e End) env() []string {
	code, signal := 0, 0
	if c, s := e.Exit.CodeAndSignal(); s != nil {
		signal = *s
	} else {
		code = *c
	}
	return []string{
		fmt.Sprintf("SLURM_JOB_DERIVED_EC=%d", e.Derived),
		fmt.Sprintf("SLURM_JOB_EXIT_CODE=%d", e.Exit),
		fmt.Sprintf("SLURM_JOB_EXIT_CODE2=%d:%d", code, signal),
	}
}

// nodeEnv are the variables of the node and of the job's user. Nothing in them comes from a
// user but names and numbers that the node has checked.
func (r *Runner) nodeEnv(j *Job, f Facts) []string {
	id := strconv.FormatUint(uint64(j.id), 10)
	env := []string{
		"SLURMD_NODENAME=" + r.NodeName,
		"NODED_SOCKET=" + r.Socket,
		"SLURM_CLUSTER_NAME=" + r.Cluster,
		"SLURM_JOB_ID=" + id,
		"SLURM_JOBID=" + id,
		fmt.Sprintf("SLURM_JOB_UID=%d", f.User.UID),
		fmt.Sprintf("SLURM_JOB_GID=%d", f.User.GID),
		"SLURM_JOB_USER=" + f.User.Name,
	}
	if r.SlurmConf != "" {
		env = append(env, "SLURM_CONF="+r.SlurmConf)
	}
	return env
}

// scriptEnv is the environment of prolog and epilog (spank-behaviour §4):
// Slurm's variables of the job, and the job control environment, every variable of it
// prefixed. Nothing else in it comes from a user, and it has no PATH.
func (r *Runner) scriptEnv(j *Job, f Facts, k kind, control [][]byte, more []string) []string {
	env := make([]string, 0, len(control)+28)
	for _, e := range control {
		env = append(env, scriptEnvPrefix+string(e))
	}
	cpus := 0
	if list, err := step.ParseCPUList(f.CPUs); err == nil { // noded has written it
		cpus = len(list)
	}
	env = append(env, r.nodeEnv(j, f)...)
	env = append(env,
		"SLURM_JOB_WORK_DIR="+f.WorkDir,
		fmt.Sprintf("SLURM_UID=%d", f.User.UID),
		"SLURM_NODELIST="+r.NodeName,
		"SLURM_SCRIPT_CONTEXT="+k.context,
	)
	env = append(env, more...)
	env = append(env, f.GresEnv...)
	env = append(env,
		fmt.Sprintf("SLURM_JOB_CPUS_PER_NODE=%d", cpus),
		fmt.Sprintf("SLURM_JOB_NTASKS=%d", f.NTasks),
		"SLURM_JOB_NUM_NODES=1",
		"SLURM_JOB_PARTITION="+r.Partition,
		fmt.Sprintf("SLURM_JOB_RESTART_COUNT=%d", f.Restarts),
	)
	env = append(env, f.Array.Env()...)
	if f.Stdin != "" {
		env = append(env, "SLURM_JOB_STDIN="+f.Stdin)
	}
	if f.Stdout != "" {
		env = append(env, "SLURM_JOB_STDOUT="+f.Stdout)
	}
	return env
}

// unkillableEnv is the environment of UnkillableStepProgram.
func (r *Runner) unkillableEnv(j *Job, f Facts, left *step.Record, text string) []string {
	id := strconv.FormatUint(uint64(left.ID.Step), 10)
	pids := make([]string, len(left.Survivors))
	for i, s := range left.Survivors {
		pids[i] = fmt.Sprint(s.PID)
	}
	return append(r.nodeEnv(j, f),
		"PATH="+child.SafePath,
		"SLURM_STEP_ID="+id,
		"SLURM_STEPID="+id,
		"STEPD_UNKILLABLE="+text,
		"STEPD_UNKILLABLE_PIDS="+strings.Join(pids, " "),
	)
}

// userEnvMax bounds the job control environment of a program, in bytes with
// its pointers: execve(2) takes a quarter of the stack's limit for all, and what
// a user has sent must not make the site's programs fail.
const userEnvMax = 1 << 20

// passable leaves out the variables that the kernel gives no program: the plugins have them
// in any case, because no program is exec'd with theirs.
func passable(env []string, log *logrus.Entry) []string {
	out := make([]string, 0, len(env))
	size, over := 0, 0
	for _, e := range env {
		if !strings.HasPrefix(e, scriptEnvPrefix) {
			out = append(out, e)
			continue
		}
		name, value, _ := strings.Cut(e, "=")
		if len(e) > step.VariableMax {
			log.Warnf("cannot pass %.80q to prolog and epilog: its value has %d bytes, and the kernel takes %d of a variable", name, len(value), step.VariableMax)
			continue
		}
		if size += len(e) + 16; size > userEnvMax {
			over++
			continue
		}
		out = append(out, e)
	}
	if over > 0 {
		log.Warnf("cannot pass %d variables of the job control environment to prolog and epilog: all of them have more than %d bytes", over, userEnvMax)
	}
	return out
}

// scriptEnvPrefix begins the variables by which prolog and epilog see the job control
// environment.
const scriptEnvPrefix = "SPANK_"
