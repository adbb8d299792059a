package pmix

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"stepd/internal/wire"
	"stepd/step"
)

// othersBytes bounds the keys of other steps' ranks that are kept.
const othersBytes = 64 << 20

// others are the other steps of the job that ours is connected with: where their
// ranks are, and what they have put. A rank's keys are the keys that it had put when
// its step and ours met.
type others struct {
	mu    sync.Mutex
	sizes map[string]int  // guarded by mu: by namespace, once the library knows it
	keys  map[proc][]byte // guarded by mu
	bytes int             // guarded by mu: of keys
	ours  map[string]bool // guarded by mu: spawned by a rank of this node
}

func newOthers() *others {
	return &others{sizes: make(map[string]int), keys: make(map[proc][]byte), ours: make(map[string]bool)}
}

// spawned notes that the step was spawned from this node: we speak with it for our
// step.
func (o *others) spawned(nspace string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ours[nspace] = true
}

func (o *others) speaksWith(nspaces []string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(nspaces, func(n string) bool { return o.ours[n] })
}

func (o *others) known(nspace string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.sizes[nspace]
	return ok
}

func (o *others) learn(w *world, keys map[proc][]byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sizes[w.nspace] = w.size
	for who, data := range keys {
		o.bytes += len(data) - len(o.keys[who])
		if o.bytes > othersBytes {
			return fmt.Errorf("the keys of connected steps have %d bytes, and %d is the limit", o.bytes, othersBytes)
		}
		o.keys[who] = data
	}
	return nil
}

func (o *others) keysOf(who proc) ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	data, ok := o.keys[who]
	return data, ok
}

