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

	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/internal/linux"
	"stepd/node/child"
	"stepd/node/scripts"
	"stepd/node/state"
	"stepd/step"
)

// helloMax is how long a stepd whose pid is not known may take to say it.
const helloMax = 2 * time.Second

// Recover finds what an earlier noded left: steps that run are followed again,
// those that ended meanwhile get their result, what is left of dead ones is
// removed. It returns before the dead are all cleaned up. It is called once,
// before requests are served.
func (n *Node) Recover(ctx context.Context) error {
	begin := time.Now()
	if err := n.refind(ctx); err != nil {
		return err
	}
	recs, err := n.store.Steps(0)
	if err != nil {
		return err
	}
	jobs, err := n.store.Jobs()
	if err != nil {
		return err
	}
	left := make(map[uint32][]*step.Record)
	running := make(map[step.ID]bool)
	for _, rec := range recs {
		if !rec.State.Final() {
			left[rec.ID.Job] = append(left[rec.ID.Job], rec)
			running[rec.ID] = true
		}
	}
	ending := n.recoverJobs(ctx, jobs, left)
	n.meetAll()
	n.cfg.Meter.Adopted(n.adopted, time.Since(begin))
	n.health.Recover(running)
	n.sweep(running) // what belongs to a job is the job's
	for _, j := range ending {
		n.work.Go(func() { n.endJob(j) })
	}
	n.spool.setPatience(n.cfg.SpoolTimeout)
	return nil
}

// recoverJobs takes back the jobs with the steps that are left of them. It returns those
// that have ended, and are to be cleaned up.
func (n *Node) recoverJobs(ctx context.Context, jobs []*state.Job, left map[uint32][]*step.Record) (ending []*job) {
	var jobIDs []uint32
	goesOn := func(j *state.Job) bool { return len(left[j.ID]) > 0 || j.HasClient() }
	ended := slices.DeleteFunc(slices.Clone(jobs), goesOn)
	jobs = slices.DeleteFunc(jobs, func(j *state.Job) bool { return !goesOn(j) })
	for _, j := range jobs {
		jobIDs = append(jobIDs, j.ID)
	}
	if err := n.cfg.Containers.Restore(ctx, jobIDs); err != nil {
		n.log.Errorf("cannot restore job containers: %v", err)
	}
	for _, j := range jobs {
		n.recoverJob(*j, left[j.ID])
		delete(left, j.ID)
	}
	for _, recs := range left { // steps without their job: a store that was edited
		n.recoverJob(state.Job{ID: recs[0].ID.Job, UID: recs[0].UID, User: recs[0].User, CPUs: recs[0].CPUs}, recs)
	}
	for _, rec := range ended {
		ending = append(ending, n.readopt(*rec, 0))
	}
	return ending
}

// meetAll waits until the stepds that were found have said how their steps are:
// no client is to see the store's state of their beginning. One that does
// not answer delays it by helloMax, and all of them do not by more.
func (n *Node) meetAll() {
	late := time.NewTimer(helloMax)
	defer late.Stop()
	for _, f := range n.reg.followers() {
		select {
		case <-f.met:
		case <-late.C:
			return
		}
	}
}

// readopt takes back a job with n holders, as adopt does. One without ends.
func (n *Node) readopt(rec state.Job, holders int) *job {
	cpus, err := step.ParseCPUList(rec.CPUs)
	if err != nil {
		n.log.WithField("job", rec.ID).Errorf("cannot take back its CPUs: %v", err)
	}
	rec.GoOn(n.cfg.clock, n.boot)
	return n.reg.adopt(rec, cpus, holders)
}

