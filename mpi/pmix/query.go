package pmix

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

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
