package node

import (
	"stepd/node/selection"
)

// settle says that the step's result is stored. It returns the job's other
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
	j.open, j.shut = false, true
	if len(j.line) > 0 {
		r.tellFreed() // they are not to wait any more
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
	if j.shut {
		return nil, false
	}
	return r.shutLocked(j, nil), true
}

// letGo ends the hold of an allocation's client on it. It returns the job
// where no step is left of it, and whether it is idle, as settle does.
func (r *registry) letGo(j *job) (ended *job, idle bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaveUser(j.UID)
	idle = r.settleLocked(j)
	return r.leaveLocked(j), idle
}

// keep puts the job's end off until unkeep; false is that it has begun.
func (r *registry) keep(j *job) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if j.shut || j.present == 0 { // the latter alone of one that an earlier noded left
		return false
	}
	j.present++
	return true
}

// unkeep undoes keep. It returns the job where nothing is left of it, as remove does.
func (r *registry) unkeep(j *job) (ended *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leaveLocked(j)
}

// giveBackLocked ends a step's share of its job.
func (r *registry) giveBackLocked(j *job, sh selection.Share) {
	j.left.Release(sh)
	if len(sh.Held) > 0 || sh.Alone {
		r.tellFreed()
	}
}

func (r *registry) settleLocked(j *job) (idle bool) {
	if j.running--; j.running > 0 {
		return false
	}
	j.open = false
	return true
}

// free gives the CPUs of a job back whose tasks are all dead.
func (r *registry) free(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.freeLocked(j)
}

func (r *registry) freeLocked(j *job) {
	if !j.freed {
		j.freed = true
		r.release(j.share())
	}
}

// remove takes out a step of which nothing is left. It returns the job where
// this was its last one: then its container has to go.
func (r *registry) remove(f *follower) (ended *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.steps, f.id)
	r.dropReplay(f.job.UID, f.replay)
	r.leaveUser(f.job.UID)
	return r.leaveLocked(f.job)
}

func (r *registry) leaveLocked(j *job) *job {
	if j.present--; j.present > 0 {
		return nil
	}
	return j
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

// endingLocked counts the CPUs of jobs that run nothing any more but their epilog.
func (r *registry) endingLocked() (cpus int) {
	for _, j := range r.jobs {
		if j.running == 0 && !j.freed {
			cpus += len(j.cpus)
		}
	}
	return cpus
}

// job returns the job that is running or ending, or nil.
func (r *registry) job(id uint32) *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.jobs[id]
}

func (r *registry) leaveUser(uid uint32) {
	if r.byUser[uid]--; r.byUser[uid] <= 0 {
		delete(r.byUser, uid)
	}
}

// release gives a job's share back.
func (r *registry) release(sh selection.Share) {
	r.has.Release(sh)
	r.tellFreed()
}

func (r *registry) tellFreed() {
	close(r.freed)
	r.freed = make(chan struct{})
}
