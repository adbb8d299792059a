package pmi2

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"stepd/step"
	"stepd/step/launch"
)

// Plugin serves PMI-1 and PMI-2 to a step's tasks on one node, and agrees with the
// plugins of its other nodes by launch.Peers. Make it
// with New, call Prefork once, TaskExited for each task that ended, and Close
// at the end; it serves one step only.
type Plugin struct {
	conf step.PMI2Conf

	mu      sync.Mutex
	started bool // guarded by mu
	closed  bool // guarded by mu

	// Set by Prefork, before any goroutine runs.
	job     launch.MPIJob
	state   *state
	closing chan struct{} // closed by Close
	// ctx ends with Close.
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// Name is the plugin's in --mpi and MpiDefault.
const Name = "pmi2"

// New makes a plugin; conf's zero value means the defaults.
func New(conf step.PMI2Conf) *Plugin {
	p := &Plugin{conf: withDefaults(conf), closing: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Prefork makes one socketpair per task and serves our ends from now on. The
// tasks' ends are in the answer; who receives them closes them. It is called
// as root, once, before the first fork.
//
// job.Abort and job.Log are called from the plugin's own goroutines, never
// from within Prefork, TaskExited or Close; they must not wait for Close.
// Abort is called once at most: because a rank asked for it (code is then what
// the rank said, any 32-bit number), because a rank ended between init and
// finalize, or because ranks wait in a fence that another one will never enter
// (code is then that rank's, as a shell has it, or 1). It may come while the
// step is being killed, since a killed rank has not finalized either.
func (p *Plugin) Prefork(ctx context.Context, job launch.MPIJob) (launch.MPITasks, error) {
	if job.Spec == nil || job.Spec.NTasks < 1 || job.Abort == nil || job.Log == nil {
		return launch.MPITasks{}, errors.New("internal error: MPI prefork needs a spec with tasks, Abort and Log")
	}
	if job.Spec.Layout != nil && job.Peers == nil {
		return launch.MPITasks{}, errors.New("internal error: MPI prefork of a step of several nodes needs its Peers")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.started || p.closed {
		return launch.MPITasks{}, errors.New("internal error: MPI prefork called twice, or after close")
	}
	st, theirs, err := p.makeRanks(ctx, job.Spec)
	if err != nil {
		return launch.MPITasks{}, err
	}
	p.started, p.job, p.state = true, job, st
	st.tell = job.Progress
	if job.Peers != nil {
		job.Peers.Handle(callWhere, func(context.Context, int, []byte) ([]byte, error) { return []byte(st.absent()), nil })
	}
	for _, r := range st.ranks {
		p.running.Go(func() { p.serve(r) })
	}
	return tasks(job.Spec, theirs), nil
}

// makeRanks makes all ranks with their socketpairs, or none.
func (p *Plugin) makeRanks(ctx context.Context, spec *step.Spec) (st *state, theirs []*os.File, err error) {
	st = newState(spec, p.conf)
	defer func() {
		if err == nil {
			return
		}
		for i, r := range st.ranks {
			r.conn.close()
			theirs[i].Close()
		}
	}()
	ranks := spec.LocalRanks()
	for _, n := range ranks {
		if err := context.Cause(ctx); err != nil {
			return st, theirs, fmt.Errorf("cannot make PMI sockets for %d tasks: %w", len(ranks), err)
		}
		c, child, err := newPair(p.conf.QueueBytes, &p.running)
		if errors.Is(err, syscall.EMFILE) {
			err = fmt.Errorf("%w: each task needs 2 descriptors of stepd until it is forked (raise LimitNOFILE of noded)", err)
		}
		if err != nil {
			return st, theirs, fmt.Errorf("cannot make PMI socket of task %d of %d: %w", n, spec.NTasks, err)
		}
		st.ranks = append(st.ranks, &rank{n: n, app: spec.AppOf(n), conn: c, phase: phaseNew, exited: make(chan struct{})})
		theirs = append(theirs, child)
	}
	return st, theirs, nil
}

// tasks gives each rank its server's place and its own rank. PMI_ID and
// PMI_SPAWNED are set as well, so that a surrounding mpiexec's do not reach
// the rank: PMI-2 clients believe PMI_ID before PMI_RANK.
func tasks(spec *step.Spec, theirs []*os.File) launch.MPITasks {
	out := launch.MPITasks{
		TaskEnv: make([][]string, len(theirs)),
		TaskFDs: make([][]launch.TaskFD, len(theirs)),
	}
	ranks := spec.LocalRanks()
	spawned := "0"
	if spec.Parent != nil {
		spawned = "1"
	}
	for n, file := range theirs {
		number := strconv.Itoa(ranks[n])
		out.TaskEnv[n] = []string{
			"PMI_RANK=" + number,
			"PMI_ID=" + number,
			"PMI_SIZE=" + strconv.Itoa(spec.NTasks),
			"PMI_JOBID=" + spec.ID.String(),
			"PMI_SPAWNED=" + spawned,
		}
		out.TaskFDs[n] = []launch.TaskFD{{File: file, Var: "PMI_FD"}}
	}
	return out
}

// TaskExited reports that the task of a rank ended. It does not wait: the rank's
// goroutine first serves what the task had sent before its end.
func (p *Plugin) TaskExited(n int, status step.ExitStatus) {
	p.mu.Lock()
	started := p.started
	p.mu.Unlock()
	if !started {
		return
	}
	r := p.state.rank(n)
	if r == nil {
		return // another node's
	}
	r.exit.Do(func() {
		r.exitedAs = status
		close(r.exited)
		// A child of the task may hold the rank's end open for ever.
		r.conn.shut()
	})
}

// Close ends all connections and waits for the goroutines. It is idempotent,
// and must not be called from within Abort or Log, which are not called again
// once it has returned.
func (p *Plugin) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	started := p.started
	p.mu.Unlock()
	if first {
		close(p.closing)
		p.cancel()
		if started {
			for _, r := range p.state.ranks {
				r.conn.close()
			}
		}
	}
	p.running.Wait()
	return nil
}

// withDefaults fills the limits that the site left out.
func withDefaults(c step.PMI2Conf) step.PMI2Conf {
	set := func(field *int, value int) {
		if *field <= 0 {
			*field = value
		}
	}
	set(&c.KeyBytes1, 256)
	set(&c.KeyBytes2, 64)
	set(&c.ValueBytes, 1024)
	set(&c.FrameBytes, 64<<10)
	set(&c.Attributes, 1024)
	set(&c.KeysPerRank, 4096)
	set(&c.TotalBytes, 32<<20)
	set(&c.QueueBytes, 256<<10)
	set(&c.WaitsPerRank, 64)
	if c.CloseGrace <= 0 {
		c.CloseGrace = time.Second
	}
	return c
}
