package node

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"stepd/step"
)

// What a batch job of several nodes asks other nodes is asked beside the queue, for one job
// at a time: a node that does not answer is no reason for others to wait.

const (
	// askGrace is how long those behind a job wait for what it is answered: in that time
	// nodes answer that do.
	askGrace = time.Second
	// seenLost is how long a node is not asked again that has let askGrace pass.
	seenLost = 10 * time.Second
)

// asking is what a job asks other nodes.
type asking struct {
	q     *queued
	since time.Time
	// shares: not what they have, but for its shares; it is being started.
	shares bool
	// aside: those behind the job do not wait with it.
	aside bool
}

// seenNode is what a node has said.
type seenNode struct {
	candidate
	until time.Time // then it is to be asked again
}

// asker is the asking that is under way; nil is none. Only runQueue begins one.
func (qs *queue) asker() *asking {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return qs.asked
}

// asks lets ask go on beside the queue, which is told of its end. What it returns is the
// job's next outcome, as start returns it.
func (q *queued) asks(shares bool, ask func(context.Context) error) error {
	n, qs := q.n, &q.n.queue
	a := &asking{q: q, since: time.Now(), shares: shares, aside: q.tries.last.aside}
	busy := errBusy{why: cmp.Or(q.tries.last.why, "Resources: other nodes are asked what they have"), asks: a}
	qs.mu.Lock()
	qs.asked = a
	qs.mu.Unlock()
	qs.runs.Go(func() {
		ctx, stop := n.untilStopped()
		defer stop()
		ctx, cancel := context.WithTimeout(ctx, qs.askTime)
		defer cancel()
		err := ask(ctx)
		qs.mu.Lock()
		q.found, qs.asked = err, nil
		qs.mu.Unlock()
		qs.kick()
	})
	return busy
}

// waitsTurn is why a job does not ask while another one does. Those behind it wait with it
// only where it is known to wait for what others will give back.
func (q *queued) waitsTurn() error {
	last := q.tries.last
	return errBusy{
		why:   cmp.Or(last.why, "Resources: other nodes are asked for another job"),
		aside: last.why == "" || last.aside, again: spanRetry,
	}
}

// outcome is what has become of what the job has asked, once; nil is nothing.
func (q *queued) outcome() error {
	q.n.queue.mu.Lock()
	defer q.n.queue.mu.Unlock()
	err := q.found
	q.found = nil
	return err
}

// awaits lets those behind a job that asks other nodes wait for the answer, but not long.
func (p *pass) awaits(a *asking) {
	until := a.since.Add(askGrace)
	if a.aside || !p.now.Before(until) {
		return
	}
	p.later(until)
	if p.behind == "" {
		p.behind = fmt.Sprintf("Priority: behind job %d", a.q.job)
	}
}

// known is what the nodes have said just now; false is that they are to be asked first.
func (qs *queue) known(names []string) (cands []candidate, ok bool) {
	now := time.Now()
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, name := range names {
		s := qs.seen[name]
		if !now.Before(s.until) {
			return nil, false
		}
		cands = append(cands, s.candidate)
	}
	return cands, true
}

// look asks nodes what they have, but for those that have not answered of late, and keeps it
// for all jobs that wait for them.
func (n *Node) look(ctx context.Context, names []string) ([]candidate, error) {
	begin, qs := time.Now(), &n.queue
	lost := make(map[string]candidate)
	var ask []string
	qs.mu.Lock()
	for _, name := range names {
		if s, ok := qs.seen[name]; ok && s.lost && begin.Before(s.until) {
			lost[name] = s.candidate
			continue
		}
		ask = append(ask, name)
	}
	qs.mu.Unlock()
	found, err := n.probe(ctx, new(step.Request), ask)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	qs.mu.Lock()
	defer qs.mu.Unlock()
	var cands []candidate
	for _, name := range names {
		c, ok := lost[name]
		if !ok {
			c, found = found[0], found[1:]
			s := seenNode{c, now.Add(spanPause)}
			if c.lost && now.Sub(begin) > askGrace {
				s.until = now.Add(seenLost)
			}
			qs.seen[name] = s
		}
		cands = append(cands, c)
	}
	return cands, nil
}

// unsee forgets what nodes have, except that some do not answer.
func (qs *queue) unsee() {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for name, s := range qs.seen {
		if !s.lost {
			delete(qs.seen, name)
		}
	}
}
