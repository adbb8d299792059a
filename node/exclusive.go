package node

import (
	"fmt"

	"stepd/node/selection"
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

// busyIn refuses a step that would fit in its job if it waited, and says what for.
func (r *registry) busyIn(j *job, req *step.Request, w *waiter) error {
	want, free := j.left.Wanted(req), j.left.FreeAlone()
	what := fmt.Sprintf("%s of job %d", selection.CountCPUs(want), j.ID)
	text := fmt.Sprintf("the step does not fit beside the others of job %d: it needs %s, and of %s %d are free", j.ID, selection.CountCPUs(want), selection.CountCPUs(len(j.cpus)), free)
	if n := j.line.ahead(w); n > 0 {
		text += fmt.Sprintf("; %d wait before it", n)
	}
	return waitsFor(text+"; --overlap shares CPUs with other steps", what+r.freeIn(j, want-free))
}
