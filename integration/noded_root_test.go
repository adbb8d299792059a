package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// noded runs noded to its end and returns its exit code and what it said.
func runNoded(t testing.TB, attr *syscall.SysProcAttr, args ...string) (int, string) {
	t.Helper()
	cmd := exec.Command(binary(t, "noded"), args...)
	cmd.SysProcAttr = attr
	timer := time.AfterFunc(callTimeout, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), strings.ReplaceAll(string(out), "\n  ", " ") // lines of --check are broken
}

// runActivated runs noded to its end, with a socket of systemd's.
func runActivated(t testing.TB, n *node, before []string, socket *os.File) (int, string) {
	t.Helper()
	args := append(before[1:], binary(t, "noded"), "-f", n.path("slurm.conf"), "--run-dir", n.run, "--spool-dir", n.path("spool"))
	cmd := exec.Command(before[0], args...)
	cmd.ExtraFiles = []*os.File{socket}
	timer := time.AfterFunc(callTimeout, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// TestRootNodedStart: what noded needs to start, and what it refuses.
func TestRootNodedStart(t *testing.T) {
	n := startNode(t, site{})
	run := func(extra ...string) []string {
		return append([]string{"--run-dir", n.path("run2"), "--spool-dir", n.path("spool2")}, extra...)
	}
	t.Run("-f on a missing file", func(t *testing.T) {
		if code, out := runNoded(t, nil, run("-f", n.path("missing.conf"))...); code != 1 || !strings.Contains(out, "missing.conf") {
			t.Errorf("exit code %d: %s", code, out)
		}
	})
	t.Run("a second noded on the spool", func(t *testing.T) {
		code, out := runNoded(t, nil, "-f", n.path("slurm.conf"), "--run-dir", n.path("run2"), "--spool-dir", n.path("spool"))
		if code != 1 || !strings.Contains(out, n.path("spool")) {
			t.Errorf("exit code %d: %s", code, out)
		}
		n.serves(t)
	})
	t.Run("not root", func(t *testing.T) {
		attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: alice.uid, Gid: alice.gid}}
		if code, out := runNoded(t, attr, run("-f", n.path("slurm.conf"))...); code != 1 || !strings.Contains(out, "root") {
			t.Errorf("exit code %d: %s", code, out)
		}
	})
	t.Run("--check", func(t *testing.T) {
		if code, out := runNoded(t, nil, run("-f", n.path("slurm.conf"), "--check")...); code != 0 {
			t.Errorf("a good file: exit code %d: %s", code, out)
		}
		bad := n.write(t, "bad.conf", "ClusterName=golden\nNodeName=vm CPUs=many\nnonsense\n")
		code, out := runNoded(t, nil, run("-f", bad, "--check")...)
		if code != 78 {
			t.Errorf("a bad file: exit code %d, want 78: %s", code, out)
		}
		contains(t, "--check", out, "bad.conf:2", "bad.conf:3", "2 mistakes in the configuration")
	})
	t.Run("the socket is for everyone", func(t *testing.T) {
		st, err := os.Stat(n.socket())
		must(t, err)
		if st.Mode().Perm() != 0o666 {
			t.Errorf("mode %v, want 0666", st.Mode())
		}
	})
	t.Run("the spool is for root", func(t *testing.T) {
		entries, err := filepath.Glob(n.path("spool") + "/*")
		must(t, err)
		for _, path := range append(entries, n.path("spool")) {
			st, err := os.Stat(path)
			must(t, err)
			if st.Mode().Perm()&0o022 != 0 {
				t.Errorf("%s: mode %v: others can write", path, st.Mode())
			}
		}
	})
	t.Run("command names", func(t *testing.T) {
		if comm := strings.TrimSpace(readFile(t, fmt.Sprintf("/proc/%d/comm", n.cmd.Process.Pid))); comm != "noded" {
			t.Errorf("comm %q", comm)
		}
	})
}

