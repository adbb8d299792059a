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
