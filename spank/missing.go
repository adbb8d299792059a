package spank

import (
	"fmt"
	"strings"

	"stepd/step/launch"
)

// lookupStatus is ld.so's exit status where it cannot bind a call.
const lookupStatus = 127

// missingMax is how many symbols the host names for one plugin.
const missingMax = 64

// readMissing takes a REP_MISSING: it adds to what is known of the plugin.
func readMissing(r *reply, missing map[uint32]*Loaded, plugins int) error {
	plugin, more, symbol := r.body.U32(), r.body.U32(), r.body.str()
	if int64(plugin) >= int64(plugins) {
		return fmt.Errorf("internal error: spankhost told what plugin %d of %d lacks", plugin, plugins)
	}
	l := missing[plugin]
	if l == nil {
		l = new(Loaded)
		missing[plugin] = l
	}
	switch {
	case r.body.Err != nil || len(l.Missing) == missingMax && more == 0:
		return fmt.Errorf("internal error: spankhost told what plugin %d lacks, symbol %d: %v", plugin, len(l.Missing), r.body.Err)
	case more > 0:
		l.MissingMore = int(more)
	default:
		l.Missing = append(l.Missing, symbol)
	}
	return nil
}

// Lacks lists, a line for each reason, the functions that the plugin may call and that do not
// exist: "nothing here provides slurm_requeue(), which it may call: a step's host has no
// slurmctld to ask". A plugin that does not call it is as good as any.
func (l Loaded) Lacks() []string {
	var reasons []string
	symbols := map[string][]string{}
	for _, s := range l.Missing {
		why := whyMissing(s, l.Version)
		if symbols[why] == nil {
			reasons = append(reasons, why)
		}
		symbols[why] = append(symbols[why], s+"()")
	}
	lines := make([]string, len(reasons))
	for i, why := range reasons {
		lines[i] = fmt.Sprintf("nothing here provides %s, which it may call: %s", strings.Join(symbols[why], ", "), why)
	}
	if l.MissingMore > 0 {
		lines = append(lines, fmt.Sprintf("nothing here provides %d further functions, which it may call", l.MissingMore))
	}
	return lines
}

// whyMissing says what a step's host cannot do for a plugin.
func whyMissing(symbol string, version uint32) string {
	if symbol == loadJob {
		r, _ := releaseOf(version)
		return fmt.Sprintf("what it fills differs by release and is known for 22.05 alone; this plugin is of %s, and gets -1", r.series())
	}
	for _, w := range []struct{ prefixes, why string }{
		{"slurm_stepd_", "there is no slurmstepd to connect to: the step is stepd's"},
		{"slurmdb_ slurm_slurmdbd_", "a step's host has no slurmdbd to ask"},
		{"slurm_load_ slurm_get_ slurm_update_ slurm_init_ slurm_free_ slurm_create_ slurm_delete_ slurm_requeue slurm_kill_ slurm_signal_ " +
			"slurm_terminate_ slurm_suspend slurm_resume slurm_submit_ slurm_allocat slurm_job_ slurm_step_ slurm_notify_ slurm_complete_ " +
			"slurm_reconfigure slurm_ping slurm_top_ slurm_set_trigger slurm_sbcast_ slurm_het_ slurm_pull_ slurm_print_",
			"a step's host has no slurmctld to ask"},
		{"slurm_ spank_", "it is none of the functions that Slurm gives to plugins"},
	} {
		for prefix := range strings.FieldsSeq(w.prefixes) {
			if strings.HasPrefix(symbol, prefix) {
				return w.why
			}
		}
	}
	return "neither the plugin's own libraries nor the C library has it"
}

// loadJob is reported as missing where it cannot answer the plugin's release.
const loadJob = "slurm_load_job"

// tellMissing reports to the administrator what a plugin lacks. The user sees
// it when the plugin really calls it.
func (h *Host) tellMissing(l Loaded) {
	level := launch.LogInfo
	if h.quiet {
		level = launch.LogVerbose
	}
	for _, what := range l.Lacks() {
		h.tell(launch.HostRecord{Level: level, LocalID: -1, Text: fmt.Sprintf("spank: plugin %q: %s", h.PluginName(l.Index), what)})
	}
}

// fault words why a process has ended itself in a hook of a plugin.
func (h *Host) fault(plugin, fault int) string {
	switch n := fault - faultMissing; {
	case fault == 0:
		return ""
	case fault == faultFatal:
		return "called slurm_fatal()"
	case fault == faultDescriptors:
		return "closed descriptors of the process that called it"
	case fault == faultUser:
		return "gave up the user or group of the process that called it"
	case fault == faultNofile:
		return "lowered the limit of open files below what the process that called it needs"
	case plugin < 0 || plugin >= len(h.loaded) || n >= len(h.loaded[plugin].Missing):
		return "" // not the host's word: a plugin has written over the board
	default:
		symbol := h.loaded[plugin].Missing[n]
		return fmt.Sprintf("called %s(), which nothing here provides: %s", symbol, whyMissing(symbol, h.loaded[plugin].Version))
	}
}
