package pmix

import (
	"context"
	"fmt"
	"time"

	"stepd/internal/wire"
)

// Names under which the stepds of a step ask each other.
const (
	callModex = "pmix modex"
	callWhere = "pmix where"
	callNames = "pmix names"
)

// servePeers answers the other nodes from now on.
func (p *Plugin) servePeers() {
	if p.job.Peers == nil {
		return
	}
	p.job.Peers.Handle(callModex, func(ctx context.Context, _ int, data []byte) ([]byte, error) {
		r := reader{Reader: wire.Reader{B: data}}
		who := r.proc()
		if err := r.done(); err != nil {
			return nil, fmt.Errorf("cannot read the request: %w", err)
		}
		return p.keysOf(ctx, who)
	})
	p.job.Peers.Handle(callWhere, func(context.Context, int, []byte) ([]byte, error) {
		return []byte(p.where()), nil
	})
	p.job.Peers.Handle(callTable, func(context.Context, int, []byte) ([]byte, error) {
		return p.answerTable(), nil
	})
	p.job.Peers.Handle(callSignal, func(_ context.Context, _ int, data []byte) ([]byte, error) {
		return nil, upcalls{p}.answerSignal(data)
	})
	p.job.Peers.Handle(callEvent, func(ctx context.Context, _ int, data []byte) ([]byte, error) {
		return nil, upcalls{p}.answerEvent(ctx, data)
	})
	p.job.Peers.Handle(callNames, func(ctx context.Context, _ int, data []byte) ([]byte, error) {
		return p.names.answer(ctx, data)
	})
}

// serveModex fetches what a rank of another node has put (PMIx_Get of a rank that
// is not here).
func (p *Plugin) serveModex(ctx context.Context, r *reader) (reply, error) {
	who, infos := r.proc(), r.infos()
	if err := r.done(); err != nil {
		return reply{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout(infos), errTimeout)
	defer cancel()
	var data []byte
	var err error
	switch {
	case who.nspace != p.world.nspace:
		return meetings{p}.foreignModex(ctx, who)
	case who.rank >= uint32(p.world.size):
		return status(stNotFound), nil
	case p.job.Peers == nil || p.world.node[who.rank] == p.here:
		data, err = p.keysOf(ctx, who)
	default:
		w := &writer{}
		w.proc(who)
		data, err = p.job.Peers.Call(ctx, p.world.node[who.rank], callModex, w.B)
	}
	if err != nil {
		if p.ctx.Err() == nil {
			p.log(fmt.Sprintf("cannot get what MPI rank %d has put: %v", who.rank, err))
		}
		if ctx.Err() != nil {
			return status(stTimeout), nil
		}
		return status(stNotFound), nil
	}
	return withBytes(data), nil
}

// keysOf asks our library what a rank of ours has put; it waits until the rank has.
func (p *Plugin) keysOf(ctx context.Context, who proc) ([]byte, error) {
	done, err := p.host.call(cmdModex, func(w *writer) { w.proc(who) })
	if err != nil {
		return nil, err
	}
	select {
	case a := <-done:
		if a.err != nil {
			return nil, a.err
		}
		data := a.r.Bytes()
		return data, a.r.done()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// where reports how far the ranks of this node have come, in a few words for each
// state.
func (p *Plugin) where() string {
	p.rankBook.mu.Lock()
	defer p.rankBook.mu.Unlock()
	var not, in, out, ended []int
	for i := range p.ranks {
		switch r := &p.ranks[i]; {
		case r.status != nil:
			ended = append(ended, r.n)
		case r.phase == phaseStarted:
			not = append(not, r.n)
		case r.phase == phaseConnected:
			in = append(in, r.n)
		default:
			out = append(out, r.n)
		}
	}
	text := ""
	for _, s := range []struct {
		ranks []int
		is    string
	}{{ended, "ended"}, {not, "not in PMIx_Init"}, {out, "in PMIx_Finalize"}, {in, "running"}} {
		if len(s.ranks) > 0 {
			if text != "" {
				text += ", "
			}
			text += ranksText(s.ranks) + " " + s.is
		}
	}
	return text
}

// describeNode says who a missing node is, and what its ranks do.
func (p *Plugin) describeNode(node int) string {
	if node < 0 || node >= len(p.world.hosts) {
		return fmt.Sprintf("node %d", node)
	}
	name := fmt.Sprintf("node %s (%s)", p.world.hosts[node], ranksText(p.world.ranks[node]))
	ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
	defer cancel()
	if said, err := p.job.Peers.Call(ctx, node, callWhere, nil); err == nil && len(said) > 0 {
		name = fmt.Sprintf("node %s (%s)", p.world.hosts[node], clip(string(said), 512))
	}
	return name
}
