package pmi2

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
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
			"PMI_JOBID=" + spec.ID.Key(),
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

// spawnFrames bounds the blocks of one PMI-1 spawn together, in FrameBytes: each
// command has a block of its own.
const spawnFrames = 16

// spawnRequest is what a rank wants to be started, as it comes together.
type spawnRequest struct {
	apps   []launch.SpawnApp
	preput []step.KeyValue
	// total counts the blocks that PMI-1 has announced, bytes the bytes of the
	// blocks that came.
	total, bytes int
	// held of the bytes are charged to what the step's ranks store.
	held int
}

func (s *spawnRequest) ntasks() (n int) {
	for i := range s.apps {
		n += s.apps[i].NTasks
	}
	return n
}

// hold charges the received part of a spawn, until release: many ranks may have begun
// one, and each may wait for noded with many.
func (s *state) hold(r *spawnRequest) *refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	more := r.bytes - r.held
	if s.bytes+more > s.conf.TotalBytes {
		return refuse(codeNoMemory, "the step's ranks store %d bytes: %d more of a spawn pass the limit %d (PMI2TotalBytes)", s.bytes, more, s.conf.TotalBytes)
	}
	s.bytes += more
	r.held = r.bytes
	return nil
}

func (s *state) release(r *spawnRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes -= r.held
	r.held = 0
}

// spawn1 takes one block of a PMI-1 spawn. The client reads one answer, after the
// last of its blocks: whole says that this was it. Where a block is bad, the
// blocks that follow are still this spawn's.
func (s *spawnRequest) take1(m message, conf *step.PMI2Conf) (whole bool, err error) {
	total, ok1 := m.number("totspawns")
	sofar, ok2 := m.number("spawnssofar")
	switch {
	case !ok1 || !ok2 || total < 1 || sofar < 1 || sofar > total:
		return true, fmt.Errorf("cannot read spawn: it has no totspawns and spawnssofar that fit")
	case total > launch.SpawnAppsMax:
		return true, fmt.Errorf("cannot spawn %d commands: the limit is %d", total, launch.SpawnAppsMax)
	case len(s.apps) > 0 && total != s.total, sofar != len(s.apps)+1:
		return true, fmt.Errorf("cannot read spawn: block %d of %d came after %d of %d", sofar, total, len(s.apps), s.total)
	}
	s.total = total
	for _, p := range m.pairs {
		s.bytes += len(p.key) + len(p.value)
	}
	if s.bytes > spawnFrames*conf.FrameBytes {
		return true, fmt.Errorf("cannot read spawn: its blocks have more than %d bytes (%d times PMI2FrameBytes)", spawnFrames*conf.FrameBytes, spawnFrames)
	}
	words := blockWords{
		command: "execname", ntasks: "nprocs", args: "arg", argCount: "argcnt", firstArg: 1,
		infoCount: "info_num", infoKey: "info_key_", infoValue: "info_val_",
	}
	app, err := words.app(m.pairs)
	if err != nil {
		return sofar == total, err
	}
	s.apps = append(s.apps, app)
	if sofar == 1 { // every block repeats them
		s.preput, err = keyValues(m.pairs, "preput_num", "preput_key_", "preput_val_")
	}
	return sofar == total, err
}

// take2 reads a PMI-2 spawn: what comes before the first subcmd is for all.
func (s *spawnRequest) take2(m message) (err error) {
	var at []int
	for i, p := range m.pairs {
		s.bytes += len(p.key) + len(p.value)
		if p.key == "subcmd" {
			at = append(at, i)
		}
	}
	if n, ok := m.number("ncmds"); !ok || n != len(at) || n < 1 || n > launch.SpawnAppsMax {
		return fmt.Errorf("cannot read spawn: %d commands, and ncmds says otherwise, or more than %d", len(at), launch.SpawnAppsMax)
	}
	if s.preput, err = keyValues(m.pairs[:at[0]], "preputcount", "ppkey", "ppval"); err != nil {
		return err
	}
	words := blockWords{
		command: "subcmd", ntasks: "maxprocs", args: "argv", argCount: "argc",
		infoCount: "infokeycount", infoKey: "infokey", infoValue: "infoval",
	}
	for i, from := range at {
		to := len(m.pairs)
		if i+1 < len(at) {
			to = at[i+1]
		}
		app, err := words.app(m.pairs[from:to])
		if err != nil {
			return err
		}
		s.apps = append(s.apps, app)
	}
	return nil
}