// TestRootTwoNodes: two nodeds side by side do not touch each other's steps.
func TestRootTwoNodes(t *testing.T) {
	a, b := startNode(t, site{}), startNode(t, site{})
	pa, pb := a.start(t, call{args: []string{"run", "sleep", "1000"}}), b.start(t, call{args: []string{"run", "sleep", "1000"}})
	sa, sb := a.running(t), b.running(t)
	if sa.id() != "1.0" || sb.id() != "1.0" {
		t.Errorf("ids begin at 1.0 in a fresh spool: %s, %s", sa.id(), sb.id())
	}
	if r := a.ctl(t, "cancel", sa.id()); r.code != 0 {
		t.Error(r)
	}
	if r := pa.wait(t); r.code != 143 {
		t.Error(r)
	}
	a.shutdown(t)
	if steps := b.ps(t); len(steps) != 1 || steps[0].State != "RUNNING" {
		t.Errorf("the other node's step: %+v", steps)
	}
	if r := b.ctl(t, "cancel", sb.id()); r.code != 0 {
		t.Error(r)
	}
	pb.wait(t)
}

// TestRootNoConfiguration: no file at all is a valid configuration.
func TestRootNoConfiguration(t *testing.T) {
	n := startNode(t, site{})
	dir := n.path("bare")
	must(t, os.Mkdir(dir, 0o755))
	log := &logBuffer{want: "noded: ready", seen: make(chan struct{})}
	cmd := exec.Command(binary(t, "noded"), "--run-dir", dir+"/run", "--spool-dir", dir+"/spool")
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	defer cmd.Wait() // ends by the signal below
	defer cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-log.seen:
	case <-time.After(callTimeout):
		t.Fatalf("not ready: %s", log)
	}
	r := n.do(t, call{args: []string{"--socket", dir + "/run/noded.sock", "run", "sh", "-c", "echo $SLURMD_NODENAME"}})
	hostname, err := os.Hostname()
	must(t, err)
	short, _, _ := strings.Cut(hostname, ".")
	if got := strings.TrimSpace(r.out); r.code != 0 || got != hostname && got != short {
		t.Errorf("want the node's name %q, got %v", hostname, r)
	}
}

// TestRootStandalone: root can run a command without any daemon; nothing of
// the private one is left.
func TestRootStandalone(t *testing.T) {
	n := startNode(t, site{})
	r := n.do(t, call{args: []string{"run", "--standalone", "-n", "2", "sh", "-c", "echo $NODED_SOCKET; exit 3"}, root: true, clean: true,
		env: []string{"PATH=/usr/bin:/bin"}, dir: "/"})
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	if r.code != 3 || len(lines) != 2 || lines[0] != lines[1] || !strings.HasSuffix(lines[0], "noded.sock") {
		t.Fatalf("got %v", r)
	}
	eventually(t, goneWithin, "the private noded's directory to go", func() error {
		if _, err := os.Stat(filepath.Dir(lines[0])); err == nil {
			return fmt.Errorf("%s is there", filepath.Dir(lines[0]))
		}
		return nil
	})
	if r := n.do(t, call{args: []string{"run", "--standalone", "true"}}); r.code != 1 || !strings.Contains(r.err, "root") {
		t.Errorf("as a user: %v", r)
	}
}

// TestRootWithoutNoded: a step of root's runs by itself, and says so; a job that has to
// outlive its client is refused.
func TestRootWithoutNoded(t *testing.T) {
	const socket = "/run/stepd/noded.sock"
	if _, err := os.Stat(socket); err == nil {
		t.Skipf("%s is there", socket)
	}
	n := startNode(t, site{})
	do := func(args ...string) result {
		return n.do(t, call{args: args, root: true, clean: true, env: []string{"PATH=/usr/bin:/bin"}, dir: "/"})
	}
	if r := do("run", "sh", "-c", "exit 3"); r.code != 3 || r.out != "" || !strings.HasPrefix(r.err, "stepctl: no noded at \""+socket+"\": running this step by itself (--standalone)\n") {
		t.Errorf("run: %v", r)
	}
	for _, args := range [][]string{{"batch", "--wrap", "true"}, {"alloc", "true"}} {
		if r := do(args...); r.code != 1 || r.out != "" || r.err != "stepctl: error: cannot connect to noded at \""+socket+"\": start it (systemctl start noded)\n" {
			t.Errorf("%s: %v", args[0], r)
		}
	}
}

