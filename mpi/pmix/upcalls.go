package pmix

import (
	"context"
	"errors"
	"fmt"

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

func withBytes(b []byte) reply { return reply{fill: func(w *writer) { w.bytes(b) }} }

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
		w.U32(uint32(int32(r.status)))
		if r.fill != nil {
			r.fill(w)
		}
	})
	if err != nil && !errors.Is(err, errGone) {
		p.log(err.Error())
		p.host.send(cmdAnswer, id, func(w *writer) { w.U32(uint32(0xffffffff & stResources)) })
	}
	if r.then != nil {
		r.then()
	}
}

// serve answers one upcall. Its error is one of ours, which the library gets
// as a plain error.
func (p upcalls) serve(ctx context.Context, f frame) (reply, error) {
	r := &f.body
	switch f.typ {
	case upAbort:
		return p.serveAbort(r)
	case upFence:
		return meetings(p).serveFence(ctx, r)
	case upModex:
		return p.serveModex(ctx, r)
	case upPublish:
		return p.servePublish(ctx, r)
	case upLookup:
		return p.serveLookup(ctx, r)
	case upUnpublish:
		return p.serveUnpublish(ctx, r)
	case upQuery:
		return p.serveQuery(ctx, r)
	case upControl:
		return p.serveControl(ctx, r)
	case upNotify:
		return p.serveNotify(ctx, r)
	case upGroup:
		return meetings(p).serveGroup(ctx, r)
	case upSpawn:
		return p.serveSpawn(ctx, r)
	case upJoin:
		return meetings(p).serveMeeting(ctx, "connect", r)
	case upPart:
		return meetings(p).serveMeeting(ctx, "disconnect", r)
	}
	return status(stNotSupported), nil
}

// serveAbort ends the step: PMIx_Abort, which MPI_Abort becomes.
func (p upcalls) serveAbort(r *reader) (reply, error) {
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
