package task

import (
	"testing"

	"stepd/step"
)

func TestNiceOf(t *testing.T) {
	for name, c := range map[string]struct {
		mode      int
		uid       uint32
		env       []string
		own, nice int
	}{
		"as the client":               {step.PrioOn, 7, []string{"SLURM_PRIO_PROCESS=5"}, 0, 5},
		"as the client, nothing said": {step.PrioOn, 7, nil, 0, 0},
		"the last counts":             {step.PrioOn, 7, []string{"SLURM_PRIO_PROCESS=5", "SLURM_PRIO_PROCESS=6"}, 0, 6},
		"before the daemons":          {step.PrioOn, 7, []string{"SLURM_PRIO_PROCESS=-5"}, 0, 0},
		"before the daemons, root":    {step.PrioOn, 0, []string{"SLURM_PRIO_PROCESS=-5"}, 0, -5},
		"below all":                   {step.PrioOn, 0, []string{"SLURM_PRIO_PROCESS=-500"}, 0, -20},
		"above all":                   {step.PrioOn, 7, []string{"SLURM_PRIO_PROCESS=500"}, 0, 19},
		"no number":                   {step.PrioOn, 7, []string{"SLURM_PRIO_PROCESS=x"}, 0, 0},
		"nicer":                       {step.PrioNicer, 7, []string{"SLURM_PRIO_PROCESS=0"}, 0, 1},
		"nicer, root":                 {step.PrioNicer, 0, []string{"SLURM_PRIO_PROCESS=-5"}, -3, -2},
		"nicer, and the client more":  {step.PrioNicer, 7, []string{"SLURM_PRIO_PROCESS=9"}, 3, 9},
		"nicer than 19":               {step.PrioNicer, 7, nil, 19, 19},
	} {
		s := &step.Spec{User: step.User{UID: c.uid}, PropagatePrio: c.mode}
		s.Env = c.env
		if got := niceOf(s, c.own); got != c.nice {
			t.Errorf("%s: %d, want %d", name, got, c.nice)
		}
	}
}