// recoverJob takes back one job with the steps of it that had not ended.
func (n *Node) recoverJob(rec state.Job, steps []*step.Record) {
	holders := len(steps)
	if rec.HasClient() {
		holders++
	}
	j := n.readopt(rec, holders)
	first := false
	var others []*follower
	for _, s := range steps {
		f := newFollower(n, j, *s)
		f.stage = followed
		n.reg.takeBack(f)
		first = first || j.Leads(s.ID)
		if n.adopt(f) && !j.Leads(s.ID) {
			others = append(others, f)
		}
	}
	if rec.Implicit && !first {
		for _, f := range others {
			n.cancelLater(f, jobEnded)
		}
	}
	if rec.HasClient() {
		n.recoverAlloc(j)
	}
	if !rec.Implicit && !rec.HasClient() {
		n.endExternWith(j, others)
	}
}

// recoverAlloc finds the client of an allocation again, or ends the job.
func (n *Node) recoverAlloc(j *job) {
	client, err := openHolder(j.Holder, n.boot)
	if err == nil {
		n.work.Go(func() { n.holdJob(j, client) })
		return
	}
	reason := clientGone
	if !errors.Is(err, child.ErrGone) {
		reason = err.Error()
	}
	if n.reg.follower(interactiveID(j)) == nil {
		n.endAlloc(j, reason)
		return
	}
	n.work.Go(func() { n.endWithShell(j, reason) })
}

// adopt follows a step again, or ends it where its stepd is dead. It returns
// whether the step runs.
func (n *Node) adopt(f *follower) (runs bool) {
	rec := f.record()
	n.reg.add(f) // it runs until it is buried: who waits, waits for that
	p, conn, reason := n.findStepd(rec)
	if p == nil || rec.StepdPID == 0 { // in the latter case it has been met
		f.merge(rec)
		f.meet()
	}
	if p == nil {
		state := step.Failed
		switch {
		case !linux.SameBoot(rec.BootID, n.boot):
			state = step.NodeFail
		case rec.State == step.Pending:
			state, reason = step.Cancelled, "noded was restarted before the step was launched"
		}
		n.work.Go(func() { f.bury(reason, state) })
		return false
	}
	f.log.Infof("found stepd (pid %d) again", p.PID)
	n.adopted++
	f.findLauncher(rec)
	f.begin(p, conn)
	f.addToContainer()
	return true
}

