package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"stepd/api"
	"stepd/step"
)

// A part is one node's part of a step of several nodes: to this noded a step with
// a number that the head has proposed, and to be launched by the head.

// partVerb is one request of Fan, nil where there is none of that name: common and
// body are JSON, and so is the answer.
func partVerb(name string) func(n *Node, ctx context.Context, common, body []byte) (any, error) {
	switch name {
	case "probe":
		return (*Node).partProbe
	case "reserve":
		return (*Node).partReserve
	case "dryrun":
		return (*Node).partDryRun
	case "launch":
		return (*Node).partLaunch
	case "show":
		return (*Node).partShow
	case "stat":
		return (*Node).partStat
	case "signal":
		return (*Node).partSignal
	case "cancel":
		return (*Node).partCancel
	case "suspend":
		return (*Node).partSuspend
	case "resume":
		return (*Node).partResume
	case "release":
		return (*Node).partRelease
	case "head":
		return (*Node).partHead
	case "watch":
		return (*Node).partWatch
	case "anchor":
		return (*Node).partAnchor
	case "allocate":
		return (*Node).partAllocate
	case "open":
		return (*Node).partOpen
	case "hold":
		return (*Node).partHold
	}
	return nil
}

// decodePart reads a document of another noded's.
func decodePart(doc []byte, v any) error {
	if err := json.Unmarshal(doc, v); err != nil {
		return api.Errorf(api.InvalidArgument, "cannot parse the request: %v", err)
	}
	return nil
}

// probeRequest asks what a node has for a step.
type probeRequest struct {
	// Job is the job that the step is to be of, nil a new one.
	Job *uint32 `json:"job,omitempty"`
}

// probeReply is what it has. Nothing is held by it.
type probeReply struct {
	// CPUs are the node's, or those that the job has of it; Free those that a job
	// could get now, or a step of the job for itself.
	CPUs int `json:"cpus"`
	Free int `json:"free"`
	// Drained says why it takes no jobs, "" it does.
	Drained string `json:"drained,omitempty"`
	// Next is the number that the step would get.
	Next step.ID `json:"next"`
}

func (n *Node) partProbe(_ context.Context, common, _ []byte) (any, error) {
	var in probeRequest
	if err := decodePart(common, &in); err != nil {
		return nil, err
	}
	next, err := n.store.nextID(&step.Request{Job: in.Job})
	if err != nil {
		return nil, api.Errorf(api.NotFound, "no such job \"%d\"", *in.Job)
	}
	r := probeReply{Next: next}
	r.CPUs, r.Free, r.Drained = n.reg.room(in.Job)
	if in.Job != nil && r.CPUs == 0 {
		return nil, api.Errorf(api.NotFound, "no such job \"%d\"", *in.Job)
	}
	return r, nil
}

// room tells how many CPUs there are and how many are free; of a job's node, how
// many the job has.
func (r *registry) room(job *uint32) (cpus, free int, drained string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if job != nil {
		if j := r.jobs[*job]; j != nil && j.open {
			if free = j.aloneFree(); len(j.line) > 0 {
				free = 0 // they come first
			}
			return len(j.cpus), free, ""
		}
		return 0, 0, ""
	}
	if r.closing {
		drained = "noded is stopping"
	}
	if r.drained.Drained {
		drained = fmt.Sprintf("drained: %s", r.drained.Reason)
	}
	// What only an epilog holds will be free soon: a request waits for it.
	return len(r.pool.cpus), r.pool.free() + r.endingLocked(), drained
}

// partRequest asks for the parts of a step: common to all nodes.
type partRequest struct {
	ID   step.ID `json:"id"` // proposed
	Head string  `json:"head"`
	// By is who has asked the head, and User whom the tasks run as there.
	By   uint32    `json:"by"`
	User step.User `json:"user"`
	// Request is a step.Request, as the client has sent it.
	Request json.RawMessage `json:"request"`
	// Layout has names and ranks; addresses and keys come with the launch.
	Layout   *step.Layout `json:"layout"`
	NodeList string       `json:"node_list"`
	JobNodes []string     `json:"job_nodes"` // of which the step may have some
	// LaunchAddr is the head's address: the client is there.
	LaunchAddr string `json:"launch_addr,omitempty"`
	Pending    bool   `json:"pending"` // it waits for Launch, a client's
	// Spawned is of a step that tasks have spawned; nil is none.
	Spawned *spawned `json:"spawned,omitempty"`
}

// partReply is a reservation.
type partReply struct {
	// Taken is the first free number, where the proposed one is not: then nothing
	// was reserved.
	Taken *step.ID `json:"taken,omitempty"`
	// Busy is why the step has to wait for others of its job; then nothing was, either.
	Busy string `json:"busy,omitempty"`
	Addr string `json:"addr,omitempty"`
	Key  []byte `json:"key,omitempty"` // as in step.LayoutNode
	CPUs int    `json:"cpus"`          // that the job has there
	// Spec is node 0's, without what the client has already.
	Spec *step.Spec `json:"spec,omitempty"`
}

