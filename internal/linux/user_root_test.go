package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
)

// Numbers that are no user's here.
const (
	userUID, otherUID = 65532, 65531
	userGID           = 65533
)

var user = User{UID: userUID, GID: userGID, Groups: []uint32{userGID, 4711}}

// shared is a directory that others can reach.
func shared(t *testing.T) string {
	t.Helper()
	testkit.RequireRoot(t)
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// asUser calls f on a thread that is the user.
func asUser(t *testing.T, f func() error) {
	t.Helper()
	err := OnThread(func() error {
		if err := user.Become(); err != nil {
			return err
		}
		return f()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRootUserFiles: a thread that is the user makes files as that one, and opens none that is
// not the user's; other threads stay what they are.
func TestRootUserFiles(t *testing.T) {
	dir := shared(t)
	roots := filepath.Join(dir, "roots")
	if err := os.WriteFile(roots, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A file of each group: root's own, which the thread is to have no more, and one it is given.
	for name, gid := range map[string]int{"of root's group": 0, "of a group": 4711} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, 0, gid), os.Chmod(path, 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	asUser(t, func() error {
		if _, err := os.Open(roots); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("root's file as the user: %v", err)
		}
		if _, err := os.ReadFile(filepath.Join(dir, "of root's group")); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("a file of root's group as the user: %v", err)
		}
		if _, err := os.ReadFile(filepath.Join(dir, "of a group")); err != nil {
			t.Errorf("a file of one of the user's groups: %v", err)
		}
		return os.WriteFile(filepath.Join(dir, "theirs"), []byte("x"), 0o644)
	})
	st, err := os.Stat(filepath.Join(dir, "theirs"))
	if err != nil {
		t.Fatal(err)
	}
	if sys := st.Sys().(*syscall.Stat_t); sys.Uid != userUID || sys.Gid != userGID {
		t.Errorf("the file is of %d:%d", sys.Uid, sys.Gid)
	}
	if _, err := os.ReadFile(roots); err != nil {
		t.Errorf("another thread: %v", err)
	}
}

// TestRootUserSignals: the user's processes may not signal the thread, and the user's effective
// id is not all that decides about it: the real and the saved ids stay root's.
func TestRootUserSignals(t *testing.T) {
	testkit.RequireRoot(t)
	asUser(t, func() error {
		status, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", unix.Gettid()))
		if err != nil {
			return err
		}
		for _, want := range []string{
			fmt.Sprintf("Uid:\t0\t%d\t0\t%[1]d\n", userUID), fmt.Sprintf("Gid:\t0\t%d\t0\t%[1]d\n", userGID),
			"CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n",
		} {
			if !strings.Contains(string(status), want) {
				t.Errorf("the thread has not %q:\n%s", want, status)
			}
		}
		kill := exec.Command("sh", "-c", fmt.Sprint("kill -0 ", unix.Gettid()))
		kill.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: userUID, Gid: userGID}}
		said := make(chan string)
		go func() { // by another thread, which may start it
			out, err := kill.CombinedOutput()
			said <- fmt.Sprintf("%s: %v", out, err)
		}()
		if got := <-said; !strings.Contains(got, "not permitted") {
			t.Errorf("kill -0 by the user: %s", got)
		}
		return nil
	})
}

// TestRootUserMagicLinks: no path leads a user by the links in /proc into what another user's
// process has, which root's capabilities would follow, nor to what the daemon has open.
func TestRootUserMagicLinks(t *testing.T) {
	dir := shared(t)
	closed := filepath.Join(dir, "closed")
	private := filepath.Join(closed, "shared") // what is in there is open to all who come there
	theirs := filepath.Join(private, "theirs")
	if err := errors.Join(os.MkdirAll(private, 0o755), os.WriteFile(theirs, []byte("secret"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]fs.FileMode{closed: 0o700, private: 0o777, theirs: 0o666} {
		if err := errors.Join(os.Chown(path, otherUID, otherUID), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	open, err := os.OpenFile(theirs, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	other := exec.Command("sleep", "1000")
	other.Dir, other.Stdin = private, open
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUID, Gid: otherUID}}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	pid := other.Process.Pid
	link := filepath.Join(dir, "link")
	if err := os.Symlink(fmt.Sprintf("/proc/%d/cwd", pid), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		theirs,
		fmt.Sprintf("/proc/%d/cwd/theirs", pid),
		fmt.Sprintf("/proc/%d/cwd/new", pid),
		fmt.Sprintf("/proc/%d/root%s", pid, theirs),
		fmt.Sprintf("/proc/%d/fd/0", pid),
		fmt.Sprintf("/proc/%d/exe", pid),
		filepath.Join(link, "theirs"),
		fmt.Sprintf("/proc/self/fd/%d", open.Fd()),
		fmt.Sprintf("/dev/fd/%d", open.Fd()),
		"/proc/self/cwd/new",
	} {
		for _, flags := range []int{unix.O_RDONLY, unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC} {
			asUser(t, func() error {
				fd, err := OpenUserPath(path, flags, 0o666)
				// Older kernels look first whether the process is the user's.
				if !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.EACCES) {
					t.Errorf("%s: descriptor %d, %v", path, fd, err)
				}
				return nil
			})
		}
	}
	if b, err := os.ReadFile(theirs); err != nil || string(b) != "secret" {
		t.Errorf("the file has %q, %v", b, err)
	}
	if entries, err := os.ReadDir(private); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
	asUser(t, func() error {
		fd, err := OpenUserPath("/proc/self/fd/0", unix.O_RDONLY, 0)
		if err == nil || !strings.Contains(err.Error(), "a link of /proc") {
			t.Errorf("descriptor %d, %v", fd, err)
		}
		return nil
	})
}
