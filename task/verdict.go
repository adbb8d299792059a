package task

import (
	"errors"
	"fmt"
	"strings"

	"stepd/step"
)

// What slurm_spank_init_failure_mode may say (slurm_errno.h, since 25.05): whom
// the failure of slurm_spank_init is to be blamed on.
const (
	blameNode = 3011
	blameJob  = 3012
)

// verdict is what a required plugin's failure does to the step, and to the node.
type verdict struct {
	code  int // the step's exit code
	drain bool
}

// hookVerdict is the failure table of spank(8) for the hooks that end a launch.
// Where the table has no row (init and init_post_opt on the remote side alone)
// it is what was measured (spank-behaviour §5). A plugin that crashed has no
// row either: then no step succeeds, and a batch job's node is to blame as for
// a return code.
func hookVerdict(h *step.HookError, s *step.Spec) verdict {
	batch := isBatch(s)
	if h.RC != nil && h.Hook == "slurm_spank_init" {
		switch *h.RC {
		case blameNode:
			return verdict{1, true}
		case blameJob:
			return verdict{1, false}
		}
	}
	switch h.Hook {
	case "slurm_spank_init", "slurm_spank_init_post_opt", "slurm_spank_user_init", "slurm_spank_task_post_fork":
		switch {
		case batch:
			return verdict{1, h.Required}
		case h.RC == nil, s.Spank.Strict, s.Origin == step.OriginAlloc, s.Origin == step.OriginBatch:
			return verdict{1, false}
		}
		return verdict{0, false} // srun's own row: the step has failed, and srun has not
	}
	return verdict{1, false}
}

// launchVerdict is the same for any error that ended the launch.
func launchVerdict(err error, s *step.Spec) verdict {
	if hook, ok := errors.AsType[*step.HookError](err); ok {
		return hookVerdict(hook, s)
	}
	// A required plugin that cannot be loaded fails every batch job here.
	_, load := errors.AsType[errLoad](err)
	return verdict{1, load && isBatch(s)}
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
	if hook, ok := errors.AsType[*step.HookError](err); ok && hook.RC != nil {
		text = fmt.Sprintf("required plugin %s: %s() failed with rc=%d", hook.Plugin, strings.TrimPrefix(hook.Hook, "slurm_spank_"), *hook.RC)
	}
	return fmt.Sprintf("%s: %s, job %d", what, text, s.ID.Job)
}

// strictFailure makes a required plugin's late failure, which changes nothing
// in Slurm, the step's with SpankStrict=yes: it ends non-zero then, with the
// tasks' code where that is higher.
func (s *Step) strictFailure(err error) {
	hook, ok := errors.AsType[*step.HookError](err)
	if !ok || !hook.Required || !s.plan.Spec.Spank.Strict {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteReason(hook.Error())
	s.floor = 1
}

// strictCodes does the same for return codes that end a hook's chain alone,
// those above 0: with SpankStrict=yes no required plugin fails for nothing.
func (s *Step) strictCodes(hooks []step.HookTime) {
	if !s.plan.Spec.Spank.Strict {
		return
	}
	for i := range hooks {
		h := &hooks[i]
		if h.RC == 0 || h.EndNS == 0 || !s.host.Required(h.Plugin) {
			continue
		}
		e := step.HookError{Plugin: s.host.PluginName(h.Plugin), Hook: h.Hook, Required: true, RC: &h.RC}
		if h.LocalID >= 0 && h.LocalID < len(s.plan.Ranks) {
			e.Rank = &s.plan.Ranks[h.LocalID]
		}
		s.mu.Lock()
		s.noteReason(e.Error())
		s.floor = 1
		s.mu.Unlock()
	}
}

// noteCrash remembers the plugin that took its process down; the caller holds
// mu. The first one is the step's. SIGKILL is somebody else's, the kernel's for
// want of memory too, and what does not end at once after a cancel has its due.
func (s *Step) noteCrash(h *step.HookError) {
	if h.Hook == "slurm_spank_task_init" {
		return // a user's own process, which he may send any signal
	}
	if h.Cause == "killed by SIGKILL" || strings.Contains(h.Cause, afterCancel) {
		return
	}
	if h.RC == nil && h.Path != "" && s.rec.PluginCrash == nil {
		s.rec.PluginCrash = &step.PluginCrash{Path: h.Path, Hook: h.Hook, Required: h.Required}
	}
}
