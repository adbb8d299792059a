package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/step"
)

// head is the node's side of a step of several nodes that was asked for here: it
// has asked the nodes for their parts, waits for all of them and makes one record.
// That this node may have a part too is of no matter to it.
type head struct {
	n   *Node
	id  step.ID
	by  uint32 // who asked for the step
	log *logrus.Entry

	// layout has names and ranks, and until the launch addresses and keys; spec is
	// what the client is told.
	layout *step.Layout
	spec   *step.Spec
	// jobCPUs are the CPUs that the job has on each of the nodes.
	jobCPUs []int
	size    int // what the request counts here until the launch, in bytes

	mu      sync.Mutex
	rec     step.Record    // guarded by mu
	parts   []*step.Record // guarded by mu: by node id, what was heard last
	stage   stage          // guarded by mu
	ending  string         // guarded by mu: why the head ends the parts, "" if it does not
	watch   *watchKey      // guarded by mu: nil before the launch
	claimed chan struct{}  // closed when the reservation is launched or given back
	ended   chan struct{}  // closed when the final record is stored
}

// heads are the steps whose head this node is.
type heads struct {
	mu  sync.Mutex
	all map[step.ID]*head // guarded by mu
}

func (hs *heads) get(id step.ID) *head {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.all[id]
}

func (hs *heads) put(h *head) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.all == nil {
		hs.all = make(map[step.ID]*head)
	}
	hs.all[h.id] = h
}

// ofJob tells whether this node is the head of a step of the job.
func (hs *heads) ofJob(job uint32) bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for id := range hs.all {
		if id.Job == job {
			return true
		}
	}
	return false
}

// spawnedElsewhere counts the spawned steps of a job that have no part on the node,
// whose registry knows the others.
func (hs *heads) spawnedElsewhere(job uint32, node string) (count int) {
	for _, h := range hs.list() {
		if h.id.Job == job && h.rec.Parent != nil && !slices.Contains(h.rec.Nodes, node) {
			count++
		}
	}
	return count
}

func (hs *heads) remove(id step.ID) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	delete(hs.all, id)
}

func (hs *heads) list() []*head {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	out := make([]*head, 0, len(hs.all))
	for _, h := range hs.all {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b *head) int {
		if a.id.Job != b.id.Job {
			return int(a.id.Job) - int(b.id.Job)
		}
		return int(a.id.Step) - int(b.id.Step)
	})
	return out
}

func (n *Node) newHead(rec step.Record, by uint32, layout *step.Layout) *head {
	return &head{
		n: n, id: rec.ID, by: by, rec: rec, layout: layout, parts: make([]*step.Record, len(layout.Nodes)), jobCPUs: make([]int, len(layout.Nodes)),
		log: n.log.WithField("step", rec.ID.String()).WithField("head", true), claimed: make(chan struct{}), ended: make(chan struct{}),
	}
}

func (h *head) nodes() []string {
	names := make([]string, len(h.layout.Nodes))
	for i, node := range h.layout.Nodes {
		names[i] = node.Name
	}
	return names
}

// proposals bounds how often another number is proposed.
const proposals = 8

// reserveHead is reserve for a step of several nodes: it chooses them and
// reserves a part on each. raw is the request that was decoded into req; sp is nil but
// for a step that tasks have spawned.
func (n *Node) reserveHead(ctx context.Context, caller api.Peer, req *step.Request, raw []byte, state step.State, sp *spawned) (*head, error) {
	received := time.Now()
	ask, err := n.partsFor(ctx, caller, req, raw, sp)
	if err != nil {
		return nil, err
	}
	ask.Pending = state == step.Pending
	user, layout, size := ask.User, ask.Layout, len(ask.Request)
	if slices.ContainsFunc(layout.Nodes, func(l step.LayoutNode) bool { return l.Name == n.cfg.NodeName }) {
		size = 0 // this node's part counts the request
	}
	if err := n.reg.reserve(caller.UID, size); err != nil {
		return nil, err
	}
	if ask.LaunchAddr, err = n.cfg.Others.stepHost(ctx); err != nil {
		n.log.Warnf("the tasks are not told where their client is: %v", err)
	}
	h, err := n.reserveParts(ctx, ask)
	if err != nil {
		n.reg.unreserve(caller.UID, size)
		return nil, err
	}
	nodes := h.nodes()
	h.rec = step.Record{
		ID: h.id, Name: req.Name, UID: user.UID, User: user.Name, Node: n.cfg.Others.List(nodes), Nodes: nodes,
		State: state, NTasks: req.NTasks, NoKill: req.NoKill, Command: shownCommand(req.Argv), Submitted: received, MPI: req.MPI, BootID: n.boot,
		Tasks: headTasks(layout, req.NTasks),
	}
	if sp != nil {
		h.rec.Parent = &sp.Parent
	}
	h.size = size
	if err := n.store.putHead(h.stored()); err != nil {
		n.reg.unreserve(caller.UID, size)
		h.cancelParts("the step's head cannot store it")
		h.release()
		return nil, api.NewError(api.Internal, err.Error())
	}
	n.heads.put(h)
	h.log.WithField("uid", user.UID).Infof("step of %d nodes reserved: %s", len(nodes), h.rec.Node)
	return h, nil
}

