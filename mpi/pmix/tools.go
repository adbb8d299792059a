package pmix

import (
	"fmt"
	"strings"
)

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
