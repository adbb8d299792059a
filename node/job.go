package node

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/node/exchange"
	"stepd/node/scripts"
	"stepd/node/selection"
	"stepd/node/state"
	"stepd/srunopt"
	"stepd/step"
)

// job is a running job. The registry's lock guards what changes of it.
type job struct {
	state.Job
	// has is what the job has of the node.
	has *selection.Job
	// line are the steps that wait for their share, in order.
	line line
	// running counts what may still use the job's CPUs: steps whose result is
	// not known, and the client of an allocation; present also those that are
	// being cleaned up, and a prolog that no step runs.
	running, present int
	phase            jobPhase
	// ended is closed when nothing is left of the job.
	ended chan struct{}
	// extern is held while the job's extern step is looked for, or started.
	extern sync.Mutex

	// spawning counts spawns that are under way.
	spawning int
	// exchange is what the steps' programs have for each other.
	exchange *exchange.Exchange

	// standing is held while the job is suspended or resumed, until its steps have answered: a resume
	// that a suspend overtakes would let tasks run on CPUs that other jobs were given meanwhile.
	// Suspends and resumes alone wait for it, and each step's answer has a deadline.
	standing sync.Mutex

	limits  sync.Mutex
	limited map[string]bool // guarded by limits: what this noded has written of the job's limits

	scripts *scripts.Job
	found   bool // an earlier noded's, which may have left processes of its scripts
}

// jobPhase is how far a job is.
type jobPhase string

const (
	jobNew    jobPhase = "new"    // its first step, or its client's prolog, is on its way: it takes no other steps
	jobOpen   jobPhase = "open"   // it takes steps
	jobEnding jobPhase = "ending" // it takes no more steps, and those that it has end
	jobIdle   jobPhase = "idle"   // all of its tasks are dead, and its epilog may need its CPUs
	jobFreed  jobPhase = "freed"  // its CPUs were given back
)

// jobMoves are the legal changes of a job's phase.
var jobMoves = map[jobPhase][]jobPhase{
	jobNew:    {jobOpen, jobEnding, jobIdle},
	jobOpen:   {jobEnding, jobIdle},
	jobEnding: {jobIdle},
	jobIdle:   {jobFreed},
}

// ends reports whether the job takes no steps any more. The caller holds the registry's lock,
// as callers of leave and exclusive do.
func (j *job) ends() bool { return j.phase != jobNew && j.phase != jobOpen }

// leave ends one hold on the job, and returns the job where that was the last one.
func (j *job) leave() *job {
	if j.present--; j.present > 0 {
		return nil
	}
	return j
}

// exclusive reports whether steps of the job have their CPUs alone.
func (j *job) exclusive() bool { return j.Origin == step.OriginAlloc || j.Origin == step.OriginBatch }

func newJob(rec state.Job, has *selection.Job, n int, x *exchange.Config) *job {
	has.ID = rec.ID
	return &job{
		Job: rec, has: has, running: n, present: n, phase: jobNew, ended: make(chan struct{}), scripts: scripts.NewJob(rec.ID, rec.Stack), exchange: exchange.New(x, rec.ID, rec.Names),
	}
}

// savedOf is what the record has of the job's resources. The error is of CPUs that cannot be read.
func savedOf(rec *state.Job) (selection.Saved, error) {
	cpus, err := step.ParseCPUList(rec.CPUs)
	return selection.Saved{
		Share:     selection.Share{CPUs: cpus, MB: rec.MemoryMB, Gres: rec.Gres, Shared: rec.Shared},
		Suspended: rec.Suspended != nil && rec.Suspended.CPUsFree,
	}, err
}

