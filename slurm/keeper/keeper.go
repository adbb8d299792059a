// Package keeper watches over a step daemon: a small process of its own, the keeper, notices
// that the daemon has died, kills the step and becomes the daemon's program once more, run with
// the argument Orphan, which removes and reports what is left. slurmd watches no step daemon.
//
// The keeper is the C program in folder program. This package starts it, and knows neither
// messages nor cgroups. Begin with Start.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// Orphan is the argument of the daemon's program for the end of a step whose daemon has died.
const Orphan = "--orphan"

// What a keeper inherits, as program/keeper.h has it.
const (
	fdLife   = 0
	fdDaemon = 3
	fdEstate = 4
	fdLock   = 5
	fdKill   = 6

	bye = 'b'
)

// Config is what a keeper needs. All but Cgroups, Lock and Stderr are
// required.
type Config struct {
	// Program is the path of stepkeeper.
	Program string
	// Step names the step in the keeper's title: "12.0".
	Step string
	// Cgroups are the step's cgroups, absolute, to be killed at the daemon's death; those
	// without a file cgroup.kill are left to the orphan.
	Cgroups []string
	// Lock is the file by which the step's cgroup is held (place.Place.Lock).
	Lock *os.File
	// Will is what the orphan must know. Marks is how many marks the daemon can set for it.
	Will  []byte
	Marks int
	// Stderr is where the keeper and the orphan write what no log has; nil is the caller's own.
	Stderr *os.File
	// Log reports that a keeper has died. It may be called from another goroutine.
	Log func(text string)
}

// Keeper is a step's keeper: the process, and the one that follows it should it be killed. Its
// methods may be called from several goroutines.
type Keeper struct {
	cfg    Config
	estate *estate
	self   *os.File // the daemon's own program
	kill   []*os.File
	lock   *os.File // Config.Lock, or /dev/null

	stop  context.CancelFunc
	ended chan struct{} // closed when follow has returned

	mu   sync.Mutex
	life *os.File // guarded by mu; nil where no keeper runs
	done bool     // guarded by mu
}

// Start starts the keeper of the caller, a step daemon, before anything of the step runs.
func Start(cfg Config) (*Keeper, error) {
	k := &Keeper{cfg: cfg, ended: make(chan struct{})}
	if err := k.open(); err != nil {
		k.close()
		return nil, fmt.Errorf("cannot start the step's keeper: %w", err)
	}
	pidfd, err := k.start()
	if err != nil {
		k.close()
		return nil, fmt.Errorf("cannot start the step's keeper: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	k.stop = stop
	go k.follow(ctx, pidfd)
	return k, nil
}

// open opens what the keepers inherit.
func (k *Keeper) open() (err error) {
	if k.estate, err = newEstate(k.cfg.Will, k.cfg.Marks); err != nil {
		return err
	}
	// Held open: the file may be replaced or removed while the step runs.
	if k.self, err = os.Open("/proc/self/exe"); err != nil {
		return err
	}
	for _, dir := range k.cfg.Cgroups {
		f, err := os.OpenFile(filepath.Join(dir, "cgroup.kill"), os.O_WRONLY, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		k.kill = append(k.kill, f)
	}
	if k.lock = k.cfg.Lock; k.lock == nil {
		k.lock, err = os.Open(os.DevNull)
	}
	return err
}

// close closes what open has opened. The lock stays the caller's.
func (k *Keeper) close() {
	if k.estate != nil {
		k.estate.close()
	}
	if k.self != nil {
		k.self.Close()
	}
	for _, f := range k.kill {
		f.Close()
	}
	if k.cfg.Lock == nil && k.lock != nil {
		k.lock.Close()
	}
}

// start starts a process. It is the daemon's sibling and not its child: to tell children that
// serve the step from those that are its own costs each step's end more than a millisecond
// (measured), and init reaps this one.
func (k *Keeper) start() (pidfd int, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return -1, fmt.Errorf("cannot make a pipe: %w", err)
	}
	defer r.Close()
	stderr := uintptr(2)
	if k.cfg.Stderr != nil {
		stderr = k.cfg.Stderr.Fd()
	}
	files := []uintptr{fdLife: r.Fd(), 1: stderr, 2: stderr, fdDaemon: k.self.Fd(), fdEstate: k.estate.file.Fd(), fdLock: k.lock.Fd()}
	for _, f := range k.kill {
		files = append(files, f.Fd())
	}
	_, _, err = syscall.StartProcess(k.cfg.Program, []string{fmt.Sprintf("stepkeeper: [%s]", k.cfg.Step)}, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: files,
		// A session of its own: what signals the daemon's group does not reach it.
		Sys: &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_PARENT, PidFD: &pidfd},
	})
	if err != nil {
		w.Close()
		return -1, fmt.Errorf("cannot start %q: %w", k.cfg.Program, err)
	}
	k.mu.Lock()
	k.life = w
	k.mu.Unlock()
	return pidfd, nil
}

// startsMax is how many keepers a step has, one after the other: where more of them die, what
// kills them would kill all.
const startsMax = 10

// follow waits for the keeper's end, and starts another one, until Done.
func (k *Keeper) follow(ctx context.Context, pidfd int) {
	defer close(k.ended)
	for starts := 1; ; starts++ {
		err := linux.PidfdWait(ctx, pidfd)
		unix.Close(pidfd)
		if ctx.Err() != nil {
			return
		}
		if err == nil && starts == startsMax {
			err = fmt.Errorf("%d have died", starts)
		}
		k.mu.Lock()
		k.life.Close()
		k.life = nil
		k.mu.Unlock()
		if err == nil {
			pidfd, err = k.start()
		}
		if err != nil {
			k.cfg.Log(fmt.Sprintf("the step has no keeper any more: %v", err))
			return
		}
		k.cfg.Log("the step's keeper has died, and another one watches over the step")
	}
}

// Mark sets bits of a mark for the orphan, beside those that it has.
func (k *Keeper) Mark(i int, bits uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.done {
		k.estate.mark(i, bits)
	}
}

// Done says goodbye to the keeper: the daemon has ended its step by itself. It may be called
// again.
func (k *Keeper) Done() {
	k.stop()
	<-k.ended // no other keeper is started
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.done {
		return
	}
	k.done = true
	if k.life != nil {
		_, _ = k.life.Write([]byte{bye}) // EPIPE: it has died
		k.life.Close()
	}
	k.close()
}
