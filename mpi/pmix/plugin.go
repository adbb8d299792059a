package pmix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"stepd/internal/linux"
	"stepd/step"
	"stepd/step/launch"
)

// Plugin serves PMIx to the tasks of one step on one node. Make it with New,
// call Prefork once, TaskExited for each task that ended, and Close at the end;
// it serves one step only.
type Plugin struct {
	conf Config

	mu      sync.Mutex
	started bool // guarded by mu
	closed  bool // guarded by mu

	// Set by Prefork, before any goroutine runs.
	*rankBook
	host   *host
	folder *folder

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	running sync.WaitGroup // upcalls that are being answered
	names   *names
	tools   atomic.Uint64 // names given
	groups  atomic.Uint64 // numbers proposed
	others  *others
	budget  *budget
}

// New makes a plugin; conf's zero values mean the defaults.
func New(conf Config) *Plugin {
	ctx, stop := context.WithCancel(context.Background())
	return &Plugin{conf: conf, ctx: ctx, stop: stop}
}

// Prefork starts the PMIx server and registers the step's tasks with it. It is
// called as root, once, before the first fork.
//
// job.Abort and job.Log are called from the plugin's own goroutines, and Abort
// also from TaskExited's, never after Close has returned; they must not wait for
// Close. Abort is called once at most: because a rank asked for it, because a
// rank ended between init and finalize, because a meeting of nodes has failed,
// or, with rank -1, because pmixhost ended.
func (p *Plugin) Prefork(ctx context.Context, job launch.MPIJob) (launch.MPITasks, error) {
	if job.Spec == nil || job.Spec.NTasks < 1 || job.Abort == nil || job.Log == nil {
		return launch.MPITasks{}, errors.New("internal error: MPI prefork needs a spec with tasks, Abort and Log")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.started || p.closed {
		return launch.MPITasks{}, errors.New("internal error: MPI prefork called twice, or after close")
	}
	p.conf = p.conf.withDefaults(job.Spec)
	p.rankBook = newRankBook(p.ctx, job, p.conf.Debug)
	p.names, p.others, p.budget = newNames(p), newOthers(), newBudget(p.world.size)
	if err := p.startServer(); err != nil {
		return launch.MPITasks{}, err
	}
	p.started = true
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	tasks, err := p.register(ctx)
	if err != nil {
		return launch.MPITasks{}, p.explainStart(err)
	}
	p.servePeers()
	return tasks, nil
}

// startServer makes the folder and runs pmixhost in it.
func (p *Plugin) startServer() error {
	spec := p.job.Spec
	if _, err := os.Stat(p.conf.Program); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot use MPI type %q: %q is missing (it is built where libpmix's headers are: Debian's libpmix-dev)", "pmix", p.conf.Program)
	}
	if p.conf.Start == nil {
		return errors.New("internal error: MPI type \"pmix\" has no function that starts programs")
	}
	var err error
	if p.folder, err = makeFolder(spec); err != nil {
		return err
	}
	if err := p.showFolder(); err != nil {
		return errors.Join(err, p.folder.remove())
	}
	p.host, err = startHost(&p.conf, fmt.Sprintf("pmixhost: [%s]", spec.ID.Name()), upcalls{p}.heard, p.hostEnded, func(line string) { p.log("pmixhost: " + line) })
	if err != nil {
		return errors.Join(err, p.folder.remove())
	}
	return nil
}

// register sets the server up, and describes the job to it.
func (p *Plugin) register(ctx context.Context) (launch.MPITasks, error) {
	r, err := p.ask(ctx, cmdSetup, p.setup)
	if err != nil {
		return launch.MPITasks{}, err
	}
	p.version = shortVersion(r.str())
	local := p.world.ranks[p.here]
	_, err = p.ask(ctx, cmdNspace, func(w *writer) {
		w.Str(p.world.nspace)
		w.U32(uint32(len(local)))
		w.infos(append(p.world.infos(p.here), p.debugInfos()...))
	})
	if err != nil {
		return launch.MPITasks{}, err
	}
	r, err = p.ask(ctx, cmdClients, func(w *writer) {
		w.Str(p.world.nspace)
		list(w, local, func(n int) { w.U32(uint32(n)) })
	})
	if err != nil {
		return launch.MPITasks{}, err
	}
	envs := elements(&r, 4, r.strs)
	if err := r.done(); err != nil || len(envs) != len(local) {
		return launch.MPITasks{}, fmt.Errorf("cannot read the environment of %d tasks from pmixhost: it told %d (%v)", len(local), len(envs), err)
	}
	return p.tasks(envs), nil
}

