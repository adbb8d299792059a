package keeper

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test's own program is the step daemon too, run with the keeper's path, and the orphan.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == Orphan:
		orphan()
	case len(os.Args) == 4 && os.Args[1] == "daemon":
		daemon(os.Args[2], os.Args[3])
	default:
		os.Exit(m.Run())
	}
}

func orphan() {
	e, err := Inherited()
	if err != nil {
		fmt.Println("orphan:", err)
		os.Exit(1)
	}
	fmt.Printf("orphan %s %q %x %x %x\n", os.Args[0], e.Will, e.Mark(0), e.Mark(1), e.Mark(2))
}

// daemon does what it reads: "mark N", "done".
func daemon(program, cgroup string) {
	k, err := Start(Config{
		Program: program, Step: "12.0", Cgroups: []string{cgroup}, Will: []byte("the will"), Marks: 3,
		Log: func(text string) { fmt.Println("log", text) },
	})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		verb, arg, _ := strings.Cut(in.Text(), " ")
		switch verb {
		case "mark":
			n, _ := strconv.Atoi(arg)
			k.Mark(n, 1<<n)
			k.Mark(n, 1<<31)
		case "done":
			k.Done()
			k.Done()
		}
		fmt.Println("ok")
	}
}

// program is the keeper, built for this test.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stepkeeper")
	out, err := exec.Command("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o", path, "program/main.c").CombinedOutput()
	if err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return path
}

// running is a step daemon under test.
type running struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	out   *bufio.Reader
	group string // its cgroup.kill is a plain file
}

func run(t *testing.T) *running {
	t.Helper()
	r := &running{t: t, group: t.TempDir()}
	if err := os.WriteFile(filepath.Join(r.group, "cgroup.kill"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.cmd = exec.Command("/proc/self/exe", "daemon", program(t), r.group)
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, w, err := os.Pipe() // the keeper has it, too: Wait must not wait for its end
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.Stdout, r.cmd.Stderr = w, w
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	r.out = bufio.NewReader(out)
	t.Cleanup(func() { _ = r.cmd.Process.Kill(); _ = r.cmd.Wait(); out.Close() })
	return r
}

// line is what comes next, and begins with want.
func (r *running) line(want string) string {
	r.t.Helper()
	text, err := r.out.ReadString('\n')
	if err != nil || !strings.HasPrefix(text, want) {
		r.t.Fatalf("%q, %v; want %q", text, err, want)
	}
	return strings.TrimSuffix(text, "\n")
}

// keeper is the keeper's pid: it is the test's child, beside the daemon. other is one that has
// died.
func (r *running) keeper(other int) int {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		threads, err := filepath.Glob("/proc/self/task/*/children")
		if err != nil {
			r.t.Fatal(err)
		}
		for _, path := range threads {
			b, _ := os.ReadFile(path) // a thread may end
			for _, field := range strings.Fields(string(b)) {
				title, _ := os.ReadFile("/proc/" + field + "/cmdline")
				pid, err := strconv.Atoi(field)
				if string(title) == "stepkeeper: [12.0]\x00" && err == nil && pid != other {
					return pid
				}
			}
		}
	}
	r.t.Fatal("no keeper beside the daemon")
	return 0
}

func (r *running) do(what string) {
	r.t.Helper()
	fmt.Fprintln(r.in, what)
	r.line("ok")
}

func (r *running) die() {
	r.t.Helper()
	if err := r.cmd.Process.Kill(); err != nil {
		r.t.Fatal(err)
	}
}

// struck reports whether the cgroup was killed.
func (r *running) struck() bool {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.group, "cgroup.kill"))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b) == "1"
}

// end reads to the end: the last process that has the pipe is gone.
func (r *running) end() {
	r.t.Helper()
	if rest, err := io.ReadAll(r.out); len(rest) > 0 || err != nil {
		r.t.Errorf("%q, %v", rest, err)
	}
}

func TestDeath(t *testing.T) {
	r := run(t)
	r.line("ready")
	pid := r.keeper(0)
	sid, err := unix.Getsid(pid)
	if err != nil || sid != pid {
		t.Errorf("the keeper's session is %d, %v", sid, err)
	}
	r.do("mark 1")
	r.do("mark 99")
	r.die()
	r.line(`orphan slurmstepd: [12.0] "the will" 0 80000002 0`)
	if !r.struck() {
		t.Error("the step was not killed")
	}
	r.end()
}

func TestDone(t *testing.T) {
	r := run(t)
	r.line("ready")
	r.do("done")
	r.do("mark 1") // a goroutine of the daemon that comes late
	r.die()
	r.end()
	if r.struck() {
		t.Error("the step was killed")
	}
}

// A keeper that dies is followed by another, with the same estate; and not for ever.
func TestKeeperDies(t *testing.T) {
	r := run(t)
	r.line("ready")
	pid := r.keeper(0)
	r.do("mark 0")
	for range startsMax - 1 {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		r.line("log the step's keeper has died")
		pid = r.keeper(pid)
	}
	r.die()
	r.line(`orphan slurmstepd: [12.0] "the will" 80000001 0 0`)
	r.end()
}

func TestKeepersDie(t *testing.T) {
	r := run(t)
	r.line("ready")
	pid := r.keeper(0)
	for n := range startsMax {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if n < startsMax-1 {
			r.line("log the step's keeper has died")
			pid = r.keeper(pid)
		}
	}
	r.line("log the step has no keeper any more: 10 have died")
	r.do("done") // does not hang
	r.die()
	r.end()
}

func TestNoProgram(t *testing.T) {
	_, err := Start(Config{Program: "/no/such"})
	if err == nil || !strings.Contains(err.Error(), `cannot start the step's keeper: cannot start "/no/such"`) {
		t.Errorf("%v", err)
	}
}

// The C half has the same numbers.
func TestHeader(t *testing.T) {
	text, err := os.ReadFile("program/keeper.h")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^#define KEEPER_(\w+) (\S+)$`).FindAllSubmatch(text, -1) {
		got[string(m[1])] = string(m[2])
	}
	for name, want := range map[string]string{
		"FD_LIFE": strconv.Itoa(fdLife), "FD_DAEMON": strconv.Itoa(fdDaemon), "FD_ESTATE": strconv.Itoa(fdEstate),
		"FD_LOCK": strconv.Itoa(fdLock), "FD_KILL": strconv.Itoa(fdKill),
		"BYE": strconv.QuoteRune(bye), "ORPHAN": strconv.Quote(Orphan),
	} {
		if got[name] != want {
			t.Errorf("KEEPER_%s is %s, want %s", name, got[name], want)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("the header has more: %v", got)
	}
}

func FuzzEstate(f *testing.F) {
	e, err := newEstate([]byte("will"), 2)
	if err != nil {
		f.Fatal(err)
	}
	whole := bytes.Clone(e.bytes)
	e.close()
	f.Add(whole)
	f.Add(whole[:8])
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEstate(b)
		if err != nil {
			return
		}
		if len(e.Will)+len(e.marks)+estateHead != len(b) || binary.NativeEndian.Uint32(b) != estateMagic {
			t.Fatalf("%q: %+v", b, e)
		}
		e.Mark(1 << 30)
		e.Mark(-1)
		e.Mark(len(e.marks) / markSize)
	})
}
