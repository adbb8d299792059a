package proctrack

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/step"
)

func TestParseAutopsy(t *testing.T) {
	if s := parseStatus([]byte("Name:\tTracerPid: 7\nState:\tD\nPPid:\t12\nTracerPid:\t99\nCoreDumping:\t1\n")); s != (procStatus{12, 99, true}) {
		t.Errorf("status: %+v", s)
	}
	stack := parseStack([]byte("[<0>] request_wait_answer+0x1/0x2 [fuse]\n[<0>] fuse_simple_request+0x9/0x10\nx\n"))
	if !slices.Equal(stack, []string{"request_wait_answer", "fuse_simple_request"}) {
		t.Errorf("stack: %q", stack)
	}
	for text, want := range map[string]struct {
		call string
		fd   int
	}{
		"0 0x3 0x7f 0x0\n":             {"read", 3},
		"257 0xffffffffffffff9c 0x1\n": {"openat", -1},
		"257 0xffffff9c 0x1\n":         {"openat", -1},
		"230 0x3 0x1\n":                {"", -1}, // no call with a descriptor
		"-1 0x7ffe 0x7f\n":             {"", -1},
		"running\n":                    {"", -1},
	} {
		if runtime.GOARCH != "amd64" {
			break // the numbers are amd64's
		}
		if call, fd := parseSyscall([]byte(text)); call != want.call || fd != want.fd {
			t.Errorf("%q: %q, %d, want %+v", text, call, fd, want)
		}
	}
	mounts := parseMounts([]byte(`21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 21 0:26 / /scratch\040x rw - nfs4 server:/x rw
31 30 0:27 / /scratch\040x/deep rw master:2 shared:3 - fuse.sshfs a rw
`), nil)
	if len(mounts) != 3 || mounts[1].Mountpoint != "/scratch x" {
		t.Fatalf("mounts: %+v", mounts)
	}
	for path, want := range map[string]string{
		"/etc/passwd": "/", "/scratch x": "/scratch x", "/scratch xy": "/", "/scratch x/deep/er": "/scratch x/deep",
	} {
		if m := on(path, mounts); m.Mountpoint != want {
			t.Errorf("%q is on %q, want %q", path, m.Mountpoint, want)
		}
	}
	if p := placeIn([]byte("4:cpu,cpuacct:/a\n3:freezer:/b:c\n0::/d\n"), true); p != "/b:c" {
		t.Errorf("freezer: %q", p)
	}
	if k := fsKind([]string{"schedule", "nfs4_proc_read"}); k != "nfs" {
		t.Errorf("kind %q", k)
	}
}

func FuzzAutopsy(f *testing.F) {
	for _, s := range []string{"PPid:\t1\nTracerPid:\t-5\n", "[<0>] a+0x1\n", "0 0x3", "1 2 0:1 / /a\\04 rw - x y z", "3:freezer:/x\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if s := parseStatus(data); s.ppid < 0 || s.tracer < 0 {
			t.Errorf("%+v", s)
		}
		if s := parseStack(data); len(s) > stackShown {
			t.Errorf("%d functions", len(s))
		}
		parseSyscall(data)
		if p := placeIn(data, true); p != "" && !strings.HasPrefix(p, "/") {
			t.Errorf("path %q", p)
		}
		on("/a/b", parseMounts(data, nil))
	})
}

// A tracer that has stopped its tracee is named, as is what a process holds.
func TestDescribeLiving(t *testing.T) {
	runtime.LockOSThread() // ptrace(2) belongs to a thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command("sleep", "1000")
	cmd.Dir = t.TempDir()
	file, err := os.Create(filepath.Join(cmd.Dir, "open file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd.Stdin = file
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _, _ = cmd.Process.Wait() }() // it may be dead
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &ws, unix.WALL, nil); err != nil || !ws.Stopped() {
		t.Fatalf("%v, %v", ws, err)
	}
	s := describe(cmd.Process.Pid)
	if s.Grade != step.GradeTraced || s.State != "t" || s.Holder != unix.Gettid() && s.Holder != os.Getpid() || s.HolderComm == "" {
		t.Errorf("%+v", s)
	}
	files := held(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid)), parseMounts(readProc("/proc/self", "mountinfo"), nil))
	if len(files) == 0 || files[0].What != "fd 0" || files[0].Path != file.Name() || files[0].Mount == "" || files[0].FSType == "" {
		t.Errorf("it holds %+v", files)
	}
	if err := syscall.PtraceDetach(cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	for s = describe(cmd.Process.Pid); s.State != "Z"; s = describe(cmd.Process.Pid) {
		runtime.Gosched()
	}
	if s.Grade != step.GradeZombie || s.Holder != os.Getpid() {
		t.Errorf("%+v", s)
	}
	if _, err := cmd.Process.Wait(); err != nil {
		t.Error(err)
	}
	if s = describe(cmd.Process.Pid); s.Grade != step.GradeVanished {
		t.Errorf("%+v", s)
	}
}