func (p *Plugin) setup(w *writer) {
	spec := p.job.Spec
	flags := uint32(setupTools)
	if p.conf.Namespace != nil {
		flags |= setupJoinNS
	}
	if p.sharesTopology() {
		flags |= setupTopology
	}
	w.U32(pmixhostProtocolVersion)
	w.U32(flags)
	w.U32(spec.User.UID)
	w.U32(spec.User.GID)
	list(w, spec.User.Groups, w.U32)
	w.U64(p.conf.DataLimit)
	w.Str(p.folder.path)
	// No dots: tools of libpmix 4 take what is before the first one for the name.
	w.proc(proc{fmt.Sprintf("pmixhost-%d-%d", spec.ID.Job, spec.ID.Step), spec.NodeID})
	list(w, p.serverEnv(), w.Str)
}

// sharesTopology reports whether what pmixhost finds of the machine is what a task
// would find: it spares each of them the discovery, 15 ms of CPU time and more on a
// large node. A cpuset of cgroup v1 is the tasks' alone, and they see its CPUs only;
// on v2 the whole step has one, pmixhost included.
func (p *Plugin) sharesTopology() bool {
	_, own := p.job.Spec.Confine.V1["cpuset"]
	return !own && !p.conf.KeepTopology
}

// serverEnv is pmixhost's whole environment.
func (p *Plugin) serverEnv() []string {
	env := []string{
		"PATH=/usr/bin:/bin",
		// The user's own parameter files and components, which lie in the home, are not
		// for a process outside of the tasks' cgroup. (libpmix 4.0 does not start when it
		// is set to read no parameter files at all.)
		"HOME=/dev/null",
		// Names are slurm.conf's, on each node.
		"PMIX_HOSTNAME=" + p.job.Spec.NodeName,
		// Every fence comes to us, so that it can be counted.
		"PMIX_MCA_pmix_server_fence_localonly_opt=0",
	}
	if p.conf.Debug {
		env = append(env, "PMIX_MCA_pmix_server_base_verbose=5", "PMIX_MCA_pmix_server_fence_verbose=5", "PMIX_MCA_pmix_server_connect_verbose=5")
	}
	return append(env, p.conf.Env...)
}

// tasks parts the tasks' environments into what all have and what is each one's.
func (p *Plugin) tasks(envs [][]string) launch.MPITasks {
	out := launch.MPITasks{TaskEnv: make([][]string, len(envs))}
	seen := make(map[string]int)
	for _, env := range envs {
		for _, e := range env {
			seen[e]++
		}
	}
	for i, env := range envs {
		for _, e := range env {
			switch {
			case seen[e] != len(envs) || strings.HasPrefix(e, "PMIX_RANK="):
				out.TaskEnv[i] = append(out.TaskEnv[i], e)
			case i == 0:
				out.Env = append(out.Env, e)
			}
		}
	}
	out.Env = append(out.Env, p.conf.PMIxConf.Env...)
	if w := p.world; w.cpus > 0 && len(envs) > w.cpus && !p.isSet(yieldVar) {
		// Ranks that wait busily keep the ranks that they wait for from running: mpirun
		// sets the same for more ranks than slots. (64 ranks on 2 CPUs: 61 s and 7 s.)
		out.Env = append(out.Env, yieldVar+"=1")
	}
	return out
}

// stopVar in the step's environment lets all ranks wait in PMIx_Init until a
// debugger sends them PMIX_DEBUGGER_RELEASE.
const (
	stopVar       = "PMIX_DEBUG_STOP_IN_INIT"
	keyStopInInit = "pmix.dbg.init"
)

func (p *Plugin) debugInfos() []info {
	if !slices.ContainsFunc(p.job.Spec.Env, func(e string) bool {
		v, ok := strings.CutPrefix(e, stopVar+"=")
		return ok && v != "" && v != "0"
	}) {
		return nil
	}
	return []info{kv(keyStopInInit, rankOf(rankWildcard))}
}

