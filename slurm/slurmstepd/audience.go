package slurmstepd

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"stepd/slurm/stdio"
	"stepd/slurm/wire"
	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
	"stepd/stepd/report"
	"stepd/task"
)

// audience reports the step to srun and to the log.
type audience struct {
	*journal
	d        *daemon
	streams  task.Streams
	srun     *stdio.Streams // nil without srun
	ends     *report.Ends
	attached attached
	out      report.Output // a batch job's own output
	files    stderrFiles   // where srun does not have the tasks' stderr
	// said are messages to srun, in their order; the channel closes with the step.
	messages  chan wire.Message
	opened    chan error              // how the connection to srun's streams has gone; nil without them
	sent      chan struct{}           // closed when all are sent
	giveUp    context.CancelCauseFunc // ends the sending; set by connect
	noStreams atomic.Bool             // the tasks could not get their streams
	launched  bool                    // srun knows that the tasks run; only Run's goroutine uses it, till running is closed
	exited    map[int]bool            // ranks whose ends are told, or will be; as launched
	// running is closed when the tasks run, or will not.
	running chan struct{}
	once    sync.Once
	// endSent is closed when slurmctld has been sent the step's end, or cannot be: srun, which
	// ends the job, learns of the last task afterwards, or after lastExitPatience. An end after the job's is refused, and
	// with it what the step has used.
	endSent  chan struct{}
	endOnce  sync.Once
	told     int           // ranks whose ends srun has, or has waiting; only tellExit uses it
	patience time.Duration // srunPatience; tests shorten it
}

// messagesMax is how many messages wait for an srun that does not answer: a step has few,
// since ends are told in groups.
const messagesMax = 1024

func newAudience(d *daemon) (*audience, error) {
	a := &audience{d: d, streams: noStreams{}, messages: make(chan wire.Message, messagesMax), sent: make(chan struct{}), running: make(chan struct{}), endSent: make(chan struct{}), patience: srunPatience}
	a.ends, a.attached.log = report.NewEnds(a.tellEnds), d.log
	l := d.stream.Launch
	if l == nil || len(l.IOPorts) == 0 || !l.Srun.IsValid() {
		return a, nil
	}
	port := l.IOPorts[int(d.spec.NodeID)%len(l.IOPorts)]
	opener := stdio.Opener{User: d.spec.User, Umask: d.spec.Umask, SizeMax: sizeMax(d.plan.Env)}
	a.files.opener, a.files.path = opener, func(rank int) (string, error) { return stderrFile(d.spec, rank) }
	a.files.otherwise = func(line string) { a.srun.Say(line) }
	a.srun = stdio.New(stdio.Config{
		Release: d.stream.ClientRelease, Node: d.spec.NodeID, Server: netip.AddrPortFrom(l.Srun.Addr(), port), Key: l.Cred.Signature,
		Ranks: d.plan.Ranks, UID: d.spec.User.UID, Streams: [3]step.Stream{d.spec.Stdin, d.spec.Stdout, d.spec.Stderr},
		Files: d.files, Opener: opener, Tasks: max(d.spec.NTasks, d.spec.AllTasks), First: d.spec.SeenRank(0), Speaker: d.spec.Speaker,
		Lines: l.Flags&wire.FlagBuffered != 0, Terminal: d.terminal(), Log: a.Log,
	})
	a.streams = a.srun
	return a, nil
}

// sizeMax is the limit of a file's size that the tasks have of srun, nil where that is none.
func sizeMax(env []string) (most *int64) {
	for _, e := range env {
		if text, ok := strings.CutPrefix(e, srunopt.LimitPrefix+"FSIZE="); ok {
			soft, _, _ := strings.Cut(text, ":")
			most = nil
			if n, err := strconv.ParseInt(soft, 10, 64); err == nil && n >= 0 {
				most = &n
			}
		}
	}
	return most
}

// open begins to connect to srun's streams: srun passes nothing on before 10 ms after that have
// passed (measured). abandon or connect follows.
func (a *audience) open() {
	if a.srun == nil {
		return
	}
	a.opened = make(chan error, 1)
	go func() { a.opened <- a.srun.Open(context.Background()) }()
	runtime.Gosched() // it begins now
}