func (j *job) doc() api.NodeJob {
	d := api.NodeJob{
		ID: j.ID, UID: j.UID, User: j.User, Name: j.Name, Origin: j.Origin,
		CPUs: step.FormatCPUList(j.has.CPUs), CPUsFree: j.has.Saved.Suspended, Gres: srunopt.FormatAllocs(j.Gres), Steps: []uint32{}, IDs: []string{},
		State: string(step.Running), Doing: j.scripts.Doing(), NTasks: j.NTasks,
	}
	if j.ends() {
		d.State = string(step.Completing)
	}
	if !j.Started.IsZero() {
		d.Started = &j.Started
	}
	if j.Suspended != nil {
		d.Suspended = &j.Suspended.Since
	}
	d.Origin = cmp.Or(d.Origin, step.OriginRun)
	if mb := j.MemoryMB; mb > 0 {
		d.MemoryMB = &mb
	}
	return d
}

// errTime ends an allocation whose time is over.
var errTime = errors.New("the job's time limit has come (--time)")

// limitTime lets a step of the job run no longer than the job, and hands it the
// job's warning where it has none of its own.
func (j *job) limitTime(s *step.Spec, now time.Time) {
	if j.Deadline == nil {
		return
	}
	left := max(1, int((j.Deadline.Sub(now)+time.Second-1)/time.Second))
	s.TimeLimitS = srunopt.Earlier(s.TimeLimitS, left)
	if s.Warn == nil {
		s.Warn = j.Warn
	}
}

// timeGrace is what an allocation has beyond its time: its steps, which count
// whole seconds, are to end by their own limit, and to say so.
const timeGrace = time.Second

// untilOver returns a context that ends with ctx, or with errTime when the job's time is over.
func (j *job) untilOver(ctx context.Context) (context.Context, context.CancelFunc) {
	if j.Deadline == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, time.Until(*j.Deadline)+timeGrace, errTime)
}

// endJob runs the epilog and removes what a job had, after its last step. nil
// is no job. Where noded stops in the middle of it, the next one does it.
func (n *Node) endJob(j *job) {
	if j != nil {
		(&jobEnd{n: n, job: j, log: n.log.WithField("job", j.ID)}).run()
	}
}

// jobEnd is the end of one job.
type jobEnd struct {
	n   *Node
	job *job
	log *logrus.Entry
}

func (e *jobEnd) run() {
	if e.job.found {
		// An epilog that was interrupted must not run beside its second run.
		e.scripts()
	}
	if e.n.scripts.OwesEpilog(e.job.scripts) && !e.n.scripts.Epilog(e.job.scripts, e.job.facts(&e.n.cfg), e.status()) {
		// Until the next noded no process looks after its leftovers.
		e.scripts()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.n.cfg.unkillable)
	defer cancel()
	// Before the rest of prolog and epilog, beside which its namespaces are kept.
	if err := e.n.places.uncontain(ctx, e.job.ID); err != nil {
		e.log.Errorf("%v", err)
	}
	e.scripts()
	// Process 1 of the job's pid namespace, which the end of the container has killed.
	e.beside(step.Record{ID: step.ID{Job: e.job.ID, Step: KeeperPlace}})
	held := e.n.health.HoldsJob(e.job.ID)
	if !held {
		e.place()
	}
	e.batchScript()
	// The store last: until then a restarted noded does this again.
	if err := state.LogOwed(e.n.store.EndJob(e.job.ID), e.log); err != nil {
		e.log.Errorf("%v: it is tried again", err)
	}
	e.n.reg.gone(e.job)
	machine{e.n}.tellStack(e.job.Stack)
	if held && !e.n.health.HoldsJob(e.job.ID) { // that has ended meanwhile, and has seen the job
		e.place()
	}
	close(e.job.ended)
}

// scripts kills what prolog and epilog have left running, and says what it was.
func (e *jobEnd) scripts() {
	places, closeOutputs := e.job.scripts.Leave()
	defer closeOutputs()
	id := e.job.scripts.Place()
	switch {
	case len(places) > 0:
	case !e.job.found:
		return
	default:
		places = []step.Record{{ID: id}}
	}
	left, err := e.n.cfg.Tracker.Left(id)
	if err != nil {
		e.log.Errorf("%v", err)
	}
	if len(left) > 0 {
		e.n.cfg.Meter.Leak(LeakScript)
		e.log.Warnf("prolog or epilog have left processes running, which end with the job: %s", strings.Join(left, ", "))
	}
	for _, rec := range places {
		e.beside(rec)
	}
}

