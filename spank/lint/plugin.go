package lint

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"stepd/internal/nearest"
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
	x.noHooks()
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
	case !spank.IsSpankType(x.plugin.Type):
		x.refuse(StateIncompatible, fmt.Sprintf("plugin %q is no SPANK plugin: its plugin_type is %q", x.line.Path, x.plugin.Type), "remove the line: the plugin belongs to another interface of Slurm")
	case len(x.plugin.Hooks) == 0 && !hasOptions:
		x.refuse(StateError, fmt.Sprintf("plugin %q exports no slurm_spank_* hook", x.line.Path), "export one, without -fvisibility=hidden")
	case err != nil:
		why, remedy, _ := strings.Cut(err.Error(), "; ")
		x.refuse(StateIncompatible, fmt.Sprintf("plugin %q: %s", x.line.Path, why), remedy)
	}
}

// hookPrefix begins the names of all hooks.
const hookPrefix = "slurm_spank_"

// noHooks lists the functions of the plugin that are named as hooks and are none: nothing
// ever calls them.
func (x *examination) noHooks() {
	hooks := spank.Hooks()
	for _, name := range slices.Sorted(maps.Keys(x.object.exports)) {
		word, named := strings.CutPrefix(name, hookPrefix)
		if _, hosts := x.host[0].exports[name]; !named || hosts || slices.Contains(hooks, name) {
			continue
		}
		var words []string
		for _, h := range hooks {
			words = append(words, strings.TrimPrefix(h, hookPrefix))
		}
		remedy := "make it static, if it is the plugin's own"
		if near := nearest.Of(word, words); near != "" {
			remedy = "did you mean " + hookPrefix + near + "?"
		}
		x.warn(fmt.Sprintf("plugin %q exports %.100q, which is no hook: it is never called", x.line.Path, name), remedy)
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

// provided reports whether a symbol is found in the scope of the plugin: the host
// and its libraries, then the plugin and its own. Other plugins are not in it
// (RTLD_LOCAL).
func (x *examination) provided(name string) bool {
	for _, scope := range [][]*object{x.host, x.scope} {
		for _, o := range scope {
			if _, ok := o.exports[name]; ok {
				return true
			}
		}
	}
	return false
}

// imports lists the symbols that no library provides. ld.so refuses a plugin for a
// missing variable, and for a missing function where it binds at once; else the function
// is looked up when it is called, and Slurm loads the plugin too.
func (x *examination) imports() {
	for _, o := range x.scope {
		by := ""
		if o != x.object {
			by = o.path
		}
		for _, i := range o.imports {
			// The functions that a library of the site calls in some corner of it
			// are not this check's business.
			if (i.lazy && by != "") || x.provided(i.name) {
				continue
			}
			x.plugin.Missing = append(x.plugin.Missing, Missing{Symbol: i.name, Object: by, Fatal: !i.lazy})
		}
	}
	if fatal := x.missing(true); len(fatal) > 0 {
		x.refuse(StateError, fmt.Sprintf("plugin %q imports %s, which neither spankhost nor its libraries provide",
			x.line.Path, names(fatal)), provide(fatal))
	}
	version, _ := x.number("plugin_version")
	for _, line := range (spank.Loaded{Missing: x.missing(false), Version: version}).Lacks() {
		x.warn(fmt.Sprintf("plugin %q: %s", x.line.Path, line), "a call ends the step: link the plugin with a library that has it, or rebuild it without")
	}
}

// missing lists the symbols that are missing, each once.
func (x *examination) missing(fatal bool) []string {
	var out []string
	for _, m := range x.plugin.Missing {
		if m.Fatal == fatal && !slices.Contains(out, m.Symbol) {
			out = append(out, m.Symbol)
		}
	}
	return out
}

// namesMax is how many symbols a finding names.
const namesMax = 8

func names(symbols []string) string {
	out := make([]string, 0, namesMax)
	for _, s := range symbols[:min(len(symbols), namesMax)] {
		out = append(out, fmt.Sprintf("%q", s))
	}
	if more := len(symbols) - namesMax; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(out, ", "), more)
	}
	return strings.Join(out, ", ")
}

// provide is the remedy for missing symbols.
func provide(symbols []string) string {
	ofSlurm := !slices.ContainsFunc(symbols, func(s string) bool { return !strings.HasPrefix(s, "slurm_") })
	if ofSlurm {
		return "link the plugin with Slurm's own library (-lslurm)"
	}
	return "link the plugin with the library that has it"
}

