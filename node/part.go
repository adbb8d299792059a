package node

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stepd/step"
)

// partVerbs are the requests of Fan: common and body are JSON, and so is the answer.
var partVerbs = map[string]func(n *Node, ctx context.Context, common, body []byte) (any, error){
	"probe": (*Node).partProbe,
}

// decodePart reads a document of another noded's.
func decodePart(doc []byte, v any) error {
	if err := json.Unmarshal(doc, v); err != nil {
		return status.Errorf(codes.InvalidArgument, "cannot parse the request: %v", err)
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
	// could get now.
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
		return nil, status.Errorf(codes.NotFound, "no such job \"%d\"", *in.Job)
	}
	r := probeReply{Next: next}
	r.CPUs, r.Free, r.Drained = n.reg.room(in.Job)
	if in.Job != nil && r.CPUs == 0 {
		return nil, status.Errorf(codes.NotFound, "no such job \"%d\"", *in.Job)
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
			return len(j.cpus), len(j.cpus), ""
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
