package slurmstepd

import (
	"errors"
	"os"
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
	events  *report.Events
	file    *lateFile // of events

	mu    sync.Mutex
	ended bool // guarded by mu: the record is the last one
}

// lateFile is a file that is made while the step starts, which does not wait for the disk: to
// make a file takes up to a millisecond (measured). What is written waits for it, and is dropped
// where it could not be made.
type lateFile struct {
	made chan struct{} // closed when file is set
	file *os.File      // nil where it could not be made
}

func (l *lateFile) exists() bool {
	<-l.made
	return l.file != nil
}

func (l *lateFile) Write(b []byte) (int, error) {
	if !l.exists() {
		return len(b), nil
	}
	return l.file.Write(b)
}

func (l *lateFile) Close() error {
	if !l.exists() {
		return nil
	}
	return l.file.Close()
}

// newJournal begins the event log. A step whose log cannot be made runs without.
func newJournal(d *daemon) *journal {
	j := &journal{
		archive: archive.In(d.stream.Conf.Spool), log: d.log, uid: d.spec.User.UID, begun: time.Now(),
		file: &lateFile{made: make(chan struct{})},
	}
	j.events = report.NewEvents(j.file, d.spec.Env)
	id := d.spec.ID
	go func() {
		defer close(j.file.made)
		var err error
		if j.file.file, err = j.archive.Create(id, j.uid); err != nil {
			d.log.Error(err)
		}
	}()
	return j
}

// Event and Hooks add lines to the event log.
func (j *journal) Event(e eventlog.Event)     { j.events.Event(e) }
func (j *journal) Hooks(h eventlog.HookCalls) { j.events.Hooks(h) }

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
	if !j.file.exists() {
		return
	}
	if err := errors.Join(j.events.Close(), j.archive.Prune(keep)); err != nil {
		j.log.Errorf("cannot keep the event log: %v", err)
	}
}

// note writes the record; the caller holds mu.
func (j *journal) note(rec *step.Record) {
	if !j.file.exists() {
		return
	}
	rec.Submitted = j.begun // slurmd does not say when srun has asked
	if err := j.archive.Note(rec, j.uid); err != nil {
		j.log.Error(err)
	}
}