// checkPreput applies the limits on pairs to the new step's.
func (s *spawnRequest) checkPreput(st *state, version int) *refusal {
	if len(s.preput) > st.conf.KeysPerRank {
		return refuse(codeNoMemory, "spawn gives %d keys to the new ranks: more than %d (PMI2KeysPerRank)", len(s.preput), st.conf.KeysPerRank)
	}
	for _, kv := range s.preput {
		if why := st.check(version, kv.Key, string(kv.Value)); why != nil {
			return why
		}
	}
	return nil
}

// blockWords are the names that a protocol has for the parts of a command.
type blockWords struct {
	command, ntasks, args, argCount string
	firstArg                        int
	infoCount, infoKey, infoValue   string
}

func (w *blockWords) app(pairs []pair) (launch.SpawnApp, error) {
	m := message{pairs: pairs}
	name, _ := m.get(w.command)
	n, ok := m.number(w.ntasks)
	switch {
	case name == "":
		return launch.SpawnApp{}, fmt.Errorf("cannot spawn: there is no %s", w.command)
	case !ok || n < 1 || n > step.TasksMax:
		return launch.SpawnApp{}, fmt.Errorf("cannot spawn %s: %s is no number from 1 to %d", quote(name), w.ntasks, step.TasksMax)
	}
	args, err := numbered(pairs, w.argCount, w.args, w.firstArg)
	if err != nil {
		return launch.SpawnApp{}, err
	}
	app := launch.SpawnApp{Argv: append([]string{strings.Clone(name)}, args...), NTasks: n}
	app.Info, err = keyValues(pairs, w.infoCount, w.infoKey, w.infoValue)
	return app, err
}

func keyValues(pairs []pair, count, key, value string) ([]step.KeyValue, error) {
	keys, err := numbered(pairs, count, key, 0)
	if err != nil {
		return nil, err
	}
	values, err := numbered(pairs, count, value, 0)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	list := make([]step.KeyValue, len(keys))
	for i := range keys {
		list[i] = step.KeyValue{Key: keys[i], Value: []byte(values[i])}
	}
	return list, nil
}

// numbered collects the values of prefix0, prefix1 and so on, as many as count
// says, each once and none beyond. Without a count there is none.
func numbered(pairs []pair, count, prefix string, first int) ([]string, error) {
	m := message{pairs: pairs}
	text, ok := m.get(count)
	if !ok {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || int(n) > len(pairs) {
		return nil, fmt.Errorf("cannot spawn: %s is %s, and there are %d attributes", count, quote(text), len(pairs))
	}
	values, seen := make([]string, n), make([]bool, n)
	for _, p := range pairs {
		digits, ok := strings.CutPrefix(p.key, prefix)
		if !ok || p.key == count {
			continue
		}
		i, err := strconv.ParseUint(digits, 10, 31)
		if err != nil {
			continue // another attribute that begins like it
		}
		at := int(i) - first
		if at < 0 || at >= len(values) || seen[at] {
			return nil, fmt.Errorf("cannot spawn: %s comes twice, or beyond the %d that %s says", quote(p.key), n, count)
		}
		values[at], seen[at] = strings.Clone(p.value), true
	}
	for i, ok := range seen {
		if !ok {
			return nil, fmt.Errorf("cannot spawn: %s%d is missing", prefix, i+first)
		}
	}
	return values, nil
}

// errorCodes writes a code for each new rank, "" where that is longer than a
// client's line: it then takes them for zeros, or for the answer's.
func errorCodes(errs []int) string {
	const most = 800 // PMIU_MAXLINE is 1024
	var b strings.Builder
	for i, e := range errs {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(itoa(e))
		if b.Len() > most {
			return ""
		}
	}
	return b.String()
}