// part is what a partRequest means to this node.
type part struct {
	id     step.ID
	head   string
	node   uint32
	tasks  int
	user   step.User
	layout *step.Layout
	list   string
	nodes  []string
	job    []string // the job's nodes, jobList as a list of hosts
	jobList,
	launchAddr string
	spawned *spawned
	// key is the stepd's, peers the socket for it.
	key   []byte
	peers *os.File
}

// sameUser refuses a user who is somebody else here.
func (p *part) sameUser(here step.User, node string) error {
	if here.Name != p.user.Name {
		return api.Errorf(api.PermissionDenied, "uid %d is user %q on %s and user %q on %s", here.UID, p.user.Name, p.head, here.Name, node)
	}
	return nil
}

// tell puts the node's place in the step into its spec.
func (p *part) tell(spec *step.Spec) {
	spec.Layout, spec.NodeID, spec.NodeList, spec.NetKey = p.layout, p.node, p.list, p.key
	spec.JobNodeList, spec.JobNNodes, spec.LaunchAddr = p.jobList, len(p.job), p.launchAddr
	p.spawned.tell(spec)
}

// readPart checks a partRequest.
func (n *Node) readPart(common []byte) (*partRequest, *step.Request, *part, error) {
	var in partRequest
	if err := decodePart(common, &in); err != nil {
		return nil, nil, nil, err
	}
	req, err := n.decode(in.Request)
	if err != nil {
		return nil, nil, nil, err
	}
	p := &part{id: in.ID, head: in.Head, user: in.User, layout: in.Layout, list: in.NodeList}
	p.job, p.jobList, p.launchAddr = in.JobNodes, n.cfg.Others.List(in.JobNodes), in.LaunchAddr
	p.spawned = in.Spawned
	if in.Layout == nil {
		return nil, nil, nil, api.NewError(api.InvalidArgument, "layout: is missing")
	}
	mine := -1
	for i, node := range in.Layout.Nodes {
		p.nodes = append(p.nodes, node.Name)
		if node.Name == n.cfg.NodeName {
			mine = i
		}
	}
	if mine < 0 {
		return nil, nil, nil, api.Errorf(api.InvalidArgument, "layout: node %q is not in it", n.cfg.NodeName)
	}
	p.node = uint32(mine)
	if err := in.Layout.Check(p.node, req.NTasks); err != nil {
		return nil, nil, nil, api.NewError(api.InvalidArgument, err.Error())
	}
	ranks, err := step.ParseCPUList(in.Layout.Nodes[mine].Ranks)
	if err != nil || len(ranks) == 0 {
		return nil, nil, nil, api.Errorf(api.InvalidArgument, "layout: node %q has no tasks", n.cfg.NodeName)
	}
	p.tasks = len(ranks)
	if p.tasks > n.cfg.MaxTasks {
		return nil, nil, nil, api.Errorf(api.InvalidArgument, "ntasks: %d tasks on this node: the limit is %d (MaxTasksPerNode)", p.tasks, n.cfg.MaxTasks)
	}
	return &in, req, p, nil
}

// partReserve reserves this node's part, binds its stepd's port and makes its key.
func (n *Node) partReserve(ctx context.Context, common, _ []byte) (any, error) {
	in, req, p, err := n.readPart(common)
	if err != nil {
		return nil, err
	}
	if err := n.check(req); err != nil {
		return nil, err
	}
	var hash []byte
	if p.key, hash, err = newNetKey(); err != nil {
		return nil, err
	}
	l, addr, err := n.cfg.Others.listenStep(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Close() // the reservation has a descriptor of its own
	if p.peers, err = l.File(); err != nil {
		return nil, fmt.Errorf("cannot listen for the step's other nodes: %w", err)
	}
	state := step.Starting
	if in.Pending {
		state = step.Pending
	}
	f, spec, err := n.reserveFor(ctx, api.Peer{UID: in.By}, order{req: req, size: len(in.Request), state: state, received: time.Now(), part: p})
	if err != nil {
		p.peers.Close()
		if taken, ok := errors.AsType[errTaken](err); ok {
			return partReply{Taken: &taken.next}, nil
		}
		if isBusy(err) && req.Gres == nil { // others were faster; of CPUs the head knows when to ask again
			return partReply{Busy: api.MessageOf(err)}, nil
		}
		return nil, err
	}
	limit := n.reserveMax + partGrace
	n.work.Go(func() { f.holdPart(limit) })
	if f.job.leads(f.id) {
		n.work.Go(func() { n.watchHead(f.job) })
	}
	f.log.WithField("uid", spec.User.UID).Infof("part of a step of several nodes reserved for %s", in.Head)
	reply := partReply{Addr: addr, Key: hash, CPUs: jobCPUs(spec)}
	if p.node == 0 {
		reply.Spec = clientSpec(spec)
	}
	return reply, nil
}

// jobCPUs counts the CPUs that a step's job has on this node.
func jobCPUs(spec *step.Spec) int {
	cpus, err := step.ParseCPUList(spec.JobCPUs)
	if err != nil || len(cpus) == 0 {
		return spec.NCPUs
	}
	return len(cpus)
}

// partGrace is how much longer than the head a node keeps a reservation: it is the
// head that gives it back.
const partGrace = time.Minute

// holdPart gives a part's reservation back that nobody launches.
func (f *follower) holdPart(limit time.Duration) {
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-f.claimed:
	case <-f.n.stopping:
	case <-late.C:
		if f.claim() {
			why := fmt.Sprintf("it was not launched within %v", limit)
			f.giveBack(why)
			f.n.releaseJob(f.job, why)
		}
	}
}

