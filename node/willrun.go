package node

import (
	"fmt"

	"stepd/api"
	"stepd/node/selection"
	"stepd/srunopt"
	"stepd/step"
)

// willRun says when a try would succeed, and takes nothing.
func (s *seeker) willRun() (*api.WillRunReply, error) {
	r := s.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.gate.Admits(s.req.Job == nil); err != nil {
		return nil, err
	}
	if err := r.users.full(s.uid); err != nil {
		return nil, err
	}
	if s.req.Job != nil {
		return s.willRunIn(r.jobs[*s.req.Job])
	}
	w := r.has.WillRun(s.req, endOf(r))
	switch {
	case w.Never:
		return startsNever(w.Err), nil
	case w.Err == nil && len(r.line) == 0:
		sh, err := r.has.Test(s.req, selection.RunNow)
		if err != nil {
			return nil, api.Errorf(api.Internal, "internal error: it fits, and does not: %v", err)
		}
		return s.startsNow(sh, nil), nil
	}
	reply := r.line.startsLater(w.Err)
	if len(r.line) == 0 {
		reply.At = w.At
	}
	for _, has := range w.Holders {
		h := api.Holder{JobID: has.ID, ID: fmt.Sprint(has.ID), Gres: srunopt.FormatAllocs(has.Gres), Until: endOf(r)(has)}
		if !has.Suspended { // else they are free
			h.CPUs = step.FormatCPUList(has.CPUs)
		}
		if j := r.jobs[has.ID]; j != nil {
			h.User = j.User
		}
		if has.MB > 0 {
			h.MemoryMB = &has.MB
		}
		reply.Holders = append(reply.Holders, h)
	}
	return reply, nil
}

// willRunIn is willRun of a step of a job, or of nil.
func (s *seeker) willRunIn(j *job) (*api.WillRunReply, error) {
	if err := s.mayUse(j); err != nil {
		if api.CodeOf(err) == api.ResourceExhausted {
			return startsNever(err), nil
		}
		return nil, err
	}
	sh, waits, err := s.takeOfJob(j)
	switch {
	case err == nil:
		j.has.StepFinish(sh)
		return s.startsNow(sh, j), nil
	case !waits:
		return startsNever(err), nil
	}
	var ahead line
	if s.aloneIn(j) {
		ahead = j.line
	}
	reply := ahead.startsLater(err)
	for _, e := range s.holdersIn(j) {
		h := api.Holder{JobID: j.ID, ID: e.id.Name(), User: j.User, Gres: srunopt.FormatAllocs(e.share.Held), Until: e.until}
		if e.share.Alone {
			h.CPUs = step.FormatCPUList(e.share.CPUs)
		}
		reply.Holders = append(reply.Holders, h)
		if len(ahead) == 0 {
			reply.At = e.until // of the last one
		}
	}
	return reply, nil
}

// startsLater is the answer to a request behind the line: err is why it does not fit now, nil that
// it would. It has no time, since when the line's requests end is not known.
func (l line) startsLater(err error) *api.WillRunReply {
	reply := &api.WillRunReply{When: api.WhenLater, Holders: []api.Holder{}, Ahead: []api.NodeWaiting{}}
	for i, s := range l {
		reply.Ahead = append(reply.Ahead, s.doc(i))
	}
	if err != nil {
		reply.Why = err.Error()
	} else {
		reply.Why = waitBefore(len(l)) + " before it"
	}
	return reply
}

func startsNever(err error) *api.WillRunReply {
	return &api.WillRunReply{When: api.WhenNever, Why: err.Error(), Holders: []api.Holder{}, Ahead: []api.NodeWaiting{}}
}

// startsNow is the answer to a request that gets the share now, of the job or of the node.
func (s *seeker) startsNow(sh selection.Share, j *job) *api.WillRunReply {
	s.found = &admission{uid: s.uid, Share: sh, job: j}
	reply := &api.WillRunReply{When: api.WhenNow, Holders: []api.Holder{}, Ahead: []api.NodeWaiting{}, CPUs: step.FormatCPUList(sh.CPUs), Gres: srunopt.FormatAllocs(sh.Gres)}
	if sh.MB > 0 {
		reply.MemoryMB = &sh.MB
	}
	return reply
}
