package pmix

import (
	"fmt"
	"slices"
	"strings"

	"stepd/step"
)

// Keys of queries and of job control.
const (
	keyQueryNamespaces = "pmix.qry.ns"
	keyTerminate       = "pmix.jctrl.term"
	keyKill            = "pmix.jctrl.kill"
)

// serveQuery answers what is known of the steps that this one is connected with.
// What is not known is left out, and the status says so.
func (p *Plugin) serveQuery(r *reader) (reply, error) {
	r.proc()
	var keys []string
	elements(r, 8, func() bool {
		keys = append(keys, r.strs()...)
		r.infos()
		return true
	})
	if err := r.done(); err != nil {
		return reply{}, err
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	var known []info
	for _, key := range keys {
		switch key {
		case keyQueryNamespaces:
			known = append(known, kv(key, text(strings.Join(p.namespaces(), ","))))
		case keyJobSize, keyUnivSize:
			known = append(known, kv(key, number32(p.world.size)))
		case keyNumNodes:
			known = append(known, kv(key, number32(len(p.world.hosts))))
		}
	}
	switch {
	case len(known) == 0:
		return status(stNotSupported), nil
	case len(known) < len(keys):
		return reply{stPartialSuccess, func(w *writer) { w.infos(known) }}, nil
	}
	return reply{fill: func(w *writer) { w.infos(known) }}, nil
}

// namespaces are this step's and those of the steps that it is connected with.
func (p *Plugin) namespaces() []string {
	all := []string{p.world.nspace}
	p.others.mu.Lock()
	for n := range p.others.sizes {
		all = append(all, n)
	}
	p.others.mu.Unlock()
	slices.Sort(all[1:])
	return all
}

// serveControl ends the step where a rank asks for the end of ranks of it: a step
// ends as a whole. Other requests are not supported.
func (p *Plugin) serveControl(r *reader) (reply, error) {
	who, targets, directives := r.proc(), r.procs(), r.infos()
	if err := r.done(); err != nil {
		return reply{}, err
	}
	_, term := find(directives, keyTerminate)
	_, kill := find(directives, keyKill)
	switch {
	case !term && !kill:
		return status(stNotSupported), nil
	case who.nspace != p.world.nspace || who.rank >= uint32(p.world.size):
		return status(stNoPermissions), nil
	}
	ranks := p.named(targets)
	if len(targets) > 0 && len(ranks) == 0 {
		return status(stNotFound), nil
	}
	whom := "all ranks"
	if len(ranks) > 0 && len(ranks) < p.world.size {
		whom = "rank " + step.FormatCPUList(ranks)
	}
	p.abort(int(who.rank), 1, fmt.Sprintf("MPI rank %d asked for the end of %s (PMIx_Job_control)", who.rank, whom))
	return reply{fill: func(w *writer) { w.infos(nil) }}, nil
}
