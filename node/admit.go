package node

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stepd/step"
)

// admission is a place for one step: CPUs, and the job where it is a running
// one. It ends in registry.start or registry.abandon.
type admission struct {
	uid  uint32
	cpus []int
	job  *job // nil: a job is to be made
}

// admitGrace is how long a step that does not fit waits for one that is
// ending: its client knows of the end some milliseconds before noded does.
const admitGrace = 500 * time.Millisecond

// epilogGrace is how long it waits where only epilogs stand between.
const epilogGrace = time.Minute

// admit finds place for a step of uid, whose CPUs are want. asRoot callers
// may use any job, others their own. Errors are gRPC statuses, and nothing is
// taken then.
func (r *registry) admit(ctx context.Context, req *step.Request, uid uint32, asRoot bool) (*admission, error) {
	grace, epilogs := time.NewTimer(admitGrace), time.NewTimer(epilogGrace)
	defer grace.Stop()
	defer epilogs.Stop()
	limit := grace.C
	for {
		a, freed, err := r.tryAdmit(req, uid, asRoot)
		if err == nil || freed == nil {
			return a, err
		}
		select {
		case <-freed:
		case <-limit:
			if limit == grace.C && r.epilogsHold(req.NTasks*req.CPUsPerTask) {
				limit = epilogs.C
				continue
			}
			return nil, err
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// epilogsHold tells whether the end of epilogs would make room for want CPUs.
func (r *registry) epilogsHold(want int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	ending := r.endingLocked()
	return ending > 0 && want <= r.pool.free()+ending
}

// tryAdmit is one try. A channel beside the error says that the release of
// CPUs may change the answer.
func (r *registry) tryAdmit(req *step.Request, uid uint32, asRoot bool) (*admission, <-chan struct{}, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closing:
		return nil, nil, status.Error(codes.Unavailable, "noded is stopping")
	case r.drained.Drained && req.Job == nil: // jobs that run go on
		return nil, nil, status.Errorf(codes.FailedPrecondition, "node is drained: %s", r.drained.Reason)
	case uid != 0 && r.byUser[uid] >= userStepsMax:
		return nil, nil, status.Errorf(codes.ResourceExhausted, "uid %d has %d steps on this node already, the limit", uid, userStepsMax)
	}
	want := req.NTasks * req.CPUsPerTask
	if req.Job == nil {
		cpus, err := r.pool.takeFor(req)
		if err != nil {
			freed := r.freed
			if want > len(r.pool.cpus) {
				freed = nil // it would not fit on the empty node either
			}
			return nil, freed, status.Error(codes.ResourceExhausted, err.Error())
		}
		r.byUser[uid]++
		return &admission{uid: uid, cpus: cpus}, nil, nil
	}
	j := r.jobs[*req.Job]
	switch {
	case j == nil || !j.open:
		return nil, nil, status.Errorf(codes.NotFound, "no such job \"%d\"", *req.Job)
	case j.UID != uid:
		if !asRoot {
			return nil, nil, errDenied
		}
		return nil, nil, status.Errorf(codes.InvalidArgument, "uid: job %d is uid %d's, not %d's", j.ID, j.UID, uid)
	case j.Suspended != nil:
		return nil, nil, status.Errorf(codes.FailedPrecondition, "job %d is suspended since %s: it takes steps again when it is resumed", j.ID, j.Suspended.Since.Format(time.RFC3339))
	case !req.Overcommit && want > len(j.cpus):
		return nil, nil, status.Errorf(codes.ResourceExhausted, "%s in job %d, which has %s; --overcommit shares CPUs among tasks", needs(want), j.ID, cpuCount(len(j.cpus)))
	}
	// Steps of one job share its CPUs.
	cpus, err := newCPUPool(j.cpus, coresOf(r.pool.cores, j.cpus)...).shareFor(req)
	if err != nil {
		return nil, nil, status.Error(codes.ResourceExhausted, err.Error())
	}
	// The count holds the job open meanwhile.
	j.running++
	j.present++
	r.byUser[uid]++
	return &admission{uid: uid, cpus: cpus, job: j}, nil, nil
}
