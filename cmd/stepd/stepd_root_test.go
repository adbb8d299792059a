package main_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/internal/testkit"
	"stepd/step"
)

// daemon is noded's part, played by the test: it starts the built stepd with
// the descriptors that noded hands over.
type daemon struct {
	cmd     *exec.Cmd
	control *stepapi.Conn
	dir     string
	events  string
}

// programs builds stepd and finds spankhost beside it.
func programs(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("STEPD_BIN")
	if dir == "" {
		dir, _ = filepath.Abs("../../bin")
	}
	for _, p := range []string{"stepd", "spankhost"} {
		if _, err := os.Stat(filepath.Join(dir, p)); err != nil {
			t.Fatalf("%v: run make first", err)
		}
	}
	return dir
}

// cgroup makes a step's directory as noded does.
func cgroup(t *testing.T) string {
	t.Helper()
	for _, mount := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		var fs unix.Statfs_t
		if unix.Statfs(mount, &fs) != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		dir := filepath.Join(mount, fmt.Sprintf("stepd-test-%d", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Errorf("the step left something in its cgroup: %v", err)
			}
		})
		if err := os.Mkdir(dir+"/tasks", 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	t.Fatal("no cgroup v2 is mounted")
	return ""
}

func start(t *testing.T, spec *step.Spec) *daemon {
	t.Helper()
	bin := programs(t)
	d := &daemon{dir: t.TempDir()}
	spec.RunDir, spec.ResultFile = d.dir, filepath.Join(d.dir, "result")
	b, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := stepapi.SealedMemfd("spec", b)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "control")
	defer theirs.Close()
	if d.control, err = stepapi.FromFD(pair[0], "control"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.control.Close() })
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(d.dir, "sock"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lf, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer lf.Close()
	l.SetUnlinkOnClose(false)
	d.events = filepath.Join(d.dir, "events")
	ev, err := os.OpenFile(d.events, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer ev.Close()
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	d.cmd = exec.Command(filepath.Join(bin, "stepd"))
	d.cmd.Args[0] = "stepd: [" + spec.ID.Key() + "]"
	d.cmd.ExtraFiles = []*os.File{mem, theirs, lf, ev, null}
	d.cmd.Stderr = os.Stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.cmd.Process.Kill(); d.cmd.Wait() })
	return d
}

// result connects as the launching client, says that no streams will come, and
// waits for the end.
func (d *daemon) result(t *testing.T) (*step.Record, []string) {
	t.Helper()
	c, err := stepapi.DialDir(t.Context(), d.dir, "sock")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, m := range []*stepapi.Msg{{Type: stepapi.TypeHello, Version: stepapi.Version, Role: stepapi.RoleLaunch}, {Type: stepapi.TypeAttachDone}} {
		if err := c.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	said := make(chan []string)
	go func() {
		var lines []string
		for {
			m, _, err := c.Recv()
			if err != nil {
				said <- lines
				return
			}
			if m.Type == stepapi.TypeMessage {
				lines = append(lines, m.Text)
			}
		}
	}()
	for {
		m, _, err := d.control.Recv()
		if err != nil {
			t.Fatalf("stepd ended without a result: %v", err)
		}
		if m.Type == stepapi.TypeResult {
			d.control.Send(&stepapi.Msg{Type: stepapi.TypeAck})
			return m.Record, <-said
		}
	}
}

func rootSpec(t *testing.T, argv ...string) *step.Spec {
	dir := cgroup(t)
	return &step.Spec{
		Request: step.Request{
			Schema: step.Schema, Name: "test", NTasks: 1, NNodes: 1, CPUsPerTask: 1, Argv: argv,
			Env: []string{"PATH=/usr/bin:/bin"}, Cwd: "/", Umask: 0o22,
			Stdin: step.Stream{Kind: step.StreamNull}, Stdout: step.Stream{Kind: step.StreamNull}, Stderr: step.Stream{Kind: step.StreamNull},
		},
		ID: step.ID{Job: 1}, User: step.User{Name: "nobody", UID: 65534, GID: 65534, Groups: []uint32{65534}},
		NodeName: "n1", NodeList: "n1", NCPUs: 1, CPUs: "0", Site: step.Site{Cluster: "c", Partition: "p", KillWaitS: 5},
		Proctrack: step.Proctrack{Kind: "cgroup/v2", Dir: dir, Tasks: dir + "/tasks"}, Container: "none",
	}
}

func TestRootStep(t *testing.T) {
	testkit.RequireRoot(t)
	for _, n := range []int{1, 3, 64} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			spec := rootSpec(t, "sh", "-c", "exit $SLURM_PROCID")
			spec.NTasks = n
			d := start(t, spec)
			rec, said := d.result(t)
			if *rec.ExitCode != n-1 {
				t.Errorf("exit code %d, want %d; reason %q, said %q", *rec.ExitCode, n-1, rec.Reason, said)
			}
			for rank, task := range rec.Tasks {
				if task.ExitCode == nil || *task.ExitCode != rank || task.MaxRSSBytes == nil || *task.MaxRSSBytes == 0 {
					t.Errorf("rank %d: %+v", rank, task)
				}
			}
		})
	}
}

// No noded takes the result: it stays in the spool.
func TestRootResultIsLeft(t *testing.T) {
	testkit.RequireRoot(t)
	d := start(t, rootSpec(t, "true"))
	c, err := stepapi.DialDir(t.Context(), d.dir, "sock")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Send(&stepapi.Msg{Type: stepapi.TypeHello, Version: stepapi.Version, Role: stepapi.RoleLaunch})
	c.Send(&stepapi.Msg{Type: stepapi.TypeAttachDone})
	d.control.Close()
	done := make(chan error)
	go func() { done <- d.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("stepd: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("stepd does not end without a noded")
	}
	b, err := os.ReadFile(filepath.Join(d.dir, "result"))
	if err != nil {
		t.Fatal(err)
	}
	var rec step.Record
	if err := json.Unmarshal(b, &rec); err != nil || rec.State != step.Completed {
		t.Errorf("the result is %s (%v)", b, err)
	}
}
