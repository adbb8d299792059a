package pmix

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"stepd/internal/wire"
	"stepd/step"
	"stepd/step/launch"
)

// keyTimeout is the directive that bounds a meeting.
const keyTimeout = "pmix.timeout"

// meetings exchanges data between the processes of several nodes, or of several steps.
type meetings struct{ *Plugin }

// serveFence meets the other nodes of a fence. The library has collected what the
// ranks of this node have put, and has let them wait.
func (p meetings) serveFence(ctx context.Context, r *reader) (reply, error) {
	procs, infos, data := r.procs(), r.infos(), r.Bytes()
	if err := r.done(); err != nil {
		return reply{}, err
	}
	nodes, foreign := p.nodesOf(procs)
	if foreign {
		return p.meetSteps(ctx, "fence", procs, infos, data)
	}
	if len(nodes) <= 1 {
		// All of it is in this node's library already.
		p.fenced(procs)
		return status(stSuccess), nil
	}
	all, err := p.meet(ctx, "fence", procs, nodes, infos, data)
	if err != nil {
		return p.meetingFailed(procs, err), nil
	}
	var whole []byte
	for _, part := range all {
		whole = append(whole, part...)
	}
	if len(whole) > pmixhostFrameMax-64 {
		p.log(fmt.Sprintf("cannot give the ranks what a fence has collected: %d bytes, the limit is %d", len(whole), pmixhostFrameMax))
		return status(stResources), nil
	}
	p.fenced(procs)
	return withBytes(whole), nil
}

// nodesOf are the nodes of this step that have any of the processes, ascending;
// foreign says that some are of another step.
func (p *Plugin) nodesOf(procs []proc) (nodes []int, foreign bool) {
	has := make([]bool, len(p.world.hosts))
	for _, who := range procs {
		switch {
		case who.nspace != p.world.nspace:
			foreign = true
		case who.rank == rankWildcard:
			for n, ranks := range p.world.ranks {
				has[n] = has[n] || len(ranks) > 0
			}
		case who.rank < uint32(p.world.size):
			has[p.world.node[who.rank]] = true
		}
	}
	for n, yes := range has {
		if yes {
			nodes = append(nodes, n)
		}
	}
	return nodes, foreign
}

// meet exchanges data with the nodes that have the processes.
func (p *Plugin) meet(ctx context.Context, what string, procs []proc, nodes []int, infos []info, data []byte) ([][]byte, error) {
	return p.gather(ctx, what, signature(procs), procs, nodes, infos, data)
}

// gather is meet by a name of the caller's.
func (p *Plugin) gather(ctx context.Context, what, name string, procs []proc, nodes []int, infos []info, data []byte) ([][]byte, error) {
	if p.job.Peers == nil {
		return nil, errors.New("internal error: a step of several nodes has no peers")
	}
	p.waits(p.locals(procs), what, step.FormatCPUList(p.elsewhere(procs)))
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout(infos), errTimeout)
	defer cancel()
	return p.job.Peers.Allgather(ctx, "pmix "+what+" "+name, nodes, data)
}

var errTimeout = errors.New("timeout (PMIxTimeout of mpi.conf)")

// timeout is how long a meeting may take: the caller's own directive, but never
// longer than the site allows.
func (p *Plugin) timeout(infos []info) time.Duration {
	if v, ok := find(infos, keyTimeout); ok {
		if n, ok := v.integer(); ok && n > 0 && n < int(p.conf.Timeout/time.Second) {
			return time.Duration(n) * time.Second
		}
	}
	return p.conf.Timeout
}

// signature names a set of processes, the same on all nodes.
func signature(procs []proc) string {
	names := make([]string, len(procs))
	for i, who := range procs {
		names[i] = who.String()
	}
	slices.Sort(names)
	sum := sha256.Sum256([]byte(strings.Join(slices.Compact(names), " ")))
	return hex.EncodeToString(sum[:12])
}

