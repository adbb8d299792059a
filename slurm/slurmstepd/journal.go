package slurmstepd

import (
	"errors"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/eventlog"
	"stepd/eventlog/archive"
	"stepd/step"
	"stepd/stepd/report"
)

// journal is the step's event log and its record in slurmd's spool, where stepctl explain,
// events and timeline read them. Any goroutine may use it.
type journal struct {
	archive archive.Archive
	log     *logrus.Logger
	uid     uint32
	begun   time.Time
	events  *report.Events // nil where the log could not be made

	mu    sync.Mutex
	ended bool // guarded by mu: the record is the last one
}

// newJournal begins the event log. A step whose log cannot be made runs without.
func newJournal(d *daemon) *journal {
	j := &journal{archive: archive.In(d.stream.Conf.Spool), log: d.log, uid: d.spec.User.UID, begun: time.Now()}
	f, err := j.archive.Create(d.spec.ID, j.uid)
	if err != nil {
		d.log.Error(err)
		return j
	}
	j.events = report.NewEvents(f, d.spec.Env)
	return j
}

// Event and Hooks add lines to the event log.
func (j *journal) Event(e eventlog.Event) {
	if j.events != nil {
		j.events.Event(e)
	}
}

func (j *journal) Hooks(h eventlog.HookCalls) {
	if j.events != nil {
		j.events.Hooks(h)
	}
}

// noteRunning notes what the step is while it runs.
func (j *journal) noteRunning(rec *step.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.ended {
		j.note(rec)
	}
}

// end notes how the step has ended, and makes room for later steps.
func (j *journal) end(rec *step.Record, keep int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = true
	j.note(rec)
	if j.events == nil {
		return
	}
	if err := errors.Join(j.events.Close(), j.archive.Prune(keep)); err != nil {
		j.log.Errorf("cannot keep the event log: %v", err)
	}
}

// note writes the record; the caller holds mu.
func (j *journal) note(rec *step.Record) {
	if j.events == nil {
		return
	}
	rec.Submitted = j.begun // slurmd does not say when srun has asked
	if err := j.archive.Note(rec, j.uid); err != nil {
		j.log.Error(err)
	}
}
