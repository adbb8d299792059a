package slurmstepd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/eventlog/archive"
	"stepd/internal/linux"
	"stepd/internal/lookup"
	"stepd/jobcontainer"
	"stepd/mpi"
	"stepd/slurm/check"
	"stepd/slurm/extern"
	"stepd/slurm/gres"
	"stepd/slurm/keeper"
	"stepd/slurm/munge"
	"stepd/slurm/oci"
	"stepd/slurm/pam"
	"stepd/slurm/place"
	"stepd/slurm/rpc"
	"stepd/slurm/socket"
	"stepd/slurm/spec"
	"stepd/slurm/stdio"
	"stepd/slurm/tree"
	"stepd/slurm/wire"
	"stepd/slurmconf"
	"stepd/step"
	"stepd/step/launch"
	"stepd/stepd/report"
	stepwire "stepd/stepd/wire"
	"stepd/task"
)

// daemon is one step under slurmd.
type daemon struct {
	stream *wire.Stream
	conf   *slurmconf.Config
	spec   *step.Spec
	plan   *task.Plan
	files  [3]stdio.Files // labelled ones
	log    *logrus.Logger
	file   *os.File // the log's, nil without one
	caller *caller

	gres   *gres.Plugin
	pam    *pam.Session // nil without UsePAM
	place  *place.Place
	keeper *keeper.Keeper // nil where none could be started
	peers  *peers
	office *office       // nil of a step without MPI over nodes, as group
	group  *group        // nil of a step without MPI over nodes
	wired  chan struct{} // closed when st is set
	aud    *audience
	st     *task.Step
	socket *socket.Server
	tree   *tree.Tree   // nil where no node reports to this one
	extern *extern.Step // nil but for the extern step
	// namespace is the job's mount namespace, nil where it has the node's; joined is what the
	// tasks have of it; container is nil but for the extern step that has made it.
	namespace *os.File
	joined    launch.Namespaces
	container *jobcontainer.Slurmd
	bundles   *oci.Plugin // nil for a step outside of the OCI's containers
	spawning  *spawning   // nil before wire
	verdict   verdict
	// silent: slurmctld starts the batch job anew, and this end is not reported.
	silent atomic.Bool
	// left is what outlives SIGKILL, nil for nothing. Only run's goroutine uses it, or complete
	// for it.
	left *survivors
	// addresses are the nodes' that were asked for: netip.Addr by name.
	addresses sync.Map
	// suspending counts requests that have the tasks stand still, and are under way.
	suspending atomic.Int32
}

