package node

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"stepd/node/child"
	"stepd/node/state"
	"stepd/step"
)

// programMax bounds UnkillableStepProgram, as Slurm does.
const programMax = 5 * time.Minute

// claimProgram returns the held step for which the site's UnkillableStepProgram
// is to be run now, once; nil is none.
func (n *Node) claimProgram(id step.ID) *state.Held {
	n.draining.Lock()
	defer n.draining.Unlock()
	h := n.held.steps[id]
	if n.cfg.UnkillableProgram == "" || h == nil || h.Programmed {
		return nil
	}
	h.Programmed = true
	n.storeHeld(id)
	return h
}

// runUnkillable runs it, as root in the place of the job's prolog and epilog.
func (n *Node) runUnkillable(j *job, h *state.Held) {
	log := n.log.WithField("step", h.Rec.ID.String())
	ctx, cancel := n.untilStopped()
	defer cancel()
	ctx, stop := context.WithTimeoutCause(ctx, programMax, fmt.Errorf("did not end within %v", programMax))
	defer stop()
	begin := time.Now()
	if err := n.runProgram(ctx, j, n.cfg.UnkillableProgram, n.unkillableEnv(j, h), log); err != nil {
		log.Errorf("UnkillableStepProgram %q: %v", n.cfg.UnkillableProgram, err)
		return
	}
	log.Infof("UnkillableStepProgram took %v", time.Since(begin).Round(time.Millisecond))
}

// unkillableEnv is its environment: nothing in it comes from a user but names
// and numbers that the node has checked.
func (n *Node) unkillableEnv(j *job, h *state.Held) []string {
	var env []string
	set := func(name, value string) { env = append(env, name+"="+value) }
	num := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	set("PATH", child.SafePath)
	set("SLURMD_NODENAME", n.cfg.NodeName)
	set("NODED_SOCKET", n.files.socket())
	if n.cfg.SlurmConf != "" {
		set("SLURM_CONF", n.cfg.SlurmConf)
	}
	set("SLURM_CLUSTER_NAME", n.cfg.Cluster)
	set("SLURM_JOB_ID", num(j.ID))
	set("SLURM_JOBID", num(j.ID))
	set("SLURM_STEP_ID", num(h.Rec.ID.Step))
	set("SLURM_STEPID", num(h.Rec.ID.Step))
	set("SLURM_JOB_UID", num(j.UID))
	set("SLURM_JOB_GID", num(j.GID))
	set("SLURM_JOB_USER", j.User)
	set("STEPD_UNKILLABLE", heldText(h))
	var pids []string
	for _, s := range h.Rec.Survivors {
		pids = append(pids, fmt.Sprint(s.PID))
	}
	set("STEPD_UNKILLABLE_PIDS", strings.Join(pids, " "))
	return env
}
