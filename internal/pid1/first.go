// Package pid1 is noded as process 1 of a container: it starts noded once more as its child,
// reaps what loses its parent, and starts noded again when it crashes. Begin with Run.
package pid1

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// A noded that crashes, or cannot be started, is started again, but not for ever: the
// crashesMax-th time within crashesTime it is not. Each time is given twice the pause of
// the one before, 12.7 s in all: what it lacks may come back, as processes or memory.
const (
	crashesMax  = 8
	crashesTime = 30 * time.Second
	crashPause  = 100 * time.Millisecond
)

// Exit ends this process with a code, and nothing more is said.
type Exit int

func (e Exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Run is the life of process 1, which noded is as the entry point of a container.
// An orphan becomes its child and has to be reaped, and with its end the
// kernel kills all that runs in the container, without a message. So process 1
// does nothing but that, and noded is its child: the end of that one is none of the steps'
// until the container is to end, and then they have the time that it has (`podman stop
// --time`) to end by SIGTERM as when a host goes down.
func Run(log *logrus.Logger) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot make process 1 undumpable: %w", err)
	}
	f := &first{log: log, signals: make(chan os.Signal, 4), reaper: linux.NewReaper(nil, nil), pause: crashPause}
	defer f.reaper.Close()
	f.serve, f.end = f.serveOnce, f.endAll
	signal.Notify(f.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	return f.run()
}

// run serves until the container is to end, and ends it.
func (f *first) run() error {
	for {
		status, err := f.serve()
		if f.again(status, err) {
			continue
		}
		f.end()
		switch {
		case err != nil:
			return Exit(1) // again has reported why
		case status.Signaled():
			return Exit(128 + int(status.Signal()))
		}
		return Exit(status.ExitStatus())
	}
}

// again reports whether noded, which has ended or was not started, is to be started again,
// and returns when.
func (f *first) again(status syscall.WaitStatus, err error) bool {
	why := err
	if err == nil {
		why = fmt.Errorf("noded has ended with %s", shown(status))
	}
	now := time.Now()
	f.crashes = slices.DeleteFunc(f.crashes, func(at time.Time) bool { return now.Sub(at) > crashesTime })
	// 2 is a panicking Go program's. Where noded, started again after a crash, misses
	// something, as its spool, it ends with 1: steps run then as well.
	crashed := err != nil || status.Signaled() || status.ExitStatus() == 2 || status.ExitStatus() != 0 && len(f.crashes) > 0
	if f.ending || !crashed {
		return false
	}
	if f.crashes = append(f.crashes, now); len(f.crashes) >= crashesMax {
		f.log.Errorf("%v, for the %dth time within %v: the container ends", why, crashesMax, crashesTime)
		return false
	}
	f.log.Errorf("%v: starting it again; steps go on", why)
	pause := time.After(f.pause << (len(f.crashes) - 1))
	for !f.ending {
		select {
		case <-pause:
			return true
		case sig := <-f.signals:
			f.ending = sig != syscall.SIGHUP // of which nothing is left to do
		}
	}
	return false
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
	// serve and end are serveOnce and endAll.
	serve func() (syscall.WaitStatus, error)
	end   func()
	// pause is that after the first crash.
	pause time.Duration
	// ending: noded got SIGTERM.
	ending  bool
	crashes []time.Time
}

// serveOnce starts a noded, hands signals on to it, and returns how it ended.
func (f *first) serveOnce() (status syscall.WaitStatus, err error) {
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

// endStepds sends SIGTERM to each stepd. They come before all others: a client that has got the
// signal cancels its step, whose record is to say that the node went down.
func (f *first) endStepds() {
	names, _ := filepath.Glob("/proc/[0-9]*/comm") // the pattern is no mistake
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err != nil || string(comm) != "stepd\n" {
			continue // it has ended, or is no stepd
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			_ = unix.Kill(pid, unix.SIGTERM) // all get it after this, and this process knows why not
		}
	}
}

// endAll ends what runs in the container, and returns when nothing does. What does not
// end by SIGTERM ends with the container's patience.
func (f *first) endAll() {
	f.endStepds()
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
