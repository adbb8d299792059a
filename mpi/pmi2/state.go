package pmi2

import (
	"slices"
	"strings"
	"sync"

	"stepd/step"
)

// entryOverhead is charged for each stored pair beside its bytes: about what
// the maps cost, so that many empty values are not free.
const entryOverhead = 128

// Keys that the server answers itself.
const (
	keyMapping      = "PMI_process_mapping"
	keyUniverse     = "universeSize"
	keyNameServer   = "hasNameServ"
	keyLocalRanks   = "localRanks"
	keyLocalRanksNr = "localRanksCount"
)

// state is what the ranks of the step share. Its methods take the lock; no
// byte is read or written under it. What has to be sent is returned as an
// outcome.
type state struct {
	conf  step.PMI2Conf
	jobID string // the name of the key value space: "12.0"
	size  int    // ranks of the step
	where layout // of its ranks
	// mapped is PMI_process_mapping, "" where it is longer than a client takes: it
	// then compares the names of hosts.
	mapped string
	// tell is launch.MPIJob.Progress, nil for no reports; see note.
	tell func(rank int, p step.MPIProgress)
	// spawner is the step that has spawned this one, "" without one.
	spawner string
	// universe is how many ranks the program may expect to run at a time.
	universe int

	// ranks is complete before the first goroutine runs; what is guarded of a
	// rank is named there.
	ranks []*rank

	mu    sync.Mutex          // guards all below
	kvs   map[string]value    // what a fence made visible
	attrs map[string]value    // the node's attributes
	waits map[string][]waiter // by attribute
	bytes int                 // what kvs, attrs and pending are charged for
	fence fence
	// left counts the ranks that can enter no fence any more.
	left int
	// toldLeft: the other nodes know that this one will come to no fence.
	toldLeft bool
	// aborted says that the step was ended, which is done once.
	aborted bool
}

// universe is the value of MPI_UNIVERSE_SIZE: what the job's CPUs have room
// for, and no less than runs already. All nodes have to say the same: programs decide by it, each
// rank alone, whether they spawn.
func universe(spec *step.Spec) int {
	cpus := spec.JobAllCPUs
	if list, err := step.ParseCPUList(spec.JobCPUs); err == nil && cpus == 0 {
		cpus = len(list)
	}
	return max(spec.NTasks, cpus/max(1, spec.CPUsPerTask))
}

// value is a stored pair's value. charged: its bytes count; owner is the rank of
// this node whose key it is, nil of another node's. What a spawn has given to the
// new ranks is charged to no rank: the spawn's own limits bound it.
type value struct {
	text    string
	owner   *rank
	charged bool
}

// rank is one rank and its connection.
type rank struct {
	n    int
	conn *conn
	// exited is closed when the task ended; exitedAs is its status, set
	// before, by the one call of exit.
	exited   chan struct{}
	exitedAs step.ExitStatus
	exit     sync.Once

	// speaks is 1 or 2, 0 before the first line. The rank's goroutine sets it
	// before the rank enters a fence; others read it afterwards.
	speaks int
	// spawning is the PMI-1 spawn whose blocks come; the rank's goroutine's.
	spawning *spawnRequest
	// app is which of the step's commands it runs.
	app int

	// state.mu guards all below.
	phase   phase
	pending map[string]string // put since the last fence
	sent    map[string]string // put before the fence that is away to other nodes
	keys    int               // pairs that the rank is charged for
	waits   int               // attributes that the rank waits for
	waitKey string            // the last one of them
	asks    int               // requests that noded is to answer
	fences  int               // fences passed
	entry   *entry            // the fence that the rank waits in
	left    bool              // it can enter no fence any more
	closed  bool              // it can send nothing more
	status  *step.ExitStatus  // how the task ended
	logged  int               // lines logged about it
}

// phase is how far a rank came.
type phase string

const (
	phaseNew       phase = "before init"
	phaseHello     phase = "before fullinit" // PMI-2 only
	phaseReady     phase = "running"
	phaseFinalized phase = "after finalize"
	// phaseAborted is a rank that asked to die.
	phaseAborted phase = "after abort"
)

// outcome is what to do once the lock is free.
type outcome struct {
	deliveries []delivery
	abort      *abort
	// share is to be brought to the other nodes; nil is nothing.
	share []byte
	// watch is a fence that is to be looked after; nil is none.
	watch *watch
}