// meetingFailed ends the step, naming the missing ranks, and answers the waiting ones.
func (p meetings) meetingFailed(procs []proc, err error) reply {
	if p.ctx.Err() != nil {
		return status(stLostConnection)
	}
	local := p.locals(procs)
	first := -1
	if len(local) > 0 {
		first = local[0]
	}
	missing, ok := errors.AsType[*launch.MissingError](err)
	if !ok {
		p.abort(first, 1, fmt.Sprintf("MPI fence failed: %v", err))
		return status(stLostConnection)
	}
	text := fmt.Sprintf("MPI fence did not complete within %s: %d of %d nodes came, and not", p.conf.Timeout,
		len(p.world.hosts)-len(missing.Nodes), len(p.world.hosts))
	for i, node := range missing.Nodes {
		if i > 0 {
			text += ";"
		}
		if i == 4 && len(missing.Nodes) > 5 {
			text += fmt.Sprintf(" and %d more nodes", len(missing.Nodes)-i)
			break
		}
		text += " " + p.describeNode(node)
	}
	p.abort(first, 1, text)
	return status(stTimeout)
}

// Keys of PMIx_Group_construct.
const (
	keyGroupAssign  = "pmix.grp.actxid"
	keyGroupContext = "pmix.grp.ctxid"
	keyGroupData    = "pmix.grp.endpt"
	keyGroupMembers = "pmix.grp.mbrs"
)

// groupConstruct is PMIX_GROUP_CONSTRUCT; the other operation takes a group apart.
const groupConstruct = 0

// serveGroup meets the other nodes of a group of the step's ranks, and with what
// they have come: the libraries' own data, and the number that the first of the
// nodes proposes for the group.
func (p meetings) serveGroup(ctx context.Context, r *reader) (reply, error) {
	op, name, procs, infos := r.U32(), r.str(), r.procs(), r.infos()
	if err := r.done(); err != nil {
		return reply{}, err
	}
	nodes, foreign := p.nodesOf(procs)
	if foreign {
		return status(stNotSupported), nil // groups of several steps
	}
	data, _ := find(infos, keyGroupData)
	w := &writer{}
	w.U64(p.groups.Add(1)*uint64(len(p.world.hosts)) + uint64(p.here)) // no other node's
	w.Bytes(data.bytes)
	all := [][]byte{w.B}
	if len(nodes) > 1 {
		var err error
		if all, err = p.meetGroup(ctx, fmt.Sprintf("%d %s", op, name), procs, nodes, infos, w.B); err != nil {
			return p.groupFailed(name, err), nil
		}
	}
	if op != groupConstruct {
		return reply{fill: func(w *writer) { w.infos(nil) }}, nil
	}
	_, assign := find(infos, keyGroupAssign)
	out, err := p.groupInfos(all, procs, assign)
	if err != nil {
		return reply{}, err
	}
	return reply{fill: func(w *writer) { w.infos(out) }}, nil
}

func (p meetings) meetGroup(ctx context.Context, what string, procs []proc, nodes []int, infos []info, data []byte) ([][]byte, error) {
	defer p.goOn(p.locals(procs))
	// Several groups of the same ranks may be made at a time, in any order.
	return p.gather(ctx, "group", signature(append(procs, proc{what, rankUndef})), procs, nodes, infos, data)
}

// groupFailed answers the waiting ranks: they may try a group again.
func (p meetings) groupFailed(name string, err error) reply {
	if p.ctx.Err() != nil {
		return status(stLostConnection)
	}
	p.log(fmt.Sprintf("cannot make or end the PMIx group %q: %v", clip(name, 64), err))
	if _, ok := errors.AsType[*launch.MissingError](err); ok {
		return status(stTimeout)
	}
	return status(stError)
}