// partsFor chooses the nodes of a step, and says what each of them is asked for.
func (n *Node) partsFor(ctx context.Context, caller api.Peer, req *step.Request, raw []byte, sp *spawned) (*partRequest, error) {
	if len(req.Script) > 0 {
		return nil, n.oneNode(req, "what a batch job would be given (--dry-run)")
	}
	if err := n.check(req); err != nil {
		return nil, err
	}
	raw, err := n.widen(req, raw)
	if err != nil {
		return nil, err
	}
	user, err := n.userFor(ctx, caller, req)
	if err != nil {
		return nil, err
	}
	layout, id, err := n.placeStep(ctx, req, sp)
	if err != nil {
		return nil, err
	}
	return &partRequest{
		ID: id, Head: n.cfg.NodeName, By: caller.UID, User: user, Request: raw, Layout: layout,
		JobNodes: n.jobNodes(req, layout), Spawned: sp,
	}, nil
}

// jobNodes are the nodes of a step's job, which are the step's where it has a job of
// its own.
func (n *Node) jobNodes(req *step.Request, layout *step.Layout) []string {
	if req.Job != nil {
		if j := n.reg.job(*req.Job); j != nil && len(j.Nodes) > 0 {
			return j.Nodes
		}
		return []string{n.cfg.NodeName}
	}
	names := make([]string, len(layout.Nodes))
	for i, node := range layout.Nodes {
		names[i] = node.Name
	}
	return names
}

// headTasks are the tasks of all nodes, none of which was started.
func headTasks(l *step.Layout, ntasks int) []step.Task {
	tasks := make([]step.Task, ntasks)
	for _, node := range l.Nodes {
		ranks, _ := step.ParseCPUList(node.Ranks) // they were made here
		for local, r := range ranks {
			if r < ntasks {
				tasks[r] = step.Task{Rank: r, LocalID: local, Node: node.Name, State: step.TaskPending}
			}
		}
	}
	return tasks
}

func (h *head) stored() *headRecord {
	out := &headRecord{Rec: *h.record(), By: h.by}
	h.mu.Lock()
	out.Watch = h.watch
	h.mu.Unlock()
	for _, node := range h.layout.Nodes {
		out.Ranks = append(out.Ranks, node.Ranks)
	}
	return out
}

// reserveParts asks all nodes for their parts under one number, and gives all of
// them back where one refuses.
func (n *Node) reserveParts(ctx context.Context, in *partRequest) (*head, error) {
	names := make([]string, len(in.Layout.Nodes))
	for i, node := range in.Layout.Nodes {
		names[i] = node.Name
	}
	in.NodeList = n.cfg.Others.List(names)
	for range proposals {
		again, err := n.takeNumber(in, names)
		if err != nil {
			return nil, err
		}
		if again != nil {
			in.ID = *again
			continue
		}
		h := n.newHead(step.Record{ID: in.ID}, in.By, in.Layout)
		again, err = h.reserve(ctx, in)
		if err == nil && again == nil {
			return h, nil
		}
		h.cancelParts("another node did not take its part")
		h.release()
		if err != nil {
			return nil, err
		}
		in.ID = *again
	}
	return nil, api.Errorf(api.Aborted, "the nodes %s did not agree on a number for the step within %d tries: try again", in.NodeList, proposals)
}

// takeNumber takes a job's number on a head that has no part, whose reservation
// would.
func (n *Node) takeNumber(in *partRequest, names []string) (again *step.ID, err error) {
	if in.ID.Step != 0 || slices.Contains(names, n.cfg.NodeName) {
		return nil, nil
	}
	err = n.store.takeJob(in.ID)
	if taken, ok := errors.AsType[errTaken](err); ok {
		return &taken.next, nil
	}
	if err != nil {
		return nil, api.NewError(api.Internal, err.Error())
	}
	return nil, nil
}

