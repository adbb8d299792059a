package node

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"

	"stepd/node/selection"
	"stepd/node/state"
	"stepd/step"
)

// scriptEnv is the environment of prolog and epilog (spank-behaviour §4):
// Slurm's variables of the job, and the job control environment, every variable of it
// prefixed. Nothing else in it comes from a user, and there is no PATH.
func (n *Node) scriptEnv(j *state.Job, k scriptKind, control [][]byte, more []string) []string {
	env := make([]string, 0, len(control)+24)
	for _, e := range control {
		env = append(env, step.ScriptEnvPrefix+string(e))
	}
	id, cpus := strconv.FormatUint(uint64(j.ID), 10), 0
	if list, err := step.ParseCPUList(j.CPUs); err == nil { // noded has written it
		cpus = len(list)
	}
	set := func(name, value string) { env = append(env, name+"="+value) }
	set("SLURMD_NODENAME", n.cfg.NodeName)
	set("NODED_SOCKET", n.files.socket())
	if n.cfg.SlurmConf != "" {
		set("SLURM_CONF", n.cfg.SlurmConf)
	}
	set("SLURM_CLUSTER_NAME", n.cfg.Cluster)
	set("SLURM_JOB_ID", id)
	set("SLURM_JOB_UID", fmt.Sprint(j.UID))
	set("SLURM_JOB_GID", fmt.Sprint(j.GID))
	set("SLURM_JOB_WORK_DIR", j.WorkDir)
	set("SLURM_JOB_USER", j.User)
	set("SLURM_JOBID", id)
	set("SLURM_UID", fmt.Sprint(j.UID))
	set("SLURM_NODELIST", n.cfg.NodeName)
	set("SLURM_SCRIPT_CONTEXT", k.context)
	env = append(env, more...)
	gpus, _ := selection.GresEnv(n.cfg.Gres, j.Gres, selection.GresScope{Batch: true})
	env = append(env, gpus...)
	set("SLURM_JOB_CPUS_PER_NODE", strconv.Itoa(cpus))
	set("SLURM_JOB_NTASKS", strconv.Itoa(j.NTasks))
	set("SLURM_JOB_NUM_NODES", "1")
	set("SLURM_JOB_PARTITION", n.cfg.Partition)
	set("SLURM_JOB_RESTART_COUNT", fmt.Sprint(j.Restarts))
	env = append(env, j.Array.Env()...)
	if j.Stdin != "" {
		set("SLURM_JOB_STDIN", j.Stdin)
	}
	if j.Stdout != "" {
		set("SLURM_JOB_STDOUT", j.Stdout)
	}
	return env
}

// jobEnd is the job's end for the epilog: raw wait statuses, of the
// step that the job was made for, and the highest of all others.
func (n *Node) jobEnd(j *job) []string {
	var exit, derived step.ExitStatus
	recs, err := n.store.Steps(j.ID)
	if err != nil {
		n.log.WithField("job", j.ID).Errorf("%v", err)
	}
	for _, rec := range recs {
		st := endOf(rec)
		if j.Leads(rec.ID) {
			exit = st
		}
		if rec.ID.Step != step.BatchStep {
			derived = max(derived, st)
		}
	}
	code, signal := 0, 0
	if c, s := exit.CodeAndSignal(); s != nil {
		signal = *s
	} else {
		code = *c
	}
	return []string{
		fmt.Sprintf("SLURM_JOB_DERIVED_EC=%d", derived),
		fmt.Sprintf("SLURM_JOB_EXIT_CODE=%d", exit),
		fmt.Sprintf("SLURM_JOB_EXIT_CODE2=%d:%d", code, signal),
	}
}

// endOf is a step's end as a raw wait status.
func endOf(rec *step.Record) step.ExitStatus {
	switch {
	case rec.Signal != nil:
		return step.ExitStatus(*rec.Signal & 0x7f)
	case rec.ExitCode != nil:
		return step.ExitedWith(uint8(*rec.ExitCode))
	}
	return 0
}

// userEnvMax bounds the job control environment of a program, in bytes with
// its pointers: execve(2) takes a quarter of the stack's limit for all, and what
// a user has sent must not make the site's programs fail.
const userEnvMax = 1 << 20

// passable leaves out what the kernel gives no program: the plugins have it in
// any case, for no program is exec'd with theirs.
func passable(env []string, log *logrus.Entry) []string {
	out := make([]string, 0, len(env))
	size, over := 0, 0
	for _, e := range env {
		if !strings.HasPrefix(e, step.ScriptEnvPrefix) {
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

func asBytes(list []string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}
