package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/step"
)

// errSeveral says that a request is one for several nodes: it has a head.
type errSeveral struct{ req *step.Request }

func (e errSeveral) Error() string {
	return fmt.Sprintf("nnodes: %d nodes, or another one, and here a step of this node alone is meant", e.req.NNodes)
}

func (s *service) runHead(ctx context.Context, caller api.Peer, req *step.Request, in *api.RunRequest) (*api.RunReply, error) {
	h, err := s.n.reserveInTurn(ctx, caller, req, in, step.Starting)
	if err != nil {
		return nil, s.refused(caller, err)
	}
	if !h.claim() {
		return nil, s.refused(caller, api.Errorf(api.Aborted, "step %s was cancelled before its launch", h.id))
	}
	return s.launchClaimed(caller, h, nil)
}

// holdHead is Reserve's: the reservation is the process's of pidfd client.
func (s *service) holdHead(ctx context.Context, caller api.Peer, client int, req *step.Request, in *api.RunRequest) (*api.RunReply, error) {
	h, err := s.n.reserveInTurn(ctx, caller, req, in, step.Pending)
	if err != nil {
		unix.Close(client)
		return nil, s.refused(caller, err)
	}
	limit := s.n.reserveMax
	spec := *h.spec // the launch may come before the answer
	s.n.work.Go(func() { h.hold(client, limit) })
	return s.headReply(h, &spec, nil)
}

func (s *service) launchHead(caller api.Peer, h *head, change *step.LaunchChange) (*api.RunReply, error) {
	if !mayAct(caller, h.by) {
		return nil, s.refused(caller, errDenied)
	}
	if !h.claim() {
		return nil, s.refused(caller, api.Errorf(api.NotFound, "no such reservation %q", h.id))
	}
	return s.launchClaimed(caller, h, change)
}

func (s *service) launchClaimed(caller api.Peer, h *head, change *step.LaunchChange) (*api.RunReply, error) {
	spec, key, err := h.launch(change)
	if err != nil {
		return nil, s.refused(caller, err)
	}
	return s.headReply(h, spec, key)
}

func (s *service) headReply(h *head, spec *step.Spec, key []byte) (*api.RunReply, error) {
	doc, err := encode(clientSpec(spec))
	if err != nil {
		return nil, err
	}
	return &api.RunReply{JobId: h.id.Job, StepId: h.id.Step, Node: s.n.cfg.NodeName, Spec: doc, LauncherKey: key}, nil
}

func (h *head) end() <-chan struct{} { return h.ended }

// each asks all parts that have not ended: what is asked of one that has counts as done,
// unless it is so of all.
func (h *head) each(ctx context.Context, verb string, in stepRequest) error {
	in.ID = h.id
	answers, err := h.n.fan(ctx, verb, in, partsOf(h.liveNodes()))
	if err != nil {
		return err
	}
	told := false
	for _, a := range answers {
		var r partTold
		switch {
		case a.err != nil:
			err = errors.Join(err, fmt.Errorf("node %s: %s", a.node, api.MessageOf(a.err)))
		case json.Unmarshal(a.body, &r) == nil:
			told = told || r.Told
		}
	}
	if err == nil && !told {
		return errNoStep
	}
	return err
}

// liveNodes are those whose parts have not ended, as far as is known.
func (h *head) liveNodes() (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, node := range h.layout.Nodes {
		if p := h.parts[i]; p == nil || !p.State.Final() {
			names = append(names, node.Name)
		}
	}
	return names
}

func (h *head) signal(ctx context.Context, signal int, scope string) error {
	return h.each(ctx, "signal", stepRequest{Signal: signal, Scope: scope})
}

func (h *head) cancel(ctx context.Context, reason string) error {
	reason = cmp.Or(reason, "cancelled")
	if h.giveBack(reason) {
		return nil
	}
	h.mu.Lock()
	if h.ending == "" {
		h.ending = reason
	}
	h.mu.Unlock()
	return h.each(ctx, "cancel", stepRequest{Reason: reason})
}

func (h *head) suspend(ctx context.Context, by uint32) error {
	return h.each(ctx, "suspend", stepRequest{By: by})
}

func (h *head) unsuspend(ctx context.Context, by uint32) error {
	return h.each(ctx, "resume", stepRequest{By: by})
}

// freshMax bounds how long a listing waits for other nodes.
const freshMax = 2 * time.Second

