package pmi2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"stepd/step"
)

// logsPerRank bounds the lines that one rank can make stepd log.
const logsPerRank = 8

// Plugin serves PMI-1 and PMI-2 to the tasks of one step on one node. Make it
// with New, call Prefork once, TaskExited for each task that ended, and Close
// at the end; it serves one step only.
type Plugin struct {
	conf Config

	mu      sync.Mutex
	started bool // guarded by mu
	closed  bool // guarded by mu

	// Set by Prefork, before any goroutine runs.
	job     step.MPIJob
	state   *state
	closing chan struct{} // closed by Close
	running sync.WaitGroup
}

// New makes a plugin; conf's zero value means the defaults.
func New(conf Config) *Plugin {
	return &Plugin{conf: conf.withDefaults(), closing: make(chan struct{})}
}

// Prefork makes one socketpair per task and serves our ends from now on. The
// tasks' ends are in the answer; who receives them closes them. It is called
// as root, once, before the first fork.
//
// job.Abort and job.Log are called from the plugin's own goroutines, never
// from within Prefork, TaskExited or Close; they must not wait for Close.
// Abort is called once at most: because a rank asked for it, because a rank
// ended between init and finalize, or because ranks wait in a fence that
// another one will never enter.
func (p *Plugin) Prefork(ctx context.Context, job step.MPIJob) (step.MPITasks, error) {
	if job.Spec == nil || job.Spec.NTasks < 1 || job.Abort == nil || job.Log == nil {
		return step.MPITasks{}, errors.New("internal error: MPI prefork needs a spec with tasks, Abort and Log")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.started || p.closed {
		return step.MPITasks{}, errors.New("internal error: MPI prefork called twice, or after close")
	}
	st, theirs, err := p.makeRanks(ctx, job.Spec)
	if err != nil {
		return step.MPITasks{}, err
	}
	p.started, p.job, p.state = true, job, st
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
	for n := range spec.NTasks {
		if err := context.Cause(ctx); err != nil {
			return st, theirs, fmt.Errorf("cannot make PMI sockets for %d tasks: %w", spec.NTasks, err)
		}
		c, child, err := newPair(p.conf.QueueBytes, &p.running)
		if errors.Is(err, syscall.EMFILE) {
			err = fmt.Errorf("%w: each task needs 2 descriptors of stepd until it is forked (raise LimitNOFILE of noded)", err)
		}
		if err != nil {
			return st, theirs, fmt.Errorf("cannot make PMI socket of task %d of %d: %w", n, spec.NTasks, err)
		}
		st.ranks = append(st.ranks, &rank{n: n, conn: c, phase: phaseNew, exited: make(chan struct{})})
		theirs = append(theirs, child)
	}
	return st, theirs, nil
}

// tasks tells each rank where its server is and who it is. PMI_ID and
// PMI_SPAWNED are set as well, so that those of a surrounding mpiexec do not
// reach the rank: PMI-2 clients believe PMI_ID before PMI_RANK.
func tasks(spec *step.Spec, theirs []*os.File) step.MPITasks {
	out := step.MPITasks{
		TaskEnv: make([][]string, len(theirs)),
		TaskFDs: make([][]step.TaskFD, len(theirs)),
	}
	for n, file := range theirs {
		number := strconv.Itoa(n)
		out.TaskEnv[n] = []string{
			"PMI_RANK=" + number,
			"PMI_ID=" + number,
			"PMI_SIZE=" + strconv.Itoa(spec.NTasks),
			"PMI_JOBID=" + spec.ID.String(),
			"PMI_SPAWNED=0",
		}
		out.TaskFDs[n] = []step.TaskFD{{File: file, Var: "PMI_FD"}}
	}
	return out
}

// TaskExited tells that a task ended. It does not wait: the rank's goroutine
// first serves what the task had sent before its end.
func (p *Plugin) TaskExited(n int, status step.ExitStatus) {
	p.mu.Lock()
	started := p.started
	p.mu.Unlock()
	if !started || n < 0 || n >= len(p.state.ranks) {
		return
	}
	r := p.state.ranks[n]
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
		if started {
			for _, r := range p.state.ranks {
				r.conn.close()
			}
		}
	}
	p.running.Wait()
	return nil
}

