package task

import (
	"fmt"

	"stepd/step"
)

// appWordsMax bounds what the command lines and environments of all tasks of a node
// come to where they differ by the task, in bytes: each task's are told to the host.
const appWordsMax = 48 << 20

// launchApps gives each task its own of a step's several commands. What a user has
// written once may be there for each of many tasks: it is refused before it is made.
func launchApps(spec *step.Spec, l *step.Launch) error {
	if len(spec.Apps) == 0 {
		return nil
	}
	ranks := spec.LocalRanks()
	l.TaskArgv, l.TaskCwd = make([][]string, len(ranks)), make([]string, len(ranks))
	at, first, size := -1, 0, 0 // the app of the rank, and its first rank: ranks ascend
	var argv, env []string
	for i, rank := range ranks {
		for at < 0 || rank-first >= spec.Apps[at].NTasks {
			if at >= 0 {
				first += spec.Apps[at].NTasks
			}
			at++
			argv, env = nil, nil
		}
		app := &spec.Apps[at]
		if argv == nil {
			argv, env = step.Words(app.Argv), step.Words(app.Env)
		}
		l.TaskArgv[i], l.TaskCwd[i] = app.Words(argv, rank, rank-first), string(app.Cwd)
		if i < len(l.TaskEnv) && len(env) > 0 {
			// What tells the task who it is stays the last word.
			l.TaskEnv[i] = append(env[:len(env):len(env)], l.TaskEnv[i]...)
		}
		if size += wordsSize(l.TaskArgv[i]) + wordsSize(env); size > appWordsMax {
			return fmt.Errorf("cannot describe the commands of %d tasks: those up to rank %d come to more than %d MiB",
				len(ranks), rank, appWordsMax>>20)
		}
	}
	return nil
}

// wordsSize is what words take where they are passed on.
func wordsSize(words []string) int {
	size := 0
	for _, w := range words {
		size += len(w) + 16
	}
	return size
}
