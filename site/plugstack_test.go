package site

import (
	"bytes"
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
