package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"stepd/api"
	"stepd/client/options"
	"stepd/client/plugins"
	"stepd/client/terminal"
	"stepd/eventlog"
	"stepd/explain"
	"stepd/step"
)

// slowLaunch tells at which stage a launch is, and in which hook.
func (l *launch) slowLaunch() (done func()) {
	if l.screen != nil {
		return func() {}
	}
	return terminal.ShowSlow(l.opt.Quiet, func(since time.Duration) (string, bool) {
		l.mu.Lock()
		state := l.state
		l.mu.Unlock()
		if state != "" && state != step.Pending && state != step.Starting && state != step.Running {
			return "", true
		}
		rec, events := l.look()
		if rec == nil {
			return fmt.Sprintf("step %s: waiting for noded for %s", l.id, plugins.Whole(since)), false
		}
		text := cmp.Or(launchWords(rec, events, time.Now()), prologWords(rec, time.Now()))
		return text, text == ""
	})
}

// look asks noded what the step does; nil where it does not answer at once. The event
// log, which is long with many tasks, is read only where the record names no hook.
func (l *launch) look() (*step.Record, []eventlog.Event) {
	ctx, cancel := context.WithTimeout(context.Background(), terminal.WaitingEvery)
	defer cancel()
	recs, err := l.client.Stat(ctx, api.Ref(l.id))
	if err != nil || len(recs) != 1 {
		return nil, nil
	}
	rec := recs[0]
	if inHook(rec) || rec.State == step.Running {
		return rec, nil
	}
	events, _ := EventsOf(ctx, l.client, l.id) // what was read says where the launch stands
	return rec, events
}

// EventsOf reads the events of a step that may explain something. With an error they are
// those before it.
func EventsOf(ctx context.Context, noded *api.Client, id step.ID) (events []eventlog.Event, err error) {
	for doc, err := range noded.Events(ctx, id, false) {
		var e eventlog.Event
		if err == nil {
			if err = json.Unmarshal(doc, &e); err != nil {
				err = fmt.Errorf("cannot parse an event of step %s: %w", id, err)
			}
		}
		if err != nil {
			return events, err
		}
		events = keep(events, &e)
	}
	return events, nil
}

// inHook reports whether the record names a plugin's hook that runs.
func inHook(rec *step.Record) bool {
	return rec.Host != nil && rec.Host.Hook != "" ||
		slices.ContainsFunc(rec.Tasks, func(t step.Task) bool { return t.Doing != nil && t.Doing.Hook != "" })
}

// launchWords is what a launch does, in one line; "" of one that is over.
func launchWords(rec *step.Record, events []eventlog.Event, now time.Time) string {
	if rec.State != step.Pending && rec.State != step.Starting {
		return ""
	}
	words := "step " + rec.ID.Name() + ": "
	if h := rec.Host; h != nil && h.Hook != "" {
		return words + fmt.Sprintf("plugin %q: %s for %s", h.Plugin, h.Hook, plugins.Whole(h.HookTime))
	}
	for i := range rec.Tasks {
		if d := rec.Tasks[i].Doing; d != nil && d.Hook != "" {
			return words + fmt.Sprintf("plugin %q: %s for %s, first of task %d", d.Plugin, d.Hook, plugins.Whole(d.HookTime), rec.Tasks[i].Rank)
		}
	}
	x := explain.Explain(rec, events, now)
	if x.Stage == nil {
		return words + strings.ToLower(string(rec.State))
	}
	return words + fmt.Sprintf("%s for %s", explain.StageWords(x.Stage.Name), plugins.Whole(now.Sub(x.Stage.Begun)))
}

// prologWords describe a step that runs and none of whose tasks has reached its command:
// they are in their TaskProlog, which nothing need bound; "" of any other. Once one has,
// its output has the terminal.
func prologWords(rec *step.Record, now time.Time) string {
	var ranks []int
	for i := range rec.Tasks {
		switch t := &rec.Tasks[i]; {
		case t.State != step.TaskStarting:
			return ""
		case t.Doing != nil && t.Doing.Stage == explain.StageTaskProlog:
			ranks = append(ranks, t.Rank)
		}
	}
	if rec.State != step.Running || rec.Started == nil || len(ranks) == 0 {
		return ""
	}
	return fmt.Sprintf("step %s: TaskProlog of %s runs for %s", rec.ID.Name(), options.Tasks(ranks), plugins.Whole(now.Sub(*rec.Started)))
}

// keep adds an event that may explain something: a step of a thousand tasks has a
// hundred thousand that do not. A hook that has returned well takes its start back,
// which comes right before its end.
func keep(events []eventlog.Event, e *eventlog.Event) []eventlog.Event {
	switch e.Event {
	case eventlog.EventTaskFork, eventlog.EventTaskExec, eventlog.EventUsage:
		return events
	case eventlog.EventHookEnd:
		last := len(events) - 1
		if e.RC != nil && *e.RC >= 0 && last >= 0 && events[last].Event == eventlog.EventHookStart &&
			events[last].Plugin == e.Plugin && events[last].Hook == e.Hook {
			return events[:last]
		}
	}
	return append(events, *e)
}
