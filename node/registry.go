package node

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/node/exchange"
	"stepd/node/health"
	"stepd/node/selection"
	"stepd/node/state"
	"stepd/step"
)

// registry is what is running now: jobs, their steps, and which job has which CPUs. No method
// does I/O or waits.
type registry struct {
	users *users
	gate  *health.Gate
	// freed wakes the requests that wait for a place: they may fit now, or be refused.
	freed *bell
	// killWait is what an end may take beyond a time limit.
	killWait time.Duration
	log      logrus.FieldLogger // of illegal moves
	// exchanges is what the jobs' exchanges have in common.
	exchanges exchange.Config

	mu    sync.Mutex
	has   selection.Plugin      // guarded by mu
	jobs  map[uint32]*job       // guarded by mu
	steps map[step.ID]*follower // guarded by mu
	line  line                  // guarded by mu: requests for a job of their own that wait
}

func newRegistry(has selection.Plugin) *registry {
	freed := new(bell)
	return &registry{
		users: &users{limits: defaultPerUser(), steps: make(map[uint32]int), requests: make(map[uint32]int), replay: make(map[uint32]int64)}, gate: &health.Gate{Changed: freed.ring}, freed: freed, log: logrus.StandardLogger(),
		has: has, jobs: make(map[uint32]*job), steps: make(map[step.ID]*follower),
	}
}

// bell wakes all that wait for it. The zero value is ready.
type bell struct {
	mu   sync.Mutex
	next chan struct{} // guarded by mu: closed by ring; nil where nothing waits
}

// rung is closed when the bell rings next.
func (b *bell) rung() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}

// newJob turns the admission into one of a job, which is not open yet: no
// client can have its number.
func (r *registry) newJob(a *admission, rec state.Job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a.job = r.makeLocked(rec, a.made, 1)
	if rec.Implicit { // its first step's share is the job's
		a.made.StepInit(selection.Share{CPUs: a.CPUs})
	}
}

// adopt takes back a job that an earlier noded left, with n holders: its
// running steps, and the client of an allocation.
func (r *registry) adopt(rec state.Job, saved selection.Saved, n int) *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	j := r.makeLocked(rec, r.has.JobInit(rec.ID, saved), n)
	j.found = true
	to := jobOpen
	if n == 0 {
		to = jobIdle
	}
	r.moveLocked(j, to)
	if rec.Origin != step.OriginAlloc || rec.Prologued {
		// Its prolog was run, or will not be any more.
		_ = j.scripts.Skip() // of a job of which nothing is known yet
	}
	r.users.enter(rec.UID, n)
	return j
}

func (r *registry) makeLocked(rec state.Job, has *selection.Job, n int) *job {
	j := newJob(rec, has, n, &r.exchanges)
	r.jobs[rec.ID] = j
	return j
}

// moveLocked changes a job's phase. An illegal move is logged, changes nothing, and is false.
func (r *registry) moveLocked(j *job, to jobPhase) bool {
	if !slices.Contains(jobMoves[j.phase], to) {
		r.log.Errorf("internal error: job %d is %s and cannot become %s", j.ID, j.phase, to)
		return false
	}
	j.phase = to
	return true
}

// add makes a step known by its number. It returns false where the end of the step's job
// has begun since the step was admitted. A new step of a job that was suspended since stands
// still with it: until now no request could name the step. So does one that was found, where the
// job's CPUs are free: an earlier noded may have ended before it had suspended the step.
func (r *registry) add(f *follower) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if job := f.job.Suspended; job != nil && (job.CPUsFree || f.is(stepReserved)) {
		f.suspendBy = &job.By
	}
	r.steps[f.id] = f
	return !f.job.ends()
}

// open lets a job take steps. A job that takes steps already, or ends, stays as it is.
func (r *registry) open(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if j.phase == jobNew {
		r.moveLocked(j, jobOpen)
	}
}

