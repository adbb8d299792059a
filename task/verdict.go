package task

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"stepd/step"
	"stepd/step/launch"
)

// verdict is how a step has ended.
type verdict struct {
	state  step.State
	code   int
	signal *int
}

// verdict is the step's state and exit code: what has ended the step counts
// before what its tasks did; of the tasks the highest code, 128+n for a signal, and at
// least floor.
func (t *teardown) verdict(rec *step.Record, floor int) verdict {
	var tasks verdict
	var worst int
	tasks.code, tasks.signal, worst = worstTask(rec.Tasks)
	first, failed := t.causes.get()
	if first != nil {
		if v, counts := t.endedAs(rec, first, tasks); counts {
			return v
		}
	}
	if failed != nil && tasks.code == 0 {
		// The first cause has ended nothing, and this one has.
		v, _ := t.endedAs(rec, failed, tasks)
		return v
	}
	switch {
	case len(rec.OOM) > 0:
		tasks.code = cmp.Or(tasks.code, exitOOM)
		tasks.state = step.OutOfMemory
		return tasks
	case tasks.code != 0:
		if st := rec.Tasks[worst].Status; st != nil { // else the lost status is the reason already
			firstReason(rec, fmt.Sprintf("task %d: %s", t.plan.Ranks[worst], st.Describe()))
		}
		tasks.state = step.Failed
		return tasks
	case floor > 0:
		return verdict{state: step.Failed, code: floor}
	}
	return verdict{state: step.Completed}
}

// endedAs is what the cause of the step's end makes of it. tasks is what they say.
// counts is false where the tasks decide.
func (t *teardown) endedAs(rec *step.Record, c *cause, tasks verdict) (v verdict, counts bool) {
	v = tasks
	switch c.kind {
	case byFailure:
		v = verdict{state: step.Failed, code: c.code}
		rec.Drain = c.drain
	case byAbort:
		// The task that has aborted decides the code (lifecycle, end).
		v = verdict{state: step.Failed, code: c.code}
		rec.Aborted = true
	case byTime:
		v.state, v.code = step.Timeout, max(v.code, 1)
	case byMemory:
		if v.state = step.OutOfMemory; len(rec.OOM) > 0 && v.code == 0 {
			v.code = exitOOM
		}
		v.code = max(v.code, 1)
	case byRequest, byHost:
		if v.code == 0 && t.gate.opened {
			return v, false // all tasks had ended well: it has ended nothing
		}
		if v.state = step.Cancelled; !t.gate.opened {
			v.code, v.signal = 1, nil // no task has run
		}
		if c.kind == byHost {
			v.state = step.NodeFail
		}
	default: // byBadExit
		return v, false
	}
	leadReason(rec, c.reason)
	return v, true
}

// What slurm_spank_init_failure_mode may say (slurm_errno.h, since 25.05): whom
// the failure of slurm_spank_init is to be blamed on.
const (
	blameNode = 3011
	blameJob  = 3012
)

// blame is what a required plugin's failure does to the step, and to the node.
type blame struct {
	code  int // the step's exit code
	drain bool
}

// hookBlame is the failure table of spank(8) for the hooks that end a launch.
// Where the table has no row (init and init_post_opt on the remote side alone)
// it is what was measured (spank-behaviour §5). A plugin that crashed has no
// row either: then no step succeeds, and a batch job's node is to blame as for
// a return code.
func hookBlame(h *launch.HookError, s *step.Spec) blame {
	batch := isBatch(s)
	if h.RC != nil && h.Hook == "slurm_spank_init" {
		switch *h.RC {
		case blameNode:
			return blame{1, true}
		case blameJob:
			return blame{1, false}
		}
	}
	switch h.Hook {
	case "slurm_spank_init", "slurm_spank_init_post_opt", "slurm_spank_user_init", "slurm_spank_task_post_fork":
		switch {
		case batch:
			return blame{1, h.Required}
		case h.RC == nil, s.Spank.Strict, s.Origin == step.OriginAlloc, s.Origin == step.OriginBatch:
			return blame{1, false}
		}
		return blame{0, false} // srun's own row: the step has failed, and srun has not
	}
	return blame{1, false}
}

// launchBlame is the same for any error that ended the launch.
func launchBlame(err error, s *step.Spec) blame {
	if hook, ok := errors.AsType[*launch.HookError](err); ok {
		return hookBlame(hook, s)
	}
	// A required plugin that cannot be loaded fails every batch job here.
	_, load := errors.AsType[errLoad](err)
	return blame{1, load && isBatch(s)}
}

// errLoad says that the plugin stack could not be loaded.
type errLoad struct{ error }

func (e errLoad) Unwrap() error { return e.error }

// drainReason is why the node takes no more jobs, in Slurm's words.
func drainReason(err error, s *step.Spec) string {
	what := "batch job complete failure"
	if !isBatch(s) {
		what = "step complete failure"
	}
	text := err.Error()
	if hook, ok := errors.AsType[*launch.HookError](err); ok && hook.RC != nil {
		text = fmt.Sprintf("required plugin %s: %s() failed with rc=%d", hook.Plugin, strings.TrimPrefix(hook.Hook, "slurm_spank_"), *hook.RC)
	}
	return fmt.Sprintf("%s: %s, job %d", what, text, s.ID.Job)
}

// worstTask finds the task whose end is the step's: of several, the one with
// the highest code, 128+n for a signal, and of several with the same code the first. at
// is its index, -1 where all have ended well.
func worstTask(tasks []step.Task) (code int, signal *int, at int) {
	at = -1
	for i := range tasks {
		t := &tasks[i]
		c := 0
		switch {
		case t.Signal != nil:
			c = 128 + *t.Signal
		case t.ExitCode != nil:
			c = *t.ExitCode
		case t.State == step.TaskExited:
			c = 1 // its status was lost with the host
		case t.State == step.TaskRunning:
			c = 1 // it does not die
		}
		if c > code {
			code, signal, at = c, t.Signal, i
		}
	}
	return code, signal, at
}
