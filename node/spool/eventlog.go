package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"stepd/eventlog"
	"stepd/step"
)

// BeginEvents makes a step's event log and writes what happened so far: when it was submitted,
// and which CPUs it was given. The caller closes the log by CloseFile.
func (s *Spool) BeginEvents(id step.ID, submitted time.Time, cpus string) (*os.File, error) {
	return get(s, func() (*os.File, error) {
		const fresh = os.O_WRONLY | os.O_APPEND | os.O_CREATE | os.O_EXCL
		log, err := s.open(s.Events(id), fresh)
		if errors.Is(err, os.ErrExist) { // of an earlier run: noded was killed before it had removed what the store had forgotten
			s.removeForgotten([]step.ID{id})
			log, err = s.open(s.Events(id), fresh)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot create event log: %w", err)
		}
		err = writeEvents(log,
			eventlog.Event{Time: submitted, Event: eventlog.EventRequest, JobID: &id.Job, StepID: &id.Step},
			eventlog.Event{Time: time.Now(), Event: eventlog.EventAccepted, JobID: &id.Job, StepID: &id.Step, Text: "cpus " + cpus},
		)
		if err != nil {
			log.Close()
		}
		return log, err
	})
}

func writeEvents(log *os.File, events ...eventlog.Event) error {
	var b []byte
	for _, e := range events {
		line, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("cannot encode event %q: %w", e.Event, err)
		}
		b = append(append(b, line...), '\n')
	}
	if _, err := log.Write(b); err != nil {
		return fmt.Errorf("cannot write event log: %w", err)
	}
	return nil
}

// LogEnd writes the lines that a stepd can no longer write.
func (s *Spool) LogEnd(rec *step.Record) error {
	end := *rec // this call's, which may last longer than its caller waits
	return s.Do(func() error { return s.logEnd(&end, time.Now()) })
}

func (l Layout) logEnd(rec *step.Record, now time.Time) error {
	log, err := l.open(l.Events(rec.ID), os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return fmt.Errorf("cannot open event log: %w", err)
	}
	var events []eventlog.Event
	if rec.StepdPID != 0 {
		_, err = log.WriteString("\n") // stepd's last line may have no end
		events = append(events, eventlog.Event{Time: now, Event: eventlog.EventKill, Text: rec.Reason})
	}
	if rec.Usage != nil {
		events = append(events, eventlog.Event{Time: now, Event: eventlog.EventUsage, Usage: rec.Usage})
	}
	if err == nil {
		err = writeEvents(log, append(events,
			eventlog.Event{Time: now, Event: eventlog.EventState, State: rec.State, Text: rec.Reason},
			eventlog.Event{Time: now, Event: eventlog.EventEnd, State: rec.State},
		)...)
	}
	return errors.Join(err, log.Close())
}
