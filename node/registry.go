package node

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"stepd/api"
	"stepd/node/selection"
	"stepd/node/state"
	"stepd/step"
)

// registry is what is running now: jobs, their steps, and who has which CPUs.
// It is leaf data: no method does I/O or waits, but admit, which waits without
// the lock.
type registry struct {
	mu      sync.Mutex
	has     *selection.Node       // guarded by mu
	jobs    map[uint32]*job       // guarded by mu
	steps   map[step.ID]*follower // guarded by mu
	byUser  map[uint32]int        // guarded by mu: steps admitted, by uid
	waiting map[uint32]int        // guarded by mu: bytes of requests that wait for their launch, by uid
	replay  map[uint32]int64      // guarded by mu: bytes of output that steps may keep, by uid
	perUser PerUser
	freed   chan struct{} // guarded by mu: closed and replaced when CPUs were released
	drained state.Drain   // guarded by mu
	// silence returns why the spool is not to be asked: the node is drained as long as it
	// returns something. nil is nothing.
	silence func() error
	line    line // guarded by mu: jobs that wait for their share of the node
	closing bool // guarded by mu
	// killWait is what an end may take beyond a time limit.
	killWait time.Duration
}

func newRegistry(cpus []int, mem selection.Memory, gres []step.Gres, cores ...selection.Core) *registry {
	return &registry{
		has: selection.New(cpus, mem, gres, cores...), jobs: make(map[uint32]*job), steps: make(map[step.ID]*follower),
		byUser: make(map[uint32]int), waiting: make(map[uint32]int), replay: make(map[uint32]int64), perUser: defaultPerUser(), freed: make(chan struct{}),
	}
}

// abandon gives an admission back: no step came of it. It returns the job
// where that has ended meanwhile and the caller has to clean it up.
func (r *registry) abandon(a *admission) (ended *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaveUser(a.uid)
	if a.job == nil {
		r.release(a.Share)
		return nil
	}
	r.giveBackLocked(a.job, a.Share)
	r.settleLocked(a.job)
	return r.leaveLocked(a.job)
}

// reserve makes room for a request of size bytes that waits for its launch.
func (r *registry) reserve(uid uint32, size int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if most := r.perUser.RequestBytes; uid != 0 && r.waiting[uid]+size > most {
		return api.Errorf(api.ResourceExhausted, "uid %d has requests of %d bytes that wait for their launch, and %d is the limit (UserRequestBytes)", uid, r.waiting[uid], most)
	}
	r.waiting[uid] += size
	return nil
}

// unreserve undoes reserve.
func (r *registry) unreserve(uid uint32, size int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[uid] -= size; r.waiting[uid] <= 0 {
		delete(r.waiting, uid)
	}
}

// newJob turns the admission into one of a job, which is not open yet: no
// client can have its number.
func (r *registry) newJob(a *admission, rec state.Job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a.job = newJob(rec, a.CPUs, 1, r.has)
	if rec.Implicit { // its first step's share is the job's
		a.job.left.Hold(selection.Share{CPUs: a.CPUs})
	}
	r.jobs[rec.ID] = a.job
}

// add makes a step known by its number. It returns false where the step's job
// has ended since the step was admitted.
func (r *registry) add(f *follower) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps[f.id] = f
	return !f.job.shut
}

// started opens the step's job for further steps, where it is the job's first
// one; a later one changes nothing, the job may be ending already.
func (r *registry) started(f *follower) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.job.Leads(f.id) {
		f.job.open = true
	}
}

// openJob lets an allocation take steps.
func (r *registry) openJob(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	j.open = !j.shut
}

// adopt takes back a job that an earlier noded left, with n holders: its
// running steps, and the client of an allocation.
func (r *registry) adopt(rec state.Job, cpus []int, n int) *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	j := newJob(rec, cpus, n, r.has)
	j.open, j.found = n > 0, true
	if rec.Origin != step.OriginAlloc || rec.Prologued {
		// Its prolog was run, or will not be any more.
		_ = j.scripts.Skip() // a legal move: the job is new here
	}
	r.jobs[rec.ID] = j
	if n > 0 {
		r.byUser[rec.UID] += n
	}
	r.has.Hold(j.share())
	return j
}

// takeBack counts what a step of an earlier noded's has of its job.
func (r *registry) takeBack(f *follower) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.replay = f.n.cfg.ReplayBytes // what it was allowed is its stepd's to know
	r.replay[f.job.UID] += f.replay
	if f.id.Step == step.ExternStep || f.id.Step == step.InteractiveStep {
		return // it has all of the job's, and takes nothing of it
	}
	cpus, err := step.ParseCPUList(f.rec.CPUs)
	if err != nil {
		cpus = nil // the job's were refused too, and that was told
	}
	f.share = selection.Share{CPUs: cpus, MB: f.rec.MemoryMB, Gres: f.rec.Gres, Alone: f.rec.CPUsOwn}
	if f.rec.GresOwn {
		f.share.Held = f.rec.Gres
	}
	f.job.left.Hold(f.share)
}

// close refuses admissions from now on.
func (r *registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closing = true
	r.tellFreed() // as are waiting requests
}

func (r *registry) setDrain(d state.Drain) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drained = d
	r.tellFreed() // waiting requests are refused
}

// drainLocked is the drain that counts now.
func (r *registry) drainLocked() state.Drain {
	if r.drained.Drained || r.silence == nil {
		return r.drained
	}
	if err := r.silence(); err != nil {
		return state.Drain{Drained: true, Reason: err.Error()}
	}
	return r.drained
}

// drain is the drain that is stored.
func (r *registry) drain() state.Drain {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.drained
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
	drained state.Drain
	freeCPU int
	usedMB  uint64
	gres    []api.NodeGres
	jobs    []api.NodeJob
}

func (r *registry) usage() usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := usage{drained: r.drainLocked(), freeCPU: r.has.FreeCPUs(), usedMB: r.has.UsedMB(), gres: r.has.GresDocs(), jobs: []api.NodeJob{}}
	for _, j := range r.jobs {
		d := j.doc()
		for id := range r.steps {
			if id.Job == j.ID {
				d.Steps = append(d.Steps, id.Step)
			}
		}
		slices.Sort(d.Steps)
		u.jobs = append(u.jobs, d)
	}
	slices.SortFunc(u.jobs, func(a, b api.NodeJob) int { return cmp.Compare(a.ID, b.ID) })
	return u
}
