package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/internal/child"
	"stepd/internal/linux"
	"stepd/node/scripts"
	"stepd/node/selection"
	"stepd/node/spool"
	"stepd/node/state"
	"stepd/step"
)

// helloMax is how long a stepd whose pid is not known may take to say it.
const helloMax = 2 * time.Second

// recovery finds what an earlier noded left. It is made for one Recover.
type recovery struct {
	n *Node
	// running are the steps that had not ended.
	running map[step.ID]bool
	// adopted counts the steps that were found running.
	adopted int
	// jobIDs are the jobs that were taken back.
	jobIDs map[uint32]bool
	// places gets the steps that have places, once.
	places chan []step.ID
}

// Recover finds what an earlier noded left: steps that run are followed again,
// those that ended meanwhile get their result, what is left of dead ones is
// removed. It returns before the dead are all cleaned up. It is called once,
// before requests are served.
func (n *Node) Recover(ctx context.Context) error {
	begin := time.Now()
	r := &recovery{n: n, running: make(map[step.ID]bool), jobIDs: make(map[uint32]bool), places: make(chan []step.ID, 1)}
	go r.listPlaces() // beside the rest: with hundreds of steps it takes a tenth of the time
	if err := r.refind(ctx); err != nil {
		return err
	}
	recs, err := n.store.Unended()
	if err != nil {
		return err
	}
	jobs, err := n.store.Jobs()
	if err != nil {
		return err
	}
	left := make(map[uint32][]*step.Record)
	for _, rec := range recs {
		if !rec.State.Final() {
			left[rec.ID.Job] = append(left[rec.ID.Job], rec)
			r.running[rec.ID] = true
		}
	}
	ending := r.jobs(ctx, jobs, left)
	if over := n.reg.confirm(); over != nil {
		for _, text := range over { // the reason of the drain is cut where it is long
			n.log.Warnf("the node has less than its jobs have: %s", text)
		}
		n.health.Drain("the node has less than its jobs have: " + strings.Join(over, "; "))
	}
	r.meetAll()
	n.cfg.Meter.Adopted(r.adopted, time.Since(begin))
	n.health.Recover(r.running)
	r.sweep() // what belongs to a job is the job's
	for _, j := range ending {
		n.work.Go(func() { n.endJob(j) })
	}
	if n.cfg.StackChanged != nil {
		go machine{n}.followStack() // ends with noded's stop: it is no work of a job's
	}
	n.spool.SetPatience(n.cfg.SpoolTimeout)
	return nil
}

// refind takes steps into the store that run and that it does not know: it was lost, or
// set aside. Their stepds say what they are; steps that have ended are not known any
// more. It is called before the store is read.
func (r *recovery) refind(ctx context.Context) error {
	entries, err := os.ReadDir(r.n.spool.StepsDir())
	if err != nil {
		return err
	}
	known := make(map[step.ID]bool)
	for _, id := range r.n.store.IDs(0) {
		known[id] = true
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".sock")
		id, err := step.ParseID(name)
		if !ok || err != nil || known[id] {
			continue
		}
		rec := r.askStepd(id)
		if rec == nil {
			continue // it has no stepd: sweep removes what was of a known job
		}
		// It lives, and so it is of this boot.
		rec.BootID = r.n.boot
		if rec.StepdStart, err = linux.StartTime(rec.StepdPID); err != nil {
			continue // it has ended since
		}
		if err := r.n.store.Restore(rec, r.groupOf(ctx, rec)); err != nil {
			return err
		}
		r.n.log.WithField("step", id.Name()).Warnf("found a running step of user %q that the state does not have: it is taken back", rec.User)
	}
	return nil
}

