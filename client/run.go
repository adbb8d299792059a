package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/client/options"
	"stepd/client/plugins"
	"stepd/client/terminal"
	"stepd/mpi"
	"stepd/spank"
	"stepd/step"
	"stepd/stepio"
)

// RunCommand is the verb run.
func RunCommand(d *Dialer) *cobra.Command {
	o := &options.Run{}
	c := &cobra.Command{
		Use:         "run [options] [--] COMMAND [ARG...]",
		Short:       "run a command as the tasks of a step and wait for them",
		Annotations: map[string]string{UsesPlugins: spank.ContextLocal.String()},
		RunE: func(c *cobra.Command, argv []string) error {
			if err := o.FromJob(c); err != nil {
				return err
			}
			if err := options.FromEnv(c.Flags(), options.StepOfJob); err != nil {
				return err
			}
			client := d.Client()
			if o.MPI == "" {
				o.MPI = os.Getenv("SLURM_MPI_TYPE") // srun(1)
			}
			if o.MPI == "list" {
				return listMPI(client)
			}
			if len(argv) == 0 {
				return errors.New("run: no command was given")
			}
			o.Programs.WarnUseless(c)
			o.TellUnused()
			if o.Interactive && o.Name == "" {
				o.Name = "interactive"
			}
			code, err := run(client, o, d, argv)
			if code, left := errors.AsType[stepLeft](err); left {
				if o.Interactive {
					code = stepLeft(shellLeft)
				}
				return terminal.ExitError(code)
			}
			return terminal.Exit(code, err)
		},
	}
	o.Bind(c)
	c.Flags().BoolVar(&d.standalone, "standalone", false, "start a private noded for this command (root)")
	return c
}

func listMPI(client *api.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	r, err := client.Config(ctx)
	if err != nil {
		return err
	}
	fmt.Println("MPI plugin types are...")
	for _, t := range r.MPITypes {
		fmt.Println("\t" + t)
	}
	return nil
}

// run is one step, from the request to its exit code.
func run(client *api.Client, o *options.Run, d *Dialer, argv []string) (int, error) {
	p := d.Plugins
	fast := p.Slow(o.Quiet)
	err := p.Take()
	fast()
	if err != nil {
		return 0, err
	}
	code, err := launchStep(client, o, d, argv)
	return p.End(client, code, err)
}

func launchStep(client *api.Client, o *options.Run, d *Dialer, argv []string) (int, error) {
	p := d.Plugins
	req, err := o.Request(options.StepOfJob, argv, p)
	if err != nil {
		return 0, err
	}
	req.Overlap = o.Binding.Overlap || withinStep(req.Job)
	keys, err := terminal.ParseDetachKeys(o.DetachKeys)
	if err != nil {
		return 0, err
	}
	if o.DryRun {
		return 0, dryRun(client, o, p, req)
	}
	if o.TestOnly {
		return willRun(client, req)
	}
	hooks := mpi.NewClient(cmp.Or(o.MPI, p.MPIDefault))
	fast := p.Slow(o.Quiet)
	reply, err := start(client, o, p, hooks, req)
	fast()
	if err != nil {
		return 0, err
	}
	defer mpiFini(hooks)
	spec := reply.Spec
	o.TellMemory(p)
	if o.Verbose > 0 {
		_, number, _ := strings.Cut(step.ID{Job: reply.JobID, Step: reply.StepID}.Name(), ".")
		terminal.Say("job %d step %s", reply.JobID, number)
	}
	l := &launch{
		client: client, node: reply.Node, id: step.ID{Job: reply.JobID, Step: reply.StepID},
		opt: o, plugins: p, ntasks: spec.NTasks, signals: &d.signals, processors: d.Processors,
	}
	if spec.Terminal != nil {
		if d.privateSocket() != "" {
			keys = nil // the step ends with this command
		}
		l.screen = terminal.NewScreen(os.Stdin, os.Stdout, keys, false)
		defer l.screen.Restore()
		if keys != nil && !o.Quiet {
			terminal.Say("%s leaves step %s, which goes on", keys.Words(), l.id.Name())
		}
	}
	begun := l.slowLaunch()
	rec, err := l.follow(reply, spec)
	begun()
	if code, left := l.detached(); left {
		return 0, stepLeft(code)
	}
	if err != nil {
		return 0, err
	}
	code := l.conclude(rec)
	if code == 0 {
		p.Ends, p.Over = &l.id, true
	}
	return code, nil
}