// groupInfos are what a new group has, of what each node came with.
func (p meetings) groupInfos(all [][]byte, procs []proc, assign bool) ([]info, error) {
	var context uint64
	var whole []byte
	for i, part := range all {
		r := reader{Reader: wire.Reader{B: part}}
		proposed, data := r.U64(), r.Bytes()
		if err := r.done(); err != nil {
			return nil, fmt.Errorf("cannot read what a node says of a group: %w", err)
		}
		if i == 0 {
			context = proposed
		}
		whole = append(whole, data...)
	}
	var members []proc
	for _, n := range p.named(procs) {
		members = append(members, p.procOf(n))
	}
	out := []info{kv(keyGroupMembers, value{typ: vDataArray, array: array{elem: vProc, procs: members}})}
	if assign {
		out = append(out, kv(keyGroupContext, value{typ: vSize, num: context}))
	}
	if len(whole) > 0 {
		out = append(out, kv(keyGroupData, value{typ: vByteObject, bytes: whole}))
	}
	return out, nil
}

// Keys of queries, and what a query may be qualified by beside keyNspace.
const (
	keyQueryNamespaces    = "pmix.qry.ns"
	keyQueryNamespaceInfo = "pmix.qry.nsinfo"
	keyQueryJobStatus     = "pmix.qry.jst"
	keyQueryTable         = "pmix.qry.ptable"
	keyQueryLocalTable    = "pmix.qry.lptable"
	keyQuerySpawn         = "pmix.qry.spawn"
	keyQueryDebug         = "pmix.qry.debug"
	keyProcID             = "pmix.procid"
)

// queryKeysMax bounds the keys of one request.
const queryKeysMax = 256

// query is one of a request: its keys are about the job that nspace names, "" ours.
type query struct {
	keys   []string
	nspace string
}

func readQuery(r *reader) query {
	q := query{keys: r.strs()}
	infos := r.infos()
	if v, ok := find(infos, keyNspace); ok {
		q.nspace = v.text
	}
	if v, ok := find(infos, keyProcID); ok {
		q.nspace = v.proc.nspace
	}
	return q
}

// serveQuery answers what is known of this step, and of the steps that it is
// connected with. What is not known is left out, and the status says so. The library does
// not name the process that asks.
func (p upcalls) serveQuery(ctx context.Context, r *reader) (reply, error) {
	r.proc()
	queries := elements(r, 8, func() query { return readQuery(r) })
	if err := r.done(); err != nil {
		return reply{}, err
	}
	var known []info
	asked, failed := 0, stNotSupported
	told := make(map[string]bool)
	for _, q := range queries {
		for _, key := range q.keys {
			if name := q.nspace + "\x00" + key; told[name] {
				continue
			} else if told[name] = true; len(told) > queryKeysMax {
				return status(stBadParam), nil
			}
			asked++
			v, code, err := p.queried(ctx, q.nspace, key)
			if err != nil {
				p.log(fmt.Sprintf("cannot answer the PMIx query %q: %v", clip(key, 64), err))
			}
			if code != stSuccess {
				failed = code
				continue
			}
			known = append(known, kv(key, v))
		}
	}
	switch {
	case len(known) == 0:
		return status(failed), nil
	case len(known) < asked:
		return reply{status: stPartialSuccess, fill: func(w *writer) { w.infos(known) }}, nil
	}
	return reply{fill: func(w *writer) { w.infos(known) }}, nil
}

// queried is the answer to one key.
func (p upcalls) queried(ctx context.Context, nspace, key string) (v value, code int, err error) {
	switch key { // what is not about one job
	case keyQueryNamespaces:
		return text(strings.Join(p.namespaces(), ",")), stSuccess, nil
	case keyQueryNamespaceInfo:
		return p.namespaceInfo(), stSuccess, nil
	case keyQuerySpawn:
		return text(strings.Join([]string{keyWdir, keyHost, keySetEnvar}, ",")), stSuccess, nil
	case keyQueryDebug:
		return text(keyStopInInit), stSuccess, nil
	}
	if nspace != "" && nspace != p.world.nspace {
		return p.queriedOther(nspace, key)
	}
	switch key {
	case keyJobSize, keyUnivSize:
		return number32(p.world.size), stSuccess, nil
	case keyNumNodes:
		return number32(len(p.world.hosts)), stSuccess, nil
	case keyQueryJobStatus:
		return p.jobStatus(), stSuccess, nil
	case keyQueryLocalTable:
		return table(p.localTable()), stSuccess, nil
	case keyQueryTable:
		ctx, cancel := context.WithTimeoutCause(ctx, p.timeout(nil), errTimeout)
		defer cancel()
		rows, err := p.table(ctx)
		if err != nil {
			return value{}, stUnreach, err
		}
		return table(rows), stSuccess, nil
	}
	return value{}, stNotSupported, nil
}