// TestRootEvents: the event log of a step is JSON lines in the order of its life.
func TestRootEvents(t *testing.T) {
	n := startNode(t, site{})
	so := buildRude(t, n)
	n.stack(t, "required "+so)
	if r := n.ctl(t, "run", "-n", "2", "sh", "-c", "exit 3"); r.code != 3 {
		t.Fatal(r)
	}
	r := n.ctl(t, "events", n.lastEnded(t).id())
	if r.code != 0 {
		t.Fatal(r)
	}
	count := map[string]int{}
	var last time.Time
	var names []string
	lines := bufio.NewScanner(strings.NewReader(r.out))
	for lines.Scan() {
		var e struct {
			Time   time.Time `json:"time"`
			Event  string    `json:"event"`
			Hook   string    `json:"hook"`
			Plugin string    `json:"plugin"`
			Rank   *int      `json:"rank"`
			Status *int      `json:"status"`
			State  string    `json:"state"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Event == "" || e.Time.IsZero() {
			t.Fatalf("line %q: %v", lines.Text(), err)
		}
		count[e.Event]++
		names = append(names, e.Event)
		switch e.Event {
		case "task_exit":
			if e.Rank == nil || e.Status == nil || *e.Status != 3<<8 {
				t.Errorf("task_exit wants a rank and the raw status 768: %q", lines.Text())
			}
		case "hook_start", "hook_end":
			if e.Hook == "" || !strings.Contains(e.Plugin, "rude.so") {
				t.Errorf("%s wants hook and plugin: %q", e.Event, lines.Text())
			}
			if e.Hook == "dlopen" {
				count[e.Event]-- // told for its time, and no hook
			}
			continue // hooks are told with their own times, in batches
		case "end":
			if e.State != "FAILED" {
				t.Errorf("end: %q", lines.Text())
			}
		}
		if e.Time.Before(last.Add(-time.Second)) { // each is told its time before it is written
			t.Errorf("time goes backwards at %q", lines.Text())
		}
		last = e.Time
	}
	for name, want := range map[string]int{
		"request": 1, "accepted": 1, "task_fork": 2, "task_exec": 2, "task_exit": 2, "end": 1,
		// init, init_post_opt, user_init, exit; and four in or for each task
		"hook_start": 4 + 4*2, "hook_end": 4 + 4*2,
	} {
		if count[name] != want {
			t.Errorf("%d events %q, want %d: %q", count[name], name, want, names)
		}
	}
	if len(names) > 0 && names[len(names)-1] != "end" {
		t.Errorf("the last event is %q, want end", names[len(names)-1])
	}
}

// TestRootNodeStatus: the node's own document.
func TestRootNodeStatus(t *testing.T) {
	n := startNode(t, site{})
	r := n.ctl(t, "node", "status", "--json")
	var doc struct {
		Schema int `json:"schema"`
		Node   struct {
			Name      string `json:"name"`
			State     string `json:"state"`
			CPUs      int    `json:"cpus"`
			Proctrack string `json:"proctrack"`
		} `json:"node"`
	}
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || doc.Schema != 1 {
		t.Fatalf("%v: %v", err, r)
	}
	if doc.Node.Name != "vm" || doc.Node.CPUs != 64 || doc.Node.State != "IDLE" || !strings.HasPrefix(doc.Node.Proctrack, "cgroup/") {
		t.Errorf("got %+v", doc.Node)
	}
}