// start asks for the step. With plugins it does so in two parts, between which
// slurm_spank_local_user_init, and the client's part of an MPI plugin, know the
// step's number and may still change its environment.
func start(client *api.Client, o *options.Run, p *plugins.Host, hooks mpi.Client, req *step.Request) (*api.RunReply, error) {
	ctx := context.Background()
	if p.Session == nil && hooks == nil {
		return admitted(o, req, func(in *api.RunRequest) (*api.RunReply, error) { return client.Run(ctx, in) })
	}
	reserved, err := admitted(o, req, func(in *api.RunRequest) (*api.RunReply, error) { return client.Reserve(ctx, in) })
	if err != nil {
		return nil, err
	}
	ref := api.StepRef{JobID: reserved.JobID, StepID: &reserved.StepID}
	change, err := localUserInit(o, p, hooks, req, reserved)
	if err != nil {
		_, cerr := client.Cancel(ctx, &api.CancelRequest{StepRef: ref, Reason: "the client's plugins failed"})
		if cerr != nil {
			terminal.Say("error: cannot give step %d.%d back: %s", reserved.JobID, reserved.StepID, cerr)
		}
		return nil, err
	}
	return client.Launch(ctx, &api.LaunchRequest{StepRef: ref, Change: change})
}

// localUserInit lets the plugins see the reserved step, and returns what they
// made of its environment: MPI's comes last, as in Slurm.
func localUserInit(o *options.Run, p *plugins.Host, hooks mpi.Client, req *step.Request, reserved *api.RunReply) (*step.LaunchChange, error) {
	spec := reserved.Spec
	own, err := o.ClientEnv(p, int(req.Umask))
	if err != nil {
		return nil, err
	}
	err = p.LocalUserInit(spank.LocalJob{
		ID: spec.ID, NNodes: spec.NodeCount(), TotalTasks: spec.NTasks, Argv: req.Argv,
		Env: append(options.StepEnv(spec), own...), Spec: spec,
	})
	if err != nil {
		return nil, err
	}
	change := &step.LaunchChange{JobControl: p.Control(), JobControlUnset: p.Unset}
	if change.Env, err = o.Environment(p, own); err != nil {
		return nil, err
	}
	if hooks != nil {
		if change.Env, err = hooks.Prelaunch(context.Background(), spec, change.Env); err != nil {
			return nil, fmt.Errorf("--mpi=%s: %w", spec.MPI, err)
		}
	}
	return change, nil
}

// mpiFini ends the client's part of an MPI plugin.
func mpiFini(hooks mpi.Client) {
	if hooks == nil {
		return
	}
	if err := hooks.Fini(); err != nil {
		terminal.Say("error: MPI: %v", err)
	}
}

// stepLeft ends a run whose client has left the step, with the code to exit with.
type stepLeft int

func (e stepLeft) Error() string { return fmt.Sprintf("the client has left, with code %d", int(e)) }

// launch is a step that this client waits for.
type launch struct {
	client  *api.Client
	node    string
	id      step.ID
	opt     *options.Run
	plugins *plugins.Host
	ntasks  int
	forced  bool             // a task was ended by KILL or TERM
	screen  *terminal.Screen // of a step with a terminal
	signals *signals
	// processors is how many Go uses where bytes are copied; 0 is as many as now.
	processors int
	// killWait is between SIGTERM and SIGKILL, in seconds.
	killWait int
	// firstExit is closed when the end of a task is told for the first time.
	firstExit chan struct{}

	mu    sync.Mutex
	state step.State   // guarded by mu: what was heard last
	ended map[int]bool // guarded by mu: ranks that have ended; true: badly
	told  map[int]bool // guarded by mu: ranks whose end was told
	lost  bool         // guarded by mu: output was not taken by the file that it is for
}

// streamFailed reports that a file takes no more output, or gives no more input. A pipe
// without a reader is no news: the tasks' own ends show it.
func (l *launch) streamFailed(err error) {
	if errors.Is(err, unix.EPIPE) {
		return
	}
	l.mu.Lock()
	l.lost = true
	l.mu.Unlock()
	terminal.Say("error: %s", err)
}

// follow connects to stepd, hands over the streams and receives the step's messages until
// its end.
func (l *launch) follow(reply *api.RunReply, spec *step.Spec) (*step.Record, error) {
	l.ended, l.told = make(map[int]bool), make(map[int]bool)
	l.firstExit, l.killWait = make(chan struct{}), spec.KillWaitS
	files, err := l.opt.Files.Open(spec, l.opt.OpenMode == "truncate")
	if err != nil {
		l.giveUp(err.Error())
		return nil, err
	}
	conn, err := stepapi.DialDir(context.Background(), reply.SocketDir, reply.SocketName)
	if err != nil {
		return l.wait() // it has ended already, or cannot be reached: noded knows
	}
	defer conn.Close()
	if err := conn.Send(&stepapi.Msg{Type: stepapi.TypeHello, Version: stepapi.Version, Role: stepapi.RoleLaunch}); err != nil {
		return l.wait()
	}
	streams, err := stepio.Open(spec, stepio.Options{
		Stdin: files.Files[0], Stdout: files.Files[1], Stderr: files.Files[2], Of: files.Rank,
		Unbuffered: l.opt.Unbuffered, Label: l.opt.Label, SameUser: spec.User.UID == uint32(os.Geteuid()),
		Failed: l.streamFailed, Writing: terminal.Waiting.Others,
	})
	if err != nil {
		return nil, err
	}
	if streams.Copies() {
		runtime.GOMAXPROCS(l.processors)
	}
	if l.screen != nil {
		if err := askToWatch(conn, &stepapi.Watch{Replay: -1}); err != nil {
			return l.wait()
		}
	}
	if err := streams.Attach(conn); err != nil {
		return l.wait()
	}
	stop := l.catchSignals(conn)
	defer stop()
	rec := l.hear(conn)
	if left := l.endScreen(rec != nil); left {
		return nil, nil
	}
	if rec == nil {
		if rec, err = l.wait(); err != nil {
			return nil, err
		}
	}
	if !streams.Drain(drainLimit) {
		terminal.Say("error: a process outside of the step holds its output open")
	}
	return rec, nil
}