// abandon ends srun's streams of a step that does not begin.
func (a *audience) abandon() {
	if a.srun == nil || <-a.opened != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainFor)
	defer cancel()
	if err := a.srun.Close(ctx); err != nil {
		a.d.log.Error(err)
	}
}

// connect joins the tasks' streams to srun, beside the launch.
func (a *audience) connect(ctx context.Context, st *task.Step) {
	sending, giveUp := context.WithCancelCause(ctx)
	a.giveUp = giveUp
	go a.send(sending)
	if a.srun == nil {
		return
	}
	go func() {
		err := <-a.opened
		if err == nil {
			err = a.srun.Attach(st)
		}
		if err != nil {
			a.noStreams.Store(true)
			a.d.log.Error(err)
			a.Say(a.d.spec.Speaker + ": error: " + err.Error())
			st.Cancel(err.Error())
		}
	}()
}

// send sends what is to go to srun, one message after the other.
func (a *audience) send(ctx context.Context) {
	defer close(a.sent)
	for m := range a.messages {
		if ctx.Err() != nil {
			continue // finish has given up, and said so
		}
		if end, ok := m.(lastExit); ok {
			a.awaitEnd()
			m = end.TaskExit
		}
		a.d.peers.tellLauncher(ctx, m)
		a.d.markSent(m)
	}
}

// lastExit is the end of the last tasks: an srun of its own job ends the job then.
type lastExit struct{ *wire.TaskExit }

// lastExitPatience is how long srun does not learn of the last tasks: what they have left running
// may not end for UnkillableStepTimeout, or longer, and srun is not to stand still as long. As
// under slurmstepd the job may then end before the step.
const lastExitPatience = 5 * time.Second

func (a *audience) awaitEnd() {
	select {
	case <-a.endSent:
	case <-time.After(lastExitPatience):
	}
}

// settleEnd says that slurmctld has been sent the step's end, or cannot be.
func (a *audience) settleEnd() { a.endOnce.Do(func() { close(a.endSent) }) }

func (a *audience) tell(m wire.Message) {
	if a.d.peers.launcher == "" {
		return
	}
	select {
	case a.messages <- m:
	default:
		a.d.log.Error("cannot report to srun: it does not answer")
	}
}

func (a *audience) Say(line string) {
	switch {
	case a.srun == nil:
		a.out.Say(line)
	case a.srun.Speaks():
		a.srun.Say(line)
	case len(a.d.plan.Ranks) > 0:
		a.files.say(a.d.plan.Ranks[0], line)
	}
}

func (a *audience) SayTask(rank int, line string) {
	switch {
	case a.srun == nil:
		a.out.Say(line)
	case a.srun.Speaks():
		a.srun.SayTask(rank, line)
	default:
		a.files.say(rank, line)
	}
}

func (a *audience) SayTo(f *os.File) { a.out.To(f, a.d.spec.User) }

func (a *audience) TaskExited(rank int, status step.ExitStatus) {
	if a.exited == nil {
		a.exited = make(map[int]bool)
	}
	a.exited[rank] = true
	a.d.markRank(rank, rankEnded|uint32(status)&rankStatus)
	a.ends.Add(rank, status)
}

// endOthers tells the ends of tasks whose parent, the SPANK host, has died: srun waits for each.
// A status that is not known is SIGKILL's, by which the step has ended.
func (a *audience) endOthers(rec *step.Record) {
	for i := range rec.Tasks {
		t := &rec.Tasks[i]
		if a.exited[t.Rank] {
			continue
		}
		status := killed
		if t.Status != nil {
			status = *t.Status
		}
		a.ends.Add(t.Rank, status)
	}
}

func (a *audience) tellEnds(ranks []int, status step.ExitStatus) {
	if rec := a.d.st.Record(); outOfMemory(&rec) {
		status = oomStatus
	}
	a.tellExit(ranks, status)
}