// versions lists the versions of symbols that a library here does not define:
// the plugin was built on a newer system. ld.so refuses it. A library without
// any versions is taken as it is.
func (x *examination) versions() {
	told := map[versionNeed]bool{}
	for _, o := range x.scope {
		for _, need := range o.needs {
			library := x.named(need.library)
			if library == nil || len(library.defines) == 0 || library.defines[need.version] || told[need] {
				continue
			}
			told[need] = true
			x.refuse(StateError, fmt.Sprintf("plugin %q needs version %q of library %q, and %q has it not", x.line.Path, need.version, need.library, library.path),
				"build it on a system that is no newer than this one")
		}
	}
}

// named finds a library in the scope.
func (x *examination) named(name string) *object {
	for _, scope := range [][]*object{x.host, x.scope} {
		for _, o := range scope {
			if o.soname == name || filepath.Base(o.path) == name {
				return o
			}
		}
	}
	return nil
}

// shadows lists the functions that the plugin has by the host's names: its own
// calls of them reach the host, which comes first.
func (x *examination) shadows() {
	if x.plugin.State != StateFound {
		return
	}
	if _, symbolic := x.object.tags[elf.DT_SYMBOLIC]; symbolic || elf.DynFlag(x.object.tags[elf.DT_FLAGS])&elf.DF_SYMBOLIC != 0 {
		return
	}
	var both []string
	for name := range x.object.exports {
		if _, ok := x.host[0].exports[name]; ok {
			both = append(both, name)
		}
	}
	if len(both) == 0 {
		return
	}
	slices.Sort(both)
	x.warn(fmt.Sprintf("plugin %q exports %s, which spankhost has too: the plugin's own calls reach the host's", x.line.Path, names(both)),
		"make it static")
}

// Option is an option that a plugin offers.
type Option struct {
	Name string `json:"name"`
	// ArgInfo names the argument in --help, Usage describes the option.
	ArgInfo string `json:"arginfo"`
	Usage   string `json:"usage"`
	// HasArg is 0 for none, 1 for a required one, 2 for an optional one.
	HasArg int `json:"has_arg"`
	// Contexts are the client's contexts in which the plugin registers it: "local" (run) and
	// "allocator" (alloc, batch).
	Contexts []string `json:"contexts"`
}

// verbs are the commands that know the options of a context.
var verbs = map[string]string{spank.ContextLocal.String(): "run", spank.ContextAllocator.String(): "alloc and batch"}

// askOptions asks the plugins that load for their options, and reports those
// that cannot be used: an earlier plugin or stepctl itself has the name.
func (r *Report) askOptions(c Config, stack spank.Stack) {
	if c.Options == nil {
		return
	}
	first := map[string]*Plugin{}
	for i := range r.Plugins {
		p := &r.Plugins[i]
		if p.State != StateFound {
			continue
		}
		options, err := c.Options(stack.Plugins[i])
		if err != nil {
			severity := spank.SeverityWarning
			if p.Required {
				severity = spank.SeverityError
			}
			r.add(severity, p.File, p.Line, p.Path, fmt.Sprintf("cannot ask plugin %q for its options: %v", p.Path, err), "")
			continue
		}
		p.Options = append(p.Options, options...)
		for _, o := range options {
			r.option(p, o, first, c.BuiltIn)
		}
	}
}

func (r *Report) option(p *Plugin, o Option, first map[string]*Plugin, builtIn []string) {
	if other := first[o.Name]; other != nil {
		r.add(spank.SeverityWarning, p.File, p.Line, p.Path,
			fmt.Sprintf("option --%s of plugin %q is never used: plugin %q at %s:%d offers it too, and comes first", o.Name, p.Path, other.Path, other.File, other.Line),
			"rename one of them, or remove one of the lines")
		return
	}
	first[o.Name] = p
	if len(o.Contexts) == 1 {
		r.add(spank.SeverityWarning, p.File, p.Line, p.Path, fmt.Sprintf("option --%s of plugin %q is for %s alone", o.Name, p.Path, verbs[o.Contexts[0]]),
			"call spank_option_register() for it in every context: batch and alloc take no option of a spank_options table")
	}
	if slices.Contains(builtIn, o.Name) {
		r.add(spank.SeverityWarning, p.File, p.Line, p.Path,
			fmt.Sprintf("option --%s of plugin %q is never used: stepctl has one of that name", o.Name, p.Path), "rename it")
	}
}
