package lint

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stepd/spank"
)

// bench is a directory to build and check in.
type bench struct {
	t    *testing.T
	dir  string
	host string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, dir: dir, host: filepath.Join(dir, "host")}
	for d := dir; len(d) > len(os.TempDir()); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { // as a site's directories are
			t.Fatal(err)
		}
	}
	b.cc("-rdynamic", "testdata/host.c", "-o", b.host)
	return b
}

func (b *bench) cc(args ...string) {
	b.t.Helper()
	if out, err := exec.Command("cc", append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror"}, args...)...).CombinedOutput(); err != nil {
		b.t.Fatalf("cc %q: %v\n%s", args, err, out)
	}
}

// plugin builds one; DIR in a flag is the bench's directory.
func (b *bench) plugin(name string, flags ...string) string {
	b.t.Helper()
	so := filepath.Join(b.dir, name)
	args := []string{"-fPIC", "-shared", "-I../host/include", "testdata/plugin.c", "-o", so}
	for _, f := range flags {
		args = append(args, strings.ReplaceAll(f, "DIR", b.dir))
	}
	b.cc(args...)
	return so
}

func (b *bench) library(name string, flags ...string) {
	b.t.Helper()
	args := []string{"-fPIC", "-shared", "testdata/dep.c", "-Wl,-soname," + filepath.Base(name), "-o", filepath.Join(b.dir, name)}
	for _, f := range flags {
		args = append(args, strings.ReplaceAll(f, "DIR", b.dir))
	}
	b.cc(args...)
}

func (b *bench) write(name, text string) string {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
	return path
}

// patch makes a copy of a file that change has changed.
func (b *bench) patch(path, name string, change func(data []byte)) string {
	b.t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		b.t.Fatal(err)
	}
	change(data)
	return b.write(name, string(data))
}

// check checks a stack of these lines.
func (b *bench) check(lines ...string) *Report {
	b.t.Helper()
	return Check(Config{Plugstack: b.write("plugstack.conf", strings.Join(lines, "\n")+"\n"), Host: b.host})
}

// told are the findings, without those about who owns the test's own files.
func (b *bench) told(r *Report) []string {
	var out []string
	for _, f := range r.Findings {
		if !strings.Contains(f.Text, "not to root") {
			out = append(out, strings.ReplaceAll(f.String(), b.dir+"/", ""))
		}
	}
	return out
}

