package lint

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/spank"
)

// Config is Check's input.
type Config struct {
	// Plugstack is the file, absolute; "" is an empty stack.
	Plugstack  string
	PluginDirs []string
	// AllowReleases lists further releases to accept (SpankAllowReleases).
	AllowReleases []string
	// RequireSafe makes an error of what others than root may change.
	RequireSafe bool
	// Host is the spankhost program, whose symbols plugins may import; without
	// it imports are not checked, which is a finding.
	Host string
	// Options asks one plugin for its options, which executes it; nil: no plugin
	// is asked. An error says that the plugin failed.
	Options func(spank.Plugin) ([]Option, error)
	// BuiltIn are the long names of stepctl's own options.
	BuiltIn []string
}

// Finding is one thing that is wrong, or doubtful.
type Finding struct {
	Severity spank.Severity `json:"severity"`
	File     string         `json:"file"`
	Line     int            `json:"line"` // 0 is the file as a whole
	Plugin   string         `json:"plugin,omitempty"`
	Text     string         `json:"text"`
	Remedy   string         `json:"remedy,omitempty"`
}

// String is one line: "FILE:LINE: SEVERITY: TEXT; REMEDY".
func (f Finding) String() string {
	return fmt.Sprintf("%s: %s: %s", f.Where(), f.Severity, f.What())
}

// Where is "FILE:LINE", or the file as a whole.
func (f Finding) Where() string {
	if f.Line == 0 {
		return f.File
	}
	return fmt.Sprintf("%s:%d", f.File, f.Line)
}

// What is the text and the remedy.
func (f Finding) What() string {
	if f.Remedy == "" {
		return f.Text
	}
	return f.Text + "; " + f.Remedy
}

// State says what happens to a plugin when a step loads the stack.
type State string

// The states.
const (
	StateFound        State = "found"        // it loads
	StateMissing      State = "missing"      // there is no such file
	StateIncompatible State = "incompatible" // built for a release that is not accepted
	StateError        State = "error"        // it cannot be loaded for another reason
)

// Plugin is one plugin line, and what its file contains.
type Plugin struct {
	Path     string   `json:"path"`
	File     string   `json:"file"`
	Line     int      `json:"line"`
	Required bool     `json:"required"`
	Args     []string `json:"args"`
	State    State    `json:"state"`
	// Problem is why it does not load, "" where it does.
	Problem string `json:"problem"`
	Name    string `json:"name"`    // plugin_name
	Type    string `json:"type"`    // plugin_type
	Release string `json:"release"` // that it was built for, "" where it does not say
	// Hooks are the functions that it exports, in the order of their numbers.
	Hooks   []string `json:"hooks"`
	Options []Option `json:"options"`
	// Missing are the imports that no library provides.
	Missing []Missing `json:"missing"`
}

// Missing is an import that neither the host nor a library of the plugin has.
type Missing struct {
	Symbol string `json:"symbol"`
	// Object is the library that imports it, "" for the plugin itself.
	Object string `json:"object,omitempty"`
	// Fatal ones keep the plugin from being loaded; the others end the host when
	// they are called.
	Fatal bool `json:"fatal"`
}

// Report is the stack as it would be loaded, and what is wrong with it.
type Report struct {
	Plugins []Plugin `json:"plugins"`
	// Findings are in the order of the stack.
	Findings []Finding `json:"findings"`
	// prints is what the report rests on, see Stale.
	prints map[string]*print
}

// Failed reports whether a finding is an error.
func (r *Report) Failed() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity == spank.SeverityError })
}

// add adds a finding about a line.
func (r *Report) add(severity spank.Severity, file string, line int, plugin, text, remedy string) {
	r.Findings = append(r.Findings, Finding{severity, file, line, plugin, text, remedy})
}

// Check reads the stack and all of its plugins. It never fails: what goes wrong
// is a finding. It executes nothing, unless Config.Options is set.
func Check(c Config) *Report {
	r := &Report{Plugins: []Plugin{}, Findings: []Finding{}}
	stack, err := spank.ReadStack(c.Plugstack, c.PluginDirs)
	r.remember(c, stack)
	if err == nil {
		// Once more, after the prints: what changes from now on makes the report
		// stale.
		stack, err = spank.ReadStack(c.Plugstack, c.PluginDirs)
		r.remember(c, stack)
	}
	if err != nil {
		text, remedy, _ := strings.Cut(err.Error(), "; ")
		r.add(spank.SeverityError, c.Plugstack, 0, "", text, remedy)
	}
	for _, p := range stack.Problems {
		r.add(p.Severity, p.File, p.Line, "", p.Text, p.Remedy)
	}
	for _, p := range stack.Unsafe() {
		severity := p.Severity
		if c.RequireSafe {
			severity = spank.SeverityError
		}
		r.add(severity, p.File, p.Line, "", p.Text, p.Remedy)
	}
	r.checkReadable(stack)
	e := r.examiner(c, len(stack.Plugins))
	for _, p := range stack.Plugins {
		r.Plugins = append(r.Plugins, r.plugin(e, p))
	}
	r.askOptions(c, stack)
	r.sort(stack)
	return r
}

