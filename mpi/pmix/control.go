package pmix

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"stepd/internal/wire"
	"stepd/step"
)

// Keys of PMIx_Job_control.
const (
	keyTerminate = "pmix.jctrl.term"
	keyKill      = "pmix.jctrl.kill"
	keySignal    = "pmix.jctrl.sig"
	keyPause     = "pmix.jctrl.pause"
	keyResume    = "pmix.jctrl.resume"
)

// callSignal asks another node of the step to signal ranks of its own.
const callSignal = "pmix signal"

// action is what a job control asks for: a signal, and whether it is meant to end.
type action struct {
	signal syscall.Signal
	ends   bool
}

// actionOf reads the directives; the first that is known counts.
func actionOf(directives []info) (action, bool) {
	for _, d := range directives {
		switch on := d.value.typ != vBool || d.value.num != 0; {
		case d.key == keyKill && on:
			return action{syscall.SIGKILL, true}, true
		case d.key == keyTerminate && on:
			return action{syscall.SIGTERM, true}, true
		case d.key == keyPause && on:
			return action{syscall.SIGSTOP, false}, true
		case d.key == keyResume && on:
			return action{syscall.SIGCONT, false}, true
		case d.key == keySignal:
			n, ok := d.value.integer()
			return action{syscall.Signal(n), false}, ok && n > 0 && n <= 64
		}
	}
	return action{}, false
}

// serveControl signals, pauses or ends ranks of the step, for a rank of it or a
// tool. Without targets it is all of them; the end of all is the step's.
func (p upcalls) serveControl(ctx context.Context, r *reader) (reply, error) {
	who, targets, directives := r.proc(), r.procs(), r.infos()
	if err := r.done(); err != nil {
		return reply{}, err
	}
	name, rank, allowed := p.requester(who)
	act, known := actionOf(directives)
	switch {
	case !known:
		return status(stNotSupported), nil
	case !allowed:
		return status(stNoPermissions), nil
	}
	for _, t := range targets {
		if t.nspace != p.world.nspace || t.rank >= uint32(p.world.size) && t.rank != rankWildcard {
			return status(stNotFound), nil
		}
	}
	ranks := p.named(targets)
	if len(targets) == 0 {
		ranks = p.named([]proc{{p.world.nspace, rankWildcard}})
	}
	if act.ends && len(ranks) == p.world.size {
		return reply{fill: func(w *writer) { w.infos(nil) }, then: func() {
			p.flush(ctx)
			p.endAll(name, rank)
		}}, nil
	}
	if err := p.signal(ctx, ranks, act.signal); err != nil {
		p.log(fmt.Sprintf("cannot send signal %d to rank %s for %s: %v", act.signal, step.FormatCPUList(ranks), name, err))
		return status(stError), nil
	}
	return reply{fill: func(w *writer) { w.infos(nil) }}, nil
}

const (
	// flushTimeout bounds how long the end of a step waits for an answer to be on its
	// way: pmixhost ends with the step.
	flushTimeout = time.Second
	// flushPause is what the library's thread gets to return to its poll, where a busy
	// machine has taken the CPU from it: what it does before is one round of its loop.
	flushPause = 20 * time.Millisecond
)

// flush returns when the library has sent what it was given: once round its loop to
// queue it, once more, after a poll, to write.
func (p upcalls) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	sync := func() bool {
		_, err := p.ask(ctx, cmdSync, func(*writer) {})
		return err == nil // else the process that would be answered is gone
	}
	if !sync() {
		return
	}
	select {
	case <-time.After(flushPause):
		sync()
	case <-ctx.Done():
	}
}

// endAll ends the step: a rank's wish is an abort, a tool's what a user's cancel is.
func (p upcalls) endAll(name string, rank int) {
	why := name + " asked for the end of all ranks (PMIx_Job_control)"
	if rank < 0 && p.job.Cancel != nil {
		p.job.Cancel(why)
		return
	}
	p.abort(rank, 1, why)
}

// signal sends a signal to ranks wherever they run.
func (p upcalls) signal(ctx context.Context, ranks []int, sig syscall.Signal) error {
	nodes := make([][]int, len(p.world.hosts))
	for _, r := range ranks {
		nodes[p.world.node[r]] = append(nodes[p.world.node[r]], r)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout(nil), errTimeout)
	defer cancel()
	var failed []error
	for node, own := range nodes {
		if len(own) == 0 {
			continue
		}
		var err error
		if node == p.here {
			err = p.signalHere(own, sig)
		} else {
			w := &writer{}
			w.U32(uint32(sig))
			list(w, own, func(r int) { w.U32(uint32(r)) })
			_, err = p.job.Peers.Call(ctx, node, callSignal, w.B)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("node %q: %w", p.world.hosts[node], err))
		}
	}
	return errors.Join(failed...)
}

