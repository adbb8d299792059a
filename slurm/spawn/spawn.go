package spawn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"stepd/slurm/spec"
	"stepd/slurm/wire"
	"stepd/slurmconf"
	"stepd/step"
	"stepd/step/launch"
)

// Config is what a step gives to its Services; all of it is needed.
type Config struct {
	Spec *step.Spec
	// Port is srun's server of PMI-2, HOST:PORT.
	Port string
	// Token makes a token of munge's that the step's user can read.
	Token func(ctx context.Context) (string, error)
	// Inbox is the step's; New makes it take the reports of spawned steps.
	Inbox   *Inbox
	Forward Forward
	// Timeout bounds how long srun may take to start a step; 0 is no bound.
	Timeout time.Duration
	// Log writes a line to the administrator.
	Log func(text string)
	// Abort ends this step because one that a rank has spawned was aborted.
	Abort func(rank, code int, text string)
	// Ending returns what is closed when the step's end has been asked for.
	Ending func() <-chan struct{}
}

// Services are a step's launch.MPIServices. Make them with New; Close ends them.
type Services struct {
	Config
	port port
	ctx  context.Context // ends with Close
	stop context.CancelFunc

	mu       sync.Mutex
	watched  bool              // guarded by mu: endWithStep runs
	last     uint32            // guarded by mu: the last child's number
	children map[uint32]*child // guarded by mu, by our numbers
	results  map[uint32]uint32 // guarded by mu: srun's failures, by its numbers, which came before ours knew them
	running  sync.WaitGroup
}

// New makes the services of one step.
func New(c Config) *Services {
	s := &Services{Config: c, port: port(c.Port), children: make(map[uint32]*child), results: make(map[uint32]uint32)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	c.Inbox.Spawned, c.Inbox.Result = s.spawned, s.result
	return s
}

// Close is called when the MPI plugin and the Inbox are closed. Spawned steps that run go on:
// srun waits for them, and ends them after a minute.
func (s *Services) Close() {
	s.stop()
	s.running.Wait()
}

// Publish binds a name for all steps that the same srun has started, directly or by a step
// that has spawned them. A name that exists is bound anew.
func (s *Services) Publish(ctx context.Context, name, port string) error {
	return s.port.name(ctx, wire.PMIPublish, name, port)
}

// Unpublish takes a name back. One that does not exist is no error.
func (s *Services) Unpublish(ctx context.Context, name string) error {
	return s.port.name(ctx, wire.PMIUnpublish, name, "")
}

// Lookup finds a name.
func (s *Services) Lookup(ctx context.Context, name string) (port string, found bool, err error) {
	return s.port.lookup(ctx, name)
}

// errNotSrun is the answer to what srun has no service for.
var errNotSrun = errors.New("srun has no such service")

// Await is not srun's to do.
func (s *Services) Await(context.Context, string) (string, bool, error) {
	return "", false, errNotSrun
}

// Meet is not srun's to do.
func (s *Services) Meet(context.Context, string, []string, string, []byte) (map[string][]byte, error) {
	return nil, errNotSrun
}

// Spawn has srun start another step, and returns when its tasks run. One whose tasks cannot all
// be started is ended, and the error is a *launch.SpawnError. Where ctx ends first, the new step
// is ended as soon as its step daemons report.
func (s *Services) Spawn(ctx context.Context, r launch.SpawnRequest) (step.ID, error) {
	if s.Spec.AllLayout != nil {
		return step.ID{}, errors.New("cannot spawn: several components of a heterogeneous job run the step, and a spawned step would be of one job")
	}
	if s.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, s.Timeout, fmt.Errorf(
			"srun has not started it within %v (PMI2SpawnTimeout): the job may have no free CPUs; SLURM_OVERLAP=1 in srun's environment has steps share them", s.Timeout))
		defer stop()
	}
	c, err := s.begin(r)
	if err != nil {
		return step.ID{}, err
	}
	if err := s.start(ctx, c, r); err != nil {
		s.giveUp(c, "it was not wanted any more")
		return step.ID{}, fmt.Errorf("cannot spawn: %w", err)
	}
	select {
	case err := <-c.launched:
		return c.id, err
	case <-ctx.Done():
		s.giveUp(c, "the task that has spawned it does not wait any more")
		return step.ID{}, fmt.Errorf("cannot spawn: %w", context.Cause(ctx))
	}
}

// begin counts a child, and has the socket for the reports about it.
func (s *Services) begin(r launch.SpawnRequest) (*child, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.Ending():
		return nil, fmt.Errorf("cannot spawn: step %s is ending", s.Spec.ID)
	default:
	}
	if err := s.Inbox.Open(); err != nil {
		return nil, err
	}
	if !s.watched {
		s.watched = true
		s.running.Go(s.endWithStep)
	}
	s.last++
	c := &child{number: s.last, rank: r.Rank, launched: make(chan error, 1), nodes: make(map[string]*nodeReports)}
	for i := range r.Apps {
		c.ntasks += r.Apps[i].NTasks
	}
	s.children[c.number] = c
	return c, nil
}

