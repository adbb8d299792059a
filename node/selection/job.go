package selection

import (
	"errors"
	"slices"

	"stepd/step"
)

// Job is what a job has of the node, and which of it its steps have. Plugin.Begin and JobInit make
// it.
type Job struct {
	// ID is the job's number, 0 until the job has one. The caller sets it.
	ID uint32
	Saved
	// mem is the node's: its size bounds what a step may ask for.
	mem  *memPool
	cpus *cpuPool
	// alone counts the CPUs that one step has for itself.
	alone *cpuPool
	held  *gresPool
}

// job returns a job of which no step has anything.
func (n *node) job(saved Saved) *Job {
	cpus := newCPUPool(saved.CPUs, coresOf(n.cpus.cores, saved.CPUs)...)
	cpus.Policy = n.cpus.Policy
	return &Job{Saved: saved, mem: &n.mem, cpus: cpus, alone: newCPUPool(saved.CPUs), held: jobGresPool(saved.Gres)}
}

// ErrBusy refuses a step for which too few CPUs of the job are free.
var ErrBusy = errors.New("other steps of the job have the CPUs")

// StepPick gives a step its share (select_p_step_pick_nodes): the CPUs that the other steps use
// least, or, with alone, CPUs that no other step has for itself; all memory and generic resources
// of the job unless the request names some. With an error the step gets nothing: ErrBusy, or one
// of memory or gres. MayWait reports whether the end of another step may change the answer.
func (j *Job) StepPick(req *step.Request, alone bool) (sh Share, err error) {
	sh.Alone, sh.Gres = alone, j.Gres
	if sh.CPUs, err = j.pickCPUs(req, alone); err != nil {
		return Share{}, err
	}
	if sh.MB, err = j.mem.forStep(req, len(sh.CPUs), j.ID, j.MB); err == nil && req.Gres != nil {
		sh.Held, err = j.held.take(req.Gres, req.Overcommit)
		sh.Gres = sh.Held
	}
	if err != nil {
		return Share{}, err
	}
	j.cpus.hold(sh.CPUs)
	if alone {
		j.alone.hold(sh.CPUs)
	}
	return sh, nil
}

func (j *Job) pickCPUs(req *step.Request, alone bool) ([]int, error) {
	if !alone {
		return j.cpus.shareFor(req)
	}
	free := slices.DeleteFunc(slices.Clone(j.cpus.cpus), func(c int) bool { return j.alone.uses[c] > 0 })
	if len(free) < j.Wanted(req) {
		return nil, ErrBusy
	}
	sub := &cpuPool{cpus: free, uses: j.cpus.uses, cores: coresOf(j.cpus.cores, free), Policy: j.cpus.Policy}
	cpus, err := sub.shareFor(req)
	if err != nil {
		return nil, ErrBusy
	}
	return cpus, nil
}

// StepInit counts the share of a step that runs already.
func (j *Job) StepInit(sh Share) {
	j.cpus.hold(sh.CPUs)
	if sh.Alone {
		j.alone.hold(sh.CPUs)
	}
	j.held.hold(sh.Held)
}

// StepFinish takes back what StepPick or StepInit gave (select_p_step_finish).
func (j *Job) StepFinish(sh Share) {
	j.cpus.release(sh.CPUs)
	if sh.Alone {
		j.alone.release(sh.CPUs)
	}
	j.held.release(sh.Held)
}

// clone returns the job on which a choice can be tried.
func (j *Job) clone() *Job {
	return &Job{ID: j.ID, Saved: j.Saved, mem: j.mem, cpus: j.cpus.clone(), alone: j.alone.clone(), held: j.held.clone()}
}

// Never says why StepPick refuses the request also when no step has anything of the job; nil is
// that it does not.
func (j *Job) Never(req *step.Request, alone bool) error {
	empty := j.clone()
	clear(empty.cpus.uses)
	clear(empty.alone.uses)
	empty.held = jobGresPool(j.Gres)
	_, err := empty.StepPick(req, alone)
	return err
}

// WillRun returns the indices of the steps that have to end before StepPick gives the request a
// share; steps are in the order of their ends. nil is that StepPick does so now, or not even when
// all of them have ended.
func (j *Job) WillRun(req *step.Request, alone bool, steps []Share) []int {
	after := j.clone()
	fits := func() bool {
		sh, err := after.StepPick(req, alone)
		if err == nil {
			after.StepFinish(sh)
		}
		return err == nil
	}
	if fits() {
		return nil
	}
	all := make([]int, len(steps))
	for i := range steps {
		all[i] = i
	}
	return haveToEnd(all, func(i int) { after.StepFinish(steps[i]) }, func(i int) { after.StepInit(steps[i]) }, fits)
}

// Wanted is how many CPUs the request needs of the job.
func (j *Job) Wanted(req *step.Request) int {
	if req.Binding.Whole {
		return len(j.cpus.cpus)
	}
	return req.NTasks * req.CPUsPerTask
}

// FreeAlone counts the CPUs that no step has for itself.
func (j *Job) FreeAlone() int { return j.alone.free() }

// MayWait reports whether the end of another step may change the refusal of StepPick.
func MayWait(err error) bool {
	e, ok := errors.AsType[*gresError](err)
	return errors.Is(err, ErrBusy) || ok && !e.never()
}

// IsGres reports whether err refuses generic resources.
func IsGres(err error) bool {
	_, ok := errors.AsType[*gresError](err)
	return ok
}

// Missing returns what of list is of the kind that err refuses; nil where it refuses another
// kind of resource.
func Missing(err error, list []step.GresAlloc) (of []step.GresAlloc) {
	e, ok := errors.AsType[*gresError](err)
	for _, a := range list {
		if ok && a.Name == e.want.Name && (e.want.Type == "" || a.Type == e.want.Type) {
			of = append(of, a)
		}
	}
	return of
}