// watch is a fence that this node's ranks may not all come to in time.
type watch struct {
	seq   int
	whole chan struct{} // closed when they have
}

// delivery is an answer to a rank.
type delivery struct {
	to   *rank
	data []byte
}

// abort is the end of the step, asked for once.
type abort struct {
	rank, code int
	text       string
}

func newState(spec *step.Spec, conf step.PMI2Conf) *state {
	s := &state{
		conf:     conf,
		jobID:    spec.ID.Key(),
		size:     spec.NTasks,
		where:    layoutOf(spec),
		universe: universe(spec),
		kvs:      make(map[string]value),
		attrs:    make(map[string]value),
		waits:    make(map[string][]waiter),
	}
	if m := s.where.mapping(); len(m) <= conf.ValueBytes {
		s.mapped = m
	}
	if spec.Parent != nil {
		s.spawner = spec.Parent.Key()
	}
	for _, kv := range spec.Preput {
		s.kvs[kv.Key] = value{text: string(kv.Value)}
	}
	return s
}

// put stages a pair until the rank's next fence.
func (s *state) put(r *rank, key, text string) *refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := s.check(r.speaks, key, text); why != nil {
		return why
	}
	if key == keyMapping {
		return refuse(codeKey, "key %s is the server's", keyMapping)
	}
	old, again := r.pending[key]
	if again {
		s.bytes -= charge(key, old)
		r.keys--
	}
	if why := s.take(r, key, text); why != nil {
		if again { // what was put before stays, and stays charged
			s.bytes += charge(key, old)
			r.keys++
		}
		return why
	}
	if r.pending == nil {
		r.pending = make(map[string]string)
	}
	r.pending[strings.Clone(key)] = strings.Clone(text)
	return nil
}

// commit makes what the rank put visible to all; the caller holds mu.
func (s *state) commit(r *rank) {
	for key, text := range r.pending {
		s.replace(s.kvs, key, value{text, r, true})
	}
	r.pending = nil
}

