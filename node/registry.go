package node

import (
	"cmp"
	"slices"
	"sync"

	"stepd/step"
)

// registry is what is running now: jobs, their steps, and who has which CPUs.
// It is leaf data: no method does I/O or waits, but admit, which waits without
// the lock.
type registry struct {
	mu      sync.Mutex
	pool    *cpuPool              // guarded by mu
	jobs    map[uint32]*job       // guarded by mu
	steps   map[step.ID]*follower // guarded by mu
	byUser  map[uint32]int        // guarded by mu: steps admitted, by uid
	freed   chan struct{}         // guarded by mu: closed and replaced when CPUs were released
	drained drainRecord           // guarded by mu
	closing bool                  // guarded by mu
}

// job is a running job.
type job struct {
	jobRecord
	cpus []int
	// running counts steps whose result is not known; present also those that
	// are being cleaned up.
	running, present int
	// open jobs take further steps.
	open bool
}

// userStepsMax bounds the steps that one user other than root may have at a
// time on a node: each costs two processes of root's.
const userStepsMax = 1000

func newRegistry(cpus []int) *registry {
	return &registry{
		pool: newCPUPool(cpus), jobs: make(map[uint32]*job), steps: make(map[step.ID]*follower),
		byUser: make(map[uint32]int), freed: make(chan struct{}),
	}
}

// abandon gives an admission back: no step came of it. It returns the job
// where that has ended meanwhile and the caller has to clean it up.
func (r *registry) abandon(a *admission) (ended *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaveUser(a.uid)
	if a.job == nil {
		r.release(a.cpus)
		return nil
	}
	r.settleLocked(a.job)
	return r.leaveLocked(a.job)
}

// newJob turns the admission into one of a job, which is not open yet: nobody
// can have its number.
func (r *registry) newJob(a *admission, rec jobRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a.job = &job{jobRecord: rec, cpus: a.cpus, running: 1, present: 1}
	r.jobs[rec.ID] = a.job
}

// start adds a step whose stepd runs. A job is opened for further steps by
// its first one; a later one changes nothing, the job may be ending already.
func (r *registry) start(f *follower) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps[f.id] = f
	if f.id.Step == 0 {
		f.job.open = true
	}
}

// adopt takes back a job that an earlier noded left, with n running steps.
func (r *registry) adopt(rec jobRecord, cpus []int, n int) *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	j := &job{jobRecord: rec, cpus: cpus, running: n, present: n, open: true}
	r.jobs[rec.ID] = j
	r.byUser[rec.UID] += n
	r.pool.hold(cpus)
	return j
}

// settle says that the step's result is stored: its tasks are dead, so its
// CPUs are free. It returns the job's other steps where they have to end with
// this one.
func (r *registry) settle(f *follower) (cancel []*follower) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.job.Implicit && f.id.Step == 0 {
		f.job.open = false
		for id, other := range r.steps {
			if id.Job == f.id.Job && other != f {
				cancel = append(cancel, other)
			}
		}
	}
	r.settleLocked(f.job)
	return cancel
}

func (r *registry) settleLocked(j *job) {
	if j.running--; j.running == 0 {
		j.open = false
		r.release(j.cpus)
	}
}

// remove takes out a step of which nothing is left. It returns the job where
// this was its last one: then its container has to go.
func (r *registry) remove(f *follower) (ended *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.steps, f.id)
	r.leaveUser(f.job.UID)
	return r.leaveLocked(f.job)
}

func (r *registry) leaveLocked(j *job) *job {
	if j.present--; j.present > 0 {
		return nil
	}
	delete(r.jobs, j.ID)
	return j
}

func (r *registry) leaveUser(uid uint32) {
	if r.byUser[uid]--; r.byUser[uid] <= 0 {
		delete(r.byUser, uid)
	}
}

func (r *registry) release(cpus []int) {
	r.pool.release(cpus)
	close(r.freed)
	r.freed = make(chan struct{})
}

// close refuses admissions from now on.
func (r *registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closing = true
}

func (r *registry) setDrain(d drainRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drained = d
}

// follower returns the running step, or nil.
func (r *registry) follower(id step.ID) *follower {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.steps[id]
}

// followers returns the running steps, by number.
func (r *registry) followers() []*follower {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*follower, 0, len(r.steps))
	for _, f := range r.steps {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b *follower) int {
		return cmp.Or(cmp.Compare(a.id.Job, b.id.Job), cmp.Compare(a.id.Step, b.id.Step))
	})
	return all
}

// usage is the registry's part of the node document.
type usage struct {
	drained drainRecord
	freeCPU int
	jobs    []jobDoc
}

func (r *registry) usage() usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := usage{drained: r.drained, freeCPU: r.pool.free(), jobs: []jobDoc{}}
	for _, j := range r.jobs {
		d := jobDoc{ID: j.ID, UID: j.UID, User: j.User, CPUs: step.FormatCPUList(j.cpus), Steps: []uint32{}}
		for id := range r.steps {
			if id.Job == j.ID {
				d.Steps = append(d.Steps, id.Step)
			}
		}
		slices.Sort(d.Steps)
		u.jobs = append(u.jobs, d)
	}
	slices.SortFunc(u.jobs, func(a, b jobDoc) int { return cmp.Compare(a.ID, b.ID) })
	return u
}