// yieldVar makes a rank of Open MPI give up the CPU while it waits.
const yieldVar = "OMPI_MCA_mpi_yield_when_idle"

// isSet reports whether the user has said something about a variable.
func (p *Plugin) isSet(name string) bool {
	return slices.ContainsFunc(p.job.Spec.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
}

// ask gives a command and waits for its answer.
func (p *Plugin) ask(ctx context.Context, typ uint32, fill func(w *writer)) (reader, error) {
	done, err := p.host.call(typ, fill)
	if err != nil {
		return reader{}, err
	}
	select {
	case a := <-done:
		return a.r, a.err
	case <-ctx.Done():
		return reader{}, fmt.Errorf("pmixhost did not answer: %w", context.Cause(ctx))
	}
}

// explainStart says why the server does not run.
func (p *Plugin) explainStart(err error) error {
	if errors.Is(err, errGone) {
		return fmt.Errorf("cannot start the PMIx server: pmixhost ended (%s)", p.hostStatus())
	}
	return fmt.Errorf("cannot start the PMIx server: pmixhost: %w", err)
}

// hostStatus waits for the end of pmixhost, whose channel has ended.
func (p *Plugin) hostStatus() string {
	select {
	case <-p.host.ended:
		return p.host.status.Describe()
	case <-time.After(time.Second):
		return "it closed its channel"
	}
}

// hostEnded is called when pmixhost's channel has ended: without it no rank comes
// any further.
func (p *Plugin) hostEnded(err error) {
	if p.ctx.Err() != nil {
		return
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		p.host.kill()
	}
	why := p.hostStatus()
	if err != nil && !errors.Is(err, io.EOF) {
		why += fmt.Sprintf("; %v", err)
	}
	p.abort(-1, 1, fmt.Sprintf("pmixhost (pid %d), the step's PMIx server, ended: %s", p.host.pid, why))
}

// TaskExited reports that the task of a rank of this node ended. A rank that ends
// between PMIx_Init and PMIx_Finalize ends the step: the others would wait for it.
func (p *Plugin) TaskExited(n int, status step.ExitStatus) {
	p.mu.Lock()
	started := p.started
	p.mu.Unlock()
	if !started {
		return
	}
	p.rankBook.mu.Lock()
	r := p.rankOf(p.procOf(n))
	if n < 0 || r == nil || r.status != nil {
		p.rankBook.mu.Unlock()
		return
	}
	r.status = &status
	wait := r.phase == phaseConnected && !r.lost
	p.rankBook.mu.Unlock()
	if !wait {
		p.judge(n)
		return
	}
	// Its last words may be on their way: the library hears them before it hears the
	// connection's end, which a process that the task has left behind may hold open.
	time.AfterFunc(p.conf.CloseGrace, func() { p.judge(n) })
}

// Close ends the server, takes its files away and waits for the goroutines. It
// is idempotent, and must not be called from within Abort or Log, which are not
// called again once it has returned.
func (p *Plugin) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	p.stop()
	if !first || p.host == nil {
		return nil
	}
	p.host.close()
	p.running.Wait()
	return p.folder.remove()
}

// shortVersion finds the number in what PMIx_Get_version says.
func shortVersion(s string) string {
	for _, word := range strings.Fields(strings.NewReplacer(",", " ", "(", " ").Replace(s)) {
		if major, rest, ok := strings.Cut(word, "."); ok {
			if _, err := strconv.Atoi(major); err == nil {
				minor, _, _ := strings.Cut(rest, ".")
				return major + "." + minor
			}
		}
	}
	return ""
}

// Config is what the plugin needs of its site and of stepd.
type Config struct {
	step.PMIxConf
	// Program is the path of pmixhost; "" is beside this program.
	Program string
	// Start runs a program (linux.Reaper.Start) and gives its end. The zero value
	// makes Prefork fail.
	Start func(path string, argv []string, attr *syscall.ProcAttr) (pid int, exited <-chan linux.Exit, err error)
	// Namespace is the job's mount namespace, which pmixhost joins, since the tasks
	// see its files there; nil without a container.
	Namespace *os.File
	// DataLimit bounds the memory of pmixhost, in bytes: 512 MiB and 2 MiB for each
	// of the step's tasks.
	DataLimit uint64
	// CloseGrace is how long a rank that has ended is given for its last words to
	// come: 5 s.
	CloseGrace time.Duration
}

