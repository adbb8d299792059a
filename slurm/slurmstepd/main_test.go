package slurmstepd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

// TestMain lets the test's program be slurmstepd, and one that shows its title.
func TestMain(m *testing.M) {
	switch os.Getenv("SLURMSTEPD_TEST") {
	case "step":
		os.Args = os.Args[:1]
		Main()
	case "title":
		setTitle("slurmstepd", "slurmstepd: [12.0]")
		fmt.Println("ready", os.Getenv("HOME"))
		io.ReadAll(os.Stdin)
		os.Exit(0)
	case "accept":
		if err := newCaller(os.Stdin, os.Stdout).accept(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(0)
	case "mode":
		os.Unsetenv("SLURMSTEPD_TEST")
		os.Exit(mode(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func self(t *testing.T, as string) *exec.Cmd {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), "SLURMSTEPD_TEST="+as, "HOME=/home/x")
	return cmd
}

// A stream that is none is answered with an error number and logged, and the program ends.
func TestBadStream(t *testing.T) {
	dir := t.TempDir()
	conf, log := filepath.Join(dir, "slurm.conf"), filepath.Join(dir, "slurmd.log")
	if err := os.WriteFile(conf, []byte("ClusterName=c\nSlurmctldHost=h\nSlurmdLogFile="+log+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string][]byte{
		"nothing": nil, "cut": {8, 0, 0, 0, 0x26}, "another release": append([]byte{2, 0, 0, 0}, 0x77, 0),
		"a long one": {0xff, 0xff, 0xff, 0x7f},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := self(t, "step")
			cmd.Env = append(cmd.Env, "SLURM_CONF="+conf)
			cmd.Stdin = bytes.NewReader(in)
			out, err := cmd.Output()
			want := uint32(syscall.EINVAL)
			if name == "another release" {
				want = 1005 // Slurm's SLURM_PROTOCOL_VERSION_ERROR
			}
			if len(out) != 4 || binary.NativeEndian.Uint32(out) != want {
				t.Errorf("slurmd reads %v", out)
			}
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
				t.Errorf("it ended with %v", err)
			}
			text, err := os.ReadFile(log)
			if line, _, _ := strings.Cut(string(text), "\n"); err != nil || !strings.Contains(line, "] [slurmstepd] error: cannot ") {
				t.Errorf("slurmd's log has %q (%v)", text, err)
			}
			if name == "another release" && !strings.Contains(string(text), "install the stepd that goes with this slurmd") {
				t.Errorf("slurmd's log has %q", text)
			}
			os.Remove(log)
		})
	}
}

// slurmd reads the answer when it has written the whole stream, which does not fit into the
// pipe.
func TestRefuseLongStream(t *testing.T) {
	cmd := self(t, "step")
	cmd.Env = append(cmd.Env, "SLURM_CONF="+filepath.Join(t.TempDir(), "none"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stream := append([]byte{2, 0, 0, 0, 0x77, 0}, make([]byte, 1<<20)...)
	if _, err := in.Write(stream); err != nil {
		t.Errorf("slurmd writes: %v", err)
	}
	in.Close()
	cmd.Wait()
	if want := binary.NativeEndian.AppendUint32(nil, 1005); !bytes.Equal(out.Bytes(), want) {
		t.Errorf("slurmd reads %v", out.Bytes())
	}
}

// A caller that gets its answer once, whatever follows.
func TestAnswerOnce(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ack, acked, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer ack.Close()
	acked.Write(make([]byte, 4))
	c := newCaller(ack, w)
	if !c.claim() {
		t.Fatal("the answer has no owner")
	}
	if err := c.accept(); err != nil {
		t.Fatal(err)
	}
	if c.refuse(errors.New("too late")) || c.claim() {
		t.Error("a second answer")
	}
	w.Close()
	if b, _ := io.ReadAll(r); !slices.Equal(b, make([]byte, 4)) {
		t.Errorf("slurmd reads %v", b)
	}
}

// A slurmd that has died before the answer does not take the step with it.
func TestAnswerUnread(t *testing.T) {
	cmd := self(t, "accept")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	var text strings.Builder
	cmd.Stdout, cmd.Stderr = w, &text
	err = cmd.Run()
	w.Close()
	if err != nil || !strings.Contains(text.String(), "cannot answer slurmd: broken pipe") {
		t.Errorf("it ended with %v and said %q", err, text.String())
	}
}

// A log that takes no line holds up neither slurmd nor the program.
func TestRefuseSilentLog(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	in, silent, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c := newCaller(in, w)
	hang := make(chan struct{})
	c.logBy(func(string) { <-hang })
	defer close(hang)
	over := make(chan struct{})
	go func() { defer close(over); c.refuse(syscall.ENOSPC) }()
	answer := make([]byte, 4)
	r.SetReadDeadline(time.Now().Add(drainFor / 2))
	if _, err := io.ReadFull(r, answer); err != nil || binary.NativeEndian.Uint32(answer) != uint32(syscall.ENOSPC) {
		t.Errorf("slurmd reads %v, %v", answer, err)
	}
	select {
	case <-over:
	case <-time.After(3 * drainFor):
		t.Error("refuse does not return")
	}
}

func TestTitle(t *testing.T) {
	cmd := self(t, "title")
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
	defer cmd.Wait()
	defer in.Close()
	line := make([]byte, 32)
	n, _ := out.Read(line)
	if got := string(line[:n]); got != "ready /home/x\n" {
		t.Errorf("the program says %q: its environment is lost", got)
	}
	proc := fmt.Sprintf("/proc/%d/", cmd.Process.Pid)
	title, _ := os.ReadFile(proc + "cmdline")
	comm, _ := os.ReadFile(proc + "comm")
	if got := strings.TrimRight(string(title), "\x00"); got != "slurmstepd: [12.0]" || string(comm) != "slurmstepd\n" {
		t.Errorf("the title is %q, the name %q", got, comm)
	}
}

func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, f := openLog(path, "12.0", levelInfo)
	defer f.Close()
	log.Info("one\ntwo")
	log.Error("bad")
	log.Debug("not asked for")
	log.Log(logrus.WarnLevel, "careful")
	b, _ := os.ReadFile(path)
	lines := strings.Split(string(b), "\n")
	if len(lines) != 5 {
		t.Fatalf("the log is %q", b)
	}
	for i, want := range []string{"[12.0] one", "    two", "[12.0] error: bad", "[12.0] warning: careful"} {
		if !strings.HasSuffix(lines[i], want) {
			t.Errorf("line %d is %q", i, lines[i])
		}
	}
	if _, err := time.Parse("2006-01-02T15:04:05.000", lines[0][1:24]); err != nil {
		t.Error(err)
	}
}
