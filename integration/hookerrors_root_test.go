package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// setuidFile is a file of alice's with the set-user-ID bit: the kernel takes it away when anybody
// but root writes to the file.
func (n *node) setuidFile(t *testing.T, name string) *os.File {
	t.Helper()
	path := n.userFile(t, name, "", 0o644)
	must(t, os.Chmod(path, 0o644|os.ModeSetuid))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// wantByUser fails unless the user has written text to the file.
func wantByUser(t *testing.T, f *os.File, text string) {
	t.Helper()
	if got := readFile(t, f.Name()); got != text {
		t.Errorf("the file has %q, want %q", got, text)
	}
	if st, err := f.Stat(); err != nil || st.Mode()&os.ModeSetuid != 0 {
		t.Errorf("root has written to a file that the client has chosen: %v, %v", st.Mode(), err)
	}
}

// TestRootHookErrors: what plugins write to standard error comes into the file of the user's that
// is the tasks' standard error, in its order, and is written by the user: the host, which is root, has a
// pipe. So is what stepd says in a batch job's output.
func TestRootHookErrors(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := buildRude(t, n)
	for _, hook := range []string{"user_init", "task_init_privileged", "task_post_fork", "task_exit"} {
		n.stack(t, fmt.Sprintf("required %s hook=%s do=complain", so, hook))
		want := "complained in " + hook + "\n"
		t.Run(hook, func(t *testing.T) {
			f := n.setuidFile(t, "run."+hook)
			null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
			must(t, err)
			defer null.Close()
			if r := n.do(t, call{args: []string{"run", "true"}, files: []*os.File{null, null, f}}); r.code != 0 {
				t.Error(r)
			}
			wantByUser(t, f, want)
			ordered := n.setuidFile(t, "ordered."+hook)
			if r := n.do(t, call{args: []string{"run", "sh", "-c", "echo task >&2"}, files: []*os.File{null, null, ordered}}); r.code != 0 {
				t.Error(r)
			}
			both := want + "task\n"
			if hook == "task_exit" {
				both = "task\n" + want
			}
			wantByUser(t, ordered, both)
			f = n.setuidFile(t, "batch."+hook)
			if r := n.ctl(t, "batch", "-W", "--open-mode=append", "-o", filepath.Base(f.Name()), "--wrap", "true"); r.code != 0 {
				t.Error(r)
			}
			wantByUser(t, f, want)
		})
	}
	t.Run("a daemon holds it", func(t *testing.T) {
		n.stack(t, fmt.Sprintf("required %s hook=user_init do=complain", so), fmt.Sprintf("required %s hook=task_post_fork do=daemon", so))
		f := n.setuidFile(t, "daemon")
		null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
		must(t, err)
		defer null.Close()
		if r := n.do(t, call{args: []string{"run", "true"}, files: []*os.File{null, null, f}}); r.code != 0 {
			t.Error(r)
		}
		wantByUser(t, f, "complained in user_init\n")
		n.checkClean(t)
	})
	t.Run("stepd's own lines", func(t *testing.T) {
		n.stack(t)
		f := n.setuidFile(t, "cancelled")
		p := n.start(t, call{args: []string{"batch", "-W", "--open-mode=append", "-o", "cancelled", "--wrap", "exec sleep 86400"}})
		ok(t, "cancel", n.ctl(t, "cancel", n.running(t).id()))
		if r := p.wait(t); r.code == 0 {
			t.Error(r)
		}
		text := readFile(t, f.Name())
		if !strings.Contains(text, "CANCELLED AT") {
			t.Errorf("the job's output is %q", text)
		}
		wantByUser(t, f, text)
	})
}