// start asks srun.
func (s *Services) start(ctx context.Context, c *child, r launch.SpawnRequest) error {
	origin := &spec.Origin{Node: s.Spec.NodeName, Step: s.Spec.ID, Spawn: c.number}
	m, err := request(s.Spec, origin, r)
	if err != nil {
		return err
	}
	if m.Token, err = s.Token(ctx); err != nil {
		return err
	}
	seq, err := s.port.spawn(ctx, m)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.seq = seq
	if _, failed := s.results[seq]; failed {
		delete(s.results, seq)
		c.tell(errNoSrun)
	}
	return nil
}

// resultsMax bounds the failures that are kept for spawns whose numbers are not known yet.
const resultsMax = 64

// result is srun's word of a spawn. That the tasks run their step daemons report better.
func (s *Services) result(m wire.SpawnResult) {
	if m.RC == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.children {
		if c.seq == m.Seq {
			c.tell(errNoSrun)
			return
		}
	}
	if len(s.results) < resultsMax {
		s.results[m.Seq] = m.RC
	}
}

// request is what srun is asked for.
func request(sp *step.Spec, origin *spec.Origin, r launch.SpawnRequest) (*wire.PMISpawnRequest, error) {
	if len(r.Apps) == 0 {
		return nil, errors.New("there is no command")
	}
	m := &wire.PMISpawnRequest{Node: sp.NodeName, Preput: []wire.PMIPair{origin.Pair()}}
	for _, kv := range r.Preput {
		m.Preput = append(m.Preput, wire.PMIPair{Key: kv.Key, Value: string(kv.Value)})
	}
	for i := range r.Apps {
		a, hints := &r.Apps[i], hintsOf(&r.Apps[i], sp.Env)
		if len(a.Argv) == 0 || a.NTasks < 1 {
			return nil, fmt.Errorf("command %d of %d is empty, or has no tasks", i+1, len(r.Apps))
		}
		if err := inJob(sp, hints.hosts); err != nil {
			return nil, fmt.Errorf("command %d of %d: %w", i+1, len(r.Apps), err)
		}
		app := wire.PMIApp{Command: a.Argv[0], Args: a.Argv[1:], Tasks: uint32(a.NTasks)}
		if len(r.Apps) == 1 {
			app.Info = hints.pairs()
		} else {
			// srun writes a file for --multi-prog, and has no options of one command.
			var err error
			if app, err = multiProg(app); err != nil {
				return nil, fmt.Errorf("command %d of %d: %w", i+1, len(r.Apps), err)
			}
			m.Preput = append(m.Preput, spec.Hints(i, hints.wdir, hints.path)...)
		}
		m.Apps = append(m.Apps, app)
	}
	return m, nil
}

// hints are the hints of a command that mean something to srun.
type hints struct {
	wdir, path string
	hosts      []string
}

func hintsOf(a *launch.SpawnApp, env []string) (h hints) {
	for _, kv := range a.Info {
		value := string(kv.Value)
		switch kv.Key {
		case "wdir":
			h.wdir = value
		case "path": // srun takes it for all of PATH
			h.path = value + ":" + cmp.Or(spec.Variable(env, "PATH"), "/usr/bin:/bin")
		case "host", "hosts", "add-host": // MPI's word, MPICH's and Open MPI's
			for word := range strings.SplitSeq(value, ",") {
				name, _, _ := strings.Cut(strings.TrimSpace(word), ":") // "n1:4"
				if name != "" {
					h.hosts = append(h.hosts, name)
				}
			}
		}
	}
	return h
}

// pairs are the hints as srun knows them.
func (h *hints) pairs() (pairs []wire.PMIPair) {
	for _, p := range []wire.PMIPair{{Key: "wdir", Value: h.wdir}, {Key: "path", Value: h.path}, {Key: "host", Value: strings.Join(h.hosts, ",")}} {
		if p.Value != "" {
			pairs = append(pairs, p)
		}
	}
	return pairs
}

// inJob refuses hosts that are no nodes of the job: the new srun would end, and no daemon
// would be told.
func inJob(sp *step.Spec, hosts []string) error {
	if len(hosts) == 0 {
		return nil
	}
	nodes, err := slurmconf.ExpandHosts(sp.JobNodeList)
	if err != nil {
		return fmt.Errorf("cannot read the job's nodes %.64q: %w", sp.JobNodeList, err)
	}
	for _, host := range hosts {
		if !slices.Contains(nodes, host) {
			return fmt.Errorf("its hint host names %.64q, which is no node of the job: %s", host, sp.JobNodeList)
		}
	}
	return nil
}

// multiProg is a command as a line of a file for --multi-prog has it, where blanks part the
// words, and quotes keep them together.
func multiProg(a wire.PMIApp) (wire.PMIApp, error) {
	words := append([]string{a.Command}, a.Args...)
	for i, w := range words {
		if strings.ContainsAny(w, "\n\r") {
			return a, fmt.Errorf("%.64q has more than one line, which srun cannot take beside other commands (--multi-prog)", w)
		}
		if w == "" || strings.ContainsAny(w, " \t'\\%") {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	a.Command, a.Args = words[0], words[1:]
	return a, nil
}
