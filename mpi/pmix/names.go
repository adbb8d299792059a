package pmix

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"stepd/internal/wire"
)

// Keys of directives of names.
const (
	keyWait     = "pmix.wait"
	keyPersist  = "pmix.persist"
	reservedKey = "pmix."
)

// persistFirstRead is PMIX_PERSIST_FIRST_READ.
const persistFirstRead = 1

// Limits on what the ranks publish: in a step's own store, where no noded keeps
// the job's.
const (
	nameKeyMax   = 511 // PMIX_MAX_KEYLEN
	nameValueMax = 64 << 10
	namesMax     = 16384
	namesBytes   = 16 << 20
)

// published is a value that a process has published: as the library packs it.
type published struct {
	by    proc
	value []byte
	// once: it goes when it was read (PMIX_PERSIST_FIRST_READ).
	once bool
}

// names are the published values (PMIx_Publish): the job's, which noded keeps, or
// the step's, which its node 0 keeps.
type names struct {
	p *Plugin

	mu      sync.Mutex
	all     map[string]published // guarded by mu
	bytes   int                  // guarded by mu
	changed chan struct{}        // guarded by mu: closed when one is added
}

func newNames(p *Plugin) *names {
	return &names{p: p, all: make(map[string]published), changed: make(chan struct{})}
}

// put and drop return the library's status.
func (n *names) put(key string, v published) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.all[key]; ok {
		return stDuplicateKey
	}
	size := len(key) + len(v.value)
	if len(n.all) >= namesMax || n.bytes+size > namesBytes {
		return stResources
	}
	n.all[key] = v
	n.bytes += size
	close(n.changed)
	n.changed = make(chan struct{})
	return stSuccess
}

func (n *names) drop(key string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	v, ok := n.all[key]
	if !ok {
		return stNotFound
	}
	delete(n.all, key)
	n.bytes -= len(key) + len(v.value)
	return stSuccess
}

// get finds the keys that exist; with wait it returns when all do,
// or with what there is when ctx ends.
func (n *names) get(ctx context.Context, keys []string, wait bool) map[string]published {
	for {
		n.mu.Lock()
		found := make(map[string]published)
		for _, k := range keys {
			if v, ok := n.all[k]; ok {
				found[k] = v
			}
		}
		changed := n.changed
		n.mu.Unlock()
		if !wait || len(found) == len(keys) {
			return found
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return found
		}
	}
}

// Operations of callNames.
const (
	namePut  = 1
	nameGet  = 2
	nameDrop = 3
)

// answer serves another node of the step.
func (n *names) answer(ctx context.Context, data []byte) ([]byte, error) {
	r := reader{Reader: wire.Reader{B: data}}
	w := &writer{}
	switch op := r.U32(); op {
	case namePut, nameDrop:
		key, v := r.str(), published{}
		if op == namePut {
			v = r.published()
		}
		if err := r.done(); err != nil {
			return nil, err
		}
		code, err := 0, error(nil)
		if op == namePut {
			v.value = bytes.Clone(v.value)
			code, err = n.publish(ctx, key, v)
		} else {
			code, err = n.unpublish(ctx, key)
		}
		w.i32(code)
		return w.B, err
	case nameGet:
		wait, keys := r.U32() != 0, r.strs()
		if err := r.done(); err != nil {
			return nil, err
		}
		found, err := n.lookup(ctx, keys, wait)
		list(w, slices.Sorted(maps.Keys(found)), func(k string) { w.Str(k); w.published(found[k]) })
		return w.B, err
	default:
		return nil, fmt.Errorf("cannot serve operation %d on names", op)
	}
}

// writeFound is also the library's answer to a lookup.
func writeFound(w *writer, keys []string, found map[string]published) {
	w.U32(uint32(len(found)))
	for _, k := range keys {
		v, ok := found[k]
		if !ok {
			continue
		}
		delete(found, k) // a key that was asked for twice is answered once
		w.proc(v.by)
		w.Str(k)
		w.Bytes(v.value)
	}
}

// home says where the names are kept: by noded, here, or on node 0.
func (n *names) home() (here bool) { return n.p.here == 0 || n.p.job.Peers == nil }

// ask sends an operation to node 0's stepd.
func (n *names) ask(ctx context.Context, fill func(w *writer)) (reader, error) {
	w := &writer{}
	fill(w)
	b, err := n.p.job.Peers.Call(ctx, 0, callNames, w.B)
	return reader{Reader: wire.Reader{B: b}}, err
}

// publish keeps a value under a key, wherever the names are kept.
func (n *names) publish(ctx context.Context, key string, v published) (int, error) {
	switch {
	case !n.home():
	case n.p.job.Job != nil:
		return stSuccess, n.p.job.Job.Publish(ctx, jobName(key), encodeName(v))
	default:
		return n.put(key, v), nil
	}
	r, err := n.ask(ctx, func(w *writer) {
		w.U32(namePut)
		w.Str(key)
		w.published(v)
	})
	return r.i32(), err
}