// findLauncher watches the process that has launched the step as before the restart.
// What is stored is the step's beginning: stepd knows whether it still needs that one.
func (f *follower) findLauncher(rec *step.Record) {
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

// bury settles a step whose stepd was dead when noded started.
func (f *follower) bury(reason string, state step.State) {
	rec, err := readResult(f.n.files.result(f.id), f.id)
	switch {
	case err == nil:
		f.log.Info("took the result that stepd left")
		f.settle(rec)
	default:
		if !errors.Is(err, os.ErrNotExist) {
			f.log.Warnf("%v", err)
		}
		f.log.Errorf("%s: killing the rest of the step", reason)
		f.die(reason, state)
	}
	f.cleanup()
}

// findStepd finds the step's stepd and connects to it. Without a process the
// reason says why; without a connection it is followed by its pidfd alone.
func (n *Node) findStepd(rec *step.Record) (*child.Process, *stepapi.Conn, string) {
	if !linux.SameBoot(rec.BootID, n.boot) {
		return nil, nil, rebooted(rec.BootID, n.boot)
	}
	dir, name := n.files.stepsDir(), n.files.socketName(rec.ID)
	if rec.StepdPID == 0 {
		return n.meetStepd(rec)
	}
	p, err := child.Find(rec, n.boot)
	if errors.Is(err, child.ErrGone) {
		return nil, nil, fmt.Sprintf("stepd (pid %d) is gone", rec.StepdPID)
	}
	if err != nil {
		return nil, nil, err.Error()
	}
	conn, err := stepapi.DialDir(dir, name)
	if err != nil {
		// It may be past serving, on its way to leave a result file.
		n.log.WithField("step", rec.ID.String()).Warnf("cannot reach stepd (pid %d): %v", p.PID, err)
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
func (n *Node) meetStepd(rec *step.Record) (*child.Process, *stepapi.Conn, string) {
	const why = "noded ended while it started the step"
	conn, err := stepapi.DialDir(n.files.stepsDir(), n.files.socketName(rec.ID))
	if err != nil {
		return nil, nil, why
	}
	timer := time.AfterFunc(helloMax, func() { conn.Close() })
	m, _, err := conn.Recv()
	if !timer.Stop() || err != nil || m.Record == nil || m.Record.StepdPID <= 0 {
		conn.Close()
		return nil, nil, why
	}
	p, err := child.Attach(m.Record.StepdPID)
	if err != nil {
		conn.Close()
		return nil, nil, why
	}
	if m.Version == stepapi.Version {
		rec.Merge(m.Record)
	}
	return p, conn, ""
}

// sweep removes what is left of steps that are final: cgroups, sockets, result
// files. What the store never numbered is another noded's, and stays.
func (n *Node) sweep(running map[step.ID]bool) {
	ids, err := n.cfg.Tracker.Steps()
	if err != nil {
		n.log.Errorf("cannot list leftovers: %v", err)
	}
	for _, id := range ids {
		if running[id] || n.health.Holds(id) || n.isJobs(id) {
			continue
		}
		log := n.log.WithField("step", id.String())
		if !n.store.Knows(id.Job) {
			log.Warn("found a step that this spool never started: it is left alone")
			continue
		}
		n.work.Go(func() {
			log.Warn("removing what an earlier noded left of the step")
			n.cfg.Meter.Leak(LeakStep)
			if !n.health.End(n.leftover(id), log) {
				return
			}
			if err := n.cfg.Tracker.EndJob(id.Job); err != nil {
				log.Debugf("%v", err) // another step of the job may run
			}
		})
	}
	n.sweepDir(n.files.stepsDir(), ".sock", running)
	n.sweepDir(n.files.resultsDir(), "", running)
	n.sweepDir(n.files.pmixDir(), "", running)
	n.sweepScripts()
}

// isJobs reports whether a place belongs to a job that is not over, and not to a step.
func (n *Node) isJobs(id step.ID) bool {
	if n.reg.job(id.Job) == nil {
		return false
	}
	switch id.Step {
	case scripts.PlaceID, KeeperPlace:
		return true
	case step.ExternStep:
		return n.formerScripts(id.Job) != nil
	}
	return false
}

func (n *Node) leftover(id step.ID) *step.Record {
	if rec, err := n.store.Step(id); err == nil {
		return rec
	}
	return &step.Record{ID: id} // forgotten since
}

// sweepDir removes the files of steps that do not run. Other names are not ours.
func (n *Node) sweepDir(dir, suffix string, running map[step.ID]bool) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return // pmixDir, which the first step makes that needs it
	}
	if err != nil {
		n.log.Errorf("cannot list leftovers: %v", err)
		return
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		id, err := step.ParseID(name)
		if !ok || err != nil || running[id] || !n.store.Knows(id.Job) {
			continue
		}
		n.cfg.Meter.Leak(LeakFile)
		if err := removeBelow(dir, e.Name()); err != nil {
			n.log.Warnf("a leftover stays: %v", err)
		}
	}
}

// sweepScripts removes the batch scripts of jobs that are over: the spool did not answer when
// they ended. Other names are not ours.
func (n *Node) sweepScripts() {
	entries, err := os.ReadDir(n.files.scriptsDir())
	if err != nil {
		n.log.Errorf("cannot list leftovers: %v", err)
		return
	}
	for _, e := range entries {
		job, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil || n.reg.job(uint32(job)) != nil || !n.store.Knows(uint32(job)) {
			continue
		}
		n.cfg.Meter.Leak(LeakFile)
		if err := removeBelow(n.files.scriptsDir(), e.Name()); err != nil {
			n.log.Warnf("a leftover stays: %v", err)
		}
	}
}