// queriedOther answers for a step that ours is connected with: its own server knows
// the rest.
func (p upcalls) queriedOther(nspace, key string) (value, int, error) {
	p.others.mu.Lock()
	size, ok := p.others.sizes[nspace]
	p.others.mu.Unlock()
	switch {
	case !ok:
		return value{}, stNotFound, nil
	case key == keyJobSize:
		return number32(size), stSuccess, nil
	}
	return value{}, stNotSupported, nil
}

// jobStatus is success until the step is aborted.
func (p upcalls) jobStatus() value {
	p.rankBook.mu.Lock()
	defer p.rankBook.mu.Unlock()
	code := stSuccess
	if p.aborted {
		code = stJobAborted
	}
	return value{typ: vStatus, num: uint64(int64(code))}
}

// namespaceInfo lists each namespace with its size.
func (p upcalls) namespaceInfo() value {
	all := []info{kv(keyNspace, text(p.world.nspace)), kv(keyJobSize, number32(p.world.size))}
	rows := []info{kv(keyQueryNamespaceInfo, infosOf(all...))}
	for _, n := range p.namespaces()[1:] {
		v, _, _ := p.queriedOther(n, keyJobSize)
		rows = append(rows, kv(keyQueryNamespaceInfo, infosOf(kv(keyNspace, text(n)), kv(keyJobSize, v))))
	}
	return infosOf(rows...)
}

// namespaces are this step's and its connected steps'.
func (p upcalls) namespaces() []string {
	all := []string{p.world.nspace}
	p.others.mu.Lock()
	for n := range p.others.sizes {
		all = append(all, n)
	}
	p.others.mu.Unlock()
	slices.Sort(all[1:])
	return all
}

// callTable asks another node of the step for its part of the table of processes.
const callTable = "pmix table"

// States of processes (pmix_proc_state_t).
const (
	procPrepped       = 1
	procRunning       = 5
	procConnected     = 6
	procTerminated    = 20
	procCalledAbort   = 58
	procFailedToStart = 53
	procKilled        = 54 // by a signal
	procNonZero       = 62
)

// tableFanOut bounds how many nodes are asked at a time.
const tableFanOut = 16

// localTable are the processes of this node, by rank.
func (p *Plugin) localTable() []procInfo {
	if p.job.Tasks == nil {
		return nil
	}
	var all []procInfo
	for _, t := range p.job.Tasks() {
		row := procInfo{
			proc: p.procOf(t.Rank), host: p.world.hosts[p.here],
			program: t.Program, pid: int64(t.PID), state: p.procState(&t),
		}
		if t.Status != nil {
			row.exitCode = int64(t.Status.Code())
		}
		all = append(all, row)
	}
	return all
}

func (p *Plugin) procState(t *launch.MPITask) uint32 {
	switch t.State {
	case step.TaskRunning:
		p.rankBook.mu.Lock()
		defer p.rankBook.mu.Unlock()
		if r := p.rankOf(p.procOf(t.Rank)); r != nil && r.phase == phaseConnected {
			return procConnected
		} else if r != nil && r.phase == phaseAborted {
			return procCalledAbort
		}
		return procRunning
	case step.TaskFailed:
		return procFailedToStart
	case step.TaskExited:
		switch {
		case t.Status == nil: // it was lost
			return procTerminated
		case t.Status.Code() == 0:
			return procTerminated
		}
		if _, signaled := t.Status.Signaled(); signaled {
			return procKilled
		}
		return procNonZero
	}
	return procPrepped
}

