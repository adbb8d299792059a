package integration

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"stepd/internal/testkit"
)

// tests run below /var/tmp, not /tmp: the job container hides /tmp.
const workRoot = "/var/tmp"

// callTimeout ends a client that hangs; no test waits that long for a success.
const callTimeout = 40 * time.Second

// binary returns the path of a built program, or skips the test (fails it
// with STRICT=1) when nothing was built.
func binary(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("STEPD_BIN")
	if dir == "" {
		dir = "../bin"
	}
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		missing(t, fmt.Sprintf("program %q is not built: run make", path))
	}
	return path
}

// missing skips a test for want of something; with STRICT=1 it fails.
func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("STRICT") == "1" {
		t.Fatalf("%s (STRICT=1 forbids skipping)", what)
	}
	t.Skip(what)
}

// waits is called by a test that waits for most of its time, and that compares nothing of
// the machine: it runs beside others, once those that do not call it are over. In the
// guest, which is slow, it has the CPUs for itself.
func waits(t *testing.T) {
	t.Helper()
	if !testkit.InGuest() {
		t.Parallel()
	}
}

// site is what a test writes down before it starts a node.
type site struct {
	Slurm     string   // lines added to slurm.conf
	Stepd     string   // stepd.conf
	Plugstack string   // plugstack.conf
	Container string   // job_container.conf
	Real      bool     // the node has the machine's own CPUs, and tasks are bound to them
	Node      string   // words of the NodeName line (default CPUs=64)
	Cgroup    string   // cgroup.conf
	Gres      string   // gres.conf
	Before    []string // see node
	Contained bool     // see node
}

// node is a private noded and the directory it serves from.
type node struct {
	dir  string // below workRoot, readable by everyone
	wd   string // the test user's working directory
	run  string
	cmd  *exec.Cmd
	log  *logBuffer
	mark *os.File      // our end of the log's pipe: see wholeLog
	done chan struct{} // closed when the current noded was reaped
	bin  string        // stepctl
	// before is what noded is run by: "sh", "-c", "prepare; exec "$@"", "sh".
	before []string
	extra  []*os.File // what noded inherits, from descriptor 3 on
	// contained: noded is process 1 of a pid namespace.
	contained bool
}

// logBuffer collects noded's log, and reports when a text has appeared.
type logBuffer struct {
	mu   sync.Mutex
	buf  bytes.Buffer // guarded by mu
	want string       // guarded by mu
	seen chan struct{}
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf.Write(p)
	if b.want != "" && strings.Contains(b.buf.String(), b.want) {
		b.want = ""
		close(b.seen)
	}
	return len(p), nil
}

// logMark is what wholeLog writes into the log's pipe.
const logMark = "the log up to here\n"

// marks counts the marks that have come.
func (b *logBuffer) marks() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.buf.String(), logMark)
}

// startNode makes the directory and starts noded in it. When the test ends
// noded gets SIGTERM, and nothing of it may be left.
func startNode(t *testing.T, s site) *node {
	t.Helper()
	testkit.RequireRoot(t)
	binary(t, "noded")
	user := testUser(t)
	dir, err := os.MkdirTemp(workRoot, "stepd-it-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() || os.Getenv("KEEP") == "" {
			os.RemoveAll(dir)
		}
	})
	n := &node{dir: dir, wd: filepath.Join(dir, "wd"), run: filepath.Join(dir, "run"), bin: binary(t, "stepctl"), before: s.Before, contained: s.Contained}
	must(t, os.Chmod(dir, 0o755))
	must(t, os.Mkdir(n.wd, 0o755))
	must(t, os.Mkdir(n.path("home"), 0o755))
	must(t, os.Chown(n.wd, int(user.uid), int(user.gid)))
	must(t, os.Chown(n.path("home"), int(user.uid), int(user.gid)))
	node := cmp.Or(s.Node, "CPUs=64") // more than there are, so that the machine's own number plays no part
	if s.Real {
		node = s.Node
	}
	n.write(t, "slurm.conf", "ClusterName=golden\nNodeName=vm "+node+"\nPartitionName=p Nodes=ALL Default=YES\n"+s.Slurm)
	for name, text := range map[string]string{
		"stepd.conf": s.Stepd, "plugstack.conf": s.Plugstack, "job_container.conf": s.Container,
		"cgroup.conf": s.Cgroup, "gres.conf": s.Gres,
	} {
		if text != "" {
			n.write(t, name, text)
		}
	}
	n.boot(t)
	t.Cleanup(func() { n.shutdown(t) })
	return n
}

func (n *node) path(elem ...string) string {
	return filepath.Join(append([]string{n.dir}, elem...)...)
}

func (n *node) socket() string { return filepath.Join(n.run, "noded.sock") }

