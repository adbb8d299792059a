package pmix

import (
	"context"
	"fmt"
	"slices"
	"strconv"
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

// Keys of the PMIx standard that describe a job.
const (
	keyJobID              = "pmix.jobid"
	keyNspace             = "pmix.nspace"
	keyUnivSize           = "pmix.univ.size"
	keyJobSize            = "pmix.job.size"
	keyMaxProcs           = "pmix.max.size"
	keyNumApps            = "pmix.job.napps"
	keyNumNodes           = "pmix.num.nodes"
	keyLocalSize          = "pmix.local.size"
	keyNodeSize           = "pmix.node.size"
	keyLocalPeers         = "pmix.lpeers"
	keyLocalLdr           = "pmix.lldr"
	keyNodeMap            = "pmix.nmap"
	keyProcMap            = "pmix.pmap"
	keyANLMap             = "pmix.anlmap"
	keyAppSize            = "pmix.app.size"
	keyProcData           = "pmix.pdata"
	keyRank               = "pmix.rank"
	keyGlobalRank         = "pmix.grank"
	keyAppNum             = "pmix.appnum"
	keyAppRank            = "pmix.apprank"
	keyAppLdr             = "pmix.aldr"
	keyLocalRank          = "pmix.lrank"
	keyNodeRank           = "pmix.nrank"
	keyNodeID             = "pmix.nodeid"
	keyHostname           = "pmix.hname"
	keySpawned            = "pmix.spawned"
	keyParentID           = "pmix.parent"
	keyNodeOversubscribed = "pmix.ndosub"
)

// Nspace is the name of a step's namespace, as Slurm's plugin makes it.
func Nspace(id step.ID) string { return fmt.Sprintf("%s%d.%d", nspacePrefix, id.Job, id.Step) }

// nspacePrefix begins the names of all steps.
const nspacePrefix = "slurm.pmix."

// parseNspace is the step of a namespace; ok is false for another's.
func parseNspace(s string) (id step.ID, ok bool) {
	job, number, found := strings.Cut(strings.TrimPrefix(s, nspacePrefix), ".")
	j, err1 := strconv.ParseUint(job, 10, 32)
	n, err2 := strconv.ParseUint(number, 10, 32)
	id = step.ID{Job: uint32(j), Step: uint32(n)}
	return id, found && err1 == nil && err2 == nil && Nspace(id) == s
}

// world is where the ranks of a step are.
type world struct {
	nspace string
	size   int
	hosts  []string // by node id
	ranks  [][]int  // by node id, ascending
	node   []int    // node id by rank
	local  []int    // place on its node by rank
	apps   []int    // tasks of each command
	cpus   int      // of this node, that the step has; 0 is unknown
	parent *proc    // rank 0 of the step that has spawned it, if one has
}

func newWorld(s *step.Spec) *world {
	w := &world{nspace: Nspace(s.ID), size: s.NTasks, cpus: s.NCPUs}
	if s.Layout != nil {
		w.place(s.Layout.Nodes)
	} else {
		w.place([]step.LayoutNode{{Name: s.NodeName, Ranks: step.FormatCPUList(s.LocalRanks())}})
	}
	for i := range s.Apps {
		w.apps = append(w.apps, s.Apps[i].NTasks)
	}
	if len(w.apps) == 0 {
		w.apps = []int{s.NTasks}
	}
	if s.Parent != nil {
		w.parent = &proc{Nspace(*s.Parent), 0}
	}
	return w
}

// place finds each rank's node, and its place there. Layout.Check has refused bad lists.
func (w *world) place(nodes []step.LayoutNode) {
	w.node, w.local = make([]int, w.size), make([]int, w.size)
	for node, n := range nodes {
		ranks, _ := step.ParseCPUList(n.Ranks)
		w.hosts, w.ranks = append(w.hosts, n.Name), append(w.ranks, ranks)
		for i, r := range ranks {
			if r < w.size {
				w.node[r], w.local[r] = node, i
			}
		}
	}
}

// infos describes the step to the library of one of its nodes, or, with here -1,
// of a node that has none of its ranks.
func (w *world) infos(here int) []info {
	all := []info{
		kv(keyJobID, text(w.nspace)),
		kv(keyUnivSize, number32(w.size)),
		kv(keyJobSize, number32(w.size)),
		kv(keyMaxProcs, number32(w.size)),
		kv(keyNumApps, number32(len(w.apps))),
		kv(keyNumNodes, number32(len(w.hosts))),
		// pmixhost puts both into the form that its library wants.
		kv(keyNodeMap, text(strings.Join(w.hosts, ","))),
		kv(keyProcMap, text(w.procMap())),
		kv(keyANLMap, text(w.mapping())),
		kv(keySpawned, boolean(w.parent != nil)),
	}
	if w.parent != nil {
		all = append(all, kv(keyParentID, procOf(*w.parent)))
	}
	if here >= 0 && len(w.ranks[here]) > 0 {
		ranks := w.ranks[here]
		all = append(all,
			kv(keyLocalSize, number32(len(ranks))),
			kv(keyNodeSize, number32(len(ranks))),
			kv(keyLocalPeers, text(commas(ranks))),
			kv(keyLocalLdr, rankOf(uint32(ranks[0]))),
			kv(keyNodeOversubscribed, boolean(w.cpus > 0 && len(ranks) > w.cpus)))
	}
	first := 0
	for app, n := range w.apps {
		for rank := first; rank < first+n && rank < w.size; rank++ {
			all = append(all, kv(keyProcData, infosOf(w.procData(rank, app, first, n)...)))
		}
		first += n
	}
	return all
}

func (w *world) procData(rank, app, first, size int) []info {
	return []info{
		kv(keyRank, rankOf(uint32(rank))),
		kv(keyGlobalRank, rankOf(uint32(rank))),
		kv(keyAppNum, number32(app)),
		kv(keyAppRank, rankOf(uint32(rank-first))),
		kv(keyAppLdr, rankOf(uint32(first))),
		kv(keyAppSize, number32(size)),
		kv(keyLocalRank, number16(w.local[rank])),
		kv(keyNodeRank, number16(w.local[rank])),
		kv(keyNodeID, number32(w.node[rank])),
		kv(keyHostname, text(w.hosts[w.node[rank]])),
		kv(keySpawned, boolean(w.parent != nil)),
	}
}

// procMap lists the ranks of each node: "0,1;2,3".
func (w *world) procMap() string {
	nodes := make([]string, len(w.ranks))
	for i, ranks := range w.ranks {
		nodes[i] = commas(ranks)
	}
	return strings.Join(nodes, ";")
}

func commas(ranks []int) string {
	var b strings.Builder
	for i, r := range ranks {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(r))
	}
	return b.String()
}

// mapping is PMI_process_mapping, which MPICH reads: blocks of (first node, nodes,
// ranks on each).
func (w *world) mapping() string {
	type block struct{ node, nodes, ranks int }
	var blocks []block
	for r := 0; r < w.size; {
		node, n := w.node[r], 0
		for r < w.size && w.node[r] == node {
			r, n = r+1, n+1
		}
		if last := len(blocks) - 1; last >= 0 && blocks[last].ranks == n && blocks[last].node+blocks[last].nodes == node {
			blocks[last].nodes++
			continue
		}
		blocks = append(blocks, block{node, 1, n})
	}
	var b strings.Builder
	b.WriteString("(vector")
	for _, k := range blocks {
		fmt.Fprintf(&b, ",(%d,%d,%d)", k.node, k.nodes, k.ranks)
	}
	return b.String() + ")"
}
