package spank

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"stepd/step"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// stackDir makes files in a fresh directory; a name may have directories.
func stackDir(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestStackLines has the grammar of a single file, as Slurm 22.05.8 reads it.
func TestStackLines(t *testing.T) {
	const bad = "spank: plugstack.conf:1: Invalid line. Ignoring. "
	for _, c := range []struct {
		name, text string
		plugins    []string // "required|optional PATH ARGS… @LINE"
		problems   []string
	}{
		{"empty", "", nil, nil},
		{"comments and blanks", "# a\n\n \t # b\nrequired /x.so # c\n", []string{"required /x.so @4"}, nil},
		{"a comment within a word", "optional /x#y.so a", []string{"optional /x @1"}, nil},
		{"an escaped comment", `optional /x\#y.so`, []string{`optional /x\ @1`}, nil},
		{"arguments", "required /x.so a b=c", []string{"required /x.so a b=c @1"}, nil},
		{"no quotes", `optional "/a b.so" "c d"`, []string{`optional /"/a b.so" "c d" @1`}, nil},
		{"no continuation", "optional /a \\\n/b\noptional /c", []string{`optional /a \ @1`, "optional /c @3"}, []string{
			`spank: plugstack.conf:2: Invalid line. Ignoring. The word "/b" is none of required, optional, include`,
		}},
		{"all kinds of blanks", "\toptional\v/x.so\f1\r\n", []string{"optional /x.so 1 @1"}, nil},
		{"twice", "optional /a\nrequired /a", []string{"optional /a @1", "required /a @2"}, nil},
		{"the rest goes on", "mandatory /x.so\nrequired /y.so", []string{"required /y.so @2"}, []string{bad + `The word "mandatory" is none of required, optional, include`}},
		{"upper case", "Required /x.so", nil, []string{bad + `The word "Required" is none of required, optional, include`}},
		{"an equals sign", "required=/x.so", nil, []string{bad + `The word "required=/x.so" is none of required, optional, include`}},
		{"no path", "required # /x.so", nil, []string{bad + `There is no path behind "required"`}},
		{"include without a path", "include", nil, []string{bad + `There is no path behind "include"`}},
		{"a NUL byte", "required /x\x00.so", nil, []string{bad + "There is a NUL byte in it"}},
		{"a log line in a word", "a\x1b[2J\xff", nil, []string{bad + `The word "a\x1b[2J\xff" is none of required, optional, include`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := stackDir(t, map[string]string{"plugstack.conf": c.text})
			s, err := ReadStack(filepath.Join(dir, "plugstack.conf"), nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.plugins, pluginLines(s)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.problems, problemLines(s, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func pluginLines(s Stack) []string {
	var out []string
	for _, p := range s.Plugins {
		flag := "optional"
		if p.Required {
			flag = "required"
		}
		words := append([]string{flag, p.Path}, p.Args...)
		out = append(out, fmt.Sprintf("%s @%d", strings.Join(words, " "), p.Line))
	}
	return out
}

func problemLines(s Stack, dir string) []string {
	var out []string
	for _, p := range s.Problems {
		out = append(out, strings.ReplaceAll(p.String(), dir+"/", ""))
	}
	return out
}

func TestNoStack(t *testing.T) {
	for _, file := range []string{"", filepath.Join(t.TempDir(), "none"), "/dev/null"} {
		if s, err := ReadStack(file, nil); err != nil || len(s.Plugins)+len(s.Problems) > 0 {
			t.Errorf("%q: got %+v, %v", file, s, err)
		}
	}
}

// TestStackIncludes names each plugin by its file, to see which were read.
func TestStackIncludes(t *testing.T) {
	files := map[string]string{"d/sub/x.conf": "optional /sub"}
	for _, n := range []string{"2", "9", "10", "B", "a", ".hidden"} {
		files["d/"+n+".conf"] = "optional /" + n
	}
	files["d/nested"] = "include 2.conf\noptional /nested\n"
	files["2.conf"] = "optional /wrong"
	files["d/dir.conf/x"] = ""
	for _, c := range []struct{ pattern, want string }{
		{"d/*.conf", "/A /10 /2 /9 /B /a /Z"},
		{"DIR/d/[!29]*.conf", "/A /10 /B /a /Z"},
		{"d/.*.conf", "/A /.hidden /Z"},
		{"d/*/x.conf", "/A /sub /Z"},
		{"*/.h*", "/A /.hidden /Z"},
		{"d//./9.conf", "/A /9 /Z"},
		{"d/2.conf d/9.conf", "/A /2 /Z"}, // further words are dropped
		{"d/nested", "/A /2 /nested /Z"},  // relative to the file that names it
		{"d", "/A /Z"},
		{"none/*", "/A /Z"},
		{"none.conf", "/A /Z"},
		{"d/2.conf\ninclude d/2.conf", "/A /2 /2 /Z"},
		{"d/{2,9}.conf", "/A /Z"},
	} {
		t.Run(c.pattern, func(t *testing.T) {
			dir := stackDir(t, files)
			file := filepath.Join(dir, "plugstack.conf")
			text := "optional /A\ninclude " + strings.ReplaceAll(c.pattern, "DIR", dir) + "\noptional /Z\n"
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			s, err := ReadStack(file, nil)
			if err != nil || len(s.Problems) > 0 {
				t.Fatalf("got %v, %v", s.Problems, err)
			}
			var got []string
			for _, p := range s.Plugins {
				got = append(got, p.Path)
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestStackBadPattern(t *testing.T) {
	dir := stackDir(t, map[string]string{"plugstack.conf": "include d/[\noptional /x\n"})
	s, err := ReadStack(filepath.Join(dir, "plugstack.conf"), nil)
	if err != nil || len(s.Plugins) != 1 || len(s.Problems) != 1 || !strings.Contains(s.Problems[0].Text, "is no pattern") {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestStackErrors(t *testing.T) {
	long := map[string]string{"plugstack.conf": "include d/0", "one": "required /x\n"}
	for i := range 2 * stackDepthMax {
		long[fmt.Sprintf("d/%d", i)] = fmt.Sprintf("include %d", i+1)
	}
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"a loop", map[string]string{"plugstack.conf": "required /a\ninclude b", "b": "\ninclude plugstack.conf"}, "include in b:2: an include loop: plugstack.conf -> b -> plugstack.conf"},
		{"itself", map[string]string{"plugstack.conf": "include plugstack.conf"}, "include in plugstack.conf:1: an include loop: plugstack.conf -> plugstack.conf"},
		{"itself by glob", map[string]string{"plugstack.conf": "include *.conf"}, "an include loop"},
		{"depth", long, "nested deeper than 16"},
		{"files", map[string]string{"plugstack.conf": strings.Repeat("include b\n", stackFilesMax), "b": ""}, "more than 1024 files"},
		{"plugins", map[string]string{"plugstack.conf": strings.Repeat("optional /x\n", pluginsMax+1)}, "plugstack.conf:4097: more than 4096 plugins"},
		{"bytes of one", map[string]string{"plugstack.conf": strings.Repeat("#", stackFileMax+1)}, "more than 1048576 bytes"},
		{"bytes together", map[string]string{"plugstack.conf": strings.Repeat("include b\n", 20), "b": strings.Repeat("#", stackFileMax)}, "more than 8388608 bytes together"},
		{"a directory", map[string]string{"plugstack.conf/x": ""}, "not a regular file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := stackDir(t, c.files)
			file := filepath.Join(dir, "plugstack.conf")
			_, err := ReadStack(file, nil)
			if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), dir+"/", ""), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestStackUnreadable: an include that exists and cannot be read is fatal,
// as in Slurm; a FIFO does not block.
func TestStackUnreadable(t *testing.T) {
	dir := stackDir(t, map[string]string{"plugstack.conf": "include *.inc\n"})
	if err := syscall.Mkfifo(filepath.Join(dir, "a.inc"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadStack(filepath.Join(dir, "plugstack.conf"), nil); err == nil || !strings.Contains(err.Error(), "a.inc") {
		t.Errorf("got %v", err)
	}
}

// TestStackUnreadableInclude names the line that includes it, the innermost.
func TestStackUnreadableInclude(t *testing.T) {
	dir := stackDir(t, map[string]string{"plugstack.conf": "required /a\ninclude b\n", "b": "\n\ninclude c.d/*\n"})
	if err := os.Mkdir(filepath.Join(dir, "c.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "c.d/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := ReadStack(filepath.Join(dir, "plugstack.conf"), nil)
	want := "cannot read plugin stack \"plugstack.conf\": include in b:3: open c.d/fifo: not a regular file"
	if err == nil || strings.ReplaceAll(err.Error(), dir+"/", "") != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestStackLeftovers: what a wildcard matches by accident is passed over and
// told, what is named in full is read.
func TestStackLeftovers(t *testing.T) {
	leftovers := []string{
		"#x.conf#", "a.conf.bak", "a.conf.dpkg-bak", "a.conf.dpkg-dist", "a.conf.dpkg-new", "a.conf.dpkg-old", "a.conf.dpkg-tmp",
		"a.conf.orig", "a.conf.rej", "a.conf.rpmnew", "a.conf.rpmorig", "a.conf.rpmsave", "a.conf.swo", "a.conf.swp", "a.conf.swx",
		"a.conf.tmp", "a.conf.ucf-dist", "a.conf.ucf-new", "a.conf.ucf-old", "a.conf~", "seda0Zx9q",
	}
	files := map[string]string{"d/.#x.conf": "required /lock\n", "d/.a.conf.swp": "required /swap\n"}
	for _, name := range leftovers {
		files["d/"+name] = "required /left\n"
	}
	for _, name := range []string{"a.conf", "#", "sed", "sedation", "sedabc.f1", "sed1234567", "a.backup", "old~/b.conf"} {
		files["d/"+name] = "required /" + name + "\n"
	}
	for _, c := range []struct{ pattern, want string }{
		{"d/*", "/ /a.backup /a.conf /sed /sed1234567 /sedabc.f1 /sedation"},
		{"d/.*", ""},
		{"d/*/*.conf", ""},
		{"d/[o]ld~/b.conf", ""},
		{"d/old~/*", "/old~/b.conf"},
		{"d/a.conf~", "/left"},
		{"d/.a.conf.swp", "/swap"},
	} {
		files["plugstack.conf"] = "include " + c.pattern + "\n"
		dir := stackDir(t, files)
		s, err := ReadStack(filepath.Join(dir, "plugstack.conf"), nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range s.Plugins {
			got = append(got, p.Path)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %q, want %q", c.pattern, got, c.want)
		}
		if c.pattern != "d/*" {
			continue
		}
		var told []string
		for _, p := range s.Problems {
			if p.Severity != SeverityWarning || p.Line != 1 || p.Remedy == "" {
				t.Errorf("got %+v", p)
			}
			told = append(told, p.Text)
		}
		if len(told) != len(leftovers) {
			t.Errorf("told %d of %d: %q", len(told), len(leftovers), told)
		}
		for i, name := range leftovers {
			if want := fmt.Sprintf("%q is left over", filepath.Join(dir, "d", name)); i < len(told) && !strings.HasPrefix(told[i], want) {
				t.Errorf("got %q, want %q", told[i], want)
			}
		}
	}
}

// TestStackSources are what a watcher has to know of.
func TestStackSources(t *testing.T) {
	dir := stackDir(t, map[string]string{"plugstack.conf": "include d/*/x\ninclude none\nrequired a.so\n", "d/1/x": "", "d/f": "", "2/a.so": ""})
	s, err := ReadStack(filepath.Join(dir, "plugstack.conf"), []string{dir + "/1", dir + "/2", dir + "/3"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range s.Sources {
		got = append(got, strings.TrimPrefix(p, dir+"/"))
	}
	if diff := cmp.Diff([]string{"plugstack.conf", "d", "d/1/x", "none", "1/a.so", "2/a.so"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestWay(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"a": "b", "b": "sub/c", "sub/c": "../real/", "loop": "loop"} {
		path := filepath.Join(dir, link)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "real"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{
		"real/x":      {"real", "real/x"},
		"a/x":         {"a", "b", "sub", "sub/c", "real", "real/x"},
		"a/../sub":    {"a", "b", "sub", "sub/c", "real"},
		"none/./y//z": {"none", "none/y", "none/y/z"},
		"loop/x":      {"loop"},
	} {
		var got []string
		for _, p := range Way(dir + "/" + path) {
			if rest, ok := strings.CutPrefix(p, dir+"/"); ok {
				got = append(got, rest)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
	if got := Way("/"); len(got) != 1 || got[0] != "/" {
		t.Errorf("got %q", got)
	}
}

func TestStackLoopBySymlink(t *testing.T) {
	dir := stackDir(t, map[string]string{"plugstack.conf": "include link\n"})
	if err := os.Symlink("plugstack.conf", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadStack(filepath.Join(dir, "plugstack.conf"), nil); err == nil || !strings.Contains(err.Error(), "loop") {
		t.Errorf("got %v", err)
	}
}

func TestStackPluginDirs(t *testing.T) {
	dir := stackDir(t, map[string]string{
		"1/a.so": "", "2/a.so": "", "2/b.so": "", "2/s/c.so": "", "1/d.so/x": "", "2/d.so": "",
		"plugstack.conf": "optional a.so\noptional b.so\noptional s/c.so\noptional d.so\noptional none.so\noptional /a.so\noptional a.so\noptional s/none.so\n",
	})
	s, err := ReadStack(filepath.Join(dir, "plugstack.conf"), []string{filepath.Join(dir, "0"), filepath.Join(dir, "1"), filepath.Join(dir, "2")})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range s.Plugins {
		got = append(got, strings.TrimPrefix(p.Path, dir+"/"))
	}
	want := []string{"1/a.so", "2/b.so", "2/s/c.so", "2/d.so", "none.so", "/a.so", "1/a.so", "/s/none.so"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestStackProblemsAreBounded(t *testing.T) {
	dir := stackDir(t, map[string]string{"plugstack.conf": strings.Repeat("x\n", 3*problemsMax) + "optional /x\n"})
	s, err := ReadStack(filepath.Join(dir, "plugstack.conf"), nil)
	if err != nil || len(s.Plugins) != 1 || len(s.Problems) != problemsMax || !strings.Contains(s.Problems[problemsMax-1].Text, "not told") {
		t.Errorf("%d plugins, %d problems, %v", len(s.Plugins), len(s.Problems), err)
	}
}

func TestUnsafeMode(t *testing.T) {
	const file, dir, link = syscall.S_IFREG, syscall.S_IFDIR, syscall.S_IFLNK
	for _, c := range []struct {
		mode, uid, gid uint32
		want           string
	}{
		{file | 0o644, 0, 0, ""},
		{file | 0o664, 0, 0, ""},
		{file | 0o644, 7, 0, "belongs to uid 7, not to root"},
		{file | 0o646, 0, 0, "may be written by everybody"},
		{file | 0o664, 0, 5, "may be written by group 5"},
		{file | 0o1666, 0, 0, "may be written by everybody"}, // sticky means nothing on a file
		{dir | 0o1777, 0, 0, ""},
		{dir | 0o777, 0, 0, "may be written by everybody"},
		{dir | 0o1777, 7, 0, "belongs to uid 7, not to root"},
		{link | 0o777, 0, 0, ""},
		{link | 0o777, 7, 0, "belongs to uid 7, not to root"},
	} {
		if got, remedy := unsafeMode(c.mode, c.uid, c.gid); got != c.want || (got == "") != (remedy == "") {
			t.Errorf("%o, uid %d, gid %d: got %q (%q), want %q", c.mode, c.uid, c.gid, got, remedy, c.want)
		}
	}
}

func FuzzReadStack(f *testing.F) {
	for _, s := range []string{
		"required /x.so a b # c\n", "optional x.so\ninclude inc\n", "include *\n", "include [!a]*\n", "foo\n\nrequired\n", "include plugstack.conf\n", "a\x00b\r\n",
	} {
		f.Add(s, s)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text, inc string) {
		if strings.Contains(text+inc, "include") && (strings.Contains(text+inc, "/") || strings.Contains(text+inc, "..")) {
			t.Skip("it would read the machine's own files")
		}
		for name, s := range map[string]string{"plugstack.conf": text, "inc": inc} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(s), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s, err := ReadStack(filepath.Join(dir, "plugstack.conf"), []string{dir})
		if err == nil && len(s.Files) == 0 {
			t.Fatal("the file was not read")
		}
		if len(s.Plugins) > pluginsMax || len(s.Problems) > problemsMax {
			t.Fatalf("%d plugins, %d problems", len(s.Plugins), len(s.Problems))
		}
		for _, p := range s.Plugins {
			if p.Path == "" || p.Line < 1 || strings.ContainsAny(p.Path+strings.Join(p.Args, ""), " \t\r\n\v\f#\x00") {
				t.Fatalf("a plugin that cannot be: %+v", p)
			}
		}
		for _, p := range s.Problems {
			if strings.ContainsAny(p.Text, "\n\x1b\x00") {
				t.Fatalf("a control character in %q", p.Text)
			}
		}
	})
}

// TestStackCopy: a copy is the stack that it was made of, byte by byte, for those who may read the
// files; StackOf takes it where the file is another one now, or cannot be read, and only where none
// but root or the caller could write it.
func TestStackCopy(t *testing.T) {
	dir := t.TempDir()
	file, kept := filepath.Join(dir, "plugstack.conf"), filepath.Join(dir, "kept")
	put := func(path, text string, mode os.FileMode) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	put(file, "required /a.so one \xff\xfe two\noptional b.so\n", 0o644)
	begun, err := ReadStack(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	doc, mode, err := begun.Copy()
	if err != nil {
		t.Fatal(err)
	}
	put(kept, string(doc), 0o600)
	if st, err := os.Stat(filepath.Dir(dir)); err == nil && st.Mode()&0o001 == 0 && mode != 0o600 {
		t.Errorf("the way to the file is closed to users, and the copy has mode %v", mode)
	}
	put(file, "required /a.so one \xff\xfe two\noptional b.so\n", 0o600)
	if _, mode, err := begun.Copy(); mode != 0o600 || err != nil {
		t.Errorf("a file for root alone: its copy has mode %v, %v", mode, err)
	}
	conf := step.SpankConf{Plugstack: file, Digest: begun.Digest, Kept: kept}
	want := begun.Plugins
	for _, now := range []string{"required /c.so\n", "include plugstack.conf\n", ""} {
		put(file, now, 0o644)
		got, err := StackOf(conf)
		if err != nil || fmt.Sprintf("%+v", got.Plugins) != fmt.Sprintf("%+v", want) || !slices.Equal(got.Files, begun.Files) {
			t.Errorf("the file is %q now: %+v, %v, want %+v", now, got, err, want)
		}
	}
	put(file, "required /c.so\n", 0o644)
	for name, c := range map[string]step.SpankConf{
		"no copy (after a reboot)": {Plugstack: file, Digest: begun.Digest, Kept: kept + ".gone"},
		"a job of an older noded":  {Plugstack: file},
	} {
		if got, err := StackOf(c); err != nil || len(got.Plugins) != 1 || got.Plugins[0].Path != "/c.so" {
			t.Errorf("%s: %+v, %v, want the present stack", name, got.Plugins, err)
		}
	}
	if got, err := StackOf(step.SpankConf{Digest: begun.Digest, Kept: kept}); err != nil || len(got.Plugins) != 0 {
		t.Errorf("a step without plugins has %+v, %v", got.Plugins, err)
	}
	for name, spoil := range map[string]func(){
		"others may write it": func() { put(kept, string(doc), 0o622) },
		"half a copy":         func() { put(kept, string(doc[:len(doc)/2]), 0o600) },
		"a directory":         func() { os.Remove(kept); os.Mkdir(kept, 0o700) },
		"a link":              func() { os.Remove(kept); os.Symlink(file, kept) },
	} {
		os.RemoveAll(kept)
		spoil()
		if got, err := StackOf(conf); err == nil || len(got.Plugins) != 0 {
			t.Errorf("%s: %+v, %v, want an error", name, got.Plugins, err)
		}
	}
}

// FuzzStackCopy: whatever a file of a copy has, it is a stack or an error.
func FuzzStackCopy(f *testing.F) {
	f.Add([]byte(`{"plugins":[{"path":"L2Euc28=","required":true,"args":["eA=="],"file":"L2Y=","line":3}],"files":["L2Y="]}`))
	path := filepath.Join(f.TempDir(), "kept")
	f.Fuzz(func(t *testing.T, doc []byte) {
		if err := os.WriteFile(path, doc, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _ = readCopy(path)
	})
}
