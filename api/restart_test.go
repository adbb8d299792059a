package api

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// appear serves a socket, as noded does: it appears when it listens.
func appear(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		t.Cleanup(func() { unix.Close(fd) })
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path + ".new"}), unix.Listen(fd, 1), os.Rename(path+".new", path))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// stale leaves a socket that no process serves.
func stale(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Close(fd))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestRestart: where noded's state is beside its socket, the next noded is waited for, whether the
// last one has ended or was killed; elsewhere none is, nor is another error waited out.
func TestRestart(t *testing.T) {
	for name, left := range map[string]func(*testing.T, string){"ended": func(*testing.T, string) {}, "killed": stale} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "noded.sock")
			left(t, path)
			_, err := tryConnect(t.Context(), path)
			if err == nil || restarts(path, err) {
				t.Fatalf("without a state %v is waited out", err)
			}
			if _, again := connect(t.Context(), path); again == nil || again.Error() != err.Error() {
				t.Errorf("without a state: %v, not %v", again, err)
			}
			if err := os.WriteFile(filepath.Join(dir, StateName), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if !restarts(path, err) || restarts(path, unix.EACCES) {
				t.Errorf("%v is waited out: %v; EACCES: %v", err, restarts(path, err), restarts(path, unix.EACCES))
			}
			if _, late := afterRestart(t.Context(), path, time.Unix(1, 0)); late == nil || late.Error() != err.Error() {
				t.Errorf("when the time is over: %v, not %v", late, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				_, err := afterRestart(ctx, path, time.Time{})
				done <- err
			}()
			cancel()
			if err := <-done; CodeOf(err) != Canceled {
				t.Errorf("a call that ends meanwhile: %v", err)
			}
			go func() {
				conn, err := afterRestart(t.Context(), path, time.Time{})
				if err == nil {
					err = conn.Close()
				}
				done <- err
			}()
			appear(t, path)
			if err := <-done; err != nil {
				t.Errorf("the next noded: %v", err)
			}
		})
	}
}