// tellExit tells srun of the ends of tasks.
func (a *audience) tellExit(ranks []int, status step.ExitStatus) {
	m := &wire.TaskExit{Step: a.d.id(), Status: uint32(status)}
	for _, r := range ranks {
		m.Ranks = append(m.Ranks, uint32(r))
	}
	a.attached.tell(m)
	if a.told += len(ranks); a.told < len(a.d.plan.Ranks) {
		a.tell(m)
	} else {
		a.tell(lastExit{m})
	}
}

func (a *audience) State(rec step.Record) {
	a.d.spawning.look(&rec)
	if rec.State != step.Running || a.launched {
		return
	}
	a.launched = true
	defer a.settle()
	m := &wire.LaunchResponse{Step: a.d.id(), Node: a.d.spec.NodeName}
	for i := range rec.Tasks {
		if t := &rec.Tasks[i]; t.PID != nil {
			m.PIDs, m.Ranks = append(m.PIDs, uint32(*t.PID)), append(m.Ranks, uint32(t.Rank))
		}
	}
	a.tell(m)
}

func (a *audience) Progress(step.Record)               {}
func (a *audience) Log(l launch.LogLevel, text string) { report.Log(a.d.log, l, text) }

// settle says that what waits for the tasks need not wait any more.
func (a *audience) settle() { a.once.Do(func() { close(a.running) }) }

func (a *audience) isRunning() bool {
	select {
	case <-a.running:
		return true
	default:
		return false
	}
}

// Codes for srun of a launch that did not come to its tasks (ESLURMD_EXECVE_FAILED and
// ESLURMD_IO_ERROR, slurm_errno.h).
const (
	launchFailed  = 4020
	streamsFailed = 4021
)

// failedLaunch names all tasks: srun takes them as ended, and waits for the others.
func failedLaunch(id wire.StepID, node string, ranks []int, code uint32) *wire.LaunchResponse {
	m := &wire.LaunchResponse{Step: id, Node: node, RC: code}
	for _, r := range ranks {
		m.PIDs, m.Ranks = append(m.PIDs, 0), append(m.Ranks, uint32(r))
	}
	return m
}

// srunPatience is how long an srun that stands still is waited for once the tasks have ended, as
// in Slurm: it is a user's, who must not keep the node.
const srunPatience = 300 * time.Second

// launchFailed reports whether the step counts as one whose tasks have failed although none has
// begun. Where a plugin has ended it with a return code, Slurm's own step daemon has such a job
// completed up to 24.05.
func (a *audience) launchFailed(rec *step.Record) bool {
	return !a.launched && (rec.State == step.Failed || rec.State == step.Completed && a.d.stream.Conf.Release >= wire.V2411)
}

// finish sends srun the rest, and ends its streams.
func (a *audience) finish(ctx context.Context, rec *step.Record) {
	a.settle()
	if !a.launched {
		code := uint32(launchFailed)
		if a.noStreams.Load() {
			code = streamsFailed
		}
		if code == launchFailed && a.launchFailed(rec) {
			// Before the launch's failure: srun takes no end of a task that has failed to start.
			a.tellEnds(a.d.plan.Ranks, step.ExitedWith(1))
		}
		a.tell(failedLaunch(a.d.id(), a.d.spec.NodeName, a.d.plan.Ranks, code))
	}
	if a.launched {
		a.endOthers(rec)
		a.d.tellAbort(ctx, rec) // before the last task's end, on which srun ends
	}
	a.ends.Tell()
	defer a.attached.end()
	close(a.messages)
	a.files.close()
	a.out.Close()
	ctx, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	if a.srun != nil {
		if err := a.srun.Close(ctx); err != nil {
			a.d.log.Error(fmt.Errorf("cannot end srun's streams: %w", err))
		}
	}
	select {
	case <-a.sent:
	case <-ctx.Done():
		a.d.log.Errorf("cannot report all to srun: it has not answered within %v of the tasks' end", a.patience)
		a.giveUp(context.Cause(ctx))
		<-a.sent
	}
}