// lookup answers a get: the server's own keys, what the rank itself put, and
// what fences made visible.
func (s *state) lookup(r *rank, key string) (string, bool) {
	if key == keyMapping {
		return s.mapped, s.mapped != ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if text, ok := r.pending[key]; ok {
		return text, true
	}
	if text, ok := r.sent[key]; ok {
		return text, true
	}
	v, ok := s.kvs[key]
	return v.text, ok
}

// jobAttr answers for the step as a whole.
func (s *state) jobAttr(key string) (string, bool) {
	switch key {
	case keyMapping:
		return s.mapped, s.mapped != ""
	case keyUniverse:
		return itoa(s.universe), true
	case keyNameServer:
		return "TRUE", true
	}
	return "", false
}

// check applies the limits of a version of PMI on a single pair.
func (s *state) check(version int, key, text string) *refusal {
	most, limit := s.conf.KeyBytes1, "PMI1KeyBytes"
	if version == 2 {
		most, limit = s.conf.KeyBytes2, "PMI2KeyBytes"
	}
	switch {
	case key == "":
		return refuse(codeKey, "empty key")
	case len(key) > most:
		return refuse(codeKeyLength, "key of %d bytes: more than %d (%s)", len(key), most, limit)
	case len(text) > s.conf.ValueBytes:
		return refuse(codeValueLength, "value of %d bytes: more than %d (PMI2ValueBytes)", len(text), s.conf.ValueBytes)
	}
	return nil
}

func charge(key, text string) int { return len(key) + len(text) + entryOverhead }

// take charges a rank for a pair that is about to be stored; the caller holds mu.
func (s *state) take(r *rank, key, text string) *refusal {
	if r.keys >= s.conf.KeysPerRank {
		return refuse(codeNoMemory, "rank %d holds %d keys: the limit (PMI2KeysPerRank)", r.n, r.keys)
	}
	if cost := charge(key, text); s.bytes+cost > s.conf.TotalBytes {
		return refuse(codeNoMemory, "the step's ranks store %d bytes: %d more pass the limit %d (PMI2TotalBytes)", s.bytes, cost, s.conf.TotalBytes)
	}
	r.keys++
	s.bytes += charge(key, text)
	return nil
}

// replace stores a pair that was charged already; the caller holds mu.
func (s *state) replace(in map[string]value, key string, v value) {
	s.drop(in, key)
	in[key] = v
}

// drop removes a pair and its charge; the caller holds mu.
func (s *state) drop(in map[string]value, key string) {
	old, ok := in[key]
	if !ok {
		return
	}
	delete(in, key)
	if old.charged {
		s.bytes -= charge(key, old.text)
	}
	if old.owner != nil {
		old.owner.keys--
	}
}

// waiter is a rank that waits for an attribute of the node.
type waiter struct {
	r *rank
	m message // what the answer needs of the request
}

// putAttr stores an attribute of the node, visible at once, and answers those
// who wait for it.
func (s *state) putAttr(r *rank, key, text string) (outcome, *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := s.check(2, key, text); why != nil {
		return outcome{}, why
	}
	if key == keyLocalRanks || key == keyLocalRanksNr {
		return outcome{}, refuse(codeKey, "attribute %s is the server's", key)
	}
	if why := s.store(s.attrs, r, key, text); why != nil {
		return outcome{}, why
	}
	var out outcome
	for _, w := range s.waits[key] {
		w.r.waits--
		s.note(w.r)
		out.deliveries = append(out.deliveries, delivery{w.r, found2(w.m, text, true)})
	}
	delete(s.waits, key)
	return out, nil
}

// getAttr answers a request for an attribute of the node: at once, or, where
// the rank wants to wait, when a rank puts it (answer nil).
func (s *state) getAttr(r *rank, m message, key string, wait bool) (answer []byte, why *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := s.check(2, key, ""); why != nil {
		return nil, why
	}
	text, ok := s.attr(key)
	switch {
	case ok:
		return found2(m, text, true), nil
	case !wait:
		return found2(m, "", false), nil
	case r.waits >= s.conf.WaitsPerRank:
		return nil, refuse(codeNoMemory, "rank %d waits for %d attributes: the limit (PMI2WaitsPerRank)", r.n, r.waits)
	}
	r.waits++
	key = strings.Clone(key)
	r.waitKey = key
	s.note(r)
	s.waits[key] = append(s.waits[key], waiter{r, m.stub()})
	return nil, nil
}

// attr finds an attribute; the caller holds mu.
func (s *state) attr(key string) (string, bool) {
	switch key {
	case keyLocalRanksNr:
		return itoa(len(s.ranks)), true
	case keyLocalRanks:
		// A list longer than a client's buffer would be cut there.
		list := make([]string, len(s.ranks))
		for i, r := range s.ranks {
			list[i] = itoa(r.n)
		}
		text := strings.Join(list, ",")
		return text, len(text) <= s.conf.ValueBytes
	}
	v, ok := s.attrs[key]
	return v.text, ok
}

// store charges r and stores a pair that is visible at once; the caller holds
// mu. A pair that is refused leaves the old one as it was.
func (s *state) store(in map[string]value, r *rank, key, text string) *refusal {
	if why := s.take(r, key, text); why != nil {
		return why
	}
	s.replace(in, strings.Clone(key), value{strings.Clone(text), r, true})
	return nil
}

// forget drops the requests of a rank that can no longer be answered; the
// caller holds mu.
func (s *state) forget(r *rank) {
	if r.waits == 0 {
		return
	}
	for key, list := range s.waits {
		list = slices.DeleteFunc(list, func(w waiter) bool { return w.r == r })
		if len(list) == 0 {
			delete(s.waits, key)
		} else {
			s.waits[key] = list
		}
	}
	r.waits = 0
}

// note reports how far a rank has come, for clients that ask why a
// step hangs (launch.MPIJob.Progress). It is called for each change; the caller holds mu.
func (s *state) note(r *rank) {
	if s.tell == nil {
		return
	}
	p := step.MPIProgress{Fences: r.fences, Protocol: [...]string{"", "PMI-1", "PMI-2"}[r.speaks]}
	switch r.phase {
	case phaseNew:
		p.Phase = step.PhaseStarted
	case phaseHello:
		p.Phase = step.PhaseConnected
	case phaseFinalized:
		p.Phase = step.PhaseFinalized
	default:
		p.Phase = step.PhaseInitialized
	}
	switch {
	case r.phase == phaseFinalized:
	case r.entry != nil:
		p.Waiting = string(s.fence.kind) + " " + itoa(r.fences+1)
	case r.waits > 0:
		p.Waiting = "the node attribute " + quote(r.waitKey)
	}
	s.tell(r.n, p)
}