// batchScript removes the job's batch script, if it had one.
func (e *jobEnd) batchScript() {
	if e.job.Origin != step.OriginBatch {
		return
	}
	if err := e.n.spool.RemoveJobDir(e.job.ID); err != nil {
		e.log.Errorf("cannot remove batch script: %v", err)
	}
}

// status is the job's end as its epilog is told.
func (e *jobEnd) status() (end scripts.End) {
	recs, err := e.n.store.Steps(e.job.ID)
	if err != nil {
		e.log.Errorf("%v", err)
	}
	for _, rec := range recs {
		var st step.ExitStatus
		switch {
		case rec.Signal != nil:
			st = step.ExitStatus(*rec.Signal & 0x7f)
		case rec.ExitCode != nil:
			st = step.ExitedWith(uint8(*rec.ExitCode))
		}
		if e.job.Leads(rec.ID) {
			end.Exit, end.State = st, rec.State
		}
		if rec.ID.Step != step.BatchStep {
			end.Derived = max(end.Derived, st)
		}
	}
	return end
}

// beside ends a place beside the job's steps.
func (e *jobEnd) beside(rec step.Record) {
	rec.BootID = e.n.boot
	e.n.health.End(&rec, e.log)
}

// place removes the place of the job, of which nothing is left.
func (e *jobEnd) place() {
	if err := e.n.cfg.Tracker.EndJob(e.job.ID); err != nil {
		e.log.Errorf("%v", err)
	}
}

// facts are what the job's scripts are told about it on a node with these resources.
func (j *job) facts(c *Config) scripts.Facts {
	env, _ := selection.GresEnv(c.Select.Gres, j.Gres, selection.GresScope{Batch: true})
	return scripts.Facts{
		Job: step.Spec{
			Request: step.Request{
				Name: j.Name, Cwd: j.WorkDir, CPUsPerTask: j.CPUsPerTask, SubmitHost: j.SubmitHost, RestartCount: j.Restarts, Array: j.Array,
			},
			Site: c.Site, ID: step.ID{Job: j.ID}, User: step.User{Name: j.User, UID: j.UID, GID: j.GID}, Origin: j.Origin, JobNTasks: j.NTasks,
			JobStarted: j.Started, JobLimitS: j.LimitS, JobMemoryMB: j.MemoryMB, JobCPUs: j.CPUs, NodeName: c.NodeName, NodeList: c.NodeName,
		},
		GresEnv: env, Stdin: j.Stdin, Stdout: j.Stdout,
	}
}

// runProlog runs the job's prolog, or waits for its end. A failure ends an allocation.
func (n *Node) runProlog(j *job) error {
	return n.scripts.Prolog(j.scripts, j.facts(&n.cfg), func(err error) {
		switch {
		case j.Origin != step.OriginAlloc || errors.Is(err, scripts.ErrStopping):
		case err != nil:
			n.endAlloc(j, err.Error())
		default: // its next step may come after a restart
			if err := n.store.SetPrologued(j.ID); err != nil {
				n.log.WithField("job", j.ID).Errorf("%v: it is tried again", err)
			}
		}
	})
}

// released removes what a step has kept from being removed at its job's end, as long as its
// processes did not die.
func (n *Node) released(id step.ID) {
	if n.reg.job(id.Job) != nil || n.health.HoldsJob(id.Job) {
		return // their end does it
	}
	log := n.log.WithField("step", id.Name())
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.unkillable)
	defer cancel()
	if err := n.places.uncontain(ctx, id.Job); err != nil {
		log.Errorf("%v", err)
	}
	if err := n.cfg.Tracker.EndJob(id.Job); err != nil {
		log.Errorf("%v", err)
	}
}

// KeeperPlace is the step number of the place in which process 1 of a job's pid namespace
// is. It is no step's: it lies above the counted ids, and Slurm reserves another. The place
// outlives the processes that prolog and epilog leave (scripts.PlaceID).
const KeeperPlace uint32 = 4294967289
