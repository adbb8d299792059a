package pmix

import (
	"context"
	"errors"
	"fmt"
	"stepd/internal/wire"
	"sync"
)

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
	w.U32(uint32(int32(e.code)))
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
