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
