package node

import (
	"slices"
	"sync"
	"time"
)

const (
	// turnMax is how long a step may keep its turn, which is about what a launch takes: one that
	// waits, for a hook of a plugin's or for a slow disk, or that computes, must not make
	// others wait. A step that ends sooner gives it back then, since its end costs as much as its
	// launch.
	turnMax = 30 * time.Millisecond
	// turnMemory is for how long after its last launch a user still has a share of the turns.
	turnMemory = time.Second
)

// turns bounds how many steps are being launched at once: as many as the node has CPUs. Of these a
// user has all while no other one launches, and else a share: a client of one user is not
// slowed down by how many clients another one has. Of the users who wait each gets a turn before any
// gets a second one.
type turns struct {
	mu    sync.Mutex
	all   int         // how many there are
	taken int         // guarded by mu
	users []*turnUser // in the order of their next turns; guarded by mu
}

// turnUser is a user who has launched lately, or waits to.
type turnUser struct {
	uid     uint32
	last    time.Time
	has     int // turns
	waiting []chan struct{}
}

func newTurns(n int) *turns { return &turns{all: n} }

// ask returns a channel that is closed when it is the user's turn. give ends the turn.
func (t *turns) ask(uid uint32, now time.Time) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.users, func(u *turnUser) bool { return u.uid == uid })
	if i < 0 {
		i = len(t.users)
		t.users = append(t.users, &turnUser{uid: uid})
	}
	u, turn := t.users[i], make(chan struct{})
	u.last = now
	u.waiting = append(u.waiting, turn)
	t.next(now)
	return turn
}

// give ends a turn of the user's.
func (t *turns) give(uid uint32, now time.Time) { t.leave(uid, nil, now) }

// leave ends the user's wait for a turn that ask has returned, or the turn where it has come.
func (t *turns) leave(uid uint32, turn <-chan struct{}, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.users[slices.IndexFunc(t.users, func(u *turnUser) bool { return u.uid == uid })]
	if i := slices.IndexFunc(u.waiting, func(w chan struct{}) bool { return w == turn }); i >= 0 {
		u.waiting = slices.Delete(u.waiting, i, i+1)
		return
	}
	t.taken--
	u.has--
	t.next(now)
}

// next gives out turns, while there are any for those who wait.
func (t *turns) next(now time.Time) {
	t.users = slices.DeleteFunc(t.users, func(u *turnUser) bool {
		return u.has == 0 && len(u.waiting) == 0 && now.Sub(u.last) > turnMemory
	})
	share := max(1, t.all/max(1, len(t.users)))
	for t.taken < t.all {
		i := slices.IndexFunc(t.users, func(u *turnUser) bool { return len(u.waiting) > 0 && u.has < share })
		if i < 0 {
			return
		}
		u := t.users[i]
		t.users = append(slices.Delete(t.users, i, i+1), u)
		close(u.waiting[0])
		u.waiting = u.waiting[1:]
		u.has++
		t.taken++
	}
}
