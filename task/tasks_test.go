package task

import (
	"fmt"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// newerThan reports whether the running kernel is newer.
func newerThan(t *testing.T, major, minor int) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var x, y int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &x, &y); err != nil {
		t.Fatal(err)
	}
	return x > major || x == major && y >= minor
}

// TestPidfdStatus: a status is available after another process has reaped.
func TestPidfdStatus(t *testing.T) {
	for _, c := range []struct {
		script string
		want   step.ExitStatus
	}{{"exit 7", 7 << 8}, {"exit 0", 0}, {"kill -9 $$", 9}} {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		fd := -1
		pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "read x; " + c.script}, &syscall.ProcAttr{
			Files: []uintptr{uintptr(p[0])}, Sys: &syscall.SysProcAttr{PidFD: &fd},
		})
		if err != nil {
			t.Fatal(err)
		}
		if status, ok := pidfdStatus(fd); ok {
			t.Errorf("%q: status %#x before the end", c.script, status)
		}
		unix.Close(p[0])
		unix.Close(p[1]) // its end of file lets the child go
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
			t.Fatal(err)
		}
		status, ok := pidfdStatus(fd)
		if ok != newerThan(t, 6, 15) || ok && status != c.want {
			t.Errorf("%q: status %#x, %v; want %#x", c.script, status, ok, c.want)
		}
		unix.Close(fd)
	}
	if _, ok := pidfdStatus(-1); ok {
		t.Error("no descriptor has a status")
	}
}
