package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/internal/linux"
	"stepd/node/state"
	"stepd/step"
)

// Adopt puts a process into the extern step of a job. The caller has made sure that the client
// is root.
func (n launcher) Adopt(ctx context.Context, p api.Peer, in *api.AdoptRequest) (*api.AdoptReply, error) {
	if !samePIDs(p.PID) {
		return nil, api.NewError(api.FailedPrecondition, "process numbers mean something else where you are: call from noded's own pid namespace")
	}
	pid := in.PID
	if pid <= 1 || pid == os.Getpid() {
		return nil, api.Errorf(api.InvalidArgument, "pid: process %d cannot be adopted", pid)
	}
	// The number may be another process's once this one was reaped: see below.
	pidfd, err := linux.PidfdOpen(pid)
	if err != nil {
		return nil, api.Errorf(api.NotFound, "no such process \"%d\"", pid)
	}
	defer unix.Close(pidfd)
	owner, err := ownerOf(pid)
	if err != nil {
		return nil, api.Errorf(api.NotFound, "no such process \"%d\": %v", pid, err)
	}
	j, err := n.adoptive(owner, in)
	if err != nil {
		return nil, err
	}
	f, err := n.extern(ctx, j)
	if err != nil {
		return nil, err
	}
	rec := f.record()
	if over(rec) { // it would be killed with the others
		return nil, externOver(j.ID)
	}
	if err := n.cfg.Tracker.Adopt(rec, pid); err != nil {
		if errors.Is(err, fs.ErrNotExist) { // its place is being removed
			return nil, externOver(j.ID)
		}
		return nil, api.NewError(api.FailedPrecondition, err.Error())
	}
	if over, err := linux.PidfdExited(pidfd); err != nil || over {
		// Until the check it was this process's; who has its number by now, if anybody
		// has, may have been moved in its place.
		f.log.WithField("pid", pid).Warn("process ended while it was adopted: if there is another one of this number, look where it is")
		return nil, api.Errorf(api.NotFound, "process %d has ended while it was adopted", pid)
	}
	if over(f.record()) { // it ended meanwhile, and the process may be killed with the others
		return nil, externOver(j.ID)
	}
	n.places.addPID(j.ID, pid, owner)
	f.log.WithField("pid", pid).Info("process adopted")
	return &api.AdoptReply{JobID: j.ID, StepID: f.id.Step, ID: f.id.Name(), Cgroup: rec.CgroupTasks, Namespaces: n.pinned(j.ID)}, nil
}

// samePIDs reports whether a client counts processes as noded does.
func samePIDs(pid int32) bool {
	ours, err := os.Stat("/proc/self/ns/pid")
	theirs, terr := os.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid))
	return err == nil && terr == nil && os.SameFile(ours, theirs)
}

// ownerOf is the real user of a process.
func ownerOf(pid int) (uint32, error) {
	ids, err := linux.Value(fmt.Sprintf("/proc/%d/status", pid), "Uid")
	if err != nil {
		return 0, err
	}
	real, _, _ := strings.Cut(ids, "\t")
	uid, err := strconv.ParseUint(real, 10, 32)
	return uint32(uid), err
}

// adoptive is the job that a process of owner is to be of: the one that was named, or
// the newest of the user's.
func (n launcher) adoptive(owner uint32, in *api.AdoptRequest) (*job, error) {
	user := owner
	if in.UID != nil {
		user = *in.UID
	}
	j := n.reg.newest(func(j *job) bool { return j.ID == in.JobID || in.JobID == 0 && j.UID == user })
	switch {
	case owner != 0 && owner != user:
		return nil, api.Errorf(api.FailedPrecondition, "process %d is uid %d's, not uid %d's", in.PID, owner, user)
	case in.JobID == 0 && in.UID == nil && owner == 0:
		return nil, api.Errorf(api.InvalidArgument, "uid: process %d is root's: say whose job, or which one, it is to be of", in.PID)
	case j == nil && in.JobID == 0:
		return nil, api.Errorf(api.NotFound, "uid %d has no job on this node", user)
	case j == nil:
		return nil, api.Errorf(api.NotFound, "no such job \"%d\"", in.JobID)
	case (owner != 0 || in.UID != nil) && j.UID != user: // of a job that was named
		return nil, api.Errorf(api.FailedPrecondition, "job %d is uid %d's, not uid %d's", j.ID, j.UID, user)
	}
	return j, nil
}

// pinned are the paths of the job's namespaces.
func (n launcher) pinned(job uint32) map[string]string {
	out := make(map[string]string)
	for file, kind := range map[string]string{"ns": "mnt", "pid": "pid", "user": "user"} {
		path := filepath.Join(n.spool.Run, "jobs", strconv.FormatUint(uint64(job), 10), file)
		if _, err := os.Lstat(path); err == nil && n.cfg.ContainerType != "none" {
			out[kind] = path
		}
	}
	return out
}