// newNetKey makes the key of one end of a step's connections: the private half
// (PKCS #8), and the SHA-256 of the public one.
func newNetKey() (private, hash []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a key for the step: %w", err)
	}
	if private, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		return nil, nil, fmt.Errorf("cannot make a key for the step: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a key for the step: %w", err)
	}
	sum := sha256.Sum256(public)
	return private, sum[:], nil
}

// launchRequest launches the parts of a step.
type launchRequest struct {
	ID     step.ID            `json:"id"`
	Change *step.LaunchChange `json:"change,omitempty"`
	Layout *step.Layout       `json:"layout"`
	// JobNodeCPUs are as in step.Spec.
	JobNodeCPUs []int `json:"job_node_cpus,omitempty"`
}

func (n *Node) partLaunch(_ context.Context, common, _ []byte) (any, error) {
	var in launchRequest
	if err := decodePart(common, &in); err != nil {
		return nil, err
	}
	if in.Change != nil {
		if err := in.Change.Unpack(); err != nil {
			return nil, api.Errorf(api.InvalidArgument, "cannot parse the change: %v", err)
		}
	}
	f := n.reg.follower(in.ID)
	if f == nil || f.record().Head == "" || !f.claim() {
		return nil, api.Errorf(api.NotFound, "no such reservation %q", in.ID)
	}
	f.res.spec.Layout = in.Layout
	if len(in.JobNodeCPUs) > 0 {
		f.res.spec.JobNodeCPUs = in.JobNodeCPUs
	}
	if _, err := f.launch(in.Change); err != nil {
		return nil, err
	}
	return struct{}{}, nil
}

// WaitPart answers when this node's part of a step has ended.
func (s *peerService) WaitPart(ctx context.Context, in *api.PartRef) (*api.PartReply, error) {
	if err := s.mayAsk(ctx, in.GetJobId(), in.GetStepId()); err != nil {
		return nil, err
	}
	id := step.ID{Job: in.GetJobId(), Step: in.GetStepId()}
	if f := s.n.reg.follower(id); f != nil {
		peer, _ := api.NodePeerOf(ctx) // mayAsk has had it
		if peer.Name == f.job.Head {
			s.n.reg.headCame(f.job, 1)
			defer s.n.reg.headCame(f.job, -1)
		}
	}
	rec, err := s.n.waitPart(ctx, id)
	if err != nil {
		return nil, err
	}
	doc, err := encode(rec)
	if err != nil {
		return nil, err
	}
	return &api.PartReply{Step: doc}, nil
}

// waitPart returns the final record of this node's part.
func (n *Node) waitPart(ctx context.Context, id step.ID) (*step.Record, error) {
	f := n.reg.follower(id)
	if f == nil {
		return n.partRecord(id)
	}
	select {
	case <-f.ended:
		return f.record(), nil
	case <-n.stopping:
		return nil, api.NewError(api.Unavailable, "noded is stopping; the step goes on")
	case <-ctx.Done():
		return nil, api.ContextError(ctx.Err())
	}
}

// PartEvents streams the event log of this node's part.
func (s *peerService) PartEvents(in *api.PartEventsRequest, out api.Peer_PartEventsServer) error {
	if err := s.mayAsk(out.Context(), in.GetJobId(), in.GetStepId()); err != nil {
		return err
	}
	id := step.ID{Job: in.GetJobId(), Step: in.GetStepId()}
	err := s.n.events(out.Context(), id, in.GetFollow(), func(line []byte) error { return out.Send(&api.PartLine{Json: line}) })
	if _, isStatus := api.AsError(err); err != nil && !isStatus {
		return api.NewError(api.NotFound, err.Error())
	}
	return err
}
