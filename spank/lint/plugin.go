package lint

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"stepd/spank"
)

// examiner looks into plugins as the host's dynamic linker would.
type examiner struct {
	loader *loader
	host   []*object // spankhost and its libraries
	allow  []string
	dirs   []string
}

// examiner reads the host, if there is a plugin. Without one nothing is known of
// imports, which is a finding.
func (r *Report) examiner(c Config, plugins int) *examiner {
	e := &examiner{allow: c.AllowReleases, dirs: c.PluginDirs}
	if plugins == 0 {
		return e
	}
	host, err := openObject(c.Host)
	if err != nil {
		r.add(spank.SeverityWarning, c.Plugstack, 0, "", fmt.Sprintf("cannot read spankhost %q, so the plugins are not looked into: %v", c.Host, cause(err)), "")
		return e
	}
	e.loader = newLoader(host, r.note)
	var missing []missingLibrary
	if e.host, missing = e.loader.scope(host, nil); len(missing) > 0 {
		r.add(spank.SeverityWarning, c.Plugstack, 0, "", fmt.Sprintf("cannot find %q of spankhost %q, so imports may be told wrongly", missing[0].name, c.Host), "")
	}
	return e
}

// cause takes the system call and the path off an error: the path is named
// already.
func cause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

// plugin examines one line.
func (r *Report) plugin(e *examiner, p spank.Plugin) Plugin {
	d := Plugin{
		Path: p.Path, File: p.File, Line: p.Line, Required: p.Required, State: StateFound,
		Args: append([]string{}, p.Args...), Hooks: []string{}, Options: []Option{}, Missing: []Missing{},
	}
	x := &examination{examiner: e, report: r, line: p, plugin: &d}
	x.run()
	return d
}

// examination is the one of one plugin.
type examination struct {
	*examiner
	report *Report
	line   spank.Plugin
	plugin *Plugin
	object *object
	scope  []*object // the plugin and its libraries
}

// refuse notes why the plugin does not load. The first cause is its Problem.
func (x *examination) refuse(state State, text, remedy string) {
	if x.plugin.State == StateFound {
		x.plugin.State, x.plugin.Problem = state, text
	}
	severity := spank.SeverityWarning
	if x.line.Required {
		severity = spank.SeverityError
	}
	x.report.add(severity, x.line.File, x.line.Line, x.line.Path, text, remedy)
}

func (x *examination) warn(text, remedy string) {
	x.report.add(spank.SeverityWarning, x.line.File, x.line.Line, x.line.Path, text, remedy)
}

func (x *examination) run() {
	if x.loader == nil {
		x.present()
		return
	}
	var err error
	if x.object, err = x.open(); err != nil {
		x.unopened(err)
		return
	}
	var missing []missingLibrary
	x.scope, missing = x.loader.scope(x.object, x.host)
	for _, m := range missing {
		x.missingLibrary(m)
	}
	x.versions()
	if len(missing) == 0 { // else they explain the symbols
		x.imports()
	}
	x.facts()
	x.shadows()
	x.unsafeLibraries()
}

// unsafeLibraries lists the libraries of its own that users other than root may
// change: they are code of the plugin as much as its file. stepd does not look
// at them, RequireSafePlugins or not.
func (x *examination) unsafeLibraries() {
	for _, o := range x.scope[1:] {
		for _, p := range spank.Way(o.path) {
			if why, remedy := spank.UnsafeFile(p); why != "" {
				x.warn(fmt.Sprintf("plugin %q loads library %q: %q %s", x.line.Path, o.path, p, why), remedy)
				break
			}
		}
	}
}

// present is all that can be found without the host.
func (x *examination) present() {
	if _, f, err := openImage(x.line.Path); err != nil {
		x.unopened(err)
	} else {
		f.Close()
	}
}

// open opens what dlopen would.
func (x *examination) open() (*object, error) {
	if strings.Contains(x.line.Path, "/") {
		return x.loader.open(x.line.Path)
	}
	// In none of the plugin directories: dlopen looks where libraries are.
	return x.loader.find(x.line.Path, x.host[0], nil)
}