// giveUp ends a step that this client cannot follow.
func (l *launch) giveUp(why string) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	_, err := l.client.Cancel(ctx, &api.CancelRequest{StepRef: api.Ref(l.id), Reason: why})
	if err != nil {
		terminal.Say("error: cannot cancel step %s: %s", l.id, err)
	}
}

// drainLimit is how long the last bytes are waited for after the step's end:
// all of its processes are gone by then.
const drainLimit = 10 * time.Second

// hear prints what stepd says, and returns the final record, or nil when stepd
// is gone without one.
func (l *launch) hear(conn *stepapi.Conn) *step.Record {
	for {
		m, fds, err := conn.Recv()
		if err != nil {
			return nil
		}
		if m.Seq == watchSeq && l.screen != nil && len(fds) == 1 {
			l.showTerminal(conn, fds[0])
			continue
		}
		stepapi.CloseAll(fds)
		if m.State != "" {
			l.mu.Lock()
			l.state = m.State
			l.mu.Unlock()
			terminal.Waiting.Clear() // what the tasks write comes now
		}
		switch m.Type {
		case stepapi.TypeMessage:
			if _, warning, ok := strings.Cut(m.Text, ": warning: "); ok && !l.plugins.Warn(warning) {
				break
			}
			terminal.SayLine(terminal.Escape(m.Text))
		case stepapi.TypeTaskExit:
			if m.Status != nil {
				l.taskExit(l.node, m.Ranks, *m.Status)
			}
		case stepapi.TypeHello, stepapi.TypeReply:
			if m.Error != "" {
				terminal.Say("error: %s", m.Error)
			}
		case stepapi.TypeResult:
			return m.Record
		}
	}
}

// taskExit notes ends of tasks, and reports the ones that are not clean, in srun's words:
// with a terminal when the step has ended, since it would be in the middle of what that
// shows.
func (l *launch) taskExit(node string, ranks []int, status step.ExitStatus) {
	l.mu.Lock()
	if len(l.ended) == 0 && len(ranks) > 0 {
		close(l.firstExit)
	}
	for _, r := range ranks {
		l.ended[r] = status != 0
	}
	l.mu.Unlock()
	if l.screen == nil {
		l.tellExit(node, ranks, status)
	}
}

// tellExit tells ends of tasks that are not clean.
func (l *launch) tellExit(node string, ranks []int, status step.ExitStatus) {
	l.mu.Lock()
	for _, r := range ranks {
		l.told[r] = true
	}
	l.mu.Unlock()
	if status == 0 {
		return
	}
	if sig, ok := status.Signaled(); ok && (sig == 9 || sig == 15) {
		l.forced = true
	}
	terminal.Say("error: %s: %s: %s", node, options.Tasks(ranks), status.Describe())
}

// conclude reports what was not reported yet, and returns the exit code.
func (l *launch) conclude(rec *step.Record) int {
	told := false
	for i := range rec.Tasks {
		t := &rec.Tasks[i]
		l.mu.Lock()
		_, known := l.told[t.Rank]
		l.mu.Unlock()
		// A task that waited at the gate has done nothing: the step's reason tells.
		if t.State == step.TaskFailed && t.Stage == "gate" {
			continue
		}
		if t.Status != nil && !known {
			l.tellExit(l.node, []int{t.Rank}, *t.Status)
		}
		told = told || (t.Status != nil && *t.Status != 0)
	}
	if l.forced {
		terminal.Say("Force Terminated StepId=%s", l.id)
	}
	if rec.ExitCode == nil {
		terminal.Say("error: step %s: %s, and its exit code is not known: %s", l.id, rec.State, rec.Reason)
		return 1
	}
	switch {
	case rec.NoTaskRan():
		terminal.Say("error: step %s: no task ran: %s", l.id, rec.Reason)
	case rec.State != step.Completed && (!told || rec.State == step.NodeFail || rec.StepdLost) && rec.Reason != "":
		terminal.Say("error: step %s: %s: %s", l.id, rec.State, rec.Reason)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return max(1, *rec.ExitCode)
	}
	return *rec.ExitCode
}

// wait asks noded for the end of the step.
func (l *launch) wait() (*step.Record, error) {
	return awaitRecord(context.Background(), l.client, l.id, sayGone)
}
