package x11

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/internal/testkit"
)

// TestRootKeyOfUser: the key is written by the user's rights, and not by root's.
func TestRootKeyOfUser(t *testing.T) {
	testkit.RequireRoot(t)
	const user = 65534
	x := newXServer(t)
	cfg := x.config()
	cfg.Owner = linux.User{UID: user, GID: user, Groups: []uint32{user}}
	cfg.Dir = "/tmp"
	f := x.start(cfg)
	var st unix.Stat_t
	if err := unix.Lstat(f.authority.Path, &st); err != nil || st.Uid != user || st.Gid != user || st.Mode != unix.S_IFREG|0o600 {
		t.Errorf("%+v, %v", st, err)
	}
	cfg = x.config() // its directory is root's
	cfg.Owner = f.cfg.Owner
	if f, err := Start(cfg); !errors.Is(err, fs.ErrPermission) {
		if err == nil {
			f.Close()
		}
		t.Errorf("in a directory of root's: %v", err)
	}
}

// TestRootKeyInContainer: the key lies in the directories that a job has for itself, and nowhere else.
func TestRootKeyInContainer(t *testing.T) {
	testkit.RequireRoot(t)
	x := newXServer(t)
	cfg := x.config()
	err := linux.OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return err
		}
		err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", cfg.Dir, "tmpfs", 0, "mode=1777"))
		var openErr error
		cfg.Namespace, openErr = os.Open("/proc/thread-self/ns/mnt")
		return errors.Join(err, openErr)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cfg.Namespace.Close()
	names := func(namespace *os.File) (names []string) {
		err := linux.OnThread(func() error {
			err := linux.EnterMounts(namespace)
			entries, readErr := os.ReadDir(cfg.Dir)
			for _, e := range entries {
				names = append(names, e.Name())
			}
			return errors.Join(err, readErr)
		})
		if err != nil {
			t.Error(err)
		}
		return names
	}
	f, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if inside, outside := names(cfg.Namespace), names(nil); len(inside) != 1 || len(outside) != 0 || inside[0] != filepath.Base(f.authority.Path) {
		t.Errorf("inside is %q, and outside %q", inside, outside)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if inside := names(cfg.Namespace); len(inside) != 0 {
		t.Errorf("left: %q", inside)
	}
}

// TestRootSilentOther: a connection of another user's that says nothing ends after two seconds, while
// root's has its half minute.
func TestRootSilentOther(t *testing.T) {
	testkit.RequireRoot(t)
	const owner, other = 65534, 65533
	x := newXServer(t)
	cfg := x.config()
	cfg.Owner, cfg.Dir = linux.User{UID: owner, GID: owner, Groups: []uint32{owner}}, "/tmp"
	f := x.start(cfg)
	roots := dial(t, f, "127.0.0.1")
	began, dialled := time.Now(), make(chan *net.TCPConn)
	go func() {
		runtime.LockOSThread() // and it ends with the goroutine: a socket is whose the thread is
		if err := unix.Setfsuid(other); err != nil {
			t.Error(err)
		}
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(portBase+f.authority.Display)))
		if err != nil {
			t.Error(err)
			close(dialled)
			return
		}
		dialled <- c.(*net.TCPConn)
	}()
	c, ok := <-dialled
	if !ok {
		return
	}
	ends(t, "a silent client", within(t, c))
	if took := time.Since(began); took < otherHelloMax || took > 2*otherHelloMax {
		t.Errorf("it took %v, want %v", took, otherHelloMax)
	}
	roots.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := roots.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("root's connection: %v", err)
	}
}