// hello connects to the stepd behind a step's socket, and returns what it says at first.
func (r *recovery) hello(id step.ID) (*stepapi.Conn, *stepapi.Msg, error) {
	ctx, cancel := context.WithTimeout(context.Background(), helloMax)
	defer cancel()
	conn, err := stepapi.DialDir(ctx, r.n.spool.StepsDir(), r.n.spool.SocketName(id))
	if err != nil {
		return nil, nil, err
	}
	timer := time.AfterFunc(helloMax, func() { conn.Close() })
	m, err := conn.Hear()
	if err == nil && (!timer.Stop() || m.Record == nil) {
		err = fmt.Errorf("the stepd of step %s does not say what it runs", id)
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, m, nil
}

// askStepd returns what the stepd behind a socket says of its step, nil where none of
// root's answers.
func (r *recovery) askStepd(id step.ID) *step.Record {
	conn, m, err := r.hello(id)
	if err != nil {
		return nil
	}
	defer conn.Close()
	if peer, err := conn.Peer(); err != nil || peer.Uid != uint32(os.Geteuid()) {
		return nil
	}
	if m.Version != stepapi.Version || m.Record.ID != id || m.Record.State.Final() {
		return nil
	}
	return m.Record
}

// overflowGroup is the kernel's word for a group that is none (overflowgid).
const overflowGroup = 65534

// groupOf is the group of a job whose record is lost: its user's. It is never root's by
// mistake.
func (r *recovery) groupOf(ctx context.Context, rec *step.Record) uint32 {
	ctx, cancel := context.WithTimeout(ctx, helloMax)
	defer cancel()
	user, err := r.n.cfg.Users.ByUID(ctx, rec.UID)
	if err != nil {
		r.n.log.WithField("step", rec.ID.Name()).Errorf("the group of its job is lost, and group %d stands for it: %v", overflowGroup, err)
		return overflowGroup
	}
	return user.GID
}

// jobs takes back the jobs with the steps that are left of them. It returns those
// that have ended, and are to be cleaned up.
func (r *recovery) jobs(ctx context.Context, jobs []*state.Job, left map[uint32][]*step.Record) (ending []*job) {
	var jobIDs []uint32
	goesOn := func(j *state.Job) bool { return len(left[j.ID]) > 0 || j.HasClient() }
	ended := slices.DeleteFunc(slices.Clone(jobs), goesOn)
	jobs = slices.DeleteFunc(jobs, func(j *state.Job) bool { return !goesOn(j) })
	for _, j := range jobs {
		jobIDs = append(jobIDs, j.ID)
	}
	r.n.cfg.debug(logrus.NewEntry(r.n.log), "JobContainer", "restore, with the jobs %v", jobIDs)
	if err := r.n.cfg.Containers.Restore(ctx, jobIDs); err != nil {
		r.n.log.Errorf("cannot restore job containers: %v", err)
		blameNode(err, r.n.places.fault)
	}
	for _, j := range jobs {
		r.job(*j, left[j.ID])
		delete(left, j.ID)
	}
	for _, recs := range left { // steps without their job: a store that was edited
		r.job(state.Job{ID: recs[0].ID.Job, UID: recs[0].UID, User: recs[0].User, CPUs: recs[0].CPUs}, recs)
	}
	for _, rec := range ended {
		ending = append(ending, r.readopt(*rec, 0))
	}
	return ending
}

// confirm says what jobs of an earlier noded have that go on, and the node does not have for jobs any
// more: a step of such a job was found running, or its client. The other jobs give back what they have.
func (r *registry) confirm() (over []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	runs := make(map[uint32]bool)
	for id, f := range r.steps {
		runs[id.Job] = runs[id.Job] || f.is(stepFollowed)
	}
	var jobs []*selection.Job
	for _, j := range r.jobs {
		if runs[j.ID] || j.HasClient() && !j.ends() {
			jobs = append(jobs, j.has)
		}
	}
	for _, e := range r.has.Confirm(jobs) {
		over = append(over, fmt.Sprintf("job %d of %s has %s", e.Job.ID, r.jobs[e.Job.ID].User, e.What))
	}
	return over
}

// meetAll waits until the stepds that were found have said how their steps are:
// no client is to see the store's state of their beginning. One that does
// not answer delays it by helloMax, and all of them do not by more.
func (r *recovery) meetAll() {
	late := time.After(helloMax)
	for _, f := range r.n.reg.followers() {
		select {
		case <-f.met:
		case <-late:
			return
		}
	}
}

// readopt takes back a job with n holders, as adopt does. One without ends.
func (r *recovery) readopt(rec state.Job, holders int) *job {
	saved, err := savedOf(&rec)
	if err != nil {
		r.n.log.WithField("job", rec.ID).Errorf("cannot take back its CPUs: %v", err)
	}
	rec.GoOn(r.n.cfg.clock, r.n.boot)
	r.jobIDs[rec.ID] = true
	return r.n.reg.adopt(rec, saved, holders)
}

// job takes back one job with the steps of it that had not ended.
func (r *recovery) job(rec state.Job, steps []*step.Record) {
	holders := len(steps)
	if rec.HasClient() {
		holders++
	}
	j := r.readopt(rec, holders)
	first := false
	var others []*follower
	for _, s := range steps {
		f := newFollower(r.n, j, *s, stepStarting)
		r.n.reg.takeBack(f)
		first = first || j.Leads(s.ID)
		if r.adopt(f) && !j.Leads(s.ID) {
			others = append(others, f)
		}
	}
	if rec.Implicit && !first {
		for _, f := range others {
			r.n.cancelLater(f, jobEnded)
		}
	}
	if rec.HasClient() {
		r.alloc(j)
	}
	if !rec.Implicit && !rec.HasClient() {
		r.endExternWith(j, others)
	}
}

// alloc finds the client of an allocation again, or ends the job.
func (r *recovery) alloc(j *job) {
	client, err := openHolder(j.Holder, r.n.boot)
	if err == nil {
		r.n.work.Go(func() { r.n.holdJob(j, client) })
		return
	}
	reason := clientGone
	if !errors.Is(err, child.ErrGone) {
		reason = err.Error()
	}
	if r.n.reg.follower(interactiveID(j)) == nil {
		r.n.endAlloc(j, reason)
		return
	}
	r.n.work.Go(func() { r.n.endWithShell(j, reason) })
}

// endExternWith ends the extern step of a job that is not held and that no step leads, as one
// that was found again is, when the others that were found have ended.
func (r *recovery) endExternWith(j *job, others []*follower) {
	extern := r.n.reg.follower(step.ID{Job: j.ID, Step: step.ExternStep})
	if extern == nil {
		return
	}
	r.n.work.Go(func() {
		for _, f := range others {
			if f == extern {
				continue
			}
			select {
			case <-f.ended:
			case <-r.n.stopping:
				return
			}
		}
		r.n.cancelLater(extern, jobEnded)
	})
}

// adopt follows a step again, or ends it where its stepd is dead. It returns
// whether the step runs.
func (r *recovery) adopt(f *follower) (runs bool) {
	rec := f.record()
	r.n.reg.add(f) // it runs until it is buried: who waits, waits for that
	p, conn, reason := r.findStepd(rec)
	if p == nil || rec.StepdPID == 0 { // in the latter case it has been met
		f.merge(rec)
		f.meet()
	}
	if p == nil {
		state := step.Failed
		switch {
		case !linux.SameBoot(rec.BootID, r.n.boot):
			state = step.NodeFail
		case rec.State == step.Pending:
			state, reason = step.Cancelled, "noded was restarted before the step was launched"
		}
		r.n.work.Go(func() { r.bury(f, reason, state) })
		return false
	}
	f.log.Infof("found stepd (pid %d) again", p.PID)
	r.adopted++
	r.findLauncher(f, rec)
	f.begin(p, conn)
	f.addToContainer()
	return true
}

// findLauncher watches the process that has launched the step as before the restart.
// What is stored is the step's beginning: stepd knows whether it still needs that one.
func (r *recovery) findLauncher(f *follower, rec *step.Record) {
	if rec.LauncherPID == 0 || rec.State != step.Starting && rec.State != step.Pending {
		return
	}
	h := state.Process{PID: rec.LauncherPID, Start: rec.LauncherStart, BootID: rec.BootID}
	pidfd, err := openHolder(&h, f.n.boot)
	if err != nil {
		f.orphaned = true
		return
	}
	f.n.work.Go(func() {
		defer unix.Close(pidfd)
		f.watchLauncher(pidfd)
	})
}

// bury ends a step whose stepd was dead when noded started.
func (r *recovery) bury(f *follower, reason string, state step.State) {
	if f.settleWithout(reason, state) {
		f.log.Info("took the result that stepd left")
	}
	f.cleanup()
}

// findStepd finds the step's stepd and connects to it. Without a process the
// reason says why; without a connection it is followed by its pidfd alone.
func (r *recovery) findStepd(rec *step.Record) (*child.Process, *stepapi.Conn, string) {
	if !linux.SameBoot(rec.BootID, r.n.boot) {
		return nil, nil, rebooted(rec.BootID, r.n.boot)
	}
	dir, name := r.n.spool.StepsDir(), r.n.spool.SocketName(rec.ID)
	if rec.StepdPID == 0 {
		return r.meetStepd(rec)
	}
	p, err := child.Find(rec, r.n.boot)
	if errors.Is(err, child.ErrGone) {
		return nil, nil, fmt.Sprintf("stepd (pid %d) is gone", rec.StepdPID)
	}
	if err != nil {
		return nil, nil, err.Error()
	}
	ctx, cancel := context.WithTimeout(context.Background(), helloMax)
	defer cancel()
	conn, err := stepapi.DialDir(ctx, dir, name)
	if err != nil {
		// It may be past serving, on its way to leave a result file.
		r.n.log.WithField("step", rec.ID.Name()).Warnf("cannot reach stepd (pid %d): %v", p.PID, err)
		return p, nil, ""
	}
	return p, conn, ""
}

// rebooted says what came between two values of linux.BootID.
func rebooted(before, now string) string {
	boot, _, _ := strings.Cut(before, "/")
	if same, _, contained := strings.Cut(now, "/"); contained && same == boot {
		return "noded's container was started again while the step ran"
	}
	return "the node was rebooted while the step ran"
}

// meetStepd asks the socket who serves it: noded died after it had started
// stepd, and before it had stored the pid. What stepd says goes into rec.
func (r *recovery) meetStepd(rec *step.Record) (*child.Process, *stepapi.Conn, string) {
	const why = "noded ended while it started the step"
	conn, m, err := r.hello(rec.ID)
	if err != nil {
		return nil, nil, why
	}
	p, err := child.Attach(m.Record.StepdPID)
	if m.Record.StepdPID <= 0 || err != nil {
		conn.Close()
		return nil, nil, why
	}
	if m.Version == stepapi.Version {
		rec.Merge(m.Record)
	}
	return p, conn, ""
}

// listPlaces lists the steps that have places on the host.
func (r *recovery) listPlaces() {
	ids, err := r.n.cfg.Tracker.Steps()
	if err != nil {
		r.n.log.Errorf("cannot list leftovers: %v", err)
	}
	r.places <- ids
}

// sweep removes what is left of steps that are final: cgroups, sockets, result
// files. What the store never numbered is another noded's, and stays.
func (r *recovery) sweep() {
	for _, id := range <-r.places {
		if r.running[id] || r.n.health.Holds(id) || r.isJobs(id) {
			continue
		}
		log := r.n.log.WithField("step", id.Name())
		if !r.n.store.Knows(id.Job) {
			log.Warn("found a step that this spool never started: it is left alone")
			continue
		}
		r.n.work.Go(func() {
			log.Warn("removing what an earlier noded left of the step")
			r.n.cfg.Meter.Leak(LeakStep)
			if !r.n.health.End(r.leftover(id), log) {
				return
			}
			if err := r.n.cfg.Tracker.EndJob(id.Job); err != nil {
				log.Debugf("%v", err) // another step of the job may run
			}
		})
	}
	of := func(suffix string) func(name string) (job uint32, runs bool) {
		return func(name string) (uint32, bool) {
			stem, ok := strings.CutSuffix(name, suffix)
			id, err := step.ParseID(stem)
			return id.Job, !ok || err != nil || r.running[id]
		}
	}
	r.sweepDir(r.n.spool.StepsDir(), of(".sock"))
	r.sweepDir(r.n.spool.ResultsDir(), of(""))
	r.sweepDir(r.n.spool.PMIxDir(), of("")) // which the first step makes that needs it
	// Batch scripts: the spool did not answer when their jobs ended.
	r.sweepDir(r.n.spool.ScriptsDir(), func(name string) (uint32, bool) {
		job, err := strconv.ParseUint(strings.TrimPrefix(name, "job"), 10, 32) // an older noded's has no "job"
		return uint32(job), err != nil || r.n.reg.job(uint32(job)) != nil
	})
	if err := r.n.spool.SweepJobLinks("job*"); err != nil {
		r.n.log.Warnf("a leftover stays: %v", err)
	}
}

// isJobs reports whether a place belongs to a job that was taken back, and not to a step:
// the job's end removes it.
func (r *recovery) isJobs(id step.ID) bool {
	return r.jobIDs[id.Job] && (id.Step == scripts.PlaceID || id.Step == KeeperPlace)
}

func (r *recovery) leftover(id step.ID) *step.Record {
	if rec, err := r.n.store.Step(id); err == nil {
		return rec
	}
	return &step.Record{ID: id} // forgotten since
}

// sweepDir removes the files of a job that this node has numbered, unless keep says that the
// name is none of ours, or of what runs.
func (r *recovery) sweepDir(dir string, keep func(name string) (job uint32, yes bool)) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.n.log.Errorf("cannot list leftovers: %v", err)
	}
	for _, e := range entries {
		job, yes := keep(e.Name())
		if yes || !r.n.store.Knows(job) {
			continue
		}
		r.n.cfg.Meter.Leak(LeakFile)
		if err := spool.RemoveBelow(dir, e.Name()); err != nil {
			r.n.log.Warnf("a leftover stays: %v", err)
		}
	}
}