// table are the processes of the whole step, by rank, which the nodes are asked
// for. One that does not answer makes it an error: half a table would look whole.
func (p *Plugin) table(ctx context.Context) ([]procInfo, error) {
	all := p.localTable()
	if p.job.Peers == nil {
		return all, nil
	}
	parts := make([][]procInfo, len(p.world.ranks))
	var asking errgroup.Group
	asking.SetLimit(tableFanOut)
	for node, ranks := range p.world.ranks {
		if node == p.here || len(ranks) == 0 {
			continue
		}
		asking.Go(func() (err error) {
			if parts[node], err = p.tableOf(ctx, node); err != nil {
				return fmt.Errorf("cannot ask node %q for its processes: %w", p.world.hosts[node], err)
			}
			return nil
		})
	}
	err := asking.Wait()
	all = append(all, slices.Concat(parts...)...)
	slices.SortFunc(all, func(a, b procInfo) int { return int(a.proc.rank) - int(b.proc.rank) })
	return all, err
}

func (p *Plugin) tableOf(ctx context.Context, node int) ([]procInfo, error) {
	b, err := p.job.Peers.Call(ctx, node, callTable, nil)
	if err != nil {
		return nil, err
	}
	r := reader{Reader: wire.Reader{B: b}}
	rows := elements(&r, procInfoMin, r.procInfo)
	return rows, r.done()
}

// answerTable sends another node our part.
func (p *Plugin) answerTable() []byte {
	w := &writer{}
	list(w, p.localTable(), w.procInfo)
	return w.B
}

// toolPrefix begins the namespaces that tools of the step are given.
func (w *world) toolPrefix() string { return w.nspace + ".tool." }

// serveTool names a tool that connects (PMIx_tool_init): each has a namespace of
// its own, unless it came with one. Only the step's user and root come so far
// (pmixhost's peer.c).
//
// It always succeeds: libpmix 4.2 falls over where a tool is refused. It does not
// block, and costs nothing that is kept.
func (p upcalls) serveTool(r *reader) reply {
	infos := r.infos()
	if r.done() != nil {
		infos = nil
	}
	who := p.toolName(infos)
	p.log(fmt.Sprintf("PMIx tool %q has connected", who.nspace))
	return reply{fill: func(w *writer) { w.proc(who) }}
}

// toolName is the name that a tool came with where no other has it, else a new
// one. A rank that calls PMIx_tool_init comes with its own, and the library keeps
// to that whatever we say.
func (p upcalls) toolName(infos []info) proc {
	name, named := find(infos, keyNspace)
	rank, ranked := find(infos, keyRank)
	who := proc{name.text, uint32(rank.num)}
	if named && ranked && who.nspace != "" && len(who.nspace) <= nspaceMax && who.rank < rankWildcard && p.isTool(who) {
		return who
	}
	return proc{fmt.Sprintf("%s%d", p.world.toolPrefix(), p.tools.Add(1)), 0}
}

// nspaceMax is PMIX_MAX_NSLEN.
const nspaceMax = 255

// isTool reports whether a process is a tool, not a rank of a step.
func (p upcalls) isTool(who proc) bool {
	return strings.HasPrefix(who.nspace, p.world.toolPrefix()) || !strings.HasPrefix(who.nspace, nspacePrefix)
}

// requester is the process that asks for something, for messages; ok is false for a
// process that is neither a rank of the step nor a tool. rank is -1 for a tool.
func (p upcalls) requester(who proc) (name string, rank int, ok bool) {
	switch {
	case who.nspace == p.world.nspace && who.rank < uint32(p.world.size):
		return fmt.Sprintf("MPI rank %d", who.rank), int(who.rank), true
	case p.isTool(who):
		return fmt.Sprintf("PMIx tool %q", clip(who.nspace, 64)), -1, true
	}
	return "", -1, false
}