// fresh is the record with what the parts say of themselves just now.
func (h *head) fresh() *step.Record {
	ctx, cancel := context.WithTimeout(context.Background(), freshMax)
	defer cancel()
	return h.ask(ctx, "show")
}

// ask asks the parts for their records by that verb, and puts them together. Of a
// node that does not answer in time it has what was heard last.
func (h *head) ask(ctx context.Context, verb string) *step.Record {
	h.mu.Lock()
	waits := h.stage != followed
	h.mu.Unlock()
	if waits {
		return h.record()
	}
	answers, err := h.n.fan(ctx, verb, stepRequest{ID: h.id}, partsOf(h.nodes()))
	if err != nil {
		return h.record()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	parts := slices.Clone(h.parts)
	for i, a := range answers {
		rec := new(step.Record)
		if a.err == nil && json.Unmarshal(a.body, rec) == nil && (parts[i] == nil || !parts[i].State.Final()) {
			parts[i] = rec
		}
	}
	rec := h.rec
	rec.Tasks = slices.Clone(h.rec.Tasks)
	if !rec.State.Final() {
		step.ShowParts(&rec, parts)
		h.rec.State = rec.State
	}
	return &rec
}

// eventsOfAll sends the lines of the logs of all parts: those that are there by
// their time, and with follow each as it comes. The part's node is in each. What
// one node says that does not answer keeps the others from being heard.
func (n *Node) eventsOfAll(ctx context.Context, rec *step.Record, follow bool, send func([]byte) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	logs := make([]chan eventLine, len(rec.Nodes))
	lost := make([]error, len(rec.Nodes)) // of a log, when its channel is closed
	for i, name := range rec.Nodes {
		logs[i] = make(chan eventLine, 16)
		n.work.Go(func() {
			defer close(logs[i])
			lost[i] = n.eventsOf(ctx, name, rec.ID, follow, func(b []byte) error {
				select {
				case logs[i] <- newEventLine(b, name):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		})
	}
	merge := sortLogs
	if follow {
		merge = mixLogs
	}
	if err := merge(logs, func(l eventLine) error { return send(l.json) }); err != nil {
		return err
	}
	for _, err := range lost {
		if err != nil {
			return err
		}
	}
	return nil
}

// withNode adds the node's name to a line, which is a JSON object.
func withNode(line []byte, node string) []byte {
	line = bytes.TrimSpace(line)
	name, err := json.Marshal(node)
	if err != nil || len(line) < 2 || line[len(line)-1] != '}' {
		return line
	}
	out := append([]byte(nil), line[:len(line)-1]...)
	if len(line) > 2 {
		out = append(out, ',')
	}
	return append(append(append(out, `"node":`...), name...), '}')
}

// eventsOf sends the lines of one node's log.
func (n *Node) eventsOf(ctx context.Context, name string, id step.ID, follow bool, send func([]byte) error) error {
	if name == n.cfg.NodeName {
		return n.events(ctx, id, follow, send)
	}
	c, err := n.peers.client(name)
	if err != nil {
		return err
	}
	stream, err := c.PartEvents(ctx, &api.PartEventsRequest{JobId: id.Job, StepId: id.Step, Follow: follow})
	for err == nil {
		var l *api.PartLine
		if l, err = stream.Recv(); err == nil {
			err = send(l.GetJson())
		}
	}
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return api.Errorf(api.Unavailable, "node %s does not tell its events: %s", name, api.PeerReason(err))
}

// recoverHeads takes up the steps of several nodes again that an earlier noded
// was the head of. Those that were not launched are given back.
func (n *Node) recoverHeads() error {
	recs, err := n.store.heads()
	if err != nil {
		return err
	}
	for _, r := range recs {
		layout := new(step.Layout)
		for i, name := range r.Rec.Nodes {
			node := step.LayoutNode{Name: name}
			if i < len(r.Ranks) {
				node.Ranks = r.Ranks[i]
			}
			layout.Nodes = append(layout.Nodes, node)
		}
		h := n.newHead(r.Rec, r.By, layout)
		h.watch = r.Watch
		h.claim()
		n.heads.put(h)
		if n.peers == nil || r.Rec.State == step.Pending {
			n.work.Go(func() { h.giveUp("noded was restarted before the step was launched", step.Cancelled) })
			continue
		}
		h.setStage(followed)
		h.log.Infof("head of a step on %s again", r.Rec.Node)
		h.follow()
	}
	return nil
}
