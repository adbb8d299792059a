package proctrack

import (
	"path/filepath"
	"strconv"
	"strings"

	"stepd/step"
)

// Steps lists the steps that have a cgroup in any hierarchy, running or left by
// a crash. Names that are none of ours are passed over.
func (r *Root) Steps() ([]step.ID, error) {
	ids, _, err := r.scan()
	return ids, err
}

// scan finds each step and each job once.
func (r *Root) scan() (ids []step.ID, jobs []uint32, err error) {
	found := &census{steps: make(map[step.ID]bool), jobs: make(map[uint32]bool)}
	for _, root := range append([]string{r.dir}, r.hierarchies...) {
		if err := found.root(root); err != nil {
			return nil, nil, err
		}
	}
	return found.ids, found.numbers, nil
}

// census is what a scan has found.
type census struct {
	ids     []step.ID
	numbers []uint32
	steps   map[step.ID]bool
	jobs    map[uint32]bool
}

func (c *census) root(dir string) error {
	root, err := openGroup(dir)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.close()
	names, err := root.children()
	if err != nil {
		return err
	}
	for _, name := range names {
		job, ok := number(name, "job_")
		if !ok {
			continue
		}
		if !c.jobs[job] {
			c.jobs[job] = true
			c.numbers = append(c.numbers, job)
		}
		for _, place := range []string{name, filepath.Join(name, root.jobTasks())} {
			if err := c.place(root, place, job); err != nil {
				return err
			}
		}
	}
	return nil
}

// place looks for steps in a job's cgroup, or in its tasks' cgroup.
func (c *census) place(root *group, path string, job uint32) error {
	g, err := root.child(path)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer g.close()
	names, err := g.children()
	if err != nil {
		return err
	}
	for _, name := range names {
		s, ok := number(name, "step_")
		if id := (step.ID{Job: job, Step: s}); ok && !c.steps[id] {
			c.steps[id] = true
			c.ids = append(c.ids, id)
		}
	}
	return nil
}

// number reads names as jobName and stepName write them, and no others:
// "job_07" and "job_+7" are not ours.
func number(name, prefix string) (uint32, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || strconv.FormatUint(n, 10) != digits {
		return 0, false
	}
	return uint32(n), true
}