// callTimeout bounds what pmixhost does by itself: a start, a registration.
const callTimeout = 60 * time.Second

// withDefaults fills what the site left out.
func (c Config) withDefaults(spec *step.Spec) Config {
	if c.Timeout <= 0 {
		c.Timeout = 300 * time.Second
	}
	if c.CloseGrace <= 0 {
		c.CloseGrace = 5 * time.Second
	}
	if c.DataLimit == 0 {
		c.DataLimit = 512<<20 + uint64(spec.NTasks)<<21
	}
	if c.Program == "" {
		if self, err := os.Executable(); err == nil {
			c.Program = filepath.Join(filepath.Dir(self), "pmixhost")
		}
	}
	return c
}

// Keys of PMIx_Spawn's directives.
const (
	keyWdir     = "pmix.wdir"
	keyHost     = "pmix.host"
	keyAddHost  = "pmix.addhost"
	keySetEnvar = "pmix.envar.set"
)

// pmixName is the plugin's name as --mpi has it.
const pmixName = "pmix"

// spawnInfosMax bounds the directives for all commands of a spawn.
const spawnInfosMax = 256

// appMin is the least that a command takes in a frame.
const appMin = 24

// serveSpawn starts another step of the job (PMIx_Spawn, which MPI_Comm_spawn
// becomes).
func (p upcalls) serveSpawn(ctx context.Context, r *reader) (reply, error) {
	who, infos := r.proc(), r.infos()
	if len(infos) > spawnInfosMax || r.count() > launch.SpawnAppsMax {
		// Each command is given all directives: their product is the user's to choose.
		p.log(fmt.Sprintf("cannot spawn for MPI rank %d: more than %d commands or %d directives", who.rank, launch.SpawnAppsMax, spawnInfosMax))
		return status(stBadParam), nil
	}
	apps := elements(r, appMin, func() launch.SpawnApp { return readApp(r, infos) })
	if err := r.done(); err != nil {
		return reply{}, err
	}
	if p.job.Job == nil || who.nspace != p.world.nspace {
		p.log(fmt.Sprintf("cannot spawn for MPI rank %d of %s: nothing starts steps for PMIx here (under slurmd srun does for --mpi=pmi2 alone), or it is no rank of this step", who.rank, who.nspace))
		return status(stNotSupported), nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout(infos), errTimeout)
	defer cancel()
	p.waits([]int{int(who.rank)}, "spawn", "")
	id, err := p.job.Job.Spawn(ctx, launch.SpawnRequest{Rank: int(who.rank), Apps: apps, MPI: pmixName})
	p.note(who, func(*rank) {})
	if err != nil {
		p.log(fmt.Sprintf("cannot spawn for MPI rank %d: %v", who.rank, err))
		if _, ok := errors.AsType[*launch.SpawnError](err); ok {
			return status(stLaunchFailed), nil
		}
		return status(stError), nil
	}
	p.others.spawned(Nspace(id))
	return reply{fill: func(w *writer) { w.Str(Nspace(id)) }}, nil
}

// readApp reads one command; the options of the whole spawn count for each.
func readApp(r *reader, job []info) launch.SpawnApp {
	cmd, argv := r.str(), r.strs()
	a := launch.SpawnApp{Argv: argv, Env: r.strs(), Cwd: r.str(), NTasks: r.i32()}
	if len(argv) == 0 {
		a.Argv = []string{cmd}
	} else if cmd != "" {
		a.Argv[0] = cmd
	}
	for _, i := range append(append([]info(nil), job...), r.infos()...) {
		switch i.key {
		case keyWdir:
			a.Cwd = i.value.text
		case keyHost, keyAddHost:
			a.Info = append(a.Info, step.KeyValue{Key: "host", Value: []byte(i.value.text)})
		case keySetEnvar:
			a.Env = append(a.Env, i.value.text)
		}
	}
	// The server's own variables are the new step's server's to set.
	kept := a.Env[:0]
	for _, e := range a.Env {
		if !strings.HasPrefix(e, "PMIX_") || strings.HasPrefix(e, "PMIX_MCA_") {
			kept = append(kept, e)
		}
	}
	a.Env = kept
	return a
}