// takeBack counts what a step of an earlier noded's has of its job.
func (r *registry) takeBack(f *follower) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.replay = f.n.cfg.Site.ReplayBytes // what it was allowed is its stepd's to know
	r.users.holdReplay(f.job.UID, f.replay)
	if f.id.Step == step.ExternStep || f.id.Step == step.InteractiveStep {
		return // it has all of the job's, and takes nothing of it
	}
	cpus, err := step.ParseCPUList(f.rec.CPUs)
	if err != nil {
		cpus = nil // the job's were refused too, and that was logged
	}
	f.share = selection.Share{CPUs: cpus, MB: f.rec.MemoryMB, Gres: f.rec.Gres, Alone: f.rec.CPUsOwn}
	if f.rec.GresOwn {
		f.share.Held = f.rec.Gres
	}
	f.job.has.StepInit(f.share)
}

// takeNothing gives back what an extern or interactive step was admitted with: it may use
// all that its job has, and holds up no other step.
func (r *registry) takeNothing(f *follower) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.giveBackLocked(f.job, f.share)
	f.share = selection.Share{}
	r.freed.ring()
}

// job returns the job that is running or ending, or nil.
func (r *registry) job(id uint32) *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.jobs[id]
}

// all returns the jobs that are running or ending.
func (r *registry) all() []*job {
	r.mu.Lock()
	defer r.mu.Unlock()
	jobs := make([]*job, 0, len(r.jobs))
	for _, j := range r.jobs {
		jobs = append(jobs, j)
	}
	return jobs
}

// newest is the meant job that was begun last and takes steps; nil is none.
func (r *registry) newest(meant func(*job) bool) (found *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.jobs {
		if j.phase == jobOpen && meant(j) && (found == nil || j.ID > found.ID) {
			found = j
		}
	}
	return found
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
	selection.Info
	drained state.Drain
	jobs    []api.NodeJob
	waiting []api.NodeWaiting
}

func (r *registry) usage() usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := usage{Info: r.has.Info(), drained: r.gate.DrainNow(), jobs: []api.NodeJob{}}
	for _, j := range r.jobs {
		d := j.doc()
		for id := range r.steps {
			if id.Job == j.ID {
				d.Steps = append(d.Steps, id.Step)
			}
		}
		slices.Sort(d.Steps)
		for _, number := range d.Steps {
			d.IDs = append(d.IDs, step.ID{Job: d.ID, Step: number}.Name())
		}
		u.jobs = append(u.jobs, d)
	}
	slices.SortFunc(u.jobs, func(a, b api.NodeJob) int { return cmp.Compare(a.ID, b.ID) })
	u.waiting = r.waitingLocked()
	return u
}

// beginSpawn counts a spawn that is under way; endSpawn ends it.
func (r *registry) beginSpawn(j *job, limit int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	running := j.spawning
	for _, f := range r.steps {
		if f.job == j && f.parent != nil {
			running++
		}
	}
	if running >= limit {
		return api.Errorf(api.ResourceExhausted, "job %d runs %d spawned steps, and %d is the limit (SpawnStepsMax)", j.ID, running, limit)
	}
	j.spawning++
	return nil
}

func (r *registry) endSpawn(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	j.spawning--
}

func (r *registry) suspended(j *job) *state.Suspension {
	r.mu.Lock()
	defer r.mu.Unlock()
	return j.Suspended
}

// setSuspended changes whether the job stands still, and whether other jobs may have its CPUs
// meanwhile: takeCPUsBack comes before the end of that.
func (r *registry) setSuspended(j *job, rec *state.Suspension) {
	r.mu.Lock()
	defer r.mu.Unlock()
	j.Suspended = rec
	free := rec != nil && rec.CPUsFree
	if free {
		r.has.Suspend(j.has)
	}
	if free || rec == nil && len(j.line) > 0 {
		r.freed.ring() // they may go on
	}
}

// takeCPUsBack gives a job the CPUs that it has let others have, or says which jobs have them.
func (r *registry) takeCPUsBack(j *job) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.has.Resume(j.has)
}

