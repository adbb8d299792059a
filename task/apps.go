package task

import "stepd/step"

// launchApps gives each task its own of a step's several commands.
func launchApps(spec *step.Spec, l *step.Launch) {
	if len(spec.Apps) == 0 {
		return
	}
	ranks := spec.LocalRanks()
	l.TaskArgv, l.TaskCwd = make([][]string, len(ranks)), make([]string, len(ranks))
	at, first := 0, 0 // the app of the rank, and its first rank: ranks ascend
	for i, rank := range ranks {
		for rank-first >= spec.Apps[at].NTasks {
			first += spec.Apps[at].NTasks
			at++
		}
		app := &spec.Apps[at]
		l.TaskArgv[i], l.TaskCwd[i] = app.Words(rank, rank-first), string(app.Cwd)
		if i < len(l.TaskEnv) && len(app.Env) > 0 {
			// What tells the task who it is stays the last word.
			l.TaskEnv[i] = append(step.Words(app.Env), l.TaskEnv[i]...)
		}
	}
}
