package node

import (
	"cmp"
	"fmt"
	"sync"

	"stepd/api"
)

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
	steps    map[uint32]int   // guarded by mu: steps admitted, and requests that wait in a line
	requests map[uint32]int   // guarded by mu: bytes of requests that wait for their launch
	replay   map[uint32]int64 // guarded by mu: bytes of output that steps may keep
}

func newUsers(limits PerUser) *users {
	return &users{limits: limits, steps: make(map[uint32]int), requests: make(map[uint32]int), replay: make(map[uint32]int64)}
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
