package x11

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

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
