package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// A noded that crashes is started again, but not for ever: crashesMax times within
// crashesTime, as systemd does by itself.
const (
	crashesMax  = 5
	crashesTime = 10 * time.Second
)

// errExit ends this process with a code, and nothing more is said.
type errExit int

func (e errExit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// runFirst is the life of process 1, which noded is as the entry point of a container.
// Whoever loses his parent becomes its child and has to be reaped, and with its end the
// kernel kills all that runs in the container, without a word to anybody. So process 1
// does nothing but that, and noded is its child: the end of that one is none of the steps'
// until the container is to end, and then they have the time that it has (`podman stop
// --time`) to end by SIGTERM as when a host goes down.
func runFirst(o options) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot make process 1 undumpable: %w", err)
	}
	log, err := newLog(o)
	if err != nil {
		return err
	}
	f := &first{log: log, signals: make(chan os.Signal, 4), reaper: linux.NewReaper(nil, nil)}
	defer f.reaper.Close()
	signal.Notify(f.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	for {
		status, err := f.serve()
		if err != nil {
			return err
		}
		// 2 is that of a Go program that panics.
		if crashed := status.Signaled() || status.ExitStatus() == 2; crashed && !f.ending && f.mayCrash(time.Now()) {
			log.Errorf("noded has ended with %s: starting it again; steps go on", shown(status))
			continue
		}
		f.endAll()
		if status.Signaled() {
			return errExit(128 + int(status.Signal()))
		}
		return errExit(status.ExitStatus())
	}
}

func shown(status syscall.WaitStatus) string {
	if status.Signaled() {
		return unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}

type first struct {
	log     *logrus.Logger
	signals chan os.Signal
	reaper  *linux.Reaper
	// ending: noded was told to end.
	ending  bool
	crashes []time.Time
}

// mayCrash counts a crash, and tells whether there may be another one.
func (f *first) mayCrash(now time.Time) bool {
	f.crashes = slices.DeleteFunc(append(f.crashes, now), func(at time.Time) bool { return now.Sub(at) > crashesTime })
	return len(f.crashes) < crashesMax
}

// serve starts a noded, hands signals on to it, and returns how it ended.
func (f *first) serve() (status syscall.WaitStatus, err error) {
	self, err := os.Executable()
	if err != nil {
		return status, fmt.Errorf("cannot find the own program: %w", err)
	}
	var pidfd int
	_, exited, err := f.reaper.Start(self, os.Args, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{PidFD: &pidfd},
	})
	if err != nil {
		return status, err
	}
	defer unix.Close(pidfd)
	for {
		select {
		case exit := <-exited:
			return exit.Status, nil
		case sig := <-f.signals:
			f.ending = f.ending || sig != syscall.SIGHUP
			if err := linux.PidfdSignal(pidfd, sig.(syscall.Signal)); err != nil && !errors.Is(err, unix.ESRCH) {
				f.log.Errorf("cannot hand a signal on to noded: %v", err)
			}
		}
	}
}

// endAll ends what runs in the container, and returns when nothing does. What does not
// end by SIGTERM ends with the container's patience.
func (f *first) endAll() {
	err := unix.Kill(-1, unix.SIGTERM)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		f.log.Errorf("cannot end what runs: %v", err)
		return
	}
	f.log.Info("noded has ended: the container ends when its steps have")
	<-f.reaper.NoChildren()
}