// abandon gives an admission back: no step came of it. It returns the job
// where that has ended meanwhile and the caller has to clean it up.
func (r *registry) abandon(a *admission) (ended *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users.leave(a.uid)
	if a.job == nil {
		r.releaseLocked(a.made)
		return nil
	}
	r.giveBackLocked(a.job, a.Share)
	r.settleLocked(a.job)
	return a.job.leave()
}

// settle notes that the step's result is stored. It returns the job's other
// steps where they have to end with this one, and whether all of the job's
// tasks are dead: then its CPUs may be freed, unless its epilog needs them.
func (r *registry) settle(f *follower) (cancel []*follower, idle bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.job.Leads(f.id) {
		cancel = r.shutLocked(f.job, f)
	}
	r.giveBackLocked(f.job, f.share)
	f.share = selection.Share{} // takeNothing may come after this
	return cancel, r.settleLocked(f.job)
}

// shutLocked lets the job take no more steps, and returns the steps that it has
// beside but.
func (r *registry) shutLocked(j *job, but *follower) (steps []*follower) {
	if !j.ends() {
		r.moveLocked(j, jobEnding)
	}
	if len(j.line) > 0 {
		r.freed.ring() // they are not to wait any more
	}
	for id, f := range r.steps {
		if id.Job == j.ID && f != but {
			steps = append(steps, f)
		}
	}
	return steps
}

// shut begins the end of an allocation. It returns the steps that have to end,
// and false where the end has begun already.
func (r *registry) shut(j *job) (steps []*follower, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if j.ends() {
		return nil, false
	}
	return r.shutLocked(j, nil), true
}

// release ends the hold of an allocation's client on it. It returns the job
// where no step is left of it, and whether it is idle, as settle does.
func (r *registry) release(j *job) (ended *job, idle bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users.leave(j.UID)
	idle = r.settleLocked(j)
	return j.leave(), idle
}

// keep puts the job's end off until unkeep; false is that it has begun.
func (r *registry) keep(j *job) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if j.ends() {
		return false
	}
	j.present++
	return true
}

// unkeep undoes keep. It returns the job where nothing is left of it, as remove does.
func (r *registry) unkeep(j *job) (ended *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return j.leave()
}

// giveBackLocked ends a step's share of its job.
func (r *registry) giveBackLocked(j *job, sh selection.Share) {
	j.has.StepFinish(sh)
	if len(sh.Held) > 0 || sh.Alone {
		r.freed.ring()
	}
}

// settleLocked notes that one thing less may use the job's CPUs, and reports whether nothing
// does any more.
func (r *registry) settleLocked(j *job) (idle bool) {
	if j.running--; j.running > 0 {
		return false
	}
	r.moveLocked(j, jobIdle)
	return true
}

// free gives the CPUs of a job back whose tasks are all dead.
func (r *registry) free(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.freeLocked(j)
}

func (r *registry) freeLocked(j *job) {
	if j.phase != jobFreed && r.moveLocked(j, jobFreed) {
		r.releaseLocked(j.has)
	}
}

// releaseLocked gives back what a job has.
func (r *registry) releaseLocked(has *selection.Job) {
	r.has.Fini(has)
	r.freed.ring()
}

// remove takes out a step of which nothing is left. It returns the job where
// this was its last one: then its container has to go.
func (r *registry) remove(f *follower) (ended *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.steps, f.id)
	r.users.dropReplay(f.job.UID, f.replay)
	r.users.leave(f.job.UID)
	return f.job.leave()
}

// gone forgets a job of which nothing is left.
func (r *registry) gone(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.jobs[j.ID] == j { // else its number has been given to its next run: the store has forgotten it before
		delete(r.jobs, j.ID)
	}
	r.freeLocked(j)
}

// PerUser bounds what one user other than root may have of a node at a time.
type PerUser struct {
	// Steps are the steps that have not ended, and reservations and allocations: each costs
	// two processes of root's; also steps that wait for their share of a job. 0 is 1000.
	Steps int
	// Connections are those to noded's socket. 0 is 2048: one for each step that a
	// client waits for, and others.
	Connections int
	// RequestBytes bounds requests and replies that are under way, from the first byte
	// of a request until its answer is written (package serve); as many again are for
	// requests that wait for their share of a job, or for their launch, and for batch
	// jobs. 0 is 64 MiB.
	RequestBytes int
	// ReplayBytes are what the stepds of the user's steps may keep of output, in all. 0
	// is 256 MiB.
	ReplayBytes int64
}