// extern returns the job's extern step, which it starts where there is none yet: what
// no step of the job has started is in there.
func (n launcher) extern(ctx context.Context, j *job) (*follower, error) {
	j.extern.Lock()
	defer j.extern.Unlock()
	id := step.ID{Job: j.ID, Step: step.ExternStep}
	if f := n.reg.follower(id); f != nil {
		return f, nil
	}
	req := &step.Request{
		Schema: step.Schema, Job: &j.ID, UID: &j.UID, GID: &j.GID, Name: "extern", Argv: []string{"/bin/sleep", "infinity"},
		NTasks: 1, NNodes: 1, CPUsPerTask: 1, Overcommit: true, Env: []string{"PATH=" + step.SafePath}, Cwd: "/", MPI: "none",
	}
	null := step.Stream{Kind: step.StreamNull}
	req.Stdin, req.Stdout, req.Stderr = null, null, null
	if err := n.check(req); err != nil {
		return nil, err
	}
	// The prolog comes before the first process of the job's.
	if n.scripts.AwaitsProlog(j.scripts) {
		if !n.reg.keep(j) {
			return nil, api.Errorf(api.NotFound, "no such job \"%d\"", j.ID)
		}
		if err := n.prologAlone(j, step.User{UID: j.UID, GID: j.GID, Name: j.User}); err != nil {
			return nil, api.NewError(api.Aborted, err.Error())
		}
	}
	in := order{req: req, state: step.Starting, received: time.Now(), want: id, had: externOver(j.ID), know: func(spec *step.Spec) {
		j.giveAll(spec)
		// Its one process only waits: no plugin, no script of the site's and no binding is for it.
		spec.Spank.Plugstack, spec.Scripts, spec.Affinity = "", step.Site{}.Scripts, nil
	}}
	if err := n.isNew(in); err != nil {
		return nil, err
	}
	f, _, err := n.reserveOnly(ctx, api.Peer{}, in)
	if err != nil {
		return nil, err
	}
	if !f.claim() {
		return nil, externOver(j.ID)
	}
	if _, err := f.launch(nil); err != nil {
		return nil, err
	}
	return f, nil
}

// over reports whether a step's processes are being ended, or are gone.
func over(rec *step.Record) bool { return rec.State == step.Completing || rec.State.Final() }

// externOver is the answer where the job has had its extern step: there is no second one.
func externOver(job uint32) error {
	return api.Errorf(api.FailedPrecondition, "cannot adopt a process into job %d: its extern step has ended", job)
}

// giveAll makes the step one that may use all that the job has.
func (j *job) giveAll(spec *step.Spec) {
	spec.CPUs, spec.NCPUs, spec.MemoryMB, spec.StepGres = j.CPUs, len(j.has.CPUs), j.MemoryMB, j.Gres
}

// endExtern makes the end of an extern step that its job has ended what it is: its
// one process waits for that alone.
func endExtern(rec *step.Record) {
	if rec.ID.Step != step.ExternStep || rec.State != step.Cancelled || rec.Reason != jobEnded {
		return
	}
	rec.State, rec.Reason, rec.ExitCode, rec.Signal = step.Completed, "", new(0), nil
}

// The interactive step of an allocation (SLURM_INTERACTIVE_STEP) is its user's shell on
// the node: it may use all that the job has, and holds none of it from other steps.

func interactiveID(j *job) step.ID { return step.ID{Job: j.ID, Step: step.InteractiveStep} }

// interactive makes the order one of that step, or says why the job takes none.
func (n launcher) interactive(caller api.Peer, in order) (order, error) {
	j := n.reg.job(*in.req.Job)
	switch {
	case j == nil:
		return in, api.Errorf(api.NotFound, "no such job \"%d\"", *in.req.Job)
	case !caller.MayAct(j.UID):
		return in, api.Denied(j.UID)
	case j.Origin != step.OriginAlloc:
		return in, api.Errorf(api.FailedPrecondition, "interactive: job %d was not made by alloc", j.ID)
	}
	in.want, in.know = interactiveID(j), j.giveAll
	in.had = api.Errorf(api.FailedPrecondition, "interactive: %v", state.HadError{ID: in.want})
	return in, n.isNew(in)
}

// isNew returns the order's error where the job has, or had, the step.
func (n launcher) isNew(in order) error {
	switch _, err := n.store.Step(in.want); {
	case err == nil:
		return in.had
	case !errors.Is(err, state.ErrUnknown):
		return api.NewError(api.Internal, err.Error())
	}
	return nil
}

// reserveOnly is reserveFor of a step of which a job has one, which isNew, and which holds nothing
// of the job's.
func (n launcher) reserveOnly(ctx context.Context, caller api.Peer, in order) (*follower, *step.Spec, error) {
	f, spec, err := n.reserveFor(ctx, caller, in)
	if _, both := errors.AsType[state.HadError](err); both { // two requests at once
		return nil, nil, in.had
	}
	if err != nil {
		return nil, nil, err
	}
	n.reg.takeNothing(f)
	return f, spec, nil
}

// endWithShell ends an allocation whose client is gone. Its interactive step goes on, as
// every step with a terminal does, and the job goes on with it.
func (n *Node) endWithShell(j *job, reason string) {
	f := n.reg.follower(interactiveID(j))
	if f == nil {
		n.endAlloc(j, reason)
		return
	}
	n.log.WithField("job", j.ID).Infof("%s: the job goes on until step %s ends", reason, f.id.Name())
	ctx, cancel := j.untilOver(context.Background())
	defer cancel()
	select {
	case <-f.ended:
		n.endAlloc(j, "its interactive step has ended")
	case <-ctx.Done():
		n.endAlloc(j, errTime.Error())
	case <-j.ended:
	case <-n.stopping: // the next noded finds the step again
	}
}
