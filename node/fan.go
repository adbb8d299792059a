package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stepd/api"
)

const (
	// fanOut is how many nodes one noded passes a request on to (ADR 0009).
	fanOut = 16
	// fanDepth bounds how often a request is passed on: 16 branches reach 4,096
	// nodes in three.
	fanDepth = 8
	// fanMax bounds a request for many nodes, and its answers, in bytes: what a
	// client may ask for, and some words for each node.
	fanMax = api.RequestMax + api.RequestMax/2
	// fanTimeout bounds one request, from the first node to the last answer.
	fanTimeout = 2 * time.Minute
)

// fanAnswer is what became of one node's part.
type fanAnswer struct {
	node string
	body []byte
	err  error // a gRPC status
}

// fan gives every node of parts its part, by a tree below this node, and returns
// the answers in the order of parts.
func (n *Node) fan(ctx context.Context, verb string, common any, parts []*api.FanPart) ([]fanAnswer, error) {
	return n.fanWithin(ctx, fanTimeout, verb, common, parts)
}

// fanWithin is fan of what may take longer; 0 is as long as ctx lasts.
func (n *Node) fanWithin(ctx context.Context, limit time.Duration, verb string, common any, parts []*api.FanPart) ([]fanAnswer, error) {
	doc, err := json.Marshal(common)
	if err != nil {
		return nil, fmt.Errorf("cannot encode %q for %d nodes: %w", verb, len(parts), err)
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	byNode := make(map[string]*api.FanAnswer, len(parts))
	for _, a := range n.spread(ctx, &api.FanRequest{Verb: verb, Common: doc, Parts: parts}) {
		byNode[a.GetNode()] = a
	}
	out := make([]fanAnswer, len(parts))
	for i, p := range parts {
		out[i].node = p.GetNode()
		a := byNode[p.GetNode()]
		switch {
		case a == nil:
			out[i].err = api.NewError(api.Internal, "it was left out of the answer")
		case a.GetCode() != 0:
			out[i].err = status.Error(codes.Code(a.GetCode()), a.GetError())
		default:
			out[i].body = a.GetBody()
		}
	}
	return out, nil
}

// spread does this node's own part, if it has one, and passes on the others.
func (n *Node) spread(ctx context.Context, in *api.FanRequest) []*api.FanAnswer {
	var (
		mu    sync.Mutex
		out   []*api.FanAnswer
		tasks sync.WaitGroup
		rest  []*api.FanPart
	)
	add := func(a ...*api.FanAnswer) {
		mu.Lock()
		defer mu.Unlock()
		out = append(out, a...)
	}
	for _, p := range in.GetParts() {
		if p.GetNode() != n.cfg.NodeName {
			rest = append(rest, p)
			continue
		}
		tasks.Go(func() { add(n.ownPart(ctx, in, p)) })
	}
	for _, group := range split(rest, fanOut) {
		tasks.Go(func() { add(n.passOn(ctx, in, group)...) })
	}
	tasks.Wait()
	return out
}

// split cuts a list into at most n groups of about the same length.
func split[T any](list []T, n int) (groups [][]T) {
	for i := range min(n, len(list)) {
		groups = append(groups, list[i*len(list)/min(n, len(list)):(i+1)*len(list)/min(n, len(list))])
	}
	return groups
}

// passOn lets the first node of the group do the rest. Where that cannot be
// reached, it alone is lost: the others are asked from here. Whoever has had such
// a request twice refuses the second one.
func (n *Node) passOn(ctx context.Context, in *api.FanRequest, group []*api.FanPart) []*api.FanAnswer {
	first := group[0].GetNode()
	var c api.PeerClient
	err := errNoPeers
	if n.peers != nil {
		c, err = n.peers.client(first)
	}
	if err == nil {
		var reply *api.FanReply
		within, cancel := passTime(ctx, in.GetVerb(), len(group))
		reply, err = c.Fan(within, &api.FanRequest{Verb: in.GetVerb(), Common: in.GetCommon(), Parts: group, Depth: in.GetDepth() + 1})
		cancel()
		if err == nil {
			return reply.GetAnswers()
		}
		if api.CodeOf(err) == api.FailedPrecondition && len(group) > 1 { // it does not pass this on
			return append(n.passOn(ctx, in, group[:1]), n.spread(ctx, &api.FanRequest{Verb: in.GetVerb(), Common: in.GetCommon(), Parts: group[1:], Depth: in.GetDepth()})...)
		}
		n.peers.failed(first)
	}
	out := []*api.FanAnswer{failed(first, n.peerError(first, err))}
	if len(group) == 1 {
		return out
	}
	return append(out, n.spread(ctx, &api.FanRequest{Verb: in.GetVerb(), Common: in.GetCommon(), Parts: group[1:], Depth: in.GetDepth()})...)
}

// passTime leaves time to others where a node is asked what it has: to those below it, which are
// asked without it if it does not answer, and to whoever waits for its answer here.
func passTime(ctx context.Context, verb string, group int) (context.Context, context.CancelFunc) {
	late, ok := ctx.Deadline()
	if !ok || verb != "probe" {
		return ctx, func() {}
	}
	left := time.Until(late)
	if group > 1 {
		return context.WithTimeout(ctx, left/2)
	}
	return context.WithTimeout(ctx, left*3/4)
}

// peerError puts words to the failure of a call to a node.
func (n *Node) peerError(node string, err error) error {
	if why := api.RefusedByPeer(err); why != "" {
		return api.Errorf(api.Unavailable, "it refuses the certificate of %s: %s", n.cfg.NodeName, why)
	}
	switch api.CodeOf(err) {
	case api.Unavailable, api.DeadlineExceeded, api.Unknown:
		return api.Errorf(api.Unavailable, "cannot be reached: %s", api.PeerReason(err))
	}
	return err
}

func failed(node string, err error) *api.FanAnswer {
	st := status.Convert(err)
	code := st.Code()
	if code == codes.OK {
		code = codes.Internal
	}
	return &api.FanAnswer{Node: node, Code: uint32(code), Error: st.Message()}
}

// ownPart does this node's part.
func (n *Node) ownPart(ctx context.Context, in *api.FanRequest, p *api.FanPart) *api.FanAnswer {
	do := partVerb(in.GetVerb())
	if do == nil {
		return failed(p.GetNode(), api.Errorf(api.Unimplemented, "no such request %.40q: noded %s is older than the one that asks", in.GetVerb(), n.cfg.NodeName))
	}
	reply, err := do(n, ctx, in.GetCommon(), p.GetBody())
	var body []byte
	if err == nil {
		body, err = json.Marshal(reply)
	}
	if err != nil {
		if _, ok := api.AsError(err); !ok {
			err = api.NewError(api.Internal, err.Error())
		}
		return failed(p.GetNode(), err)
	}
	return &api.FanAnswer{Node: p.GetNode(), Body: body}
}

// peerService is what other nodeds may ask for. Each is root as far as its own
// steps go (mayFan); whom it acts for is in the request, and looked up here.
type peerService struct {
	api.UnimplementedPeerServer
	n *Node
}

func (s *peerService) Fan(ctx context.Context, in *api.FanRequest) (*api.FanReply, error) {
	peer, err := api.NodePeerOf(ctx)
	if err != nil {
		return nil, api.NewError(api.Unauthenticated, err.Error())
	}
	err = s.checkFan(in)
	if err == nil {
		err = s.n.mayFan(peer.Name, in)
	}
	if err != nil {
		s.n.log.WithField("peer", peer.Name).Warnf("refused: %v", api.MessageOf(err))
		return nil, err
	}
	return &api.FanReply{Answers: s.n.spread(ctx, in)}, nil
}

func (s *peerService) checkFan(in *api.FanRequest) error {
	if in.GetDepth() > fanDepth {
		return api.Errorf(api.InvalidArgument, "passed on %d times: the limit is %d", in.GetDepth(), fanDepth)
	}
	seen := make(map[string]bool, len(in.GetParts()))
	for _, p := range in.GetParts() {
		if _, known := s.n.cfg.Others.find(p.GetNode()); !known {
			return api.Errorf(api.InvalidArgument, "no NodeName %.64q in the slurm.conf of %s", p.GetNode(), s.n.cfg.NodeName)
		}
		if seen[p.GetNode()] {
			return api.Errorf(api.InvalidArgument, "node %q is there twice", p.GetNode())
		}
		seen[p.GetNode()] = true
	}
	return nil
}

// errNoPeers is the answer to a request for several nodes where there is one.
var errNoPeers = errors.New("this node knows no others: slurm.conf has no NodeName of another one, or stepd.conf no TLSCertificate")

// partsOf are parts without a body, for each node.
func partsOf(nodes []string) []*api.FanPart {
	parts := make([]*api.FanPart, len(nodes))
	for i, name := range nodes {
		parts[i] = &api.FanPart{Node: name}
	}
	return parts
}
