package slurmstepd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/eventlog/archive"
	"stepd/internal/quickjson"
	"stepd/mpi"
	"stepd/proctrack"
	"stepd/slurm/extern"
	"stepd/slurm/keeper"
	"stepd/slurm/oci"
	others "stepd/slurm/peers"
	"stepd/slurm/place"
	"stepd/slurm/rpc"
	"stepd/slurm/spawn"
	"stepd/slurm/tree"
	"stepd/slurm/wire"
	"stepd/slurmconf"
	"stepd/step"
)

// orphan ends a step whose daemon has died: the keeper has become this program. What it does
// does not depend on what has been done before.
type orphan struct {
	will  will
	mark  func(i int) uint32 // of the estate
	log   *logrus.Logger
	peers *peers
}

// endOrphan is the program, run by stepkeeper. It returns the exit code.
func endOrphan() int {
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		fmt.Fprintln(os.Stderr, "slurmstepd:", err)
		return 1
	}
	e, err := keeper.Inherited()
	if err != nil {
		fmt.Fprintln(os.Stderr, "slurmstepd:", err)
		return 1
	}
	o := &orphan{mark: e.Mark}
	if err := quickjson.Unmarshal(e.Will, &o.will); err != nil {
		fmt.Fprintln(os.Stderr, "slurmstepd: cannot parse what the step daemon has left:", err)
		return 1
	}
	setTitle("slurmstepd", "slurmstepd: ["+o.will.Name+"]")
	o.log, _ = openLog(o.will.LogFile, o.will.Name, o.will.Debug)
	o.peers = o.will.peers(o.log)
	return o.run()
}

// orphanPatience is how long srun and slurmctld wait for the end of the step's processes:
// SIGKILL is a matter of milliseconds, for all but processes in uninterruptible sleep.
const orphanPatience = 500 * time.Millisecond

func (o *orphan) run() int {
	o.log.Errorf("the step daemon has died: the step's processes are killed, and its end is reported (the kernel's log says whether memory was short)")
	brief, cancel := context.WithTimeout(context.Background(), orphanPatience)
	killErr := o.kill(brief)
	cancel()
	ctx := context.Background()
	answered := o.mark(markAnswered) != 0 // else slurmd reports that the launch has failed
	var reports sync.WaitGroup
	if answered {
		reports.Go(func() { o.reportSrun(ctx) })
		if o.mark(markComplete) == 0 {
			reports.Go(o.reportOrigin)
		}
	}
	reports.Go(func() { o.reportPeers(ctx) })
	if killErr != nil {
		o.log.Error(killErr)
		long, cancel := context.WithTimeout(ctx, time.Duration(cmp.Or(o.will.UnkillableS, 60))*time.Second)
		killErr = o.kill(long)
		cancel()
	}
	o.clean()
	if killErr != nil { // before the end of the step, which frees the node for others
		o.log.Error(killErr)
		o.peers.drain(ctx, "step "+step.ID{Job: o.will.Step.Job, Step: o.will.Step.Step}.Name())
	}
	if answered {
		reports.Go(func() { o.reportController(ctx) })
		if err := archive.In(o.will.Spool).Lose(o.record(), lostReason); err != nil {
			o.log.Error(err)
		}
	}
	if err := o.removeContainer(ctx); err != nil {
		o.log.Error(err)
	}
	reports.Wait()
	if killErr != nil {
		return 1
	}
	return 0
}

