package pmix

import (
	"context"
	"errors"
	"fmt"

	"stepd/internal/wire"
	"stepd/step"
	"stepd/step/launch"
)

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
	w.bytes(data.bytes)
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
	if p.job.Peers == nil {
		return nil, errors.New("internal error: a step of several nodes has no peers")
	}
	whom := step.FormatCPUList(p.elsewhere(procs))
	for _, n := range p.locals(procs) {
		p.waits(n, "group", whom)
	}
	defer func() {
		for _, n := range p.locals(procs) {
			p.note(proc{p.world.nspace, uint32(n)}, func(*rank) {})
		}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout(infos), errTimeout)
	defer cancel()
	// Several groups of the same ranks may be made at a time, in any order.
	return p.job.Peers.Allgather(ctx, "pmix group "+signature(append(procs, proc{what, rankUndef})), nodes, data)
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
		members = append(members, proc{p.world.nspace, uint32(n)})
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
