package site

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
	"stepd/task"
	"stepd/task/affinity"
)

// preview returns what the tasks of a step would see, by the same plan as stepd's.
func (s *Site) preview(spec *step.Spec, d *api.DryRun) error {
	plan, err := task.MakePlan(spec)
	if err != nil {
		return err
	}
	env := map[string]string{}
	lists := [][]string{plan.Env, plan.CommonEnv}
	if len(plan.TaskEnv) > 0 {
		lists = append(lists, plan.TaskEnv[0])
	}
	for _, list := range lists {
		for _, e := range list {
			name, value, _ := strings.Cut(e, "=")
			env[name] = value
		}
	}
	for name, value := range env {
		if limit, ok := strings.CutPrefix(name, srunopt.LimitPrefix); ok {
			if l, known := resourceLimit(limit, value); known {
				d.ResourceLimits = append(d.ResourceLimits, l)
			}
			continue // it is gone before the exec
		}
		d.TaskEnv = append(d.TaskEnv, name+"="+value)
	}
	slices.Sort(d.TaskEnv)
	slices.SortFunc(d.ResourceLimits, func(a, b api.ResourceLimit) int { return cmp.Compare(a.Name, b.Name) })
	d.Mounts = append(d.Mounts, s.mountWords(spec)...)
	return nil
}

// mountWords are what the job's container does to the tasks' view of the files.
func (s *Site) mountWords(spec *step.Spec) (out []string) {
	if spec.Container == "none" {
		return nil
	}
	c := s.conf.Container
	dirs := c.Dirs
	if dirs == nil {
		dirs = []string{"/tmp", "/dev/shm"}
	}
	for _, dir := range dirs {
		out = append(out, dir+": the job's own, below "+c.BasePath)
	}
	if c.InitScript != "" {
		out = append(out, "what "+c.InitScript+" mounts")
	}
	if spec.Container == "linux" && c.PIDNamespace {
		out = append(out, "/proc: the job's own pid namespace's")
	}
	if c.EntireStepInNS {
		out = append(out, "plugins see the same from their first hook on")
	}
	return out
}

// Node are the numbers of setrlimit(2).
var Node = map[string]int{
	"CPU": unix.RLIMIT_CPU, "FSIZE": unix.RLIMIT_FSIZE, "DATA": unix.RLIMIT_DATA, "STACK": unix.RLIMIT_STACK, "CORE": unix.RLIMIT_CORE,
	"RSS": unix.RLIMIT_RSS, "NPROC": unix.RLIMIT_NPROC, "NOFILE": unix.RLIMIT_NOFILE, "MEMLOCK": unix.RLIMIT_MEMLOCK, "AS": unix.RLIMIT_AS,
}

// resourceLimit is what becomes of a limit that a client passes on: no more than the
// hard one, which tasks have from noded.
func resourceLimit(name, value string) (l api.ResourceLimit, known bool) {
	number, known := Node[name]
	var have unix.Rlimit
	if !known || unix.Getrlimit(number, &have) != nil {
		return l, false
	}
	l.Name = name
	if value != "-1" {
		asked, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return l, false
		}
		l.Asked = &asked
	}
	if have.Max != unix.RLIM_INFINITY {
		l.Hard = new(have.Max)
	}
	l.Gets = l.Asked
	if l.Hard != nil && (l.Asked == nil || *l.Asked > *l.Hard) {
		l.Gets, l.Lower = l.Hard, true
	}
	return l, true
}

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