// kill kills all of the step, waits for its end and removes its cgroups.
func (o *orphan) kill(ctx context.Context) error {
	w := &o.will
	id := step.ID{Job: w.Step.Job, Step: w.Step.Step}
	if w.Cgroups.Dir == "" {
		return proctrack.KillSession(ctx, proctrack.Process{PID: w.Session, Start: w.Started}, nil)
	}
	root, err := proctrack.RootOf(id, w.Cgroups)
	if err != nil {
		return err
	}
	if err := root.KillStep(ctx, id); err != nil {
		return err
	}
	if err := root.RemoveJob(id.Job); err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

// clean removes the step's files: slurmd takes a socket for a step.
func (o *orphan) clean() {
	if err := oci.Remove(bundleDir(o.will.Spool, step.ID{Job: o.will.Step.Job, Step: o.will.Step.Step})); err != nil {
		o.log.Errorf("cannot remove what the step daemon has left: %v", err)
	}
	if o.will.Step.Step == step.ExternStep {
		if err := extern.Remove(place.Dir(o.will.Spool), o.will.Step.Job); err != nil {
			o.log.Errorf("cannot remove what the step daemon has left: %v", err)
		}
	}
	if err := mpi.Remove(place.Dir(o.will.Spool), o.will.MPIKey); err != nil {
		o.log.Errorf("cannot remove what the step daemon has left: %v", err)
	}
	for _, path := range o.will.Remove {
		err := os.Remove(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) {
			o.log.Errorf("cannot remove what the step daemon has left: %v", err)
		}
	}
}

// lostReason is the record's.
const lostReason = "slurmstepd has died (slurmd's log and the kernel's may say why), and its keeper has killed the step"

// killed is the status of what the keeper has killed.
var killed = step.SignaledBy(unix.SIGKILL)

// record is what is known of the step.
func (o *orphan) record() *step.Record {
	w := &o.will
	rec := &step.Record{UID: w.User, Node: w.Node, NTasks: len(w.Ranks)}
	rec.SetID(step.ID{Job: w.Step.Job, Step: w.Step.Step})
	return rec
}

// status is a task's: the daemon's word of its end, else SIGKILL.
func (o *orphan) status(local int) step.ExitStatus {
	if mark := o.mark(markRanks + local); mark&rankEnded != 0 {
		return step.ExitStatus(mark & rankStatus)
	}
	return killed
}

// ends are the tasks' ends of which srun does not know, equal statuses together.
func (o *orphan) ends() (ends []*wire.TaskExit) {
	for local, rank := range o.will.Ranks {
		if o.mark(markRanks+local)&rankReported != 0 {
			continue
		}
		status := uint32(o.status(local))
		i := slices.IndexFunc(ends, func(e *wire.TaskExit) bool { return e.Status == status })
		if i < 0 {
			i = len(ends)
			ends = append(ends, &wire.TaskExit{Step: o.will.Step, Status: status})
		}
		ends[i].Ranks = append(ends[i].Ranks, uint32(rank))
	}
	return ends
}

// verdict is the step's status for slurmctld. Whether a user's command has ended a task is not
// known.
func (o *orphan) verdict() step.ExitStatus {
	rec := o.record()
	for local, rank := range o.will.Ranks {
		rec.Tasks = append(rec.Tasks, step.Task{Rank: rank, Status: new(o.status(local))})
	}
	return new(verdict).status(rec)
}

// reportSrun tells srun what it has not been told yet: that the tasks run, where that is not
// known, and how they have ended. srun ignores the former where it comes twice (measured), and
// waits for the latter.
func (o *orphan) reportSrun(ctx context.Context) {
	launched := &wire.LaunchResponse{Step: o.will.Step, Node: o.will.Node}
	for _, rank := range o.will.Ranks {
		launched.PIDs, launched.Ranks = append(launched.PIDs, 0), append(launched.Ranks, uint32(rank))
	}
	if o.mark(markLaunched) == 0 {
		o.peers.tellLauncher(ctx, launched)
	}
	for _, end := range o.ends() {
		o.peers.tellLauncher(ctx, end)
	}
}

// reportOrigin tells the step that has spawned this one that the node's tasks are killed.
func (o *orphan) reportOrigin() {
	w := &o.will
	if w.Origin == nil {
		return
	}
	slurmds := &slurmds{client: o.peers.ctld, slurmUser: w.SlurmUser, find: func(nodes []string) (map[string]slurmconf.Address, error) {
		return slurmconf.Addresses(w.SlurmConf, nodes)
	}}
	r := &spawn.Reporter{
		Origin: w.Origin, ID: step.ID{Job: w.Step.Job, Step: w.Step.Step}, Node: w.Node, Ranks: len(w.Ranks),
		Forward: slurmds.forward, Log: func(text string) { o.log.Info(text) }, Gone: func(string) {},
	}
	r.Start()
	r.Ended(lostRecord(lostReason))
}

// reportPeers tells the step's nodes next to this one that its daemon is gone: one that has no link
// to it yet would wait.
func (o *orphan) reportPeers(ctx context.Context) {
	w := &o.will
	post := office{client: o.peers.ctld, key: w.MPIKey, nodes: w.Neighbours}
	post.client.Release = w.PeerRelease
	ctx, cancel := context.WithTimeout(ctx, peersPatience)
	defer cancel()
	var reports sync.WaitGroup
	for node := range w.Neighbours {
		reports.Go(func() {
			mail := others.Gone(w.MPI.Job, w.MPI.Step, w.PeerSelf, node, lostReason)
			for pause := peersPause; ; pause *= 2 {
				err := post.deliver(ctx, node, mail)
				if err == nil {
					return
				}
				select {
				case <-time.After(pause): // its daemon may have no mailbox yet
				case <-ctx.Done():
					o.log.Info(err)
					return
				}
			}
		})
	}
	reports.Wait()
}

// peersPatience bounds that, and peersPause is the time before a neighbour is told again: one that
// is not reached waits for a daemon that does not come.
const (
	peersPatience = 3 * time.Second
	peersPause    = 20 * time.Millisecond
)

// reportController tells slurmctld that the step has ended.
func (o *orphan) reportController(ctx context.Context) {
	w := &o.will
	rc := uint32(o.verdict())
	switch {
	case o.mark(markComplete) != 0:
	case w.Batch:
		o.peers.tellController(ctx, rpc.BatchEnd(), &wire.CompleteBatchScript{Step: w.Step, RC: rc, UID: w.User, Node: w.Node})
	default:
		own := &wire.StepComplete{Step: w.Step, First: w.NodeID, Last: w.NodeID, RC: rc}
		ended := func(i int) bool { return o.mark(markRanks+len(w.Ranks)+i)&rankEnded != 0 }
		for _, end := range tree.Rows(own, w.NodeID+1, ended, w.Children) { // the daemon has taken theirs
			o.peers.tellEnd(ctx, end)
		}
	}
}
