package node

import (
	"errors"
	"fmt"
	"slices"

	"stepd/api"
	"stepd/step"
)

// Steps of an allocation or of a batch job have their CPUs for themselves, as in
// Slurm since 20.11: one that does not fit beside the others waits, if its client
// wants that, in the order of asking. What overlaps (--overlap, --overcommit) counts for
// nobody else, nor does the batch script. In a job that was made for its first step, that
// has all CPUs until the job ends: the others share them.

// waiter is a request that waits for its share of a job.
type waiter struct {
	// job is the one in whose line it has a place; it counts as a step of its user's then.
	job *job
}

// errTurn is the answer to a try of a waiter, whom nobody tells what is in its way.
var errTurn = errors.New("others come first")

// exclusive tells whether steps of the job have their CPUs alone.
func (j *job) exclusive() bool {
	return j.Origin == step.OriginAlloc || j.Origin == step.OriginBatch
}

// takeAlone gives a step CPUs that no other one has for itself, those that overlapping
// ones use least; false where there are not enough.
func (j *job) takeAlone(req *step.Request) ([]int, bool) {
	free := slices.DeleteFunc(slices.Clone(j.pool.cpus), func(c int) bool { return j.alone.uses[c] > 0 })
	want := req.NTasks * req.CPUsPerTask
	if req.Binding.Whole {
		want = len(j.pool.cpus)
	}
	if len(free) < want {
		return nil, false
	}
	sub := &cpuPool{cpus: free, uses: j.pool.uses, cores: coresOf(j.pool.cores, free)}
	cpus, err := sub.shareFor(req)
	if err != nil {
		return nil, false
	}
	j.alone.hold(cpus)
	return cpus, true
}

// takeCPUs is a step's share of its job's CPUs. busy says that it has to wait for w's
// turn, or for the end of other steps.
func (j *job) takeCPUs(req *step.Request, w *waiter) (cpus []int, alone, busy bool, err error) {
	if req.Overlap || req.Overcommit || !j.exclusive() {
		cpus, err = j.pool.shareFor(req)
		return cpus, false, false, err
	}
	if len(j.waiters) > 0 && j.waiters[0] != w {
		return nil, false, true, nil
	}
	cpus, ok := j.takeAlone(req)
	return cpus, true, !ok, nil
}

// aloneFree counts the CPUs that no step of the job has for itself.
func (j *job) aloneFree() (free int) {
	for _, c := range j.pool.cpus {
		if j.alone.uses[c] == 0 {
			free++
		}
	}
	return free
}

// queueLocked puts w behind the others that wait for the job, unless it is there.
func (r *registry) queueLocked(j *job, w *waiter) {
	if w == nil || w.job != nil {
		return
	}
	w.job = j
	j.waiters = append(j.waiters, w)
	r.byUser[j.UID]++
}

// leaveQueue ends the wait of w, whatever came of it: the next one is first.
func (r *registry) leaveQueue(w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaveQueueLocked(w)
}

func (r *registry) leaveQueueLocked(w *waiter) {
	if w == nil || w.job == nil {
		return
	}
	j := w.job
	w.job = nil
	r.leaveUser(j.UID)
	if i := slices.Index(j.waiters, w); i >= 0 {
		j.waiters = slices.Delete(j.waiters, i, i+1)
		r.tellFreed()
	}
}

// busyIn refuses a step that would fit in its job if it waited, and says what for.
func (r *registry) busyIn(j *job, req *step.Request) error {
	want, free := req.NTasks*req.CPUsPerTask, j.aloneFree()
	if req.Binding.Whole {
		want = len(j.pool.cpus)
	}
	what := fmt.Sprintf("%s of job %d", cpuCount(want), j.ID)
	text := fmt.Sprintf("the step does not fit beside the others of job %d: it needs %s, and of %s %d are free", j.ID, cpuCount(want), cpuCount(len(j.pool.cpus)), free)
	if len(j.waiters) > 0 {
		text += fmt.Sprintf("; %d wait before it", len(j.waiters))
	}
	return waitsFor(text+"; --overlap shares CPUs with other steps", what+r.freeIn(j, want-free))
}

// isBusy tells whether a request was refused that would be met if it waited.
func isBusy(err error) bool {
	e, ok := api.AsError(err)
	return ok && e.Waits != ""
}

// waitsFor is the answer to a request that would be met if it waited; what completes
// "waiting for".
func waitsFor(text, what string) error {
	return &api.Error{Code: api.ResourceExhausted, Message: text, Waits: what}
}