func (x *examination) unopened(err error) {
	switch {
	case isAbsent(err) && !filepath.IsAbs(x.line.Path):
		x.refuse(StateMissing, fmt.Sprintf("there is no plugin %q in PluginDir (%s): No such file or directory", x.line.Path, strings.Join(x.dirs, ":")), "install it there, or write its path in full")
	case isAbsent(err):
		x.refuse(StateMissing, fmt.Sprintf("there is no plugin %q: No such file or directory", x.line.Path), "install it, or remove the line")
	case errors.Is(err, fs.ErrPermission):
		x.refuse(StateError, fmt.Sprintf("cannot read plugin %q: %v", x.line.Path, cause(err)), "")
	default:
		x.refuse(StateError, fmt.Sprintf("cannot load plugin %q: %v", x.line.Path, cause(err)), "build it as a shared object for this machine")
	}
}

func (x *examination) missingLibrary(m missingLibrary) {
	by := ""
	if m.wantedBy != x.object.path {
		by = fmt.Sprintf(", which %q needs,", m.wantedBy)
	}
	if isAbsent(m.err) {
		x.refuse(StateError, fmt.Sprintf("plugin %q needs library %q%s and there is none", x.line.Path, m.name, by),
			"install it where ld.so looks, or build the plugin with -Wl,-rpath")
		return
	}
	x.refuse(StateError, fmt.Sprintf("plugin %q needs library %q%s and it cannot be loaded: %v", x.line.Path, m.name, by, m.err), "")
}

// lookup finds a symbol as dlsym does: in the plugin, then in its libraries.
func (x *examination) lookup(name string) (*object, elf.Sym64, bool) {
	for _, o := range x.scope {
		if s, ok := o.exports[name]; ok {
			return o, s, true
		}
	}
	return nil, elf.Sym64{}, false
}

// facts reads what the plugin says of itself, and refuses it where the host
// does (spank.Host.LoadStack).
func (x *examination) facts() {
	x.plugin.Name, x.plugin.Type = x.text("plugin_name"), x.text("plugin_type")
	for _, hook := range spank.Hooks() {
		if _, _, ok := x.lookup(hook); ok {
			x.plugin.Hooks = append(x.plugin.Hooks, hook)
		}
	}
	version, hasVersion := x.number("plugin_version")
	release, err := spank.CheckRelease(version, hasVersion, x.allow)
	if hasVersion {
		x.plugin.Release = release.String()
	}
	_, _, hasOptions := x.lookup("spank_options")
	switch {
	case x.plugin.Name == "":
		x.refuse(StateError, fmt.Sprintf("plugin %q exports no plugin_name", x.line.Path), "build it with SPANK_PLUGIN()")
	case x.plugin.Type == "":
		x.refuse(StateError, fmt.Sprintf("plugin %q exports no plugin_type", x.line.Path), "build it with SPANK_PLUGIN()")
	case len(x.plugin.Hooks) == 0 && !hasOptions:
		x.refuse(StateError, fmt.Sprintf("plugin %q exports no slurm_spank_* hook", x.line.Path), "export one, without -fvisibility=hidden")
	case err != nil:
		why, remedy, _ := strings.Cut(err.Error(), "; ")
		x.refuse(StateIncompatible, fmt.Sprintf("plugin %q: %s", x.line.Path, why), remedy)
	}
}

// text reads a char array of the plugin's file, "" where there is none. Control
// characters would be a terminal's.
func (x *examination) text(name string) string {
	b := x.variable(name)
	if end := bytes.IndexByte(b, 0); end >= 0 {
		b = b[:end]
	}
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return '?'
		}
		return c
	}, strings.ToValidUTF8(string(b), "?"))
}

// number reads an unsigned int.
func (x *examination) number(name string) (uint32, bool) {
	b := x.variable(name)
	if len(b) < 4 {
		return 0, false
	}
	return x.object.img.order.Uint32(b), true
}

// variable is what the file holds of a variable.
func (x *examination) variable(name string) []byte {
	o, _, ok := x.lookup(name)
	if !ok {
		return nil
	}
	return o.variables[name]
}
