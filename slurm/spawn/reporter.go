package spawn

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"stepd/slurm/spec"
	"stepd/step"
)

// Forward passes a record on to the socket of a step on a node, as root. An error says that
// the socket does not exist, or cannot be reached.
type Forward func(ctx context.Context, node string, to step.ID, record []byte) error

// reportPatience bounds a report: neither the end of the spawned step nor the launch of the
// spawning one waits longer.
const reportPatience = 15 * time.Second

// Reporter tells the step daemon of the spawning step what becomes of this node's part of the
// spawned one. Look and Ended are called by one goroutine.
type Reporter struct {
	Origin  *spec.Origin
	Forward Forward
	Log     func(text string)
	// Gone is called when the spawning step's daemon cannot be told that the tasks run: the
	// ranks would wait for each other for ever.
	Gone func(reason string)

	ID    step.ID
	Node  string
	Ranks int

	queue chan *Report
	sent  chan struct{}
	told  bool
}

// Start begins to send. Ended follows.
func (r *Reporter) Start() {
	r.queue, r.sent = make(chan *Report, 2), make(chan struct{})
	go func() {
		defer close(r.sent)
		for m := range r.queue {
			r.send(m)
		}
	}()
}

// send sends one report.
func (r *Reporter) send(m *Report) {
	ctx, cancel := context.WithTimeout(context.Background(), reportPatience)
	defer cancel()
	record, err := encode(commandReport, m)
	if err == nil {
		err = r.Forward(ctx, r.Origin.Node, r.Origin.Step, record)
	}
	if err == nil {
		return
	}
	if m.Ended && !m.Bad { // the spawning step may have ended before
		return
	}
	r.Log(fmt.Sprintf("cannot report to step %s on node %q, which has spawned this one: %v", r.Origin.Step, r.Origin.Node, err))
	if !m.Ended {
		r.Gone(fmt.Sprintf("the step that has spawned it, %s, is gone", r.Origin.Step))
	}
}

// report is a Report of this node.
func (r *Reporter) report() *Report {
	return &Report{Spawn: r.Origin.Spawn, Step: r.ID, Node: r.Node, Ranks: r.Ranks}
}

// Look reports, once, when all of the node's tasks run, or some cannot.
func (r *Reporter) Look(rec *step.Record) {
	if r.told {
		return
	}
	m := r.report()
	for i := range rec.Tasks {
		t := &rec.Tasks[i]
		switch t.State {
		case step.TaskPending, step.TaskStarting:
			return
		case step.TaskFailed:
			if len(m.Failed) < failedMax {
				m.Failed = append(m.Failed, Failure{t.Rank, fmt.Sprintf("stage %s: %v", t.Stage, unix.Errno(t.Errno))})
			}
		}
	}
	r.told = true
	r.queue <- m
}

// Ended reports the end of the node's tasks, and waits until it is sent.
func (r *Reporter) Ended(rec *step.Record) {
	r.Look(rec)
	m := r.report()
	m.Ended, m.Bad, m.Reason, m.Code = true, !rec.OwnEnd(), string(rec.State)+": "+rec.Reason, 1
	if rec.ExitCode != nil {
		m.Code = *rec.ExitCode
	}
	r.queue <- m
	close(r.queue)
	<-r.sent
}
