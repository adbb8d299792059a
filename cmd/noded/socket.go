package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// errReload is what run returns on SIGHUP: everything is put away, and the process is
// to begin anew with its files as they are now. It has the socket's listener, on
// which clients wait meanwhile.
type errReload struct {
	listener *os.File
	systemd  bool
}

func (errReload) Error() string { return "noded begins anew" }

// handoverVar has the number of the listener's descriptor in the environment of a
// noded that has begun anew.
const handoverVar = "NODED_HANDOVER_FD"

// ofSystemd ends the variable's value where the socket is systemd's.
const ofSystemd = ",systemd"

// given is a socket that noded does not open itself. The zero value is none.
type given struct {
	listener net.Listener
	// again: the noded that this process was before has served it.
	again bool
	// systemd: it is noded.socket's, and stays when noded ends: clients wait for the next one.
	systemd bool
}

// givenSocket is the socket that noded begins with.
func givenSocket() (given, error) {
	g, err := handedOver()
	if err != nil || g.listener != nil {
		return g, err
	}
	all, err := activation.Listeners() // takes its variables away
	if err != nil || len(all) == 0 {
		return g, err
	}
	l, ok := all[0].(*net.UnixListener)
	if !ok || len(all) > 1 {
		return g, errors.New("cannot take over systemd's sockets: noded serves one, a unix socket: correct noded.socket")
	}
	l.SetUnlinkOnClose(false)
	return given{listener: l, systemd: true}, nil
}

// check refuses a socket of systemd's that is not the one that clients look for.
func (g given) check(path string) error {
	if !g.systemd || g.again || g.listener.Addr().String() == path {
		return nil
	}
	return fmt.Errorf("cannot serve systemd's socket %q: noded's is %q: correct ListenStream= of noded.socket, or --run-dir", g.listener.Addr(), path)
}

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
	value := strconv.Itoa(fd)
	if r.systemd {
		value += ofSystemd
	}
	env := append(os.Environ(), handoverVar+"="+value)
	return fmt.Errorf("cannot execute %q: %w", self, unix.Exec(self, os.Args, env))
}

// handedOver is the socket of the noded that this process was before; none of one that
// was started. Its variable is gone after it, and no child has either.
func handedOver() (g given, err error) {
	text, again := os.LookupEnv(handoverVar)
	if !again {
		return g, nil
	}
	if err := os.Unsetenv(handoverVar); err != nil {
		return g, err
	}
	number, systemd := strings.CutSuffix(text, ofSystemd)
	fd, err := strconv.Atoi(number)
	if err != nil || fd < 3 {
		return g, fmt.Errorf("cannot use %s=%q: not a descriptor's number", handoverVar, text)
	}
	unix.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), "noded.sock")
	defer file.Close() // FileListener has its own
	l, err := net.FileListener(file)
	if err != nil {
		return g, fmt.Errorf("cannot take over the socket: %w", err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // its name is a descriptor's
	}
	reapOld()
	return given{listener: l, again: true, systemd: systemd}, nil
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
