package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/site"
)

// errReload is what run returns on SIGHUP: everything is put away, and the process is
// to begin anew with its files as they are now. It has the socket's listener, on
// which clients wait meanwhile.
type errReload struct{ listener *os.File }

func (errReload) Error() string { return "noded begins anew" }

// handoverVar has the number of the listener's descriptor in the environment of a
// noded that has begun anew.
const handoverVar = "NODED_HANDOVER_FD"

// begin executes noded again in this process: what it reads only at its start it reads
// again, its pid stays, and an upgraded program is the new one. It returns only an
// error.
func (r errReload) begin() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find the own program: %w", err)
	}
	fd, err := unix.Dup(int(r.listener.Fd())) // without close-on-exec
	if err != nil {
		return fmt.Errorf("cannot hand over the socket: %w", err)
	}
	// A second SIGHUP must not end it before it listens for one.
	signal.Ignore(syscall.SIGHUP)
	env := append(os.Environ(), handoverVar+"="+strconv.Itoa(fd))
	return fmt.Errorf("cannot execute %q: %w", self, unix.Exec(self, os.Args, env))
}

// handedOver is the listener of the noded that this process was before; nil of one
// that was started. Its variable is gone after it, and no child has either.
func handedOver() (net.Listener, error) {
	text, again := os.LookupEnv(handoverVar)
	if !again {
		return nil, nil
	}
	if err := os.Unsetenv(handoverVar); err != nil {
		return nil, err
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("cannot use %s=%q: not a descriptor's number", handoverVar, text)
	}
	unix.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), "noded.sock")
	defer file.Close() // FileListener has its own
	l, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("cannot take over the socket: %w", err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // its name is a descriptor's
	}
	reapOld()
	return l, nil
}

// reapOld reaps the children that ended while no process waited for them. Nothing has
// been started yet whose end anybody wants to know.
func reapOld() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// reload is what SIGHUP asks for: nil is that noded is to begin anew. A private noded
// lives as long as its starter, and has no files that anybody would change.
func (s *server) reload() *errReload {
	if s.starter != nil {
		return nil
	}
	if err := site.CheckReload(s.options.Options, s.site, s.log); err != nil {
		s.log.Errorf("cannot reload: %v; noded goes on with the configuration that it has", err)
		return nil
	}
	l, ok := s.listener.(*net.UnixListener)
	if !ok {
		s.log.Errorf("cannot reload: the socket's listener is a %T", s.listener)
		return nil
	}
	file, err := l.File()
	if err != nil {
		s.log.Errorf("cannot reload: %v", err)
		return nil
	}
	s.node.KeepSocket()
	return &errReload{file}
}

// reloadDue is closed when noded may begin anew: when no prolog runs, which would be cut
// short, or when they have had their time.
func (s *server) reloadDue() <-chan struct{} {
	due := make(chan struct{})
	running, over := s.node.Scripts().Prologs()
	if running == 0 {
		close(due)
		return due
	}
	most := cmp.Or(s.node.Scripts().Timeout, prologGrace)
	s.log.Infof("to be reloaded: noded goes on until no prolog runs, of which there are %d now, %v at most", running, most)
	go func() { // ends with the time at the latest
		defer close(due)
		select {
		case <-over:
		case <-time.After(most):
			s.log.Warn("prologs still run: the reload interrupts them")
		}
	}()
	return due
}

const (
	// prologGrace is how long a reload waits for prologs without PrologEpilogTimeout.
	prologGrace = 5 * time.Minute
	// lastCalls is how long connections that were taken last may be without a call.
	lastCalls = 100 * time.Millisecond
	// launchGrace is how long clients may take to launch what they have reserved.
	launchGrace = 2 * time.Second
)

// letThrough serves the clients that are connected already and no others: these
// wait for the next noded at the socket. Reserved steps are launched, not given back.
func (s *server) letThrough() {
	if err := s.listener.Close(); err != nil {
		s.log.Warnf("cannot close the listener: %v", err)
	}
	<-time.After(lastCalls)
	ctx, cancel := context.WithTimeout(context.Background(), launchGrace)
	defer cancel()
	s.node.AwaitLaunches(ctx)
}