func (p upcalls) signalHere(ranks []int, sig syscall.Signal) error {
	if p.job.Signal == nil {
		return errors.New("internal error: a step without a way to signal its tasks")
	}
	return p.job.Signal(ranks, sig)
}

// answerSignal signals ranks of ours for another node.
func (p upcalls) answerSignal(data []byte) error {
	r := reader{Reader: wire.Reader{B: data}}
	sig := r.U32()
	ranks := elements(&r, 4, func() int { return int(r.U32()) })
	if err := r.done(); err != nil {
		return fmt.Errorf("cannot read the request: %w", err)
	}
	if sig < 1 || sig > 64 {
		return fmt.Errorf("cannot send signal %d: there is none of this number", sig)
	}
	return p.signalHere(ranks, syscall.Signal(sig))
}

// callEvent hands an event to another node's ranks.
const callEvent = "pmix event"

// event is PMIx_Notify_event's input.
type event struct {
	code   int
	source proc
	rng    uint32
	infos  []info
}

func readEvent(r *reader) event {
	return event{r.i32(), r.proc(), r.U32(), r.infos()}
}

func (e *event) write(w *writer) {
	w.i32(e.code)
	w.proc(e.source)
	w.U32(e.rng)
	w.infos(e.infos)
}

// serveNotify takes an event of a rank or a tool to the other nodes. The library
// has notified this node's. No process waits for the answer.
func (p upcalls) serveNotify(ctx context.Context, r *reader) (reply, error) {
	e := readEvent(r)
	if err := r.done(); err != nil {
		return reply{}, err
	}
	here := false
	if e.rng == rangeRM {
		if e.code != stReadyForDebug {
			return status(stSuccess), nil
		}
		// A rank waits in PMIx_Init for a debugger, which is a tool, and waits for this: it may be here or elsewhere.
		e.rng, here = rangeSession, true
	}
	if e.rng == rangeLocal || e.rng == rangeProcLocal {
		return status(stSuccess), nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout(nil), errTimeout)
	defer cancel()
	if err := p.spread(ctx, &e, here); err != nil {
		p.log(fmt.Sprintf("cannot tell all nodes of event %d of %s: %v", e.code, e.source, err))
		return status(stPartialSuccess), nil
	}
	return status(stSuccess), nil
}

// spread hands the event to the other nodes' servers, and with here to ours.
func (p upcalls) spread(ctx context.Context, e *event, here bool) error {
	var (
		mu      sync.Mutex
		failed  []error
		telling sync.WaitGroup
	)
	tell := func(node int, call func() error) {
		telling.Go(func() {
			if err := call(); err != nil {
				mu.Lock()
				failed = append(failed, fmt.Errorf("node %q: %w", p.world.hosts[node], err))
				mu.Unlock()
			}
		})
	}
	if here {
		tell(p.here, func() error { return p.notify(ctx, e) })
	}
	if p.job.Peers != nil {
		w := &writer{}
		e.write(w)
		for node, ranks := range p.world.ranks {
			if node != p.here && len(ranks) > 0 {
				tell(node, func() error {
					_, err := p.job.Peers.Call(ctx, node, callEvent, w.B)
					return err
				})
			}
		}
	}
	telling.Wait()
	return errors.Join(failed...)
}

// notify lets our library notify its clients.
func (p upcalls) notify(ctx context.Context, e *event) error {
	_, err := p.ask(ctx, cmdNotify, e.write)
	return err
}

// answerEvent takes an event of another node.
func (p upcalls) answerEvent(ctx context.Context, data []byte) error {
	r := reader{Reader: wire.Reader{B: data}}
	e := readEvent(&r)
	if err := r.done(); err != nil {
		return fmt.Errorf("cannot read the event: %w", err)
	}
	return p.notify(ctx, &e)
}

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
		upJoin: func(ctx context.Context, r *reader) (reply, error) {
			return meetings(p).serveConnect(ctx, "connect", r)
		},
		upPart: func(ctx context.Context, r *reader) (reply, error) {
			return meetings(p).serveConnect(ctx, "disconnect", r)
		},
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
