package api

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// RestartMax is how long a call waits for the next noded where one has served.
const RestartMax = 5 * time.Second

// StateName is the file beside the socket in which noded has its state until the host's boot: where
// it exists, a noded has served here.
const StateName = "volatile.journal"

// connect connects to noded. Where one has served, and none does, it is being restarted, perhaps,
// and the next one is waited for.
func connect(ctx context.Context, path string) (*os.File, error) {
	conn, err := tryConnect(ctx, path)
	if err == nil || !restarts(path, err) {
		return conn, err
	}
	return afterRestart(ctx, path, time.Now().Add(RestartMax))
}

// restarts reports whether no noded serves the socket, for err, and one has.
func restarts(path string, err error) bool {
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) {
		return false
	}
	_, none := os.Lstat(filepath.Join(filepath.Dir(path), StateName))
	return none == nil
}

// afterRestart connects when the socket appears, which is then served.
func afterRestart(ctx context.Context, path string, deadline time.Time) (*os.File, error) {
	appears, err := linux.NewInotify()
	if err == nil {
		defer appears.Close()
		defer context.AfterFunc(ctx, func() { appears.Close() })()
		err = appears.Watch(filepath.Dir(path), unix.IN_CREATE|unix.IN_MOVED_TO)
	}
	for {
		conn, failed := tryConnect(ctx, path) // behind Watch: it may have appeared before
		if failed == nil || err != nil || !restarts(path, failed) {
			return conn, failed
		}
		err = appears.Wait(deadline)
		if cause := ctx.Err(); cause != nil {
			return nil, ContextError(cause)
		}
	}
}
