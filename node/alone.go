package node

import (
	"fmt"
	"slices"

	"stepd/step"
)

// Steps of an allocation or of a batch job have their CPUs for themselves, as in
// Slurm since 20.11: one that does not fit beside the others waits, if its client
// wants that, in the order of asking. What overlaps (--overlap, --overcommit) counts
// against no other step, nor does the batch script. In a job that was made for its first step,
// that has all CPUs until the job ends: the others share them.

// exclusive reports whether steps of the job have their CPUs alone.
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
	if j.line.ahead(w) > 0 {
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

// busyIn refuses a step that would fit in its job if it waited, and says what for.
func (r *registry) busyIn(j *job, req *step.Request, w *waiter) error {
	want, free := req.NTasks*req.CPUsPerTask, j.aloneFree()
	if req.Binding.Whole {
		want = len(j.pool.cpus)
	}
	what := fmt.Sprintf("%s of job %d", cpuCount(want), j.ID)
	text := fmt.Sprintf("the step does not fit beside the others of job %d: it needs %s, and of %s %d are free", j.ID, cpuCount(want), cpuCount(len(j.pool.cpus)), free)
	if n := j.line.ahead(w); n > 0 {
		text += fmt.Sprintf("; %d wait before it", n)
	}
	return waitsFor(text+"; --overlap shares CPUs with other steps", what+r.freeIn(j, want-free))
}
