package explain

import (
	"slices"
	"time"

	"stepd/eventlog"
)

// eventLog is what of a step's log explains its end.
type eventLog struct {
	stages []Stage // that have begun or failed, in their order, the end's stages included
	// hooks that failed or never returned, grouped by what they have in common.
	hooks []hookFailure
	kills []eventlog.Event  // what stepd has sent to all, at the end
	ranks map[int][]int     // signals that users have sent, by rank
	exits map[int]time.Time // when a rank's end was heard
	// limits are lower than they were passed on; held are processes that have kept a
	// stream open.
	limits, held []string
}

// hookFailure are calls of one hook that did not end well.
type hookFailure struct {
	plugin, hook string
	rc           *int // nil: it never returned
	ranks        []int
	host         bool // it ran in the host, not for a rank
}

// readLog keeps what matters.
func readLog(events []eventlog.Event) eventLog {
	log := eventLog{ranks: make(map[int][]int), exits: make(map[int]time.Time)}
	for i := range events {
		e := &events[i]
		switch e.Event {
		case eventlog.EventStageStart:
			log.stages = append(log.stages, Stage{Name: e.Phase, Begun: e.Time})
		case eventlog.EventStageEnd:
			log.endStage(e)
		case eventlog.EventHookStart, eventlog.EventHookEnd:
			log.hook(e)
		case eventlog.EventLimit:
			log.limits = append(log.limits, e.Text)
		case eventlog.EventHeldOpen:
			log.held = append(log.held, e.Text)
		case eventlog.EventKill:
			log.kills = append(log.kills, *e)
		case eventlog.EventTaskExit:
			if e.Rank != nil {
				log.exits[*e.Rank] = e.Time
			}
		case eventlog.EventTaskSignal:
			if e.Rank != nil && e.Signal != nil && !slices.Contains(log.ranks[*e.Rank], *e.Signal) {
				log.ranks[*e.Rank] = append(log.ranks[*e.Rank], *e.Signal)
			}
		}
	}
	// A hook that has returned well needs no finding.
	log.hooks = slices.DeleteFunc(log.hooks, func(h hookFailure) bool { return !h.host && len(h.ranks) == 0 })
	return log
}

func (l *eventLog) endStage(e *eventlog.Event) {
	for i := len(l.stages) - 1; i >= 0; i-- {
		s := &l.stages[i]
		if s.Name == e.Phase && s.Ended == nil {
			s.Ended, s.Error = new(e.Time), e.Text
			return
		}
	}
	// The stages of the end are reported once, when they are over.
	s := Stage{Name: e.Phase, Begun: e.Time, Ended: &e.Time, Error: e.Text}
	if e.DurUS != nil {
		s.Begun = e.Time.Add(-time.Duration(*e.DurUS) * time.Microsecond)
	}
	l.stages = append(l.stages, s)
}

// hook notes a call; its end takes back what its start has noted.
func (l *eventLog) hook(e *eventlog.Event) {
	if e.Event == eventlog.EventHookStart {
		l.place(e, nil).add(e.Rank)
		return
	}
	l.place(e, nil).remove(e.Rank)
	if e.RC != nil && *e.RC < 0 {
		l.place(e, e.RC).add(e.Rank)
	}
}

func (l *eventLog) place(e *eventlog.Event, rc *int) *hookFailure {
	for i := range l.hooks {
		h := &l.hooks[i]
		if h.plugin == e.Plugin && h.hook == e.Hook && (h.rc == nil) == (rc == nil) && (rc == nil || *h.rc == *rc) {
			return h
		}
	}
	l.hooks = append(l.hooks, hookFailure{plugin: e.Plugin, hook: e.Hook, rc: rc})
	return &l.hooks[len(l.hooks)-1]
}

func (h *hookFailure) add(rank *int) {
	if rank == nil {
		h.host = true
		return
	}
	h.ranks = append(h.ranks, *rank)
}

func (h *hookFailure) remove(rank *int) {
	if rank == nil {
		h.host = false
		return
	}
	// Calls of a rank follow each other: it is the last one that was added.
	if i := slices.Index(h.ranks, *rank); i >= 0 {
		h.ranks = slices.Delete(h.ranks, i, i+1)
	}
}
