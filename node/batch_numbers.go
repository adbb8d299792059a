package node

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"stepd/api"
	"stepd/step"
)

// A batch job of several nodes has its number when it is submitted, before its nodes are
// known (ADR 0013). So the node in whose queue it is, its head, takes the number on all
// nodes that it may get then. One that is not reached is not told: whether another job has
// the number there shows when it is asked for its share.

// numberRequest takes the numbers of batch jobs, which follow each other.
type numberRequest struct {
	First uint32 `json:"first"`
	Count uint32 `json:"count"`
}

// numberReply is the answer to it.
type numberReply struct {
	// Taken is the first free number, 0 where the numbers were free: else none was taken.
	Taken uint32 `json:"taken,omitempty"`
}

// numberTime is how long a submission waits for other nodes, each time that it asks them.
const numberTime = 3 * time.Second

func (n *Node) partNumber(_ context.Context, common, _ []byte) (any, error) {
	var in numberRequest
	if err := decodePart(common, &in); err != nil {
		return nil, err
	}
	if in.First == 0 || in.Count == 0 || in.Count > step.ArrayMax {
		return nil, api.Errorf(api.InvalidArgument, "number: %d job numbers from %d on: want 1 to %d, from 1 on", in.Count, in.First, step.ArrayMax)
	}
	var r numberReply
	err := n.store.takeJobs(in.First, in.Count)
	if taken, ok := errors.AsType[errTaken](err); ok {
		r.Taken, err = taken.next.Job, nil
	}
	return r, err
}

// numbersFor takes count numbers that follow each other, here and on all nodes that batch
// jobs of req may get. It refuses what would not fit on these if they were empty, and spends
// no number then.
func (n *Node) numbersFor(ctx context.Context, req *step.Request, count int) (first uint32, err error) {
	names, err := n.mayGet(req)
	if err != nil {
		return 0, err
	}
	within, cancel := context.WithTimeout(ctx, numberTime)
	cands, err := n.look(within, names)
	cancel()
	if err != nil {
		return 0, api.NewError(api.Internal, err.Error())
	}
	if _, err := choose(req, emptied(cands, req)); err != nil {
		return 0, err
	}
	var others, lost []string // one that does not answer costs the others no time
	for _, c := range cands {
		switch first = max(first, c.next.Job); {
		case c.lost:
			lost = append(lost, c.name)
		case c.name != n.cfg.NodeName:
			others = append(others, c.name)
		}
	}
	for range proposals {
		again, err := n.takeNumbers(ctx, numberRequest{First: first, Count: uint32(count)}, others)
		if err != nil {
			return 0, err
		}
		if again == 0 && len(lost) > 0 {
			n.log.Warnf("the nodes %s do not answer, and are not told that the job numbers from %d to %d are taken", n.cfg.Others.List(lost), first, first+uint32(count)-1)
		}
		if again == 0 {
			return first, nil
		}
		first = again
	}
	return 0, api.Errorf(api.Aborted, "the nodes %s did not agree on a number for the job within %d tries: try again", n.cfg.Others.List(names), proposals)
}

// emptied are the nodes as if nothing ran on them. What one has that does not answer, or
// takes no jobs, is not known, and may be enough.
func emptied(cands []candidate, req *step.Request) []candidate {
	all := slices.Clone(cands)
	for i := range all {
		if all[i].free = all[i].cpus; all[i].why != "" {
			all[i].free, all[i].why = req.NTasks*max(1, req.CPUsPerTask), ""
		}
	}
	return all
}

// takeNumbers is one try. again is what to propose next, 0 where the numbers are taken.
func (n *Node) takeNumbers(ctx context.Context, in numberRequest, others []string) (again uint32, err error) {
	err = n.store.takeJobs(in.First, in.Count)
	if taken, ok := errors.AsType[errTaken](err); ok {
		return taken.next.Job, nil
	}
	if err != nil {
		return 0, api.NewError(api.Internal, err.Error())
	}
	answers, err := n.fanWithin(ctx, numberTime, "number", in, partsOf(others))
	if err != nil {
		return 0, api.NewError(api.Internal, err.Error())
	}
	for _, a := range answers {
		var r numberReply
		if a.err == nil {
			a.err = json.Unmarshal(a.body, &r)
		}
		if a.err != nil {
			n.log.Warnf("node %s is not told that the job numbers from %d to %d are taken: %s", a.node, in.First, in.First+in.Count-1, api.MessageOf(a.err))
		}
		again = max(again, r.Taken)
	}
	return again, nil
}
