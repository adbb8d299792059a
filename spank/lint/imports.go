package lint

import (
	"debug/elf"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"stepd/spank"
)

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
}

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
	if slices.Contains(builtIn, o.Name) {
		r.add(spank.SeverityWarning, p.File, p.Line, p.Path,
			fmt.Sprintf("option --%s of plugin %q is never used: stepctl has one of that name", o.Name, p.Path), "rename it")
	}
}
