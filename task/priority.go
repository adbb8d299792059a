package task

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// prioVariable is where the client tells its own nice value (srun, sbatch).
const prioVariable = "SLURM_PRIO_PROCESS"

// setPriority gives the plugins' host, whose children the tasks are, the nice value that
// PropagatePrioProcess asks for. As in Slurm it does not end the step where it fails.
func (s *Step) setPriority() {
	spec := s.plan.Spec
	if spec.PropagatePrio == step.PrioOff {
		return
	}
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		s.d.Audience.Log(step.LogError, fmt.Sprintf("cannot read stepd's nice value: %v: the tasks keep it (PropagatePrioProcess=%d)", err, spec.PropagatePrio))
		return
	}
	own := 20 - raw // the system call answers 1 to 40 (getpriority(2))
	nice := niceOf(spec, own)
	if nice == own {
		return
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, s.host.PID(), nice); err != nil {
		s.d.Audience.Log(step.LogError, fmt.Sprintf("cannot give the tasks the nice value %d (PropagatePrioProcess=%d): %v", nice, spec.PropagatePrio, err))
	}
}

// niceOf is the nice value of the tasks, where the daemons have own. What the client says
// of itself is taken from anybody, so that only root's tasks come before the daemons.
func niceOf(s *step.Spec, own int) int {
	nice := 0
	for _, e := range s.Env {
		if text, ok := strings.CutPrefix(e, prioVariable+"="); ok {
			nice, _ = strconv.Atoi(text) // 0 as with Slurm's atoi
		}
	}
	switch {
	case s.PropagatePrio == step.PrioNicer:
		nice = max(nice, own+1)
	case s.User.UID != 0:
		nice = max(nice, own)
	}
	return min(max(nice, -20), 19)
}

// hidePriority takes the client's nice value out of the tasks' environment where it was
// used, as in Slurm.
func hidePriority(env *envList, s *step.Spec) {
	if s.PropagatePrio != step.PrioOff {
		env.unset(prioVariable)
	}
}
