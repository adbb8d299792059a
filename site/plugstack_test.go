package site

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"

	"stepd/node"
	"stepd/spank/lint"
)

// safeBuffer is a log that may be read while it is written.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// told waits until the log says something n times.
func (b *safeBuffer) told(t *testing.T, what string, n int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); strings.Count(b.String(), what) != n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%q is not there %d times:\n%s", what, n, b)
		}
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func watched(t *testing.T, stack string) (p *Plugstack, file string, log *safeBuffer, fallbacks []node.Fallback) {
	t.Helper()
	file = write(t, filepath.Join(t.TempDir(), "plugstack.conf"), stack)
	log = &safeBuffer{}
	l := logrus.New()
	l.SetOutput(log)
	p, fallbacks = WatchPlugstack(lint.Config{Plugstack: file, Host: "/nonexistent/spankhost"}, l)
	t.Cleanup(p.Close)
	return p, file, log, fallbacks
}

// TestPlugstackTells: each finding once, however it was found, and its end.
func TestPlugstackTells(t *testing.T) {
	p, file, log, fallbacks := watched(t, "first\n")
	if len(fallbacks) > 0 {
		t.Fatal(fallbacks)
	}
	log.told(t, `The word \"first\"`, 1)
	write(t, file, "first\nsecond\n")
	log.told(t, `The word \"second\"`, 1)
	write(t, file, "first\n\nthird\n")
	doc := p.document(t.Context()) // at once: no event is waited for
	var lines []int
	for _, d := range doc {
		if strings.Contains(d.Problem, "Invalid line") {
			lines = append(lines, d.Line)
			if d.Path != file || d.File != file || d.State != "error" || d.Hooks == nil {
				t.Errorf("got %+v", d)
			}
		}
	}
	if diff := cmp.Diff([]int{1, 3}, lines); diff != "" {
		t.Error(diff)
	}
	log.told(t, `The word \"third\"`, 1)
	log.told(t, `The word \"first\"`, 1)
	if strings.Contains(log.String(), "clean again") {
		t.Errorf("not yet:\n%s", log)
	}
	remove(t, file)
	log.told(t, "plugstack is clean again", 1)
}

// TestPlugstackFollowsDirectories: the file's directory is replaced by another.
func TestPlugstackFollowsDirectories(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(root, d, "plugstack.conf"), "word_of_"+d+"\n")
	}
	link := filepath.Join(root, "link")
	if err := os.Symlink("a", link); err != nil {
		t.Fatal(err)
	}
	log := &safeBuffer{}
	l := logrus.New()
	l.SetOutput(log)
	p, _ := WatchPlugstack(lint.Config{Plugstack: filepath.Join(link, "plugstack.conf")}, l)
	defer p.Close()
	log.told(t, "word_of_a", 1)
	if err := os.Symlink("b", link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
	log.told(t, "word_of_b", 1)
	// The new one is watched as the old one was.
	write(t, filepath.Join(root, "b", "plugstack.conf"), "word_of_c\n")
	log.told(t, "word_of_c", 1)
}

const noInotify = "NODED_TEST_NO_INOTIFY"

