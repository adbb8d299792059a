package spank

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"stepd/step/launch"
)

// Loaded is what the host found in one plugin's file.
type Loaded struct {
	Index   int
	Error   string // dlopen's words; empty when it was loaded
	Name    string // plugin_name
	Type    string // plugin_type
	Version uint32 // plugin_version
	// HasVersion reports whether plugin_version is exported at all.
	HasVersion bool
	// Hooks are the functions that the host calls by name, init() and fini() included;
	// HasHooks reports whether one of them is a hook of SPANK.
	Hooks      []string
	HasHooks   bool
	HasOptions bool
	// Missing are functions that it may call and nothing here provides, at
	// most 64; MissingMore counts those beyond.
	Missing     []string
	MissingMore int
}

// LoadStack opens every plugin of the stack and decides which are kept. It
// returns lines for the user about plugins that are left out, and an error when
// a required one is among them.
func (h *Host) LoadStack() (problems []string, err error) {
	loaded, err := h.load()
	if err != nil {
		return nil, err
	}
	h.keep, h.loaded = make([]bool, len(h.stack)), make([]Loaded, len(h.stack))
	for _, l := range loaded {
		p := h.stack[l.Index]
		h.loaded[l.Index] = l
		why := h.refuse(l)
		if why == "" {
			h.keep[l.Index] = true
			h.tellMissing(l)
			continue
		}
		if p.Required {
			return problems, fmt.Errorf("spank: %s:%d: Failed to load plugin %s. Aborting: %s", p.File, p.Line, p.Path, why)
		}
		problems = append(problems, fmt.Sprintf("spank: %s:%d: Failed to load optional plugin %s. Ignored: %s", p.File, p.Line, p.Path, why))
	}
	return problems, nil
}

// load lets the host open the files. It reports each of them once, in any order.
func (h *Host) load() ([]Loaded, error) {
	out := make([]Loaded, 0, len(h.stack))
	missing := make(map[uint32]*Loaded) // by index: what is reported before the plugin
	err := h.do(cmdLoad, nil, nil, func(r *reply) error {
		switch r.kind {
		case repMissing:
			return readMissing(r, missing, len(h.stack))
		case repPlugin:
			var err error
			out, err = readPlugins(r, out, missing, len(h.stack))
			return err
		}
		return fmt.Errorf("internal error: spankhost answered load by record %d", r.kind)
	})
	if err == nil && len(out) != len(h.stack) {
		err = fmt.Errorf("internal error: spankhost told %d plugins of %d", len(out), len(h.stack))
	}
	return out, err
}

// readPlugins takes a REP_PLUGIN: it appends each plugin to out.
func readPlugins(r *reply, out []Loaded, missing map[uint32]*Loaded, plugins int) ([]Loaded, error) {
	for {
		index := r.body.U32()
		l := Loaded{Index: int(index), Version: r.body.U32()}
		flags, hooks := r.body.U32(), r.body.U32()
		l.Error, l.Name, l.Type = r.body.str(), r.body.str(), r.body.str()
		if r.body.Err != nil || l.Index >= plugins {
			return nil, fmt.Errorf("internal error: spankhost told plugin %d of %d: %v", l.Index, plugins, r.body.Err)
		}
		l.HasVersion, l.HasOptions = flags&pluginHasVersion != 0, flags&pluginHasOptions != 0
		for i := range uint32(hookOption) {
			if hooks&(1<<i) != 0 {
				l.Hooks = append(l.Hooks, hookNames[i])
			}
		}
		l.HasHooks = len(l.Hooks) > 0
		for _, own := range []int{hookBegin, hookFini} {
			if hooks&(1<<own) != 0 {
				l.Hooks = append(l.Hooks, hookNames[own])
			}
		}
		if flags&pluginLoaded == 0 && l.Error == "" {
			l.Error = "not loaded"
		}
		if m := missing[index]; m != nil {
			l.Missing, l.MissingMore = m.Missing, m.MissingMore
		}
		out = append(out, l)
		if len(r.body.B) == 0 {
			return out, nil
		}
	}
}

// Init calls init(), slurm_spank_init, the option callbacks and
// slurm_spank_init_post_opt of every plugin that LoadStack has kept. A plugin whose own
// init() returns anything but 0 does not load: a record says so of an optional one, and a
// required one is the error.
func (h *Host) Init() error { return h.initStack(nil) }

func (h *Host) initStack(each func(*reply) error) error {
	var w writer
	w.U32(uint32(len(h.keep)))
	for _, k := range h.keep {
		w.B = append(w.B, byte(flag(k)))
	}
	return h.do(cmdInit, w.B, nil, func(r *reply) error {
		if r.kind == repRefused {
			return h.refused(int(r.body.U32()), int(r.body.i32()))
		}
		if each == nil {
			return fmt.Errorf("internal error: spankhost answered init by record %d", r.kind)
		}
		return each(r)
	})
}