func (n *names) unpublish(ctx context.Context, key string) (int, error) {
	switch {
	case !n.home():
	case n.p.job.Job != nil:
		return stSuccess, n.p.job.Job.Unpublish(ctx, jobName(key))
	default:
		return n.drop(key), nil
	}
	r, err := n.ask(ctx, func(w *writer) {
		w.U32(nameDrop)
		w.Str(key)
	})
	return r.i32(), err
}

// lookup finds keys; with wait it waits until all exist, as long as ctx lasts.
func (n *names) lookup(ctx context.Context, keys []string, wait bool) (map[string]published, error) {
	switch {
	case !n.home():
	case n.p.job.Job != nil:
		return n.lookupJob(ctx, keys, wait)
	default:
		return n.get(ctx, keys, wait), nil
	}
	r, err := n.ask(ctx, func(w *writer) {
		w.U32(nameGet)
		w.flag(wait)
		list(w, keys, w.Str)
	})
	if err != nil {
		return nil, err
	}
	found := make(map[string]published)
	elements(&r, 20, func() string {
		key := r.str()
		found[key] = r.published()
		return key
	})
	return found, r.done()
}

func (n *names) lookupJob(ctx context.Context, keys []string, wait bool) (map[string]published, error) {
	found := make(map[string]published)
	find := n.p.job.Job.Lookup
	if wait {
		find = n.p.job.Job.Await
	}
	for _, k := range keys {
		port, ok, err := find(ctx, jobName(k))
		if err != nil {
			return nil, err
		}
		if v, good := decodeName(port); ok && good {
			found[k] = v
		}
	}
	return found, nil
}

// jobName keeps our names apart from other plugins', whose values have
// another form.
func jobName(key string) string { return "pmix:" + key }

// encodeName is what noded is to keep, which may be any bytes.
func encodeName(v published) string {
	w := &writer{}
	w.published(v)
	return string(w.B)
}

func (w *writer) published(v published) {
	w.proc(v.by)
	w.Bytes(v.value)
	w.flag(v.once)
}

func (r *reader) published() published {
	return published{by: r.proc(), value: r.Bytes(), once: r.U32() != 0}
}

func decodeName(s string) (v published, ok bool) {
	r := reader{Reader: wire.Reader{B: []byte(s)}}
	v = r.published()
	return v, r.done() == nil
}

// servePublish keeps what a rank publishes: each info that is no directive.
func (p upcalls) servePublish(ctx context.Context, r *reader) (reply, error) {
	who, infos := r.proc(), r.infos()
	packed := elements(r, 4, r.Bytes)
	if err := r.done(); err != nil {
		return reply{}, err
	}
	if len(packed) != len(infos) {
		return status(stBadParam), nil
	}
	persist, _ := find(infos, keyPersist)
	for i, in := range infos {
		if strings.HasPrefix(in.key, reservedKey) {
			continue
		}
		if len(in.key) > nameKeyMax || len(packed[i]) > nameValueMax {
			p.log(fmt.Sprintf("cannot publish %q for MPI rank %d: %d bytes, the limit is %d", clip(in.key, 64), who.rank, len(packed[i]), nameValueMax))
			return status(stResources), nil
		}
		code, err := p.names.publish(ctx, in.key, published{who, bytes.Clone(packed[i]), persist.num == persistFirstRead})
		if err != nil {
			p.log(fmt.Sprintf("cannot publish %q for MPI rank %d: %v", clip(in.key, 64), who.rank, err))
			return status(stDuplicateKey), nil
		}
		if code != stSuccess {
			return status(code), nil
		}
	}
	return status(stSuccess), nil
}

func (p upcalls) serveLookup(ctx context.Context, r *reader) (reply, error) {
	r.proc()
	keys, infos := r.strs(), r.infos()
	if err := r.done(); err != nil {
		return reply{}, err
	}
	_, wait := find(infos, keyWait)
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout(infos), errTimeout)
	defer cancel()
	found, err := p.names.lookup(ctx, keys, wait)
	switch {
	case err != nil:
		p.log(fmt.Sprintf("cannot look up %d names: %v", len(keys), err))
		return status(stError), nil
	case len(found) == 0 && wait:
		return status(stTimeout), nil
	case len(found) == 0:
		return status(stNotFound), nil
	}
	for k, v := range found {
		if v.once {
			if _, err := p.names.unpublish(ctx, k); err != nil {
				p.log(fmt.Sprintf("cannot unpublish %q, which was to be read once: %v", clip(k, 64), err))
			}
		}
	}
	code := stSuccess
	if len(found) < len(keys) {
		code = stPartialSuccess
	}
	return reply{status: code, fill: func(w *writer) { writeFound(w, keys, found) }}, nil
}

func (p upcalls) serveUnpublish(ctx context.Context, r *reader) (reply, error) {
	who := r.proc()
	keys := r.strs()
	r.infos()
	if err := r.done(); err != nil {
		return reply{}, err
	}
	for _, k := range keys {
		code, err := p.names.unpublish(ctx, k)
		if err != nil {
			p.log(fmt.Sprintf("cannot unpublish %q for MPI rank %d: %v", clip(k, 64), who.rank, err))
			return status(stNotFound), nil
		}
		if code != stSuccess {
			return status(code), nil
		}
	}
	return status(stSuccess), nil
}

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
