package pmix

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"stepd/step"
	"stepd/step/launch"
)

// rank is one of this node's ranks.
type rank struct {
	n     int
	phase phase
	// fences counts the fences that it has completed.
	fences int
	status *step.ExitStatus // how the task ended
	// lost: its connection ended before PMIx_Finalize.
	lost bool
}

// phase is how far a rank has come.
type phase int

const (
	phaseStarted phase = iota // it has not called PMIx_Init
	phaseConnected
	phaseFinalized
	phaseAborted // it asked for the step's end
)

// rankBook keeps how far the ranks of this node are, and ends the step where it cannot go on
// without one of them. Any goroutine may use it.
type rankBook struct {
	job     launch.MPIJob
	ctx     context.Context // after its end nothing is reported
	world   *world
	here    int    // our node id
	version string // of the library: "4.2.2"; set by Prefork
	debug   bool   // all messages are logged

	mu      sync.Mutex
	ranks   []rank // guarded by mu; by local id
	aborted bool   // guarded by mu: Abort was called
	logged  int    // guarded by mu: lines
}

func newRankBook(ctx context.Context, job launch.MPIJob, debug bool) *rankBook {
	b := &rankBook{job: job, ctx: ctx, world: newWorld(job.Spec), here: int(job.Spec.NodeID), debug: debug}
	for _, n := range b.world.ranks[b.here] {
		b.ranks = append(b.ranks, rank{n: n})
	}
	return b
}

// abort ends the step, once.
func (p *rankBook) abort(rank, code int, why string) {
	p.mu.Lock()
	first := !p.aborted
	p.aborted = true
	p.mu.Unlock()
	if first && p.ctx.Err() == nil {
		p.job.Abort(rank, code, why)
	}
}

// judge ends the step if it cannot go on without a rank that has ended.
func (p *rankBook) judge(n int) {
	p.mu.Lock()
	r := p.rankOf(p.procOf(n))
	why, code := p.leaves(r), r.status.Code()
	p.mu.Unlock()
	if why != "" {
		p.abort(n, max(1, code), why)
	}
}

// leaves says why the step cannot go on without the rank, which has ended; "" is
// that it can. The caller holds mu.
func (p *rankBook) leaves(r *rank) string {
	ended := fmt.Sprintf("MPI rank %d ended (%s)", r.n, r.status.Describe())
	if r.phase == phaseConnected {
		return ended + ": it had not called PMIx_Finalize"
	}
	if r.phase != phaseStarted {
		return ""
	}
	// One that never asked for PMIx is missed only by ranks that have.
	var waiting []int
	for i := range p.ranks {
		if p.ranks[i].phase == phaseConnected && p.ranks[i].status == nil {
			waiting = append(waiting, p.ranks[i].n)
		}
	}
	if len(waiting) == 0 {
		return ""
	}
	return fmt.Sprintf("%s before PMIx_Init, and rank %s will wait for it", ended, step.FormatCPUList(waiting))
}

// rankOf finds a rank of this node by what the library calls it; nil is another
// process. The caller holds mu.
func (p *rankBook) rankOf(who proc) *rank {
	if who.nspace != p.world.nspace || who.rank >= uint32(p.world.size) || p.world.node[who.rank] != p.here {
		return nil
	}
	return &p.ranks[p.world.local[who.rank]]
}

// note changes what is known of a rank, and reports it.
func (p *rankBook) note(who proc, change func(r *rank)) {
	p.report(who, "", func(r *rank) string { change(r); return "" })
}

// waits reports what ranks of ours wait for.
func (p *rankBook) waits(ranks []int, what, whom string) {
	for _, n := range ranks {
		p.report(p.procOf(n), whom, func(r *rank) string {
			if what == "fence" {
				return fmt.Sprintf("fence %d", r.fences+1)
			}
			return what
		})
	}
}

// goOn reports that ranks of ours wait no longer.
func (p *rankBook) goOn(ranks []int) {
	for _, n := range ranks {
		p.note(p.procOf(n), func(*rank) {})
	}
}

