package task

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/step"
	"stepd/step/launch"
)

// appWordsMax bounds what the command lines and environments of all tasks of a node
// may take where they differ by the task, in bytes: each task's are sent to the host.
const appWordsMax = 48 << 20

// launchApps gives each task its own of a step's several commands. What a user has
// written once may be repeated for each of many tasks: it is refused before it is made.
func launchApps(spec *step.Spec, l *launch.Launch) error {
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
			// What names the task stays the last word.
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
func taskScripts(spec *step.Spec) (scripts []launch.TaskScript) {
	epilogS := spec.Scripts.TimeoutS
	if epilogS == 0 {
		epilogS = siteEpilogS
	}
	for _, s := range []launch.TaskScript{
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

// prioVariable has the nice value of the client (srun, sbatch).
const prioVariable = "SLURM_PRIO_PROCESS"

// setPriority gives the plugins' host, whose children the tasks are, the nice value that
// PropagatePrioProcess asks for. As in Slurm it does not end the step where it fails.
func (l *startup) setPriority() {
	spec := l.plan.Spec
	if spec.PropagatePrio == step.PrioOff {
		return
	}
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		l.messages.log(fmt.Sprintf("cannot read stepd's nice value: %v: the tasks keep it (PropagatePrioProcess=%d)", err, spec.PropagatePrio))
		return
	}
	own := 20 - raw // the system call answers 1 to 40 (getpriority(2))
	nice := niceOf(spec, own)
	if nice == own {
		return
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, l.host.PID(), nice); err != nil {
		l.messages.log(fmt.Sprintf("cannot give the tasks the nice value %d (PropagatePrioProcess=%d): %v", nice, spec.PropagatePrio, err))
	}
}

// niceOf is the nice value of the tasks, where the daemons have own. What a client says
// of itself is taken from any user, so that only root's tasks come before the daemons.
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