// serve is a rank's goroutine: it answers until the rank's end of the socket
// is closed, then waits for the task's end, and judges it.
func (p *Plugin) serve(r *rank) {
	defer r.conn.close()
	err := p.talk(r)
	r.conn.shut()
	if err != nil && !p.isClosing() {
		p.log(r, "connection closed: "+err.Error())
	}
	timer := time.NewTimer(p.conf.CloseGrace)
	defer timer.Stop()
	for {
		select {
		case <-p.closing:
			return
		case <-r.exited:
			p.settle(p.state.ended(r, r.exitedAs))
			return
		case <-timer.C:
			// The task closed its end and lives on: no status will tell why.
			p.settle(p.state.hungUp(r))
		}
	}
}

// talk reads the first line, which decides the protocol, and goes on in it.
// It returns nil where the rank's bytes ended cleanly.
func (p *Plugin) talk(r *rank) error {
	in := &reader{src: r.conn.file, max: p.conf.FrameBytes}
	err := p.greet(r, in)
	switch {
	case err == nil || err == io.EOF:
		return nil
	case errors.Is(err, syscall.ECONNRESET) || errors.Is(err, os.ErrClosed):
		// Reset: the task ended with answers unread.
		return nil
	}
	return err
}

func (p *Plugin) greet(r *rank, in *reader) error {
	text, err := in.line()
	if err != nil {
		return err
	}
	m, err := parseLine(text, p.conf.Attributes)
	if err != nil {
		return err
	}
	if m.cmd != "init" || m.multi {
		return fmt.Errorf("cannot begin with PMI command %s: want cmd=init", quote(m.cmd))
	}
	switch version, _ := m.number("pmi_version"); version {
	case 1:
		r.speaks = 1
		if err := p.command1(r, m); err != nil {
			return err
		}
		return p.serve1(r, in)
	case 2:
		r.speaks = 2
		p.settle(p.state.advance(r, phaseHello))
		p.send(r, line1("response_to_init", pair{"pmi_version", "2"}, pair{"pmi_subversion", "0"}, pair{"rc", "0"}))
		return p.serve2(r, in)
	}
	p.send(r, line1("response_to_init", pair{"pmi_version", "2"}, pair{"pmi_subversion", "0"}, pair{"rc", "-1"}))
	text, _ = m.get("pmi_version")
	return fmt.Errorf("cannot speak PMI version %s: want 1 or 2", quote(text))
}

// settle sends what an outcome holds, and ends the step if it says so. The
// state's lock is free: Abort may be slow.
func (p *Plugin) settle(out outcome) {
	for _, d := range out.deliveries {
		p.send(d.to, d.data)
	}
	if out.abort != nil && !p.isClosing() {
		p.job.Abort(out.abort.rank, out.abort.code, out.abort.text)
	}
}

func (p *Plugin) send(r *rank, data []byte) {
	if err := r.conn.send(data); err != nil {
		p.log(r, "connection closed: "+err.Error())
	}
}

// log writes a line about a rank, unless the rank had its share.
func (p *Plugin) log(r *rank, text string) {
	p.state.mu.Lock()
	r.logged++
	share := r.logged
	p.state.mu.Unlock()
	switch {
	case share > logsPerRank:
		return
	case share == logsPerRank:
		text += " (further messages of this rank are dropped)"
	}
	p.job.Log(fmt.Sprintf("mpi/pmi2: rank %d: %s", r.n, text))
}

func (p *Plugin) isClosing() bool {
	select {
	case <-p.closing:
		return true
	default:
		return false
	}
}
