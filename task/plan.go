package task

import (
	"fmt"
	"slices"
	"strconv"
	"syscall"

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
	}
	p.TaskEnv = make([][]string, len(p.Ranks))
	for id, rank := range p.Ranks {
		p.TaskEnv[id] = []string{"SLURM_PROCID=" + strconv.Itoa(rank), "SLURM_LOCALID=" + strconv.Itoa(id)}
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