// procOf is how the library names a rank of the step.
func (p *rankBook) procOf(n int) proc { return proc{p.world.nspace, uint32(n)} }

// report changes a rank and reports it; change returns what the rank waits for.
func (p *rankBook) report(who proc, whom string, change func(r *rank) string) {
	p.mu.Lock()
	r := p.rankOf(who)
	if r == nil {
		p.mu.Unlock()
		return
	}
	waiting := change(r)
	now := *r
	p.mu.Unlock()
	p.tell(now, waiting, whom)
}

// tell says how far a rank is, for explain.
func (p *rankBook) tell(r rank, waiting, waitsFor string) {
	if p.job.Progress == nil || p.ctx.Err() != nil {
		return
	}
	names := [...]string{step.PhaseStarted, step.PhaseInitialized, step.PhaseFinalized, step.PhaseFinalized}
	p.job.Progress(r.n, step.MPIProgress{
		Phase: names[r.phase], Protocol: strings.TrimSpace("PMIx " + p.version), Fences: r.fences,
		Waiting: waiting, WaitsFor: waitsFor,
	})
}

// locals are the ranks that run on this node, ascending, each once however
// often it is named: who is named is under the user's control.
func (p *rankBook) locals(procs []proc) []int {
	ranks := p.named(procs)
	return slices.DeleteFunc(ranks, func(r int) bool { return p.world.node[r] != p.here })
}

// named are the ranks of this step among the processes, ascending, each once.
func (p *rankBook) named(procs []proc) []int {
	is := make([]bool, p.world.size)
	for _, who := range procs {
		switch {
		case who.nspace != p.world.nspace:
		case who.rank == rankWildcard:
			for r := range is {
				is[r] = true
			}
			return ranksThat(is)
		case who.rank < uint32(p.world.size):
			is[who.rank] = true
		}
	}
	return ranksThat(is)
}

func ranksThat(is []bool) (ranks []int) {
	for r, yes := range is {
		if yes {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// fenced counts the fence for each of our ranks that was in it.
func (p *rankBook) fenced(procs []proc) {
	for _, n := range p.locals(procs) {
		p.note(p.procOf(n), func(r *rank) { r.fences++ })
	}
}

// elsewhere are the ranks of the step among the processes that other nodes have.
func (p *rankBook) elsewhere(procs []proc) []int {
	return slices.DeleteFunc(p.named(procs), func(r int) bool { return p.world.node[r] == p.here })
}

// moved notes how far a rank has come.
func (p *rankBook) moved(what uint32, who proc) {
	ended := false
	p.note(who, func(r *rank) {
		switch what {
		case upConnected:
			r.phase, r.lost = phaseConnected, false
		case upFinalized:
			if r.phase == phaseConnected {
				r.phase = phaseFinalized
			}
		case upLost:
			r.lost = true
			ended = r.status != nil
		}
	})
	switch {
	case what == upConnected:
		p.checkGone()
	case ended:
		p.judge(int(who.rank))
	}
}

// checkGone looks for ranks that ended before PMIx_Init: a rank that has just
// called it will wait for them.
func (p *rankBook) checkGone() {
	p.mu.Lock()
	n, code, why := 0, 0, ""
	for i := range p.ranks {
		if r := &p.ranks[i]; r.status != nil && why == "" {
			n, code, why = r.n, max(1, r.status.Code()), p.leaves(r)
		}
	}
	p.mu.Unlock()
	if why != "" {
		p.abort(n, code, why)
	}
}

// logsMax bounds the lines that the ranks of a step can make stepd log, where
// PMIxDebug does not ask for all: a rank that calls what fails must not fill a disk.
const logsMax = 200

// log writes a line for the administrator, unless the step had its share.
func (p *rankBook) log(text string) {
	p.mu.Lock()
	p.logged++
	share := p.logged
	p.mu.Unlock()
	switch {
	case p.debug:
	case share > logsMax:
		return
	case share == logsMax:
		text += " (further messages of the step's PMIx server are dropped)"
	}
	p.job.Log(text)
}
