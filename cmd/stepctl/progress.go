package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"stepd/api"
	"stepd/explain"
	"stepd/internal/printable"
	"stepd/step"
)

// progressAfter is how long something may take before a user is told what it is;
// progressEvery how often that is told anew, with its time.
const (
	progressAfter = time.Second
	progressEvery = time.Second
)

// progressLine is one line on a terminal, rewritten while something takes its time and
// taken away at its end.
type progressLine struct {
	mu    sync.Mutex
	to    *os.File
	shown bool // guarded by mu
}

// waiting is the line of this process: say takes it away before a line of its own.
var waiting = &progressLine{to: os.Stderr}

// set shows a text, cut to the terminal. The cursor stays at the line's begin: what a
// task writes now stands in its place.
func (p *progressLine) set(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	columns, _ := screenSize(p.to)
	if columns <= 1 {
		columns = 80
	}
	fmt.Fprint(p.to, "\r\x1b[K"+fit(text, columns-1)+"\r")
	p.shown = true
}

// clear takes the text away, and nothing that others have written before it.
func (p *progressLine) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.to, "\x1b[K")
		p.shown = false
	}
}

// tellSlow tells what is done, as now says it, where it takes longer than a second:
// on a terminal, once a second, until the returned function is called, which takes it
// away. now may say "", which shows nothing, and that there is no more to tell; it is
// called by one goroutine.
func (o *runOptions) tellSlow(now func(since time.Duration) (text string, over bool)) (done func()) {
	if o.quiet || rawLines.Load() || os.Getenv("TERM") == "dumb" || !isTerminal(os.Stderr) {
		return func() {}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	begun := time.Now()
	wg.Go(func() {
		timer := time.NewTimer(progressAfter)
		defer timer.Stop()
		for {
			select {
			case <-stop:
				waiting.clear()
				return
			case <-timer.C:
			}
			text, over := now(time.Since(begun))
			if over || text == "" {
				waiting.clear()
			} else {
				waiting.set("stepctl: " + printable.Line(text, 400))
			}
			if over {
				return
			}
			timer.Reset(progressEvery)
		}
	})
	return sync.OnceFunc(func() { close(stop); wg.Wait() })
}

// slowPlugins tells which hook of which plugin runs on this side.
func (o *runOptions) slowPlugins(p *plugins) (done func()) {
	s := p.session // p.close takes it away
	if s == nil {
		return func() {}
	}
	return o.tellSlow(func(time.Duration) (string, bool) {
		plugin, hook, since, in := s.Doing()
		if !in {
			return "", false
		}
		return fmt.Sprintf("plugin %q: %s for %s, on this side", plugin, hook, whole(since)), false
	})
}

// slowLaunch tells at which stage a launch is, and in which hook.
func (l *launch) slowLaunch() (done func()) {
	if l.screen != nil {
		return func() {}
	}
	return l.opt.tellSlow(func(since time.Duration) (string, bool) {
		l.mu.Lock()
		state := l.state
		l.mu.Unlock()
		if state != "" && state != step.Pending && state != step.Starting && state != step.Running {
			return "", true
		}
		rec, events := l.look()
		if rec == nil {
			return fmt.Sprintf("step %s: waiting for noded for %s", l.id, whole(since)), false
		}
		text := cmp.Or(launchWords(rec, events, time.Now()), prologWords(rec, time.Now()))
		return text, text == ""
	})
}

// look asks noded what the step does; nil where it does not answer at once. The event
// log, which is long with many tasks, is read only where the record names no hook.
func (l *launch) look() (*step.Record, []step.Event) {
	ctx, cancel := context.WithTimeout(context.Background(), progressEvery)
	defer cancel()
	recs, err := l.client.Stat(ctx, api.Ref(l.id))
	if err != nil || len(recs) != 1 {
		return nil, nil
	}
	rec := recs[0]
	if inHook(rec) || rec.State == step.Running {
		return rec, nil
	}
	var events []step.Event
	for doc, err := range l.client.Events(ctx, l.id, false) {
		if err != nil {
			break // what was read says where the launch stands
		}
		var e step.Event
		if json.Unmarshal(doc, &e) == nil {
			events = keep(events, &e)
		}
	}
	return rec, events
}

// inHook tells whether the record names a plugin's hook that runs.
func inHook(rec *step.Record) bool {
	return rec.Host != nil && rec.Host.Hook != "" ||
		slices.ContainsFunc(rec.Tasks, func(t step.Task) bool { return t.Doing != nil && t.Doing.Hook != "" })
}

// launchWords is what a launch does, in one line; "" of one that is over.
func launchWords(rec *step.Record, events []step.Event, now time.Time) string {
	if rec.State != step.Pending && rec.State != step.Starting {
		return ""
	}
	words := "step " + rec.ID.Name() + ": "
	if h := rec.Host; h != nil && h.Hook != "" {
		return words + fmt.Sprintf("plugin %q: %s for %s", h.Plugin, h.Hook, whole(h.HookTime))
	}
	for i := range rec.Tasks {
		if d := rec.Tasks[i].Doing; d != nil && d.Hook != "" {
			return words + fmt.Sprintf("plugin %q: %s for %s, first of task %d", d.Plugin, d.Hook, whole(d.HookTime), rec.Tasks[i].Rank)
		}
	}
	x := explain.Explain(rec, events, now)
	if x.Stage == nil {
		return words + strings.ToLower(string(rec.State))
	}
	return words + fmt.Sprintf("%s for %s", explain.StageWords(x.Stage.Name), whole(now.Sub(x.Stage.Begun)))
}

// prologWords tell of a step that runs and none of whose tasks has come to its command:
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
	word := "task"
	if len(ranks) > 1 {
		word = "tasks"
	}
	return fmt.Sprintf("step %s: TaskProlog of %s %s runs for %s", rec.ID.Name(), word, rankList(ranks), whole(now.Sub(*rec.Started)))
}

// whole is a duration in seconds.
func whole(d time.Duration) string { return d.Truncate(time.Second).String() }
