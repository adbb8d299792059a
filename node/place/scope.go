package place

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// scope is the one unit of systemd that all steps of this noded lie in, by
// plain mkdir: systemd leaves a delegated cgroup alone, a daemon-reload
// included, and it has nothing to do for each step.
//
// A scope lasts as long as it has a process. While noded runs that is a keeper,
// which ends with noded's end of a pipe; after that the steps are. One that has
// gone is made again.
type scope struct {
	name    string // of the unit
	slice   string // that it lies in, "" is systemd's own choice, system.slice
	mount   string // of cgroup v2
	program string // spankhost
	// patience bounds the wait for systemd.
	patience time.Duration

	mu     sync.Mutex
	keeper *keeper // guarded by mu; nil before ensure
}

const (
	// scopeName is the scope of the noded with the default spool.
	scopeName = "stepd.scope"
	// scopePatience is added to SystemdTimeout, which is short for a host that
	// boots.
	scopePatience = 30 * time.Second
	// scopeTries bounds how often a scope is asked for whose name is taken by one
	// that goes away, and scopePause is between them.
	scopeTries = 20
	scopePause = 100 * time.Millisecond
	// keeperLeaf is the cgroup of the keeper: the scope's own must have no process
	// for its controllers to reach the steps.
	keeperLeaf = "keeper"
)

// ensure makes the scope, or takes the one that an earlier noded has made, and
// returns its directory.
func (s *scope) ensure(ctx context.Context) (dir string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keeper != nil {
		s.keeper.end() // its scope has gone
		s.keeper = nil
	}
	conn, err := systemd.NewWithContext(ctx)
	if err != nil {
		return "", fmt.Errorf("cannot make %s: cannot talk to systemd: %w", s.name, err)
	}
	defer conn.Close()
	k, err := startKeeper(s.program, s.name)
	if err != nil {
		return "", err
	}
	if dir, err = s.establish(ctx, conn, k); err != nil {
		k.end()
		return "", err
	}
	s.keeper = k
	return dir, nil
}

// establish puts the keeper into the scope, whichever noded has made it.
func (s *scope) establish(ctx context.Context, conn *systemd.Conn, k *keeper) (dir string, err error) {
	for try := range scopeTries {
		if try > 0 {
			t := time.NewTimer(scopePause) // systemd sends no event when it forgets a unit
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return "", errors.Join(err, context.Cause(ctx))
			}
		}
		var found bool
		if dir, found, err = s.find(ctx, conn); err != nil {
			return "", err
		}
		if !found {
			if err = s.start(ctx, conn, k.pid()); err != nil {
				continue
			}
			if dir, found, err = s.find(ctx, conn); err != nil || !found {
				continue
			}
		}
		if err = moveToLeaf(dir, k.pid()); err != nil {
			continue // it has gone meanwhile
		}
		// It may have been on its way down when the keeper came.
		if _, found, err = s.find(ctx, conn); found {
			return dir, nil
		}
	}
	if err == nil {
		err = errors.New("it does not stay")
	}
	return "", fmt.Errorf("cannot make %s: %w", s.name, err)
}

// find returns where the scope is, if it is active.
func (s *scope) find(ctx context.Context, conn *systemd.Conn) (dir string, found bool, err error) {
	state, err := conn.GetUnitPropertyContext(ctx, s.name, "ActiveState")
	if err != nil {
		return "", false, fmt.Errorf("cannot ask systemd for %s: %w", s.name, err)
	}
	switch state.Value.Value() {
	case "active":
	case "failed":
		return "", false, conn.ResetFailedUnitContext(ctx, s.name)
	default:
		return "", false, nil
	}
	group, err := conn.GetUnitTypePropertyContext(ctx, s.name, "Scope", "ControlGroup")
	if err != nil {
		return "", false, fmt.Errorf("cannot ask systemd for the cgroup of %s: %w", s.name, err)
	}
	path, _ := group.Value.Value().(string)
	if path == "" {
		return "", false, nil
	}
	return filepath.Join(s.mount, path), true, nil
}

// start asks systemd for the scope, with one process in it.
func (s *scope) start(ctx context.Context, conn *systemd.Conn, pid int) error {
	property := func(name string, value any) systemd.Property {
		return systemd.Property{Name: name, Value: dbus.MakeVariant(value)}
	}
	done := make(chan string, 1) // size 1: the sender is the connection's reader
	_, err := conn.StartTransientUnitContext(ctx, s.name, "fail", []systemd.Property{
		systemd.PropDescription("Job steps of stepd"),
		systemd.PropSlice(cmp.Or(s.slice, "system.slice")),
		systemd.PropPids(uint32(pid)),
		property("Delegate", true),
		property("TasksMax", uint64(math.MaxUint64)), // users' limits are the steps'
		property("CollectMode", "inactive-or-failed"),
	}, done)
	if err != nil {
		return fmt.Errorf("cannot start it: %w", err)
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("systemd's job for it ended as %q", result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("systemd does not answer within %v (SystemdTimeout in cgroup.conf adds to it)", s.patience)
	}
}

// moveToLeaf takes the keeper out of the scope's own cgroup.
func moveToLeaf(dir string, pid int) error {
	leaf := filepath.Join(dir, keeperLeaf)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// close lets the scope go, unless steps are in it.
func (s *scope) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keeper != nil {
		s.keeper.end()
		s.keeper = nil
	}
}

// keeper is the process that keeps a scope while no step is in it.
type keeper struct {
	cmd  *exec.Cmd
	pipe io.Closer
}

func startKeeper(program, unit string) (*keeper, error) {
	cmd := exec.Command(program, "--keep")
	cmd.Args[0] = "stepd-keeper: " + unit
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start the keeper of %s: %w", unit, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the keeper of %s: %w", unit, err)
	}
	return &keeper{cmd, pipe}, nil
}

func (k *keeper) pid() int { return k.cmd.Process.Pid }

// end ends it and waits for that: it has nothing to do but to read.
func (k *keeper) end() {
	k.pipe.Close()
	_ = k.cmd.Wait() // however it ended
}
