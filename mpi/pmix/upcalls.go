package pmix

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"stepd/step"
)

// upcalls serves the requests that the library of pmixhost passes on from the ranks.
type upcalls struct{ *Plugin }

// reply answers an upcall: a status, and what belongs to it.
type reply struct {
	status int
	fill   func(w *writer)
	// then is done when the answer is on its way: what ends the waiting callers.
	then func()
}

func status(n int) reply { return reply{status: n} }

func withBytes(b []byte) reply { return reply{fill: func(w *writer) { w.Bytes(b) }} }

// heard is called for every frame that is no answer. It does not block: what
// takes time has a goroutine.
func (p upcalls) heard(f frame) {
	switch f.typ {
	case upConnected, upFinalized, upLost:
		who := f.body.proc()
		if f.body.done() == nil {
			p.moved(f.typ, who)
		}
		return
	case upWord:
		if line := f.body.str(); f.body.done() == nil {
			p.log("pmixhost: " + line)
		}
		return
	}
	if f.typ == upTool {
		p.answer(f.id, p.serveTool(&f.body))
		return
	}
	share, err := p.budget.take(&f)
	if err != nil {
		p.log(fmt.Sprintf("refused PMIx upcall %d: %v", f.typ, err))
		p.answer(f.id, status(stResources))
		return
	}
	f.body.spend = share.spend
	p.running.Go(func() {
		defer share.give()
		r, err := p.serve(p.ctx, f)
		if err != nil {
			p.log(fmt.Sprintf("cannot serve PMIx upcall %d: %v", f.typ, err))
			r = status(stError)
			switch {
			case errors.Is(err, errBudget):
				r = status(stResources)
			case f.body.Err != nil:
				r = status(stBadParam)
			}
		}
		p.answer(f.id, r)
	})
}

// answer sends a reply. hostEnded reports that pmixhost is gone.
func (p upcalls) answer(id uint32, r reply) {
	if id == 0 {
		return // no process waits for it
	}
	err := p.host.send(cmdAnswer, id, func(w *writer) {
		w.i32(r.status)
		if r.fill != nil {
			r.fill(w)
		}
	})
	if err != nil && !errors.Is(err, errGone) {
		p.log(err.Error())
		p.host.send(cmdAnswer, id, func(w *writer) { w.i32(stResources) })
	}
	if r.then != nil {
		r.then()
	}
}

// serve answers one upcall. Its error is one of ours, which the library gets
// as a plain error.
func (p upcalls) serve(ctx context.Context, f frame) (reply, error) {
	serve, ok := map[uint32]func(context.Context, *reader) (reply, error){
		upAbort: p.serveAbort, upModex: p.serveModex, upSpawn: p.serveSpawn,
		upPublish: p.servePublish, upLookup: p.serveLookup, upUnpublish: p.serveUnpublish,
		upQuery: p.serveQuery, upControl: p.serveControl, upNotify: p.serveNotify,
		upFence: meetings(p).serveFence, upGroup: meetings(p).serveGroup,
		upJoin: meetings(p).serveConnect, upPart: meetings(p).serveDisconnect,
	}[f.typ]
	if !ok {
		return status(stNotSupported), nil
	}
	return serve(ctx, &f.body)
}

// serveAbort ends the step: PMIx_Abort, which MPI_Abort becomes.
func (p upcalls) serveAbort(_ context.Context, r *reader) (reply, error) {
	who, code, words := r.proc(), r.i32(), r.str()
	r.procs() // whom to end: a step ends as a whole
	if err := r.done(); err != nil {
		return reply{}, err
	}
	p.rankBook.mu.Lock()
	n := -1
	if k := p.rankOf(who); k != nil {
		k.phase, n = phaseAborted, k.n
	}
	p.rankBook.mu.Unlock()
	if n < 0 {
		return status(stBadParam), nil
	}
	why := fmt.Sprintf("MPI rank %d called abort", n)
	if words != "" && words != "N/A" {
		why += fmt.Sprintf(": %q", clip(words, 512))
	}
	p.abort(n, code, why)
	return status(stSuccess), nil
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}

// ranksText is how ranks are named in messages.
func ranksText(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	return "ranks " + step.FormatCPUList(ranks)
}

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