// realHost is the built spankhost, "" where there is none.
func realHost(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("STEPD_BIN")
	if dir == "" {
		dir = "../../bin"
	}
	path, err := filepath.Abs(filepath.Join(dir, "spankhost"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// loads asks the real host whether it takes the plugin.
func loads(t *testing.T, host, path string) bool {
	t.Helper()
	s, _, err := spank.Open(context.Background(), spank.SessionConfig{
		Program: host, Context: spank.ContextLocal, NodeName: "n",
		Stack: spank.Stack{Plugins: []spank.Plugin{{Path: path, Required: true, File: "f", Line: 1}}},
	})
	if err != nil {
		return false
	}
	return s.Close() == nil
}

// TestPlugins has plugins of all kinds, and asks the dynamic linker of the real
// host, where it is built, whether it is of the same mind.
func TestPlugins(t *testing.T) {
	b := newBench(t)
	real := realHost(t)
	good := b.plugin("good.so")
	library := []string{"-DLIBRARY", "-LDIR/lib", "-ldep"}
	if err := os.MkdirAll(filepath.Join(b.dir, "lib/deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.library("lib/libdep.so")
	b.library("lib/libdata.so", "-DDATA")
	b.cc("-fPIC", "-shared", "-Ddep=next", "testdata/dep.c", "-Wl,-soname,libnext.so", "-o", filepath.Join(b.dir, "lib/deep/libnext.so"))
	b.library("lib/libchain.so", "-DNEXT", "-LDIR/lib/deep", "-lnext")
	b.library("lib/libv.so", "-Wl,--version-script="+b.write("v2", "V1 { global: other; };\nV2 { global: dep; } V1;\n"))
	versioned := b.plugin("versioned.so", "-DLIBRARY", "-LDIR/lib", "-lv", "-Wl,-rpath,$ORIGIN/lib")
	b.library("lib/libv.so", "-Wl,--version-script="+b.write("v1", "V1 { global: dep; };\n"))
	b.cc("-c", "-I../host/include", "testdata/plugin.c", "-o", filepath.Join(b.dir, "plugin.o"))
	for _, c := range []struct {
		name, path string
		state      State
		says       string // the Problem, or where the plugin loads a warning; "" is none
		missing    []Missing
	}{
		{"good", good, StateFound, "", nil},
		{"a missing variable", b.plugin("data.so", "-DDATA"), StateError, `imports "nobody_has_data"`, []Missing{{Symbol: "nobody_has_data", Fatal: true}}},
		{"a missing function", b.plugin("function.so", "-DFUNCTION", "-Wl,-z,lazy"), StateFound, `nothing here provides nobody_has_function()`, []Missing{{Symbol: "nobody_has_function"}}},
		{"a missing function, bound at once", b.plugin("now.so", "-DFUNCTION", "-Wl,-z,now"), StateError, `imports "nobody_has_function"`, []Missing{{Symbol: "nobody_has_function", Fatal: true}}},
		{"a missing function's address", b.plugin("pointer.so", "-DPOINTER", "-Wl,-z,lazy"), StateError, `imports "nobody_has_pointer"`, []Missing{{Symbol: "nobody_has_pointer", Fatal: true}}},
		{"a missing weak variable", b.plugin("weak.so", "-DWEAK"), StateFound, "", nil},
		{"old hash table", b.plugin("sysv.so", "-Wl,--hash-style=sysv"), StateFound, "", nil},
		{"new hash table", b.plugin("gnu.so", "-Wl,--hash-style=gnu"), StateFound, "", nil},
		{"a release of the author's", b.plugin("old.so", "-DVERSION=7"), StateIncompatible, "20.11", nil},
		{"a newer release", b.plugin("newer.so", "-DVERSION=0x630b00"), StateIncompatible, "99.11.0", nil},
		{"no version", b.plugin("nover.so", "-DNO_VERSION"), StateIncompatible, "no plugin_version", nil},
		{"no name", b.plugin("noname.so", "-DNO_NAME"), StateError, "exports no plugin_name", nil},
		{"no type", b.plugin("notype.so", "-DNO_TYPE"), StateError, "exports no plugin_type", nil},
		{"no hooks", b.plugin("nohooks.so", "-DNO_HOOKS"), StateError, "exports no slurm_spank_* hook", nil},
		{"a name of the host's", b.plugin("debug.so", "-DDEBUG"), StateFound, `exports "debug"`, nil},

		{"a library by RUNPATH", b.plugin("runpath.so", append(library, "-Wl,--enable-new-dtags,-rpath,$ORIGIN/lib")...), StateFound, "", nil},
		{"a library by RPATH", b.plugin("rpath.so", append(library, "-Wl,--disable-new-dtags,-rpath,DIR/lib")...), StateFound, "", nil},
		{"a library that is not there", b.plugin("nolib.so", library...), StateError, `needs library "libdep.so"`, nil},
		{"a library that lacks a variable", b.plugin("libdata.so", "-DLIBRARY", "-LDIR/lib", "-ldata", "-Wl,-rpath,$ORIGIN/lib"), StateError, `imports "nobody_has_data"`, []Missing{{Symbol: "nobody_has_data", Object: "lib/libdata.so", Fatal: true}}},
		{"a library's library, by the plugin's RPATH", b.plugin("chain.so", "-DLIBRARY", "-LDIR/lib", "-lchain", "-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib:$ORIGIN/lib/deep", "-Wl,-rpath-link,DIR/lib/deep"), StateFound, "", nil},
		{"a library's library, and RUNPATH is for one's own", b.plugin("chain2.so", "-DLIBRARY", "-LDIR/lib", "-lchain", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/lib:$ORIGIN/lib/deep", "-Wl,-rpath-link,DIR/lib/deep"), StateError, `needs library "libnext.so", which "lib/libchain.so" needs`, nil},
		{"a library that is older", versioned, StateError, `needs version "V2" of library "libv.so"`, nil},

		{"no sections", b.patch(good, "nosections.so", func(d []byte) { copy(d[40:], make([]byte, 8)); copy(d[58:], make([]byte, 6)) }), StateFound, "", nil},
		{"another machine", b.patch(good, "arm.so", func(d []byte) { binary.LittleEndian.PutUint16(d[18:], uint16(elf.EM_ARM)) }), StateError, "EM_ARM", nil},
		{"32 bits", b.patch(good, "32.so", func(d []byte) { d[elf.EI_CLASS] = byte(elf.ELFCLASS32) }), StateError, "wrong ELF class", nil},
		{"cut off", b.write("cut.so", string(must(os.ReadFile(good)))[:600]), StateError, "cannot load plugin", nil},
		{"a text", b.write("text.so", strings.Repeat("this is no plugin\n", 10)), StateError, "invalid ELF header", nil},
		{"empty", b.write("empty.so", ""), StateError, "invalid ELF header", nil},
		{"a directory", b.dir, StateError, "not a regular file", nil},
		{"an object file", filepath.Join(b.dir, "plugin.o"), StateError, "cannot load plugin", nil},
		{"a program", b.host, StateError, "a program", nil},
		{"absent", filepath.Join(b.dir, "absent.so"), StateMissing, "No such file", nil},
		{"absent and relative", "nosuch.so", StateMissing, "PluginDir", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := b.check("required "+c.path, "optional "+c.path+" a b")
			required, optional := r.Plugins[0], r.Plugins[1]
			for i, m := range required.Missing {
				required.Missing[i].Object = strings.TrimPrefix(m.Object, b.dir+"/")
			}
			if diff := cmp.Diff(append([]Missing{}, c.missing...), required.Missing); diff != "" || required.State != c.state {
				t.Errorf("state %s, want %s, missing %s", required.State, c.state, diff)
			}
			if optional.State != c.state || optional.Line != 2 || cmp.Diff(optional.Args, []string{"a", "b"}) != "" {
				t.Errorf("optional: %+v", optional)
			}
			told := strings.Join(b.told(r), "\n")
			if !strings.Contains(told, c.says) || (c.says == "") != (told == "") {
				t.Errorf("told %q, want %q", told, c.says)
			}
			fails := c.state != StateFound
			if fails != (required.Problem != "") || r.Failed() != fails || strings.Contains(told, "plugstack.conf:1: error: ") != fails || strings.Contains(told, "plugstack.conf:2: error: ") {
				t.Errorf("problem %q, told %s", required.Problem, told)
			}
			// The real host has other symbols than the test's, but not these.
			if real != "" && loads(t, real, c.path) != (c.state == StateFound) {
				t.Errorf("spankhost does not find it %s", c.state)
			}
		})
	}
	if r := b.check("required " + good); r.Plugins[0].Name != "lint" || r.Plugins[0].Type != "spank" || r.Plugins[0].Release != "22.05.8" ||
		cmp.Diff(r.Plugins[0].Hooks, []string{"slurm_spank_task_init", "slurm_spank_exit"}) != "" {
		t.Errorf("got %+v", r.Plugins[0])
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestNothingRuns: a plugin that is checked is not executed.
func TestNothingRuns(t *testing.T) {
	b := newBench(t)
	so := b.plugin("runs.so", `-DRUNS="DIR/ran"`)
	if r := b.check("required " + so); r.Failed() || r.Plugins[0].State != StateFound {
		t.Errorf("got %v", r.Findings)
	}
	if _, err := os.Stat(filepath.Join(b.dir, "ran")); err == nil {
		t.Error("the plugin was executed")
	}
	if real := realHost(t); real != "" { // the trap works
		loads(t, real, so)
		if _, err := os.Stat(filepath.Join(b.dir, "ran")); err != nil {
			t.Error(err)
		}
	}
}

// TestFindings holds the findings about the stack's own lines, in their order.
func TestFindings(t *testing.T) {
	b := newBench(t)
	good := b.plugin("good.so")
	b.write("d/1.conf", "optional "+good+"\nmandatory x\n")
	b.write("d/1.conf.rpmsave", "")
	b.write("secret.conf", "")
	if err := os.Chmod(filepath.Join(b.dir, "secret.conf"), 0o640); err != nil {
		t.Fatal(err)
	}
	r := b.check("include d/*", "required", "include secret.conf")
	want := []string{
		`plugstack.conf:1: warning: "d/1.conf.rpmsave" is left over from an editor or a package manager. Ignored; remove it, or name it in full to include it`,
		`plugstack.conf:2: error: Invalid line. Ignoring. There is no path behind "required"; add the path, or remove the line`,
		`d/1.conf:2: error: Invalid line. Ignoring. The word "mandatory" is none of required, optional, include; write required, optional or include, in lower case, and the path behind it`,
		`secret.conf: warning: "secret.conf" may not be read by all users: their stepctl run fails; chmod o+r secret.conf`,
	}
	if diff := cmp.Diff(want, b.told(r)); diff != "" {
		t.Error(diff)
	}
	if r := b.check("include plugstack.conf"); !r.Failed() || !strings.Contains(r.Findings[0].Text, "include loop") {
		t.Errorf("got %v", r.Findings)
	}
	if r := Check(Config{}); len(r.Findings)+len(r.Plugins) > 0 || r.Stale() {
		t.Errorf("nothing to check: %v", r.Findings)
	}
	r = Check(Config{Plugstack: b.write("plugstack.conf", "required "+good+"\nrequired /nonexistent.so\n")})
	if r.Plugins[0].State != StateFound || r.Plugins[1].State != StateMissing || !strings.Contains(strings.Join(b.told(r), "\n"), "cannot read spankhost") {
		t.Errorf("without a host: %+v, %v", r.Plugins, r.Findings)
	}
}

// TestSlips: a function that is named as a hook and is none.
func TestSlips(t *testing.T) {
	b := newBench(t)
	want := []string{
		`plugstack.conf:1: warning: plugin "slip.so" exports "slurm_spank_helper_of_mine", which is no hook: it is never called; make it static, if it is the plugin's own`,
		`plugstack.conf:1: warning: plugin "slip.so" exports "slurm_spank_task_int", which is no hook: it is never called; did you mean slurm_spank_task_init?`,
	}
	if diff := cmp.Diff(want, b.told(b.check("required "+b.plugin("slip.so", "-DSLIP")))); diff != "" {
		t.Error(diff)
	}
}

// TestOptions: the second of a name is never used, nor is one of stepctl's.
func TestOptions(t *testing.T) {
	b := newBench(t)
	one, two, three := b.plugin("one.so"), b.plugin("two.so"), b.plugin("three.so")
	options := map[string][]Option{
		one: {{Name: "a", HasArg: 1, ArgInfo: "N", Usage: "u", Contexts: []string{"local", "allocator"}}, {Name: "ntasks"}},
		two: {{Name: "b", Contexts: []string{"local"}}, {Name: "a"}, {Name: "c", Contexts: []string{"allocator"}}},
	}
	r := Check(Config{
		Plugstack: b.write("plugstack.conf", "required "+one+"\noptional "+two+"\noptional "+three+"\nrequired "+three+"\n"),
		Host:      b.host, BuiltIn: []string{"nodes", "ntasks"},
		Options: func(p spank.Plugin) ([]Option, error) {
			if p.Path == three {
				return nil, errors.New("it crashed")
			}
			return options[p.Path], nil
		},
	})
	want := []string{
		`plugstack.conf:1: warning: option --ntasks of plugin "one.so" is never used: stepctl has one of that name; rename it`,
		`plugstack.conf:2: warning: option --b of plugin "two.so" is for run alone; call spank_option_register() for it in every context: batch and alloc take no option of a spank_options table`,
		`plugstack.conf:2: warning: option --a of plugin "two.so" is never used: plugin "one.so" at plugstack.conf:1 offers it too, and comes first; rename one of them, or remove one of the lines`,
		`plugstack.conf:2: warning: option --c of plugin "two.so" is for alloc and batch alone; call spank_option_register() for it in every context: batch and alloc take no option of a spank_options table`,
		`plugstack.conf:3: warning: cannot ask plugin "three.so" for its options: it crashed`,
		`plugstack.conf:4: error: cannot ask plugin "three.so" for its options: it crashed`,
	}
	if diff := cmp.Diff(want, b.told(r)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(options[one], r.Plugins[0].Options); diff != "" {
		t.Error(diff)
	}
}

// TestStale: whatever the report rests on.
func TestStale(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b *bench) error
		stale  bool
	}{
		"nothing":         {func(*bench) error { return nil }, false},
		"the file":        {func(b *bench) error { b.write("plugstack.conf", "# changed\n"); return nil }, true},
		"an include":      {func(b *bench) error { return os.Remove(filepath.Join(b.dir, "d/1.conf")) }, true},
		"a new include":   {func(b *bench) error { b.write("d/2.conf", ""); return nil }, true},
		"the plugin":      {func(b *bench) error { return os.Chmod(filepath.Join(b.dir, "good.so"), 0o700) }, true},
		"its directory":   {func(b *bench) error { return os.Chmod(b.dir, 0o711) }, true},
		"its library":     {func(b *bench) error { return os.Rename(b.dir+"/lib/libdep.so", b.dir+"/lib/x") }, true},
		"an absent one":   {func(b *bench) error { b.write("absent.so", ""); return nil }, true},
		"a link":          {func(b *bench) error { return os.Remove(filepath.Join(b.dir, "link")) }, true},
		"another file":    {func(b *bench) error { b.write("other", ""); return nil }, false},
		"reading only":    {func(b *bench) error { _, err := os.ReadFile(b.dir + "/good.so"); return err }, false},
		"the host is new": {func(b *bench) error { b.patch(b.host, "host", func([]byte) {}); return nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if err := os.Mkdir(filepath.Join(b.dir, "lib"), 0o755); err != nil {
				t.Fatal(err)
			}
			b.library("lib/libdep.so")
			good := b.plugin("good.so", "-DLIBRARY", "-LDIR/lib", "-ldep", "-Wl,-rpath,$ORIGIN/lib")
			b.write("d/1.conf", "optional "+good+"\n")
			if err := os.Symlink("good.so", filepath.Join(b.dir, "link")); err != nil {
				t.Fatal(err)
			}
			r := b.check("include d/*.conf", "required "+b.dir+"/link", "optional "+b.dir+"/absent.so")
			for _, d := range []string{"/", b.dir, b.dir + "/d", b.dir + "/lib"} {
				found := false
				for _, have := range r.Directories() {
					found = found || have == d
				}
				if !found {
					t.Errorf("%s is not among %q", d, r.Directories())
				}
			}
			if err := c.change(b); err != nil {
				t.Fatal(err)
			}
			if r.Stale() != c.stale {
				t.Errorf("stale: %v, want %v", r.Stale(), c.stale)
			}
		})
	}
}
