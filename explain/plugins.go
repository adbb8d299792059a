package explain

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"stepd/step"
	"stepd/step/launch"
)

// pluginStopped reports whether the launch has stopped at a stage for a plugin, which a finding
// of its own names.
func (e *explainer) pluginStopped(s *Stage) bool {
	if slices.ContainsFunc(e.found, func(f Finding) bool { return f.Kind == KindPlugin }) {
		return true // it has crashed: the stage knows only that its process is gone
	}
	return e.hookFailed(s.Error)
}

// hookFailed reports whether words are about a hook that has failed, which a finding names.
func (e *explainer) hookFailed(words string) bool {
	return slices.ContainsFunc(e.log.hooks, func(h hookFailure) bool {
		return h.rc != nil && strings.HasPrefix(words, fmt.Sprintf("plugin %q: %s: ", h.plugin, h.hook))
	})
}

// crash finds the plugin that took its process down, or a task: the first finding, in the
// record's own words.
func (e *explainer) crash() {
	if !e.rec.State.Final() {
		return
	}
	f := Finding{Kind: KindPlugin, Hint: "see docs/plugin.md (gdb)"}
	at := func(plugin, hook string) int {
		return slices.IndexFunc(e.log.hooks, func(h hookFailure) bool { return h.rc == nil && h.plugin == plugin && h.hook == hook })
	}
	n, cause := -1, e.rec.Reason
	if c := e.rec.PluginCrash; c != nil {
		n = at(filepath.Base(c.Path), c.Hook)
		cause = cmp.Or(c.Cause, fmt.Sprintf("plugin %q: %s: crashed or was ended", filepath.Base(c.Path), c.Hook))
		if c.Required {
			f.Hint += "; it is required: no step runs without it"
		} else {
			f.Hint += "; QuarantineAfter leaves an optional one out"
		}
	} else {
		n = slices.IndexFunc(e.log.hooks, func(h hookFailure) bool {
			return h.rc == nil && strings.HasPrefix(e.rec.Reason, fmt.Sprintf("plugin %q: %s", h.plugin, h.hook))
		})
	}
	switch {
	case n >= 0:
		h := e.log.hooks[n]
		slices.Sort(h.ranks)
		f.Ranks, e.crashed = step.FormatCPUList(h.ranks), h.ranks
		e.log.hooks = slices.Delete(e.log.hooks, n, n+1) // it is said
	case e.rec.PluginCrash == nil:
		return
	}
	f.Text, f.Detail = launch.CauseFirst(cause, ofRanks(e.crashed))
	f.says = cause
	e.add(f)
}

// ofRanks is ranksText, "" of none.
func ofRanks(ranks []int) string {
	if len(ranks) == 0 {
		return ""
	}
	return ranksText(ranks)
}

// plugins finds hooks that failed or hang.
func (e *explainer) plugins() {
	for _, h := range e.log.hooks {
		if h.rc == nil && e.inHook(h.plugin, h.hook) {
			continue // what its process does is said before
		}
		slices.Sort(h.ranks)
		f := Finding{Kind: KindPlugin, Ranks: step.FormatCPUList(h.ranks)}
		where := fmt.Sprintf("plugin %q: %s", h.plugin, h.hook)
		if len(h.ranks) > 0 {
			where += " (" + ranksText(h.ranks) + ")"
		}
		switch {
		case h.rc != nil:
			f.Text = fmt.Sprintf("%s returned %d", where, *h.rc)
			f.Hint = "what the plugin said stands in noded's log, and in the step's standard error"
			if e.rec.State == step.Completed {
				f.Hint = "SpankStrict=yes in stepd.conf lets it fail the step: without it, as in Slurm, no plugin's failure there does, a required one's neither (docs/spank.md, Failures); " + f.Hint
			}
		case !e.rec.State.Final():
			f.Text = where + " has not returned"
			f.Hint = hookHint(e.rec.ID)
		default:
			f.Text = where + " has never returned"
			f.Hint = "stepctl plugins --check; noded's log has what it said"
		}
		e.add(f)
	}
}