// sort puts the findings into the order of the stack's files and lines.
func (r *Report) sort(stack spank.Stack) {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(slices.Index(stack.Files, a.File)-slices.Index(stack.Files, b.File), a.Line-b.Line)
	})
}

// checkReadable reports files that root may read and users may not: stepctl reads the
// stack and loads its plugins as its caller.
func (r *Report) checkReadable(stack spank.Stack) {
	seen := map[string]bool{}
	note := func(path, file string, line int, plugin string) {
		for _, p := range spank.Way(path) {
			if seen[p] {
				continue
			}
			seen[p] = true
			info, err := os.Stat(p)
			switch {
			case err != nil: // reported where it is opened
			case info.IsDir() && info.Mode().Perm()&0o001 == 0:
				r.add(spank.SeverityWarning, file, line, plugin, fmt.Sprintf("%q may not be entered by all users: their stepctl run fails", p), "chmod o+x "+p)
			case !info.IsDir() && info.Mode().Perm()&0o004 == 0:
				r.add(spank.SeverityWarning, file, line, plugin, fmt.Sprintf("%q may not be read by all users: their stepctl run fails", p), "chmod o+r "+p)
			}
		}
	}
	for _, f := range stack.Files {
		note(f, f, 0, "")
	}
	for _, p := range stack.Plugins {
		if strings.HasPrefix(p.Path, "/") {
			note(p.Path, p.File, p.Line, p.Path)
		}
	}
}

// isErrno reports whether a system call failed with errno.
func isErrno(err error, errno error) bool { return errors.Is(err, errno) }

// print is what a path was when the report was made.
type print struct {
	stat unix.Stat_t // the zero value: the path did not exist
	// entries: it counts too which entries a directory has.
	entries bool
}

// remember takes the prints of all that decides about the stack.
func (r *Report) remember(c Config, stack spank.Stack) {
	for _, path := range stack.Sources {
		r.note(path)
	}
	for _, p := range stack.Plugins {
		r.note(p.Path)
	}
	r.note(c.Host)
}

// note takes the prints of a path and of all on the way to it. It is called
// before the path is looked into.
func (r *Report) note(path string) {
	if !filepath.IsAbs(path) {
		return
	}
	if r.prints == nil {
		r.prints = map[string]*print{}
	}
	way := spank.Way(path)
	for i, p := range way {
		known := r.prints[p]
		if known == nil {
			known = &print{stat: status(p)}
			r.prints[p] = known
		}
		known.entries = known.entries || i == len(way)-1
	}
}

// status is the path's own; a path that does not exist has the zero value.
func status(path string) unix.Stat_t {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return unix.Stat_t{}
	}
	return st
}

// same reports whether a path is what it was. Others change the entries of a
// directory that is only on the way all the time.
func (p *print) same(now unix.Stat_t) bool {
	was := p.stat
	if was.Dev != now.Dev || was.Ino != now.Ino || was.Mode != now.Mode || was.Uid != now.Uid || was.Gid != now.Gid {
		return false
	}
	if now.Mode&unix.S_IFMT == unix.S_IFDIR && !p.entries {
		return true
	}
	return was.Size == now.Size && was.Mtim == now.Mtim && was.Ctim == now.Ctim
}

// Stale reports whether something has changed that the report rests on: a file of
// the stack, a directory that a pattern has read, a plugin, a library of one,
// the host, a directory or a symlink on the way to one of them.
func (r *Report) Stale() bool {
	for path, p := range r.prints {
		if !p.same(status(path)) {
			return true
		}
	}
	return false
}

// Directories are those to watch for changes that make the report stale, sorted.
func (r *Report) Directories() []string {
	var out []string
	for path, p := range r.prints {
		if p.stat.Mode&unix.S_IFMT == unix.S_IFDIR {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out
}