// nspacesOf are the steps of the processes, in their order; ours is among them.
func (p meetings) nspacesOf(procs []proc) []string {
	all := []string{p.world.nspace}
	for _, who := range procs {
		all = append(all, who.nspace)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// serveConnect is PMIx_Connect, or PMIx_Disconnect: it lets all of the processes meet, and
// processes of different steps get to know each other.
func (p meetings) serveConnect(ctx context.Context, what string, r *reader) (reply, error) {
	procs, infos := r.procs(), r.infos()
	if err := r.done(); err != nil {
		return reply{}, err
	}
	nodes, foreign := p.nodesOf(procs)
	if foreign {
		var data []byte
		if what == "connect" {
			data = p.introduce(ctx, procs)
		}
		return p.meetSteps(ctx, what, procs, infos, data)
	}
	if len(nodes) > 1 {
		if _, err := p.meet(ctx, what, procs, nodes, infos, nil); err != nil {
			return p.meetingFailed(procs, err), nil
		}
	}
	return status(stSuccess), nil
}

// introduce describes this step to another step's stepds: where our ranks are, and what
// the ranks of this node that take part have put.
func (p meetings) introduce(ctx context.Context, procs []proc) []byte {
	w := &writer{}
	doc, _ := json.Marshal(p.world.describe()) // strings and numbers
	w.Bytes(doc)
	mine := p.locals(procs)
	list(w, mine, func(n int) {
		who := p.procOf(n)
		data, err := p.keysOf(ctx, who)
		if err != nil {
			p.log(fmt.Sprintf("cannot tell a connected step what MPI rank %d has put: %v", n, err))
		}
		w.proc(who)
		w.Bytes(data)
	})
	return w.B
}

// meetSteps is a meeting of processes of several steps of the job: the nodes of
// each step gather, and one node of each meets the others at noded.
func (p meetings) meetSteps(ctx context.Context, what string, procs []proc, infos []info, data []byte) (reply, error) {
	if p.job.Job == nil {
		return status(stNotSupported), nil
	}
	p.waits(p.locals(procs), what, "")
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout(infos), errTimeout)
	defer cancel()
	parts, err := p.exchange(ctx, what, procs, data)
	if err != nil {
		p.log(fmt.Sprintf("MPI %s of steps %q failed: %v", what, p.nspacesOf(procs), err))
		if ctx.Err() != nil && p.ctx.Err() == nil {
			return status(stTimeout), nil
		}
		return status(stUnreach), nil
	}
	p.goOn(p.locals(procs))
	if what == "fence" {
		var whole []byte
		for _, part := range parts {
			whole = append(whole, part...)
		}
		p.fenced(procs)
		return withBytes(whole), nil
	}
	for _, part := range parts {
		if len(part) == 0 {
			continue
		}
		if err := p.acquaint(ctx, part); err != nil {
			p.log(fmt.Sprintf("cannot take what a connected step says: %v", err))
			return status(stError), nil
		}
	}
	return status(stSuccess), nil
}

// exchange returns what each node of each step came with.
func (p meetings) exchange(ctx context.Context, what string, procs []proc, data []byte) ([][]byte, error) {
	nodes, _ := p.nodesOf(procs)
	nspaces := p.nspacesOf(procs)
	name := "pmix " + what + " " + signature(procs)
	speaker, gathered := p.here, [][]byte{data}
	if len(nodes) > 1 {
		w := &writer{}
		w.U32(0)
		if p.others.speaksWith(nspaces) {
			w.B[0] = 1
		}
		all, err := p.job.Peers.Allgather(ctx, name+" in", nodes, append(w.B, data...))
		if err != nil {
			return nil, err
		}
		speaker, gathered = nodes[0], nil
		for i, part := range all {
			r := reader{Reader: wire.Reader{B: part}}
			if r.U32() != 0 {
				speaker = nodes[i]
			}
			gathered = append(gathered, r.B)
		}
	}
	var outcome []byte
	if speaker == p.here {
		w := &writer{}
		list(w, gathered, w.Bytes)
		parts, err := p.job.Job.Meet(ctx, name, nspaces, p.world.nspace, w.B)
		if err != nil {
			return nil, err
		}
		o := &writer{}
		list(o, nspaces, func(n string) { o.Bytes(parts[n]) })
		outcome = o.B
	}
	if len(nodes) > 1 {
		all, err := p.job.Peers.Allgather(ctx, name+" out", nodes, outcome)
		if err != nil {
			return nil, err
		}
		outcome = all[slices.Index(nodes, speaker)]
	}
	r := reader{Reader: wire.Reader{B: outcome}}
	var parts [][]byte
	for _, one := range elements(&r, 4, r.Bytes) {
		in := reader{Reader: wire.Reader{B: one}}
		parts = append(parts, elements(&in, 4, in.Bytes)...)
		if err := in.done(); err != nil {
			return nil, fmt.Errorf("cannot read what a step says: %w", err)
		}
	}
	return parts, r.done()
}

// acquaint registers another step with our library, and keeps its ranks' keys.
func (p meetings) acquaint(ctx context.Context, part []byte) error {
	r := reader{Reader: wire.Reader{B: part}}
	var d description
	doc := r.Bytes()
	keys := make(map[proc][]byte)
	elements(&r, 12, func() bool {
		who := r.proc()
		keys[who] = r.Bytes()
		return true
	})
	if err := r.done(); err != nil {
		return err
	}
	if err := json.Unmarshal(doc, &d); err != nil {
		return err
	}
	if d.Nspace == p.world.nspace {
		return nil
	}
	w, err := d.world()
	if err != nil {
		return err
	}
	if !p.others.known(w.nspace) {
		_, err := p.ask(ctx, cmdNspace, func(out *writer) {
			out.Str(w.nspace)
			out.U32(0)
			out.infos(w.infos(-1))
		})
		if err != nil {
			return err
		}
	}
	return p.others.learn(w, keys)
}

// foreignModex answers for a rank of another step.
func (p meetings) foreignModex(_ context.Context, who proc) (reply, error) {
	if data, ok := p.others.keysOf(who); ok {
		return withBytes(data), nil
	}
	return status(stNotFound), nil
}

// description is a world as it is sent to another step.
type description struct {
	Nspace string   `json:"nspace"`
	Size   int      `json:"size"`
	Hosts  []string `json:"hosts"`
	Ranks  []string `json:"ranks"`
	Apps   []int    `json:"apps"`
}

func (w *world) describe() description {
	d := description{Nspace: w.nspace, Size: w.size, Hosts: w.hosts, Apps: w.apps}
	for _, ranks := range w.ranks {
		d.Ranks = append(d.Ranks, step.FormatCPUList(ranks))
	}
	return d
}

func (d *description) world() (*world, error) {
	if _, ok := parseNspace(d.Nspace); !ok || d.Size < 1 || d.Size > step.TasksMax || len(d.Hosts) != len(d.Ranks) {
		return nil, fmt.Errorf("cannot use the description of %.64q: %d ranks on %d nodes", d.Nspace, d.Size, len(d.Hosts))
	}
	l := &step.Layout{}
	for i, host := range d.Hosts {
		l.Nodes = append(l.Nodes, step.LayoutNode{Name: host, Ranks: d.Ranks[i]})
	}
	if err := l.Check(0, d.Size); err != nil {
		return nil, err
	}
	w := &world{nspace: d.Nspace, size: d.Size, apps: d.Apps}
	w.place(l.Nodes)
	return w, nil
}
