package scripts

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// state is where a job's prolog stands.
type state string

// The states of a job's prolog.
const (
	waiting state = "waiting" // for the job's first step
	running state = "running"
	passed  state = "passed" // it has succeeded, or the job has none to run
	failed  state = "failed" // no step of the job may start
)

// moves are the legal changes of a state.
var moves = map[state][]state{waiting: {running, passed}, running: {passed, failed}}

// Job is what scripts have, and leave, in one job: where its prolog stands, the processes
// that were started, and the pipes that their children may still write to. Make it with
// NewJob.
type Job struct {
	id    uint32
	stack string        // the digest of its plugin stack; "" is not known
	ended chan struct{} // closed when the prolog has passed or failed

	mu      sync.Mutex
	state   state         // guarded by mu
	err     error         // why the prolog has failed; does not change when ended is closed
	ran     []step.Record // guarded by mu: the processes, as a Tracker wants them
	outputs []*output     // guarded by mu
	placed  bool          // guarded by mu: the scripts have a place, which is to be removed
}

// NewJob returns the scripts' part of a job whose prolog has not begun; stack is the digest of
// the plugin stack with which the job began, "" is not known.
func NewJob(id uint32, stack string) *Job {
	return &Job{id: id, stack: stack, state: waiting, ended: make(chan struct{})}
}

// Place is the place of the job's scripts: what they leave behind lives as long as the job.
func (j *Job) Place() step.ID { return step.ID{Job: j.id, Step: PlaceID} }

// Skip notes that the prolog of a job of an earlier noded has run, or is not to run any more.
func (j *Job) Skip() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.moveLocked(passed, nil)
}

// moveLocked changes the state; err is why the prolog has failed.
func (j *Job) moveLocked(to state, err error) error {
	if !slices.Contains(moves[j.state], to) {
		return fmt.Errorf("internal error: the prolog of job %d is %s and cannot become %s", j.id, j.state, to)
	}
	j.state, j.err = to, err
	if to == passed || to == failed {
		close(j.ended)
	}
	return nil
}

// begin reports whether the caller is to run the prolog; other callers wait for ended.
func (j *Job) begin() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.moveLocked(running, nil) == nil
}

// end ends the prolog that begin has begun.
func (j *Job) end(err error) error {
	to := passed
	if err != nil {
		to = failed
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if illegal := j.moveLocked(to, err); illegal != nil {
		return illegal
	}
	return err
}

// note records what the scripts have made, or left.
func (j *Job) note(made func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	made()
}

// Leave hands over what the scripts have left: the records of the places that the caller has
// to end, one for all processes or one for each, and a function that closes their outputs
// afterwards. No script has run where places is empty.
func (j *Job) Leave() (places []step.Record, closeOutputs func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	ran, outputs, placed := j.ran, j.outputs, j.placed
	j.ran, j.outputs, j.placed = nil, nil, false
	if placed {
		places = append(ran, step.Record{ID: j.Place()})
	}
	return places, func() {
		for _, o := range outputs {
			o.close()
		}
	}
}

// PlaceID is the step number under which a job's prolog and epilog have a place beside
// its steps (SLURM_PENDING_STEP, which no step has). It is never shown.
const PlaceID uint32 = 4294967293

// WriteBatch makes a batch script: a file that user alone may read, change and execute. A file
// of that name, left by an earlier noded, is replaced.
func WriteBatch(dir, name string, content []byte, user step.User) error {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(d)
	if err := unix.Unlinkat(d, name, 0); err != nil && err != unix.ENOENT {
		return err
	}
	fd, err := unix.Openat(d, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o700)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(content)
	if err == nil {
		// Last: until then only root can open it.
		err = f.Chown(int(user.UID), int(user.GID))
	}
	err = errors.Join(err, f.Close())
	// No fork of ours may keep the file open that was closed before: the user's execve of it
	// would fail with ETXTBSY. A fork has the lock until it has called exec. The file is not
	// written under the lock, because a disk that hangs would keep noded from forking.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return err
}
