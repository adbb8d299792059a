package spank

import "fmt"

// Loaded is what the host found in one plugin's file.
type Loaded struct {
	Index   int
	Error   string // dlopen's words; empty when it was loaded
	Name    string // plugin_name
	Type    string // plugin_type
	Version uint32 // plugin_version
	// HasVersion reports whether plugin_version is exported at all.
	HasVersion bool
	Hooks      []string
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

// Init calls slurm_spank_init, the option callbacks and
// slurm_spank_init_post_opt of every plugin that LoadStack has kept.
func (h *Host) Init() error { return h.initStack(nil) }

func (h *Host) initStack(each func(*reply) error) error {
	var w writer
	w.U32(uint32(len(h.keep)))
	for _, k := range h.keep {
		w.B = append(w.B, byte(flag(k)))
	}
	return h.do(cmdInit, w.B, nil, each)
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
	case len(l.Hooks) == 0 && !l.HasOptions:
		return fmt.Sprintf("%q exports no slurm_spank_* function", h.stack[l.Index].Path)
	}
	if _, err := CheckRelease(l.Version, l.HasVersion, h.allow); err != nil {
		return err.Error()
	}
	return ""
}
