// Package task is the story of one step, from the plan to the result. MakePlan
// decides, without touching anything; Step.Run does it: the stages of the launch in
// run.go, the running step in loop.go, the end in teardown.go.
//
// It knows its neighbours (the tracker, the SPANK host, the MPI plugin, the
// audience) only by the interfaces in ports.go; package stepd wires them.
package task

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

// Plan is what will happen, decided before anything does: environments,
// streams and names. It is a pure function of the Spec.
type Plan struct {
	Spec *step.Spec
	// Ranks are the ranks of this node's tasks, ascending: a local id is a
	// place in it. What there is one of for each task is counted by local id.
	Ranks []int
	// Env is the job's environment as plugins see it at init.
	Env []string
	// HostEnv is the host's own environ.
	HostEnv []string
	// CommonEnv and TaskEnv[id] are set over the job's environment before
	// task_init.
	CommonEnv []string
	TaskEnv   [][]string
	// Streams are the streams that are known before a client has attached its own.
	Streams []launch.TaskStream
	// NeedClient[fd]: a client must attach that stream.
	NeedClient [3]bool
}

// MakePlan plans the step. It fails only on a Spec that noded's validation
// would have refused.
func MakePlan(spec *step.Spec) (*Plan, error) {
	p := &Plan{
		Spec:    spec,
		Ranks:   spec.LocalRanks(),
		HostEnv: hostEnv(spec),
	}
	if isBatch(spec) {
		p.Env, p.CommonEnv = batchEnv(spec), batchCommonEnv(spec)
	} else {
		p.Env, p.CommonEnv = jobEnv(spec), commonEnv(spec, p.Ranks)
	}
	if spec.EnvComplete {
		p.Env = spec.Env
		if spec.PropagatePrio != prioOff { // as hidePriority
			p.Env = slices.DeleteFunc(slices.Clone(p.Env), func(e string) bool { return strings.HasPrefix(e, prioVariable+"=") })
		}
	}
	p.CommonEnv = append(p.CommonEnv, spec.TaskEnv...)
	p.TaskEnv = make([][]string, len(p.Ranks))
	for id, rank := range p.Ranks {
		p.TaskEnv[id] = []string{"SLURM_PROCID=" + strconv.Itoa(spec.SeenRank(rank)), "SLURM_LOCALID=" + strconv.Itoa(id)}
	}
	for fd, s := range [3]step.Stream{spec.Stdin, spec.Stdout, spec.Stderr} {
		if err := p.planStream(fd, s); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// localID is the place of a rank among this node's tasks; ours is false where
// another node has it.
func (p *Plan) localID(rank int) (id int, ours bool) { return slices.BinarySearch(p.Ranks, rank) }

// planStream adds what is known of stream fd.
func (p *Plan) planStream(fd int, s step.Stream) error {
	if s.Rank != nil {
		// One task has the stream; the others read and write nothing.
		p.Streams = append(p.Streams, launch.TaskStream{LocalID: launch.AllRanks, FD: fd, Kind: launch.StreamToNull})
	}
	id := launch.AllRanks
	if s.Rank != nil {
		var ours bool
		if id, ours = p.localID(*s.Rank); !ours {
			return nil // another node's
		}
	}
	switch s.Kind {
	case step.StreamNull:
		p.Streams = append(p.Streams, launch.TaskStream{LocalID: id, FD: fd, Kind: launch.StreamToNull})
	case step.StreamSame:
		p.Streams = append(p.Streams, launch.TaskStream{LocalID: id, FD: fd, Kind: launch.StreamToStdout})
	case step.StreamClient:
		p.NeedClient[fd] = true
	case step.StreamFile:
		return p.planFile(fd, id, s)
	default:
		return fmt.Errorf("cannot plan stream %d: unknown kind %q", fd, s.Kind)
	}
	return nil
}

// planFile expands the pattern: once where no rank is in it, so that all tasks
// open the same path, else for each task.
func (p *Plan) planFile(fd, id int, s step.Stream) error {
	flags := syscall.O_RDONLY
	if fd != 0 {
		flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_APPEND
		if !s.Append {
			flags |= syscall.O_TRUNC
		}
	}
	kind := launch.StreamToPath
	if isBatch(p.Spec) && fd != 0 {
		kind = launch.StreamToEarlyPath // it has no client that would get failures
	}
	add := func(id, rank int) error {
		path, err := srunopt.ExpandPattern(s.Pattern, p.Spec, rank)
		p.Streams = append(p.Streams, launch.TaskStream{LocalID: id, FD: fd, Kind: kind, Path: path, Flags: flags})
		return err
	}
	switch {
	case id != launch.AllRanks:
		return add(id, p.Ranks[id])
	case !srunopt.PatternHas(s.Pattern, "t"):
		return add(id, 0)
	}
	for id, rank := range p.Ranks {
		if err := add(id, rank); err != nil {
			return err
		}
	}
	return nil
}

// isBatch reports whether the step is a job's batch script.
func isBatch(s *step.Spec) bool { return s.ID.Step == step.BatchStep }

// Deps are a step's neighbours.
type Deps struct {
	Tracker Tracker
	MPI     MPI // nil without one
	// Peers is nil where the step has one node, and Job where its job has no services: both
	// are the MPI plugin's.
	Peers launch.Peers
	Job   launch.MPIServices
	// Aborted is called once when MPI has ended the step on this node, before its tasks end. It
	// must not wait, and may be nil.
	Aborted    func(rank, code int, text string)
	Spawned    Spawned // nil where the tasks cannot start steps
	Output     Output
	Plugins    []Plugin
	Accounting Accounting
	Audience   Audience
	Streams    Streams
	// StartHost runs spankhost, born in the cgroup cgroupFD (-1: in ours).
	StartHost func(cgroupFD int) (Host, error)
	// NoChildren returns a channel that is closed when stepd has no children
	// left: no process of the step is then alive or unreaped.
	NoChildren func() <-chan struct{}
	// Namespaces are the namespaces of the job's container.
	Namespaces launch.Namespaces
	// Now is the clock.
	Now func() time.Time
}

// Step is one step on this node. Make it with New, then call Run once. The
// other methods may be called from any goroutine.
//
// Its components know each other in one direction, in the order of the fields, and
// each has its own lock where others than Run's goroutine use it.
type Step struct {
	plan *Plan
	d    Deps

	messages *messages
	ledger   *ledger
	causes   *causes
	killing  *killBudget
	host     *hostProcess
	tasks    *taskTable
	progress *mpiProgress
	plugins  *pluginChain
	killer   *killer
	*clientStreams
	*suspension
	*signals

	gate       gate
	hookErrors hookErrors
	undo       []undo
	left       exitHelpers
}

// gate holds the tasks until all of them are tracked. Only Run's goroutine uses it.
type gate struct {
	pipe   *os.File // the write end, which stepd alone has; nil before and after
	opened bool
}

func (g *gate) close() {
	if g.pipe != nil {
		g.pipe.Close()
		g.pipe = nil
	}
}

// undo takes one thing back that a stage has made.
type undo struct {
	name string
	do   func() error
}

func (s *Step) push(name string, do func() error) { s.undo = append(s.undo, undo{name, do}) }

// New makes the step of a plan.
func New(p *Plan, d Deps) *Step {
	s := &Step{plan: p, d: d}
	s.messages = &messages{plan: p, audience: d.Audience, now: d.Now}
	s.ledger = newLedger(p, s.messages, d.Streams)
	s.causes = newCauses()
	s.killing = &killBudget{seconds: p.Spec.UnkillableS, messages: s.messages, ledger: s.ledger, causes: s.causes}
	s.host = newHostProcess(p, &d, s.messages, s.ledger, s.causes, s.killing)
	s.tasks = newTaskTable(p.Ranks)
	s.progress = &mpiProgress{used: d.MPI != nil, messages: s.messages, ledger: s.ledger, host: s.host, tasks: s.tasks}
	s.plugins = &pluginChain{list: d.Plugins, tasks: s.tasks}
	s.clientStreams = newClientStreams(p, s.causes)
	s.suspension = newSuspension(d.Tracker, s.messages, s.ledger, s.causes, s.host)
	s.killer = &killer{
		plan: p, tracker: d.Tracker, messages: s.messages, causes: s.causes, budget: s.killing,
		host: s.host, tasks: s.tasks, suspension: s.suspension, escaped: make(map[int]bool),
	}
	s.signals = &signals{
		plan: p, tracker: d.Tracker, messages: s.messages, ledger: s.ledger,
		host: s.host, tasks: s.tasks, suspension: s.suspension,
	}
	return s
}

// Record is a copy of the step's record as it is now.
func (s *Step) Record() step.Record { return s.ledger.copy() }

// PIDs lists the processes of the tasks. The host, which may live among them for the first
// milliseconds, is none.
func (s *Step) PIDs() ([]int, error) {
	pids, err := s.d.Tracker.PIDs()
	return slices.DeleteFunc(pids, s.host.isHost), err
}

// Stat is the record with what the tasks have used until now, and what the
// processes do.
func (s *Step) Stat() step.Record {
	s.d.Accounting.Sample()
	rec := s.Record()
	if rec.Usage == nil || !rec.Usage.Final {
		s.d.Accounting.Fill(&rec)
	}
	s.progress.lookNow(&rec)
	return rec
}

// ChildEnded is called by the process's one reaper for every child of stepd,
// subreaped ones included.
func (s *Step) ChildEnded(pid int, status step.ExitStatus, usage *launch.Usage) {
	if !s.host.childEnded(pid, status) && !s.tasks.childEnded(pid, status, usage) {
		s.d.Accounting.OrphanEnded(pid, usage)
	}
}
