package slurm

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
)

// TestMain makes the test's program a hostile client of a step's socket.
func TestMain(m *testing.M) {
	if path := os.Getenv("SLURM_TEST_FLOOD"); path != "" {
		flood(path)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Requests of the step's socket.
const (
	reqSignal    = 4
	reqState     = 5
	reqAttach    = 7
	reqTerminate = 12
	reqNotify    = 4022
	release2205  = 0x2600
)

// words are integers as the machine has them.
func words(values ...int32) (b []byte) {
	for _, v := range values {
		b = binary.NativeEndian.AppendUint32(b, uint32(v))
	}
	return b
}

// ask connects, sends a request and returns n bytes of the answer.
func ask(path string, request []byte, n int) ([]byte, error) {
	c, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write(append(words(release2205), request...)); err != nil {
		return nil, err
	}
	b := make([]byte, 4+n)
	_, err = io.ReadFull(c, b)
	return b[4:], err
}

// attachment is an sattach of 22.05's that waits at a port of the node.
func attachment(family, port uint16, key int32) []byte {
	addr := make([]byte, 128)
	binary.NativeEndian.PutUint16(addr, family)
	binary.BigEndian.PutUint16(addr[2:], port)
	copy(addr[4:], []byte{10, 77, 0, 1})
	b := append(append(words(reqAttach), addr...), addr...)
	b = append(append(b, words(key)...), "key\x00"...)
	return binary.NativeEndian.AppendUint16(append(b, words(7001)...), release2205)
}

// flood is what another user can do to a step: connections by the hundred that stay,
// requests by the thousand, nonsense, and what is the owner's alone. It prints a line for
// what should not have been answered, "ready" when all is done, and holds its connections until
// its stdin ends.
func flood(path string) {
	var held []net.Conn
	for range 400 {
		c, err := net.Dial("unix", path)
		if err != nil {
			fmt.Println("cannot connect:", err)
			continue
		}
		held = append(held, c)
	}
	for i, c := range held {
		switch i % 4 {
		case 0: // says nothing
		case 1: // half a greeting
			c.Write([]byte{0})
		case 2: // nonsense
			c.Write(append(words(release2205), []byte(strings.Repeat("\xff", 4096))...))
		case 3: // many requests, and reads no answer
			for range 500 {
				c.SetWriteDeadline(time.Now().Add(time.Millisecond))
				if _, err := c.Write(append(words(release2205), words(reqState)...)); err != nil {
					break
				}
			}
		}
	}
	for _, c := range held[:len(held)/2] {
		c.Close()
	}
	for name, request := range map[string][]byte{
		"a kill": words(reqSignal, 9, 0, 0, 0), "a termination": words(reqTerminate), "a text": append(words(reqNotify, 4), "hi!\x00"...),
		"an attachment": attachment(unix.AF_INET, 6817, 4),
	} {
		b, err := ask(path, request, 4)
		if err == nil && binary.NativeEndian.Uint32(b) == 0 {
			fmt.Println("another user's request is carried out:", name)
		}
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
}

// TestRootStepSocketFlood: another user's flood of a step's socket keeps neither slurmd nor
// the owner out, and costs the step daemon no descriptor when it is over.
func TestRootStepSocketFlood(t *testing.T) {
	c := startSite(t, cluster.Site{Users: []string{"alice", "mallory"}})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	srun := c.Command(ctx, "alice", "srun", "-n2", "sleep", "100")
	if err := srun.Start(); err != nil {
		t.Fatal(err)
	}
	path := stepSocket(t, c)
	// An sattach that does not listen, one of no internet, and one that breaks off in its key.
	for i, request := range [][]byte{attachment(unix.AF_INET, 1, 4), attachment(unix.AF_UNIX, 1, 4), attachment(unix.AF_INET, 1, 1<<30)} {
		if b, err := ask(path, request, 4); err == nil && binary.NativeEndian.Uint32(b) == 0 {
			t.Errorf("attachment %d is carried out", i)
		}
	}
	daemon := daemonOf(t, path)
	// The record of a step that runs comes when its daemon has opened all that it keeps open, the
	// kernel's log last.
	eventually(t, 20*time.Second, func() error {
		if records, err := filepath.Glob(c.Path("spool/stepd/*.0.json")); len(records) == 0 {
			return fmt.Errorf("the step has no record yet: %v", err)
		}
		return nil
	})
	before := descriptors(t, daemon)
	wrongKey(t, c, path, daemon)

	end := startFlood(t, ctx, c, path)
	for what, args := range map[string][]string{
		"2": {"sh", "-c", "scontrol listpids | grep -c ' 0 *[01] *[01]'"},
		"":  {"scancel", "-s", "USR2", "999999"},
	} {
		began := time.Now()
		out, _ := c.Command(ctx, "root", args[0], args[1:]...).Output()
		if got := strings.TrimSpace(string(out)); got != what {
			t.Errorf("%q prints %q during the flood, want %q", args, got, what)
		}
		if d := time.Since(began); d > 15*time.Second {
			t.Errorf("%q took %v during the flood", args, d)
		}
	}
	if n := descriptors(t, daemon); n > before+128+32 {
		t.Errorf("%d descriptors during the flood, and %d before it", n, before)
	}
	if out, err := c.Command(ctx, "alice", "sh", "-c", "scancel $(squeue -h -o %i)").CombinedOutput(); err != nil {
		t.Errorf("the owner's scancel: %v: %s", err, out)
	}
	err := srun.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 143 && exit.ExitCode() != 0 {
		t.Errorf("srun: %v", err)
	}
	if said := end(); said != "" {
		t.Error(said)
	}
	lines, err := os.ReadFile(c.Path("slurmd.log"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(lines), "[1.0]"); n > 100 {
		t.Errorf("%d lines of the step are in slurmd's log", n)
	}
}

// wrongKey has an sattach come whose key is not the one of the step's credential: it gets its own back,
// does not take it, as Slurm's, and the step goes on without it.
func wrongKey(t *testing.T, c *cluster.Cluster, path string, daemon int) {
	t.Helper()
	before := descriptors(t, daemon)
	cmd := c.Command(t.Context(), "alice", "timeout", "60", "perl", "-MIO::Socket", "-e", `$| = 1;
		my $l = IO::Socket::INET->new(LocalAddr => "10.77.0.1", Listen => 5) or die $!;
		print $l->sockport, "\n"; my $c = $l->accept; sysread $c, my $b, 500; print $b =~ /key\0?$/ ? "its own\n" : "another\n"`)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	said := bufio.NewReader(out)
	line, err := said.ReadString('\n')
	must(t, err)
	port, err := strconv.ParseUint(strings.TrimSpace(line), 10, 16)
	must(t, err)
	if b, err := ask(path, attachment(unix.AF_INET, uint16(port), 4), 4); err != nil || binary.NativeEndian.Uint32(b) != 0 {
		t.Errorf("it answers %v, %v", b, err)
	}
	if line, err := said.ReadString('\n'); line != "its own\n" {
		t.Errorf("the key that it gets is %q: %v", line, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	eventually(t, faultWait, func() error {
		if n := descriptors(t, daemon); n > before {
			return fmt.Errorf("%d descriptors, and %d before it", n, before)
		}
		return nil
	})
}

// startFlood runs flood as mallory, and returns when all of it is under way. What it returns
// ends it, and is what it has printed.
func startFlood(t *testing.T, ctx context.Context, c *cluster.Cluster, path string) (end func() string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	copied := c.Path("flood")
	if out, err := exec.Command("cp", self, copied).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	if err := os.Chmod(copied, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, copied)
	cmd.Env = []string{"SLURM_TEST_FLOOD=" + path}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 7002, Gid: 7002}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		said.WriteString(lines.Text() + "\n")
	}
	return func() string {
		in.Close()
		if err := cmd.Wait(); err != nil {
			fmt.Fprintf(&said, "the flood ended with %v\n", err)
		}
		return said.String()
	}
}

// stepSocket waits for the socket of the cluster's first step, and for its tasks.
func stepSocket(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		found, _ := filepath.Glob(c.Path("spool/*_*.0"))
		if len(found) == 1 {
			if b, err := ask(found[0], words(reqState), 4); err == nil && binary.NativeEndian.Uint32(b) == 2 {
				return found[0]
			}
		}
	}
	t.Fatal("no step runs")
	return ""
}

// daemonOf is the pid of the process that listens at a socket, as this test sees it.
func daemonOf(t *testing.T, path string) int {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return int(cred.Pid)
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestRootRefused: what would be wrong is refused with an error that srun prints, the reason
// is in slurmd's log, and what is configured and not done is logged once.
func TestRootRefused(t *testing.T) {
	t.Parallel()
	c := startSite(t, cluster.Site{Conf: "VSizeFactor=110\nLaunchParameters=mem_sort\n"})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for _, tc := range []struct{ command, said, logged string }{
		{"srun --container=/tmp hostname", "Container runtime not configured or invalid", "--container: there is no oci.conf"},
	} {
		out, err := c.Command(ctx, "alice", "timeout", "60", "sh", "-c", tc.command).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "Task launch for StepId=") || !strings.Contains(string(out), tc.said) {
			t.Errorf("%s: %v: %s", tc.command, err, out)
		}
		// The step daemon answers slurmd before it writes the reason.
		wait := fmt.Sprintf("until grep -qF 'cannot run the step: %s' $DIR/slurmd.log; do sleep .05; done", tc.logged)
		if out, err := c.Command(ctx, "root", "timeout", "10", "sh", "-c", wait).CombinedOutput(); err != nil {
			t.Errorf("%s: the log has no reason: %v: %s", tc.command, err, out)
		}
	}
	for range 3 {
		if out, err := c.Command(ctx, "alice", "timeout", "60", "srun", "-n2", "true").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	log, err := os.ReadFile(c.Path("slurmd.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"VSizeFactor=110: a task's address space", "mem_sort: the free pages"} {
		if n := strings.Count(string(log), line); n != 1 {
			t.Errorf("%q is %d times in slurmd's log:\n%s", line, n, log)
		}
	}
	out, err := c.Command(ctx, "root", ours, "--check").CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 || !strings.Contains(string(out), "VSizeFactor=110") || !strings.Contains(string(out), "\n2 settings are not done") {
		t.Errorf("%v: %s", err, out)
	}
}