// reserve is one try. again is a number to propose next.
func (h *head) reserve(ctx context.Context, in *partRequest) (again *step.ID, err error) {
	answers, err := h.n.fan(ctx, "reserve", in, partsOf(h.nodes()))
	if err != nil {
		return nil, api.NewError(api.Internal, err.Error())
	}
	for i, a := range answers {
		var r partReply
		if a.err == nil {
			if jerr := json.Unmarshal(a.body, &r); jerr != nil {
				a.err = api.Errorf(api.Internal, "its answer cannot be parsed: %v", jerr)
			}
		}
		switch {
		case a.err != nil:
			if err == nil { // the first one is told
				err = api.Errorf(api.CodeOf(a.err), "node %s: %s", a.node, api.MessageOf(a.err))
			}
		case r.Busy != "":
			if err == nil {
				err = waitsFor(fmt.Sprintf("node %s: %s", a.node, r.Busy), fmt.Sprintf("a share of job %d on node %s", in.ID.Job, a.node))
			}
		case r.Taken != nil:
			if again == nil || again.Job < r.Taken.Job || again.Step < r.Taken.Step {
				again = r.Taken
			}
		default:
			h.layout.Nodes[i].Addr, h.layout.Nodes[i].Key = r.Addr, r.Key
			h.jobCPUs[i] = r.CPUs
			if r.Spec != nil {
				h.spec = r.Spec
			}
		}
	}
	return again, err
}

// cancelParts gives back or ends the parts of all nodes, as far as there are such.
func (h *head) cancelParts(reason string) {
	ctx, cancel := context.WithTimeout(context.Background(), fanTimeout)
	defer cancel()
	answers, err := h.n.fan(ctx, "cancel", stepRequest{ID: h.id, Reason: reason}, partsOf(h.nodes()))
	if err != nil {
		h.log.Errorf("%v", err)
	}
	for _, a := range answers {
		if a.err != nil {
			h.log.Warnf("cannot end the part of node %s: %s", a.node, api.MessageOf(a.err))
		}
	}
}

// launch starts all parts. Who calls it has claimed the reservation.
func (h *head) launch(change *step.LaunchChange) (*step.Spec, []byte, error) {
	h.n.reg.unreserve(h.by, h.size)
	key, hash, err := newNetKey()
	if err != nil {
		h.giveUp(err.Error(), step.Failed)
		return nil, nil, api.NewError(api.Internal, err.Error())
	}
	h.layout.Launcher = hash
	if err := h.makeWatchKey(); err != nil {
		h.giveUp(err.Error(), step.Failed)
		return nil, nil, api.NewError(api.Internal, err.Error())
	}
	h.mu.Lock()
	h.rec.State = step.Starting
	h.mu.Unlock()
	if err := h.n.store.putHead(h.stored()); err != nil {
		h.giveUp(err.Error(), step.Failed)
		return nil, nil, api.NewError(api.Internal, err.Error())
	}
	in := launchRequest{ID: h.id, Layout: h.layout}
	if h.spec != nil && h.spec.JobNNodes == len(h.jobCPUs) {
		in.JobNodeCPUs = h.jobCPUs // else those of some are not known
	}
	if change != nil {
		packed := *change
		packed.Pack()
		in.Change = &packed
	}
	answers, err := h.n.fan(context.Background(), "launch", in, partsOf(h.nodes()))
	for _, a := range answers {
		if err == nil && a.err != nil {
			err = fmt.Errorf("node %s: %s", a.node, api.MessageOf(a.err))
		}
	}
	h.setStage(followed)
	h.follow()
	if err != nil {
		h.endAll(fmt.Sprintf("the launch has failed: %v", err))
		return nil, nil, api.NewError(api.Aborted, err.Error())
	}
	spec := *h.spec
	spec.Layout = h.layout
	h.log.WithField("ntasks", spec.NTasks).Info("step started")
	return &spec, key, nil
}

// giveUp ends a step that was not launched; its caller has claimed it.
func (h *head) giveUp(reason string, state step.State) {
	h.cancelParts(reason)
	h.mu.Lock()
	deadRecord(&h.rec, reason, state, time.Now())
	h.mu.Unlock()
	h.finish()
}

func (h *head) setStage(s stage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stage = s
}

// claim is as that of a follower.
func (h *head) claim() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stage != reserved {
		return false
	}
	h.stage = launching
	close(h.claimed)
	return true
}

// hold keeps the reservation for the process of pidfd, which it closes.
func (h *head) hold(pidfd int, limit time.Duration) {
	defer unix.Close(pidfd)
	if why := h.n.awaitLaunch(h.claimed, pidfd, limit); why != "" {
		h.giveBack(why)
	}
}

// giveBack ends a reservation, unless somebody has claimed it.
func (h *head) giveBack(why string) (given bool) {
	if !h.claim() {
		return false
	}
	h.log.Infof("giving the reservation back: %s", why)
	h.n.reg.unreserve(h.by, h.size)
	h.giveUp(why, step.Cancelled)
	return true
}

// record is a copy of the whole step's record, as far as it is known here.
func (h *head) record() *step.Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	rec := h.rec
	rec.Tasks = slices.Clone(h.rec.Tasks)
	return &rec
}
