package serve

import (
	"sync"
	"time"
)

const (
	// refusalBurst lines about refused requests of one user come at once into the log,
	// and then one in each refusalEvery: a user must not fill root's disk.
	refusalBurst = 20
	refusalEvery = time.Second
)

// refusals bounds the lines that users cause in the log.
type refusals struct {
	mu     sync.Mutex
	byUser map[uint32]*refusal // guarded by mu
}

type refusal struct {
	left   int       // lines that may come now
	at     time.Time // when left was right
	silent int       // lines that were left out
}

// tell reports whether a line about uid may come, and how many were left out since the last.
func (r *refusals) tell(uid uint32, now time.Time) (ok bool, silent int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byUser == nil {
		r.byUser = make(map[uint32]*refusal)
	}
	u := r.byUser[uid]
	if u == nil {
		for id, old := range r.byUser { // users that have been quiet for long
			if now.Sub(old.at) > (refusalBurst+1)*refusalEvery && old.silent == 0 {
				delete(r.byUser, id)
			}
		}
		u = &refusal{left: refusalBurst, at: now}
		r.byUser[uid] = u
	}
	if more := int(now.Sub(u.at) / refusalEvery); more > 0 {
		u.left = min(refusalBurst, u.left+more)
		u.at = now
	}
	if u.left == 0 {
		u.silent++
		return false, 0
	}
	u.left--
	silent, u.silent = u.silent, 0
	return true, silent
}