// write makes a file of the site's configuration.
func (n *node) write(t testing.TB, name, text string) string {
	t.Helper()
	path := n.path(name)
	must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// userFile makes a file of the test user in the working directory. It appears whole: a step may wait
// for it, and remove it.
func (n *node) userFile(t testing.TB, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(n.wd, name)
	made := path + ".new"
	must(t, os.WriteFile(made, []byte(text), 0o644))
	must(t, os.Chmod(made, mode))
	user := testUser(t)
	must(t, os.Chown(made, int(user.uid), int(user.gid)))
	must(t, os.Rename(made, path))
	return path
}

// boot starts noded and waits until it says that it is ready.
func (n *node) boot(t testing.TB) {
	t.Helper()
	n.log = &logBuffer{want: "noded: ready", seen: make(chan struct{})}
	n.cmd = exec.Command(binary(t, "noded"), "-f", n.path("slurm.conf"), "--run-dir", n.run, "--spool-dir", n.path("spool"), "-v")
	if len(n.before) > 0 {
		n.cmd = exec.Command(n.before[0], append(slices.Clone(n.before[1:]), n.cmd.Args...)...)
	}
	// A pipe of our own: the stepds have its other end too, so that its end of
	// file does not tell noded's end, which cmd.Wait would take it for.
	read, write, err := os.Pipe()
	must(t, err)
	n.cmd.Stdout, n.cmd.Stderr, n.cmd.ExtraFiles = write, write, n.extra
	go func(log *logBuffer) {
		_, _ = io.Copy(log, read) // to its end of file; Write never fails
		read.Close()
	}(n.log)
	// Its own session: what hits the test's terminal must not hit the node.
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if n.contained {
		n.cmd = exec.Command("sh", append([]string{"-c", `mount --make-rprivate / && mount -t proc proc /proc && exec "$@"`, "sh"}, n.cmd.Args...)...)
		n.cmd.Stdout, n.cmd.Stderr = write, write
		n.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	}
	must(t, n.cmd.Start())
	n.closeMark()
	n.mark = write
	done := make(chan struct{})
	n.done = done
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait() // the exit code is in ProcessState
		close(done)
	}(n.cmd)
	select {
	case <-n.log.seen:
	case <-done:
		t.Fatalf("noded ended with %v before it was ready:\n%s", n.cmd.ProcessState, n.log)
	case <-time.After(callTimeout):
		_ = n.cmd.Process.Kill() // the test fails either way
		t.Fatalf("noded was not ready after %v:\n%s", callTimeout, n.log)
	}
}

// wholeLog is the log with all that noded has written by now: it goes through a pipe, in
// which a mark of ours comes behind it. What a stepd says passes through noded: all of it
// is in the log when the step has ended (n.ended).
func (n *node) wholeLog(t testing.TB) string {
	t.Helper()
	before := n.log.marks()
	_, err := n.mark.WriteString(logMark)
	must(t, err)
	eventually(t, callTimeout, "the mark in the log", func() error {
		if n.log.marks() == before {
			return errors.New("it has not come")
		}
		return nil
	})
	return n.log.String()
}

// closeMark lets the log's pipe end with noded.
func (n *node) closeMark() {
	if n.mark != nil {
		n.mark.Close()
		n.mark = nil
	}
}

// shutdown ends noded as systemd would, and looks for what is left.
func (n *node) shutdown(t *testing.T) {
	t.Helper()
	if !n.exited() {
		n.checkClean(t)
	}
	n.shutdownInWork(t)
	killLeftovers(n)
	defer n.closeMark()
	if t.Failed() {
		t.Logf("noded's log:\n%s", tail(n.log.String(), 60))
	}
}

// shutdownInWork does so while no step runs, but a job may not have ended.
func (n *node) shutdownInWork(t *testing.T) {
	t.Helper()
	if !n.exited() {
		_ = n.cmd.Process.Signal(syscall.SIGTERM) // it may just have ended
		select {
		case <-n.done:
			if code := n.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("noded: exit code %d after SIGTERM, want 0", code)
			}
		case <-time.After(callTimeout):
			t.Errorf("noded: still there %v after SIGTERM", callTimeout)
			_ = n.cmd.Process.Kill() // the leak check below reports the rest
			<-n.done
		}
	}
	n.checkClean(t)
	if err := n.cgroupRootGone(); err != nil {
		t.Error(err)
	}
}

func (n *node) exited() bool {
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

// kill9 kills noded and waits for its end.
func (n *node) kill9(t testing.TB) {
	t.Helper()
	must(t, n.cmd.Process.Kill())
	<-n.done
}

// hash is what noded's cgroups are named by.
func (n *node) hash() string { return nodeHash(n.path("spool")) }

// nodeHash is what the cgroups of a noded with this spool are named by.
func nodeHash(spool string) string {
	sum := sha256.Sum256([]byte(spool))
	return fmt.Sprintf("%x", sum[:4])
}

// eventually asks again until f is content; it fails the test after limit.
func eventually(t testing.TB, limit time.Duration, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tail returns the last n lines of s.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

// inLog reports whether noded's log has the text. It comes through a pipe: a moment
// after the event.
func (n *node) inLog(text string) bool {
	for deadline := time.Now().Add(callTimeout); ; time.Sleep(20 * time.Millisecond) {
		if strings.Contains(n.log.String(), text) {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// logs fails the test where noded's log has not all of the texts.
func (n *node) logs(t testing.TB, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !n.inLog(text) {
			t.Errorf("noded's log: want %q in it, got %q", text, n.log.String())
		}
	}
}

// contains fails the test for each text that s does not hold.
func contains(t testing.TB, what, s string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(s, text) {
			t.Errorf("%s: want %q in it, got %q", what, text, s)
		}
	}
}
