package task

import (
	"fmt"

	"stepd/step"
)

const (
	// userEpilogS bounds a user's --task-epilog in seconds, as in Slurm.
	userEpilogS = 5
	// siteEpilogS bounds TaskEpilog where PrologEpilogTimeout says nothing: a step
	// must end.
	siteEpilogS = 60
)

// taskScripts are those around each task, in Slurm's order: the site's prolog
// before the user's, the user's epilog before the site's. A batch script has the
// site's alone.
func taskScripts(spec *step.Spec) (scripts []step.TaskScript) {
	epilogS := spec.Scripts.TimeoutS
	if epilogS == 0 {
		epilogS = siteEpilogS
	}
	for _, s := range []step.TaskScript{
		{Label: "TaskProlog", Path: spec.Scripts.Prolog, TimeoutS: spec.Scripts.TimeoutS},
		{Label: "--task-prolog", Path: spec.TaskProlog, TimeoutS: spec.Scripts.TimeoutS},
		{Epilog: true, Label: "--task-epilog", Path: spec.TaskEpilog, TimeoutS: userEpilogS},
		{Epilog: true, Label: "TaskEpilog", Path: spec.Scripts.Epilog, TimeoutS: epilogS},
	} {
		if s.Path != "" {
			scripts = append(scripts, s)
		}
	}
	return scripts
}

// trackEpilog puts the process of a task's epilog where the task was, so that it
// ends with the step. It is called by the goroutine of Host.Wait.
func (s *Step) trackEpilog(localID, pid int) error {
	if localID < 0 || localID >= len(s.plan.Ranks) {
		return fmt.Errorf("internal error: spankhost told an epilog of task %d beyond %d tasks", localID, len(s.plan.Ranks))
	}
	rank := s.rank(localID)
	err := s.d.Tracker.Add(rank, pid)
	if err != nil {
		s.d.Audience.Log(step.LogError, fmt.Sprintf("cannot run the epilog of task %d: %v", rank, err))
	}
	return err
}
