// Package keeper watches over a step daemon: a small process of its own, the keeper, notices
// that the daemon has died, kills the step and becomes the daemon's program once more, run with
// the argument Orphan, which removes and reports what is left. slurmd watches no step daemon.
//
// The keeper is the C program in folder program. This package starts it, and knows neither
// messages nor cgroups. Begin with Start.
package keeper

import (
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

// Config is what a keeper needs. All but Kill and Lock are required.
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
	// Start starts a program beside the tasks (wire.Starter).
	Start func(path string, argv []string, attr *syscall.ProcAttr) (pid int, exited <-chan linux.Exit, err error)
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

	mu    sync.Mutex
	life  *os.File // guarded by mu; nil where no keeper runs
	done  bool     // guarded by mu
	ended chan struct{}
}

// Start starts the keeper of the caller, a step daemon, before anything of the step runs.
func Start(cfg Config) (*Keeper, error) {
	k := &Keeper{cfg: cfg, ended: make(chan struct{})}
	if err := k.open(); err != nil {
		k.close()
		return nil, fmt.Errorf("cannot start the step's keeper: %w", err)
	}
	exited, err := k.start()
	if err != nil {
		k.close()
		return nil, fmt.Errorf("cannot start the step's keeper: %w", err)
	}
	go k.follow(exited)
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

// start starts a process.
func (k *Keeper) start() (<-chan linux.Exit, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make a pipe: %w", err)
	}
	defer r.Close()
	files := []uintptr{fdLife: r.Fd(), 1: 1, 2: 2, fdDaemon: k.self.Fd(), fdEstate: k.estate.file.Fd(), fdLock: k.lock.Fd()}
	for _, f := range k.kill {
		files = append(files, f.Fd())
	}
	_, exited, err := k.cfg.Start(k.cfg.Program, []string{fmt.Sprintf("stepkeeper: [%s]", k.cfg.Step)}, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: files,
		// A session of its own: what signals the daemon's group does not reach it.
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		w.Close()
		return nil, err
	}
	k.mu.Lock()
	k.life = w
	k.mu.Unlock()
	return exited, nil
}

// A keeper that has died is followed by another, startsMax times: where more of them die,
// something kills them that would kill all.
const startsMax = 10

// follow waits for the keeper's end, and starts another one until Done.
func (k *Keeper) follow(exited <-chan linux.Exit) {
	defer close(k.ended)
	for starts := 1; ; starts++ {
		exit := <-exited
		k.mu.Lock()
		k.life.Close()
		k.life = nil
		done := k.done
		k.mu.Unlock()
		if done {
			return
		}
		if starts == startsMax {
			k.cfg.Log(fmt.Sprintf("the step has no keeper any more: %d have died", starts))
			return
		}
		next, err := k.start()
		if err != nil {
			k.cfg.Log(fmt.Sprintf("the step has no keeper any more: %v", err))
			return
		}
		exited = next
		k.cfg.Log(fmt.Sprintf("the step's keeper has died (%s), and another one watches over the step", ending(exit.Status)))
		k.mu.Lock()
		if k.done { // since the look above
			k.goodbye()
		}
		k.mu.Unlock()
	}
}

// ending names how a process ended.
func ending(s syscall.WaitStatus) string {
	if s.Signaled() {
		return unix.SignalName(s.Signal())
	}
	return fmt.Sprintf("exit code %d", s.ExitStatus())
}

// Mark sets a mark for the orphan.
func (k *Keeper) Mark(i int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.done && i >= 0 && i < k.estate.marks {
		k.estate.bytes[estateHead+i] = 1
	}
}

// Done says goodbye to the keeper and waits for its end: the daemon has ended its step by
// itself. It may be called again.
func (k *Keeper) Done() {
	k.mu.Lock()
	first := !k.done
	k.done = true
	k.goodbye()
	k.mu.Unlock()
	<-k.ended
	if first {
		k.close()
	}
}

// goodbye is said once to each process; the caller holds mu.
func (k *Keeper) goodbye() {
	if k.life != nil {
		_, _ = k.life.Write([]byte{bye}) // EPIPE: it has died, which follow learns
	}
}