func defaultPerUser() PerUser {
	return PerUser{Steps: 1000, Connections: 2048, RequestBytes: 64 << 20, ReplayBytes: 256 << 20}
}

func (p *PerUser) complete() {
	d := defaultPerUser()
	p.Steps = cmp.Or(p.Steps, d.Steps)
	p.Connections = cmp.Or(p.Connections, d.Connections)
	p.RequestBytes = cmp.Or(p.RequestBytes, d.RequestBytes)
	p.ReplayBytes = cmp.Or(p.ReplayBytes, d.ReplayBytes)
}

// users counts what each user has of the node, and bounds it for all but root.
type users struct {
	mu       sync.Mutex
	limits   PerUser          // guarded by mu: tests change it
	all      int              // bounds the steps of all users other than root; 0 does not
	steps    map[uint32]int   // guarded by mu: steps admitted, and requests that wait in a line
	requests map[uint32]int   // guarded by mu: bytes of requests that wait for their launch
	replay   map[uint32]int64 // guarded by mu: bytes of output that steps may keep
}

// drop takes n from what uid has, and forgets a user that has nothing.
func drop[N int | int64](have map[uint32]N, uid uint32, n N) {
	if have[uid] -= n; have[uid] <= 0 {
		delete(have, uid)
	}
}

// full returns why uid can have no further step, nil is that it can.
func (u *users) full(uid uint32) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if most := u.limits.Steps; uid != 0 && u.steps[uid] >= most {
		return userStepsError{uid, most}
	}
	all := -u.steps[0]
	for _, n := range u.steps {
		all += n
	}
	if uid != 0 && u.all > 0 && all >= u.all {
		return api.Errorf(api.ResourceExhausted, "the users of this node have %d steps already, the limit of all of them (LimitNOFILE of noded.service)", all)
	}
	return nil
}

// userStepsError is that a user has as many steps as it may have.
type userStepsError struct {
	uid  uint32
	most int
}

func (e userStepsError) Error() string {
	return fmt.Sprintf("uid %d has %d steps on this node already, the limit (UserStepsMax)", e.uid, e.most)
}

// Unwrap is the code that a client gets.
func (e userStepsError) Unwrap() error { return api.NewError(api.ResourceExhausted, e.Error()) }

// enter counts n more steps, and leave one less.
func (u *users) enter(uid uint32, n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n > 0 {
		u.steps[uid] += n
	}
}

func (u *users) leave(uid uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	drop(u.steps, uid, 1)
}

// holdRequest makes room for a request of size bytes that waits for its launch.
func (u *users) holdRequest(uid uint32, size int) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if most := u.limits.RequestBytes; uid != 0 && u.requests[uid]+size > most {
		return api.Errorf(api.ResourceExhausted, "uid %d has requests of %d bytes that wait for their launch, and %d is the limit (UserRequestBytes)", uid, u.requests[uid], most)
	}
	u.requests[uid] += size
	return nil
}

// dropRequest undoes holdRequest.
func (u *users) dropRequest(uid uint32, size int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	drop(u.requests, uid, size)
}

// keepReplay returns how much of want a step of uid may keep of its output, and counts it.
func (u *users) keepReplay(uid uint32, want int64) int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if uid != 0 {
		want = max(0, min(want, u.limits.ReplayBytes-u.replay[uid]))
	}
	u.replay[uid] += want
	return want
}

// holdReplay counts what a step may keep whatever its user has.
func (u *users) holdReplay(uid uint32, bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.replay[uid] += bytes
}

// dropReplay undoes keepReplay and holdReplay.
func (u *users) dropReplay(uid uint32, bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	drop(u.replay, uid, bytes)
}