// TestPlugstackFallback: without inotify the stack is checked when it is asked
// for, and that is told. The test runs itself in a user namespace with none.
func TestPlugstackFallback(t *testing.T) {
	if os.Getenv(noInotify) == "" {
		cmd := exec.Command("unshare", "-Ur", "sh", "-c", `echo 0 >/proc/sys/user/max_inotify_instances && exec "$0" -test.v -test.run '^TestPlugstackFallback$'`, os.Args[0])
		cmd.Env = append(os.Environ(), noInotify+"=1")
		out, err := cmd.CombinedOutput()
		if !strings.Contains(string(out), "RUN") {
			t.Skipf("no user namespaces here: %v\n%s", err, out)
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	p, file, log, fallbacks := watched(t, "first\n")
	if len(fallbacks) != 1 || !strings.Contains(fallbacks[0].Why, "inotify") {
		t.Errorf("got %v", fallbacks)
	}
	log.told(t, "level=warning msg=\"fallback: the plugin stack is not watched", 1)
	remove(t, file)
	if doc := p.document(t.Context()); len(doc) != 0 {
		t.Errorf("got %+v", doc)
	}
	log.told(t, "plugstack is clean again", 1)
}

// TestPlugstackDocument: findings about a plugin's line are with the plugin.
func TestPlugstackDocument(t *testing.T) {
	p, file, _, _ := watched(t, "optional /nonexistent/a.so\nx\n")
	doc := p.document(t.Context())
	if len(doc) < 2 {
		t.Fatalf("got %+v", doc)
	}
	a := doc[0]
	if a.Path != "/nonexistent/a.so" || a.File != file || a.Line != 1 || a.Required || a.State != "missing" || !strings.Contains(a.Problem, "install it") || a.Hooks == nil {
		t.Errorf("got %+v", a)
	}
	for _, d := range doc[1:] {
		if d.Line == 1 || d.Path != d.File {
			t.Errorf("got %+v", d)
		}
	}
}

// TestStackID: a name for each stack, "" for none; it changes with every file
// that counts, and with nothing else.
func TestStackID(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := filepath.Join(dir, "plugstack.conf")
	s := &stackID{file: file}
	id := func() string {
		t.Helper()
		got, _, err := s.ID()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := id(); got != "" {
		t.Errorf("no file: %q", got)
	}
	put("plugstack.conf", "# nothing\ninclude *.d\n")
	if got := id(); got != "" {
		t.Errorf("no plugin: %q", got)
	}
	so := put("a.so", "1")
	seen := map[string]string{}
	changed := func(what string) {
		t.Helper()
		got := id()
		if got == "" || seen[got] != "" {
			t.Errorf("after %s: %q, as after %s", what, got, seen[got])
		}
		if again := id(); again != got {
			t.Errorf("%s: asked twice: %q and %q", what, got, again)
		}
		seen[got] = what
	}
	put("x.d", "optional "+so+"\n")
	changed("a plugin was included")
	put("x.d", "required "+so+"\n")
	changed("it is required")
	put("x.d", "required "+so+" arg\n")
	changed("it has an argument")
	put("a.so", "1")
	changed("its file is another one")
	put("y.d", "optional /no/such.so\n")
	changed("one that is missing")
	if err := os.Remove(filepath.Join(dir, "y.d")); err != nil {
		t.Fatal(err)
	}
	changed("it is gone again")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got := id(); got != "" {
		t.Errorf("without its file: %q", got)
	}
}

// BenchmarkStackID is what a job pays for a stack of 20 plugins that have
// neither job_prolog nor job_epilog.
func BenchmarkStackID(b *testing.B) {
	dir := b.TempDir()
	var text string
	for i := range 20 {
		so := filepath.Join(dir, fmt.Sprintf("%d.so", i))
		text += "required " + so + "\n"
		if err := os.WriteFile(so, nil, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	file := filepath.Join(dir, "plugstack.conf")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	s := &stackID{file: file}
	for b.Loop() {
		if id, _, err := s.ID(); err != nil || id == "" {
			b.Fatal(id, err)
		}
	}
}

// TestEveryStackLineWrong: each kind of wrong line of plugstack.conf, in the file itself and
// in one that it includes, is a mistake with file and line to noded --check, and a reload is
// refused with the same words.
func TestEveryStackLineWrong(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} { // users read their stack
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text := write(t, filepath.Join(dir, "text.so"), "no plugin\n")
	stack, part := filepath.Join(dir, "plugstack.conf"), filepath.Join(dir, "part.conf")
	o := Options{File: write(t, filepath.Join(dir, "slurm.conf"), "PlugStackConfig="+stack+"\n"), RunDir: dir, SpoolDir: dir}
	write(t, stack, "# one\n\n# three\n")
	now, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	if found := now.stackProblems(); len(found) > 0 {
		t.Fatalf("a good stack: %v", found)
	}
	for _, c := range []struct{ name, line, says string }{
		{"a word of no meaning", "mandatory " + text, `The word "mandatory" is none of required, optional, include`},
		{"upper case", "Required " + text, `The word "Required" is none of`},
		{"an equals sign", "required=" + text, "is none of required, optional, include"},
		{"a path alone", text, "is none of required, optional, include"},
		{"no path", "required", `There is no path behind "required"`},
		{"a comment for a path", "optional # " + text, `There is no path behind "optional"`},
		{"an include of nothing", "include", `There is no path behind "include"`},
		{"a NUL byte", "required /x\x00.so", "There is a NUL byte in it"},
		{"what controls a terminal", "required\x1b[2J " + text, "is none of required, optional, include"},
		{"a plugin that is not there", "required " + dir + "/gone.so", "there is no plugin"},
		{"a plugin in no directory", "required gone.so", "gone.so"},
		{"a plugin that is none", "required " + text, "text.so"},
		{"a directory for a plugin", "required " + dir, dir},
		{"a pattern that is none", "include " + dir + "/[", "is no pattern"},
	} {
		for _, file := range []string{stack, part} {
			t.Run(c.name+" in "+filepath.Base(file), func(t *testing.T) {
				write(t, stack, "include "+part+"\n\n# three\n")
				write(t, part, "")
				write(t, file, "# one\n\n"+c.line+"\n")
				at := fmt.Sprintf("%s:3: ", file)
				s, err := Load(o)
				if err != nil {
					t.Fatal(err)
				}
				var b bytes.Buffer
				err = report(s, &b, nil, 10000)
				if err == nil || !strings.Contains(err.Error(), "1 mistake in the configuration") {
					t.Errorf("noded --check: %v", err)
				}
				line := ""
				for l := range strings.Lines(b.String()) { // beside them, that this test has no spankhost
					if strings.HasPrefix(l, "error: ") {
						line += l
					}
				}
				if !strings.HasPrefix(line, "error: "+at) || !strings.Contains(line, c.says) || strings.Count(line, "\n") != 1 || strings.ContainsAny(line, "\x00\x1b") {
					t.Errorf("noded --check prints %q", line)
				}
				if _, remedy, _ := strings.Cut(line, "; "); remedy == "" {
					t.Errorf("no remedy: %q", line)
				}
				if err := CheckReload(o, now); err == nil || err.Error()+"\n" != "cannot use the plugin stack: "+strings.TrimPrefix(line, "error: ") {
					t.Errorf("a reload: %v\nnoded --check: %s", err, line)
				}
			})
		}
	}
}
