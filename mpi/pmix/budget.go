package pmix

import (
	"errors"
	"fmt"
	"sync"
)

// Bounds of what the library may have asked and we have not answered yet: all of it
// is under the user's control. Beyond them a request is refused, as out of
// resources.
const (
	// upcallsMax counts requests, beside one for each rank of the step: the library
	// asks once for what a rank of another node has put.
	upcallsMax = 1024
	// clientUpcallsMax bounds the upcalls of one process, where the library names it.
	clientUpcallsMax = 64
	// requestBytesMax is what requests take, as they came and as they were read.
	requestBytesMax = 32 << 20
	// meetingBytesMax is the same for fences and their kin: one may bring all that the
	// ranks of a node have put.
	meetingBytesMax = pmixhostFrameMax + 32<<20
	// infoBytes is about what an info takes that was read: 14 bytes can be one.
	infoBytes = 384
)

// budget counts what is being answered. Make it with newBudget.
type budget struct {
	most int

	mu       sync.Mutex
	count    int          // guarded by mu
	requests int          // guarded by mu: bytes
	meetings int          // guarded by mu: bytes
	clients  map[proc]int // guarded by mu: requests by process
}

func newBudget(tasks int) *budget {
	return &budget{most: upcallsMax + tasks, clients: make(map[proc]int)}
}

// share is what one upcall has of the budget.
type share struct {
	b       *budget
	who     proc // zero: unknown to the library
	meeting bool
	bytes   int
}

// meets reports whether an upcall has the data of many ranks.
func meets(typ uint32) bool {
	return typ == upFence || typ == upJoin || typ == upPart || typ == upGroup
}

// asker is who an upcall is from, where its frame begins with that.
func asker(f *frame) proc {
	switch f.typ {
	case upPublish, upLookup, upUnpublish, upSpawn, upLog, upControl:
		r := f.body
		return r.proc()
	}
	return proc{}
}

// take makes room for an upcall; its error names the limit.
func (b *budget) take(f *frame) (*share, error) {
	s := &share{b: b, who: asker(f), meeting: meets(f.typ)}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.count >= b.most:
		return nil, fmt.Errorf("%d requests are unanswered", b.count)
	case s.who != proc{} && b.clients[s.who] >= clientUpcallsMax:
		return nil, fmt.Errorf("%d requests of %s are unanswered", b.clients[s.who], s.who)
	}
	if err := s.grow(f.size); err != nil {
		return nil, err
	}
	b.count++
	if s.who != (proc{}) {
		b.clients[s.who]++
	}
	return s, nil
}

// errBudget is wrapped by the errors of what takes too many bytes.
var errBudget = errors.New("the limit of unanswered requests")

// grow takes more bytes. The caller holds mu.
func (s *share) grow(n int) error {
	used, most := &s.b.requests, requestBytesMax
	if s.meeting {
		used, most = &s.b.meetings, meetingBytesMax
	}
	if n > most-*used {
		return fmt.Errorf("%d bytes would be unanswered, %w is %d", *used+n, errBudget, most)
	}
	*used += n
	s.bytes += n
	return nil
}

// spend is asked before so many infos are read.
func (s *share) spend(infos int) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	return s.grow(infos * infoBytes)
}

// give returns all of it, once.
func (s *share) give() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.count--
	if s.meeting {
		s.b.meetings -= s.bytes
	} else {
		s.b.requests -= s.bytes
	}
	if s.who == (proc{}) {
		return
	}
	if s.b.clients[s.who]--; s.b.clients[s.who] == 0 {
		delete(s.b.clients, s.who)
	}
}