// refused takes a plugin out of the stack whose init() has returned rc. In remote context the
// record is for the log alone, as in Slurm.
func (h *Host) refused(i, rc int) error {
	if i < 0 || i >= len(h.keep) {
		return fmt.Errorf("internal error: spankhost refused plugin %d of %d", i, len(h.keep))
	}
	h.keep[i] = false
	if p := h.stack[i]; !p.Required {
		h.tell(launch.HostRecord{Level: launch.LogError, LocalID: -1, Hook: hookNames[hookBegin], Text: fmt.Sprintf(
			"spank: %s:%d: Failed to load optional plugin %s. Ignored: its init() returned %d", p.File, p.Line, p.Path, rc)})
	}
	return nil
}

// refuse says why a plugin is left out of the stack, or "".
func (h *Host) refuse(l Loaded) string {
	switch {
	case l.Error != "":
		return l.Error
	case l.Name == "":
		return fmt.Sprintf("%q exports no plugin_name", h.stack[l.Index].Path)
	case l.Type == "":
		return fmt.Sprintf("%q exports no plugin_type", h.stack[l.Index].Path)
	case !IsSpankType(l.Type):
		return fmt.Sprintf("%q is no SPANK plugin: its plugin_type is %q", h.stack[l.Index].Path, l.Type)
	case !l.HasHooks && !l.HasOptions:
		return fmt.Sprintf("%q exports no slurm_spank_* function", h.stack[l.Index].Path)
	}
	if _, err := CheckRelease(l.Version, l.HasVersion, h.allow); err != nil {
		return err.Error()
	}
	return ""
}

// IsSpankType reports whether a plugin_type, MAJOR or MAJOR/MINOR, is SPANK's.
func IsSpankType(text string) bool {
	major, _, _ := strings.Cut(text, "/")
	return major == "spank"
}

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
		return fmt.Sprintf("it differs by release and is known for 21.08 to 25.11; this plugin is of %s, and gets -1", r.series())
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

// Release is the Slurm release that a plugin was built for, as its
// plugin_version encodes since 21.08 (major<<16 | minor<<8 | micro).
type Release struct {
	Major, Minor, Micro uint8
}

// String is Slurm's way to write it: "22.05.8".
func (r Release) String() string { return fmt.Sprintf("%s.%d", r.series(), r.Micro) }

// series is the release without its micro version: "22.05".
func (r Release) series() string { return fmt.Sprintf("%02d.%02d", r.Major, r.Minor) }

// oldSeries stands for every release in which plugin_version was whatever
// number the author gave to SPANK_PLUGIN: up to 20.11.
const oldSeries = "20.11"

// knownSeries are the releases whose plugin interface was compared with ours.
func knownSeries() []string {
	return []string{"21.08", "22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05"}
}

// CheckRelease decides by its plugin_version whether a plugin may be loaded,
// and returns the release that it was built for. allow lists further releases
// ("20.11", "27.02", "any": SpankAllowReleases of stepd.conf); "20.11" stands
// for all older ones, whose number is the author's, and a plugin of theirs
// counts as one of 20.11.0. The error is for the user: it names the release
// and the remedy, the caller adds the plugin. Micro versions are never looked at.
func CheckRelease(pluginVersion uint32, hasVersion bool, allow []string) (Release, error) {
	if !hasVersion {
		return Release{}, errors.New("cannot tell the release: there is no plugin_version; build the plugin with SPANK_PLUGIN()")
	}
	r, isRelease := releaseOf(pluginVersion)
	known := knownSeries()
	// Two digits each: the order of the text is the order of the releases.
	if isRelease && r.series() >= known[0] {
		if slices.Contains(known, r.series()) || allowed(allow, r.series()) {
			return r, nil
		}
		return r, fmt.Errorf("cannot accept release %s: known are %s; to load it all the same, set SpankAllowReleases=%s in stepd.conf",
			r, strings.Join(known, " "), r.series())
	}
	old := Release{Major: 20, Minor: 11}
	if allowed(allow, oldSeries) || isRelease && allowed(allow, r.series()) {
		return old, nil
	}
	return old, fmt.Errorf("cannot accept plugin_version %d: a number of the author's own means release 20.11 or older, known are %s to %s; rebuild the plugin, or set SpankAllowReleases=%s in stepd.conf",
		pluginVersion, known[0], known[len(known)-1], oldSeries)
}

func allowed(allow []string, series string) bool {
	return slices.Contains(allow, series) || slices.Contains(allow, "any")
}

// releaseOf reads a plugin_version, if it can be a release at all: Slurm's
// minor versions are months.
func releaseOf(v uint32) (r Release, ok bool) {
	r = Release{Major: uint8(v >> 16), Minor: uint8(v >> 8), Micro: uint8(v)}
	return r, v>>24 == 0 && r.Major > 0 && r.Major < 100 && r.Minor >= 1 && r.Minor <= 12
}