// newDaemon makes all that a step needs, and starts nothing of it. After an error nothing of
// the step is left.
func newDaemon(s *wire.Stream, caller *caller) (_ *daemon, err error) {
	d := &daemon{stream: s, caller: caller, wired: make(chan struct{})}
	name := stepName(s)
	setTitle("slurmstepd", "slurmstepd: ["+name+"]")
	d.log, d.file = openLog(s.Conf.LogFile, name, s.Conf.Debug)
	caller.logBy(func(text string) { d.log.Error(text) })
	if d.file != nil { // the runtime's last words go there, and the keeper's
		if err := unix.Dup3(int(d.file.Fd()), 2, 0); err != nil {
			return nil, fmt.Errorf("cannot have slurmd's log as stderr: %w", err)
		}
	}
	if err := check.Refuse(s); err != nil {
		return nil, err
	}
	if d.conf, err = slurmconf.LoadSlurmd(cmp.Or(os.Getenv("SLURM_CONF"), s.Conf.ConfFile), s.Conf.Host, s.Conf.Node); err != nil {
		return nil, err
	}
	if d.spec, err = spec.Of(s, d.conf); err != nil {
		return nil, &refusal{unix.EINVAL, err}
	}
	defer func() {
		if err != nil {
			reportRefused(d, err)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	if err := d.findUser(ctx); err != nil {
		return nil, err
	}
	// Every orphan of the step becomes our child, so that none is lost.
	if err := linux.SetSubreaper(); err != nil {
		return nil, err
	}
	if err := d.makePlan(); err != nil {
		return nil, err
	}
	d.aud.open()
	defer func() {
		if err != nil {
			d.aud.abandon()
		}
	}()
	if d.place, err = place.Make(ctx, place.Config{
		Spool: s.Conf.Spool, Node: s.Conf.Node, Site: d.conf, MemoryMB: s.Conf.RealMemory, Bindable: true, Denied: d.planGres,
	}, d.spec); err != nil {
		return nil, err
	}
	for _, note := range d.place.Notes() {
		d.log.Debug(note) // slurmstepd --check prints it as well
	}
	defer func() {
		if err != nil {
			d.group.abandon(err)
			err = errors.Join(err, d.remove())
		}
	}()
	if err := d.joinContainer(ctx); err != nil {
		return nil, err
	}
	if err := d.makeBundles(ctx); err != nil {
		return nil, err
	}
	if s.Batch != nil {
		if err := writeScript(s.Conf, s.Batch, &d.spec.User); err != nil {
			return nil, err
		}
	}
	d.peers = d.newPeers()
	if d.spec.ID.Step == step.ExternStep {
		d.extern = extern.Start(d.externConfig())
	}
	return d, d.wire()
}

// makePlan plans the step, and makes what reports it.
func (d *daemon) makePlan() (err error) {
	d.files = labelFiles(d.spec)
	if d.plan, err = task.MakePlan(d.spec); err != nil {
		return &refusal{unix.EINVAL, err}
	}
	d.aud, err = newAudience(d)
	return err
}

// findUser asks the name service for the user's name and groups, where the credential has
// none (LaunchParameters=disable_send_gids). It runs before anything else waits for children.
func (d *daemon) findUser(ctx context.Context) error {
	u := &d.spec.User
	if u.Name != "" {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find spankhost: %w", err)
	}
	known, err := lookup.New(filepath.Join(filepath.Dir(self), "spankhost")).ByUID(ctx, u.UID)
	if err != nil {
		return fmt.Errorf("cannot find user %d, whom the credential does not name: %w", u.UID, err)
	}
	u.Name, u.Groups = known.Name, known.Groups
	if !slices.Contains(u.Groups, u.GID) {
		u.Groups = append(u.Groups, u.GID)
	}
	return nil
}

// stepName is the step as users and logs write it: "12.0", "12.batch", and before 26.05 with
// the component of a step that has several: "12.0+1".
func stepName(s *wire.Stream) string {
	id := step.ID{Step: step.BatchStep}
	if s.Batch != nil {
		id.Job = s.Batch.Job
	} else {
		id = step.ID{Job: s.Launch.Step.Job, Step: s.Launch.Step.Step}
		if het := s.Launch.Step.HetComp; het != wire.NoVal && s.Conf.Release < wire.V2605 {
			return fmt.Sprintf("%s+%d", id.Name(), het)
		}
	}
	return id.Name()
}

// wire joins the step to its neighbours.
func (d *daemon) wire() (err error) {
	d.spawning = newSpawning(d)
	d.peers.attempted = d.aud.settleEnd
	d.tree = tree.New(d.stream, func(i int, rc uint32) { d.markBits(markRanks+len(d.plan.Ranks)+i, rankEnded|rc) })
	d.aud.journal = newJournal(d)
	if d.office, err = newOffice(d); err != nil {
		return err
	}
	if err := d.guard(); err != nil {
		return err
	}
	plugins := []task.Plugin{d.gres}
	if d.conf.Control.UsePAM && d.spec.ID.Step != step.ExternStep {
		if d.pam, err = d.newSession(); err != nil {
			return err
		}
		plugins = append(plugins, d.pam)
	}
	if d.bundles != nil {
		plugins = append(plugins, d.bundles)
	}
	d.st, err = stepwire.Step(d.plan, stepwire.Neighbours{
		Audience: d.aud, Streams: d.aud.streams, Output: output{streams: d.aud.srun},
		OnMain:  func(f func()) { onMain <- f },
		Plugins: plugins, Namespaces: d.joined, Services: d.spawning.serve, Peers: func() (launch.Peers, error) { return newGroup(d) }, Aborted: func(rank, code int, text string) { d.group.aborted(rank, code, text) },
	})
	if err != nil {
		return err
	}
	close(d.wired)
	if err := d.spawning.report(); err != nil {
		return err
	}
	return d.listen()
}

// newSession makes the step's PAM session, which is not open yet.
func (d *daemon) newSession() (*pam.Session, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find pamhost: %w", err)
	}
	u := &d.spec.User
	return pam.New(pam.Config{
		Program: filepath.Join(filepath.Dir(self), "pamhost"),
		User:    u.Name, GID: u.GID, Groups: u.Groups, Node: d.spec.NodeName,
		Env: d.plan.Env, KeepNice: d.conf.PropagatePrioProcess != 0, Stderr: d.file,
	}), nil
}

// newPeers finds the programs that the step is reported to.
func (d *daemon) newPeers() *peers {
	uid := d.spec.User.UID
	p := &peers{
		log: d.log, user: uid, soon: make(chan struct{}, 1),
		ctld: rpc.Client{Release: d.stream.Conf.Release, Munge: munge.Client{Socket: d.conf.Control.AuthSocket}, Timeout: d.conf.Control.Timeout, Connect: d.conf.Control.Connect},
		srun: rpc.Client{Release: d.stream.ClientRelease, Munge: munge.Client{Socket: d.conf.Control.AuthSocket}, Timeout: d.conf.Control.Timeout, Connect: d.conf.Control.Connect},
		id:   d.id(), node: d.spec.NodeName, addrs: d.conf.Control.Addrs, slurmUser: d.slurmUID(),
	}
	if l := d.stream.Launch; l != nil && len(l.RespPorts) > 0 && l.Srun.IsValid() {
		p.nodes = l.Nodes
		p.parent = parentOf(d.stream, d.conf.File, d.log)
		p.launcher = fmt.Sprintf("%s:%d", bracket(l.Srun.Addr().String()), l.RespPorts[int(d.spec.NodeID)%len(l.RespPorts)])
	}
	return p
}

func bracket(addr string) string {
	for _, c := range addr {
		if c == ':' {
			return "[" + addr + "]"
		}
	}
	return addr
}

// id is the step's, as Slurm writes it.
func (d *daemon) id() wire.StepID {
	if d.stream.Launch != nil {
		return d.stream.Launch.Step
	}
	id := d.stream.Batch.Cred.Step
	id.Job, id.Step = d.stream.Batch.Job, step.BatchStep
	return id
}

// answer tells slurmd that there is a step, and gives up its pipes. A slurmd that has died
// finds the step by its socket when it starts again.
func (d *daemon) answer() {
	if err := errors.Join(d.caller.accept(), d.caller.detach()); err != nil {
		d.log.Error(err)
	}
}

// answerRunning answers for an extern step: slurmd starts the job's other steps when it has the
// answer, and they count on this one. A plugin that takes its time does not hold slurmd for ever.
func (d *daemon) answerRunning() {
	select {
	case <-d.aud.running:
		if !d.aud.launched && d.stream.Conf.Release >= wire.V2411 { // measured: 22.05 goes on without
			if err := errors.Join(d.caller.send(pluginFailed), d.caller.detach()); err != nil {
				d.log.Error(err)
			}
			return
		}
	case <-time.After(answerWithin):
	}
	d.answer()
}

// pluginFailed is Slurm's ESLURM_PLUGIN_INVALID, by which slurmd fails the prolog of the job.
const pluginFailed = 1011

// run runs the step, whose start slurmd knows of, to its end.
func (d *daemon) run() int {
	ctx, stop := report.UntilSignalled("slurmstepd")
	defer stop()
	// What ends the step, a SIGTERM to this program as well, is reported in any case.
	report := context.WithoutCancel(ctx)
	d.aud.connect(report, d.st)
	ended, swept := make(chan struct{}), make(chan struct{})
	go d.sweep(ended, swept)
	rec := d.st.Run(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		d.spawning.ended(&rec)
		d.spawning.close()
	}()
	d.reportEnd(report, &rec)
	d.mark(markComplete)
	close(ended)
	d.aud.end(&rec, d.conf.Stepd.KeepSteps)
	d.group.leave(ctx)
	<-told
	d.left.wait(report, d)
	err := errors.Join(d.st.EndHelpers(ctx), d.remove())
	<-swept // after the step's end: what another one has left, a large /tmp, may take long
	if err != nil {
		d.log.Error(err)
		return 1
	}
	d.log.Debug("done")
	return 0
}

// reportEnd tells srun and slurmctld that the step has ended, both at once: srun's last message
// waits for slurmctld's (audience.endSent).
func (d *daemon) reportEnd(ctx context.Context, rec *step.Record) {
	if d.stream.Batch != nil {
		d.aud.finish(ctx, rec) // of the script's output, which is whole when its end is known
		d.complete(ctx, rec)
		return
	}
	completed := make(chan struct{})
	go func() {
		defer close(completed)
		defer d.aud.settleEnd()
		d.complete(ctx, rec)
	}()
	d.aud.finish(ctx, rec)
	<-completed
}

// complete tells slurmctld that the step has ended here.
func (d *daemon) complete(ctx context.Context, rec *step.Record) {
	rc, used := uint32(d.verdict.status(rec)), usage(rec, d.stream.Conf.TRES, d.spec.NodeID)
	d.left = d.held(ctx, rec) // first: the end of the step frees the node for others
	if d.silent.Load() && d.stream.Batch != nil {
		return
	}
	if d.stream.Batch != nil {
		fault := uint32(0)
		switch {
		case d.pam.Refused():
			fault = launchFailed
		case rec.Drain != "" && rec.PluginCrash == nil:
			fault = slurmError
		}
		d.peers.tellController(ctx, rpc.BatchEnd(), &wire.CompleteBatchScript{
			Step: d.id(), RC: rc, Fault: fault, UID: d.spec.User.UID, Node: d.spec.NodeName, Usage: used,
		})
		return
	}
	if rc == 0 && d.aud.launchFailed(rec) {
		rc = uint32(step.ExitedWith(1))
	}
	own := &wire.StepComplete{Step: d.id(), First: d.spec.NodeID, Last: d.spec.NodeID, RC: rc, Usage: used}
	ends, missing := d.tree.Gather(ctx, own, d.aud.settleEnd) // srun does not wait for them
	if missing > 0 {
		d.log.Warnf("%d nodes of the step have not reported its end in time to this one, and it goes on without them", missing)
	}
	for _, end := range ends {
		d.peers.tellEnd(ctx, end)
	}
}

// slurmError is Slurm's SLURM_ERROR, as an error of a batch job's launch.
const slurmError = 0xffffffff

// remove takes back what newDaemon has made.
func (d *daemon) remove() error {
	var errs []error
	if d.extern != nil {
		errs = append(errs, d.extern.Close()) // first: the display's key may lie in the container
	}
	errs = append(errs, d.removeContainer()) // before slurmd runs the Epilog, which it does when there is no socket
	if d.stream.Batch != nil {
		errs = append(errs, removeScript(d.stream.Conf.Spool, d.stream.Batch.Job))
	}
	if d.socket != nil {
		d.socket.Close()
	}
	d.spawning.close()
	if d.bundles != nil && !d.bundles.Conf.KeepFiles {
		errs = append(errs, d.bundles.Remove())
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(cmp.Or(d.spec.UnkillableS, 60))*time.Second)
	defer cancel()
	errs = append(errs, d.place.Remove(ctx))
	if d.keeper != nil {
		d.keeper.Done()
	}
	return errors.Join(errs...)
}

// sweepPatience bounds the sweep: it must not hold up the end of this step.
const sweepPatience = time.Second

// sweep kills what dead step daemons and their dead keepers have left, once the launch is
// over, and logs what the step asks for and is not done, and what is configured and is not, the
// latter once for each change of it. A short step's end is reported before. A longer step gets its
// record first, and its daemon gives back memory last.
func (d *daemon) sweep(ended <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	<-d.aud.running
	select {
	case <-ended:
	case <-time.After(report.TrimAfter):
		if d.aud.launched {
			rec := d.st.Record()
			d.aud.noteRunning(&rec)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), sweepPatience)
	defer cancel()
	swept, err := d.place.Sweep(ctx, d.cleanSwept)
	for _, id := range swept {
		d.log.Warnf("killed what the dead step daemon of step %s has left", id.Name())
	}
	for _, line := range check.Ignored(d.stream) {
		d.log.Warnf("not done: %s", line)
	}
	err = errors.Join(err, check.Note(place.Dir(d.stream.Conf.Spool), d.conf.Control.Digest, d.conf.File, d.stream.Conf.Node, func(line string) {
		d.log.Warnf("not done: %s", line)
	}))
	if err != nil {
		d.log.Error(err)
	}
	select {
	case <-ended:
	default:
		go report.Trim(len(d.plan.Ranks)) // whatever runs after it brings pages back
	}
}

// sweptReason is the record's of a step that was swept.
const sweptReason = "slurmstepd and its keeper have died, and what they have left was killed at the start of a later step"

// cleanSwept removes the files of a step that was swept, and notes its end.
func (d *daemon) cleanSwept(id step.ID) error {
	spool := d.stream.Conf.Spool
	err := archive.In(spool).Lose(&step.Record{ID: id, IDName: id.Name(), Node: d.stream.Conf.Node}, sweptReason)
	if errors.Is(err, fs.ErrNotExist) { // it had not come so far
		err = nil
	}
	key, box := removeMailbox(place.Dir(spool), id)
	err = errors.Join(err, oci.Remove(bundleDir(spool, id)), mpi.Remove(place.Dir(spool), key), box)
	if id.Step == step.BatchStep {
		err = errors.Join(err, removeScript(spool, id.Job))
	}
	if id.Step == step.ExternStep {
		err = errors.Join(err, extern.Remove(place.Dir(spool), id.Job), d.sweepContainer(id.Job, ""))
	}
	return err
}

// noStreams are the streams of a step without srun.
type noStreams struct{}

func (noStreams) Drain(time.Duration) []launch.Held { return nil }
func (noStreams) Used() bool                        { return false }
func (noStreams) Fill(*step.Record)                 {}
