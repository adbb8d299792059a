package site

import (
	"fmt"
	"os"

	"stepd/step"
	"stepd/step/launch"
	"stepd/task/affinity"
)

// binding says where each task would run, by the same plan as stepd's.
func binding(spec *step.Spec) ([]string, error) {
	if spec.Affinity == nil {
		return []string{"the tasks are not bound: TaskPlugin has no task/affinity"}, nil
	}
	in, err := affinity.InputOf(spec, os.DirFS("/sys"))
	if err != nil {
		return nil, err
	}
	plan, err := affinity.MakePlan(in)
	if err != nil {
		return nil, err
	}
	return bindingWords(plan, spec.LocalTasks()), nil
}

// bindingWords has one line for neighbours that are bound alike.
func bindingWords(plan *affinity.Plan, ntasks int) []string {
	memory := make(map[int]string)
	for _, m := range plan.Mem {
		memory[m.LocalID] = memoryWords(m)
	}
	at := func(rank int) string {
		s := "any CPU of the step"
		if plan.CPUs != nil {
			s = "CPUs " + plan.CPUs[rank].String()
		}
		return s + memory[launch.AllRanks] + memory[rank]
	}
	var lines []string
	for from := 0; from < ntasks; {
		to := from
		for to+1 < ntasks && at(to+1) == at(from) {
			to++
		}
		who := fmt.Sprintf("task %d", from)
		if to > from {
			who = fmt.Sprintf("tasks %d-%d", from, to)
		}
		lines = append(lines, who+": "+at(from))
		from = to + 1
	}
	return append(lines, plan.Notes...)
}

func memoryWords(m launch.MemPolicy) string {
	nodes := affinity.CPUSet(m.Nodes).String()
	switch m.Mode {
	case launch.MemPreferred:
		return ", memory of node " + nodes + " first"
	case launch.MemBound:
		return ", memory of node " + nodes + " only"
	case launch.MemLocal:
		return ", memory of its own node"
	}
	return ""
}
