// Package explain says what happened to a step and why: from its record and its
// event log, and for a step that runs from what its processes do now. It reads
// nothing itself and guesses nothing: what is not known is left out.
//
// Begin with Explain; Write prints what it found.
package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"stepd/eventlog"
	"stepd/step"
)

// Explanation is the document of `stepctl explain --json`.
type Explanation struct {
	step.ID
	IDName   string     `json:"id"`
	State    step.State `json:"state"`
	ExitCode *int       `json:"exit_code"`
	Signal   *int       `json:"signal"`
	// Summary is one sentence; Reason the record's own.
	Summary string `json:"summary"`
	Reason  string `json:"reason"`
	// Stage is where a launch stands, or where it has stopped; nil of one that is over.
	Stage *Stage `json:"stage"`
	// Findings are what is known of the cause, what matters most first.
	Findings []Finding `json:"findings"`
	// MPI is how far the ranks have come; nil where nothing is known of that.
	MPI *MPI `json:"mpi"`
}

// Stage is one stage of the launch.
type Stage struct {
	Name string `json:"name"`
	// Begun is when it began; Ended when, null for one that is not over.
	Begun time.Time  `json:"begin_time"`
	Ended *time.Time `json:"end_time"`
	Error string     `json:"error,omitempty"`
}

// Kind says what a finding is about.
type Kind string

// The kinds of findings.
const (
	KindState      Kind = "state"      // what the step does
	KindStage      Kind = "stage"      // a stage of the launch
	KindPlugin     Kind = "plugin"     // a SPANK plugin's hook
	KindExec       Kind = "exec"       // tasks that were never exec'd
	KindMemory     Kind = "memory"     // the kernel or a limit ended processes for want of memory
	KindExit       Kind = "exit"       // how tasks ended
	KindAbort      Kind = "abort"      // MPI: a rank has ended the step
	KindCancel     Kind = "cancel"     // a client has ended the step
	KindUnkillable Kind = "unkillable" // processes that SIGKILL did not end
	KindNode       Kind = "node"       // the node, or one of its daemons
	KindSuspended  Kind = "suspended"  // it stands still
	KindProcess    Kind = "process"    // what a process does now
	KindDrain      Kind = "drain"      // the node takes no more jobs
	KindSpawn      Kind = "spawned"    // the step was made by another one
	KindLimit      Kind = "limit"      // a resource limit is lower than it was passed on
	KindStream     Kind = "stream"     // who has kept a stream open after the end
	KindMPI        Kind = "mpi"        // ranks that wait for others, or have never spoken
	KindDropped    Kind = "not_listed" // how many findings were left out
)

// Finding is one thing that is known.
type Finding struct {
	Kind Kind `json:"kind"`
	// Text is the essential, for one line of a screen; Detail is what else is known, or "".
	Text   string `json:"text"`
	Detail string `json:"detail,omitempty"`
	// Ranks are the ranks that it is about, as a list: "0-3,7".
	Ranks string `json:"ranks,omitempty"`
	// Hint is what to do or where to look; "" where no hint is known.
	Hint string `json:"hint,omitempty"`
	// says are the record's words that Text and Detail have in another order.
	says string
}

// findingsMax bounds the findings: a step has as many ways to end as tasks.
const findingsMax = 40

// Explain says what happened to a step. events is its log in the order of time.
func Explain(rec *step.Record, events []eventlog.Event, now time.Time) *Explanation {
	e := &explainer{rec: rec, now: now, log: readLog(events)}
	x := &Explanation{
		ID: rec.ID, IDName: rec.ID.Name(), State: rec.State, ExitCode: rec.ExitCode, Signal: rec.Signal, Reason: rec.Reason,
		Stage: e.stage(), MPI: e.mpi(),
	}
	e.progress = x.MPI
	for _, find := range []func(){
		e.crash, e.leftovers, e.state, e.ending, e.doing, e.stages, e.plugins, e.unstarted, e.memory, e.aborted, e.cancelled, e.ends, e.unstartedForEnd, e.drained, e.ranks, e.limits, e.held, e.spawned,
	} {
		find()
	}
	x.Findings = e.found
	if len(e.found) > 0 && e.found[0].Hint == "" {
		e.found[0].Hint = "stepctl events " + rec.ID.Name() + " has its course, and noded's log what the node said"
	}
	if n := len(x.Findings) - findingsMax; n > 0 {
		x.Findings = append(slices.Clip(x.Findings[:findingsMax]), Finding{Kind: KindDropped, Text: fmt.Sprintf("findings that are not listed: %d", n)})
	}
	if x.Findings == nil {
		x.Findings = []Finding{}
	}
	x.Summary = e.summary(x)
	return x
}

// explainer collects the findings about one step.
type explainer struct {
	rec   *step.Record
	now   time.Time
	log   eventLog
	found []Finding
	// progress is how far the ranks have come, nil where it is not known.
	progress *MPI
	// crashed are the ranks in which a plugin's hook has crashed.
	crashed []int
}

func (e *explainer) add(f Finding) { e.found = append(e.found, f) }

// summary is one sentence about the step.
func (e *explainer) summary(x *Explanation) string {
	r := e.rec
	ran := ""
	if d, ok := r.Ran(e.now); ok {
		ran = " for " + round(d)
	}
	switch {
	case r.State == step.Pending:
		return "the step has a number and is not launched yet"
	case r.State == step.Starting && x.Stage != nil && x.Stage.Ended == nil:
		return fmt.Sprintf("the step is being launched: it is at stage %s for %s", x.Stage.Name, round(e.now.Sub(x.Stage.Begun)))
	case r.State == step.Starting:
		return "the step is being launched"
	case r.State == step.Running && e.log.lastKill() != nil:
		return fmt.Sprintf("the step has run%s, and is being ended", ran)
	case r.State == step.Running && r.Suspended != nil:
		return "the step is suspended since " + r.Suspended.Format(time.RFC3339)
	case r.State == step.Running && x.MPI != nil && len(x.MPI.Missing) > 0:
		return fmt.Sprintf("the step runs%s, and ranks of it wait for others", ran)
	case r.State == step.Running && e.badEnds() > 0:
		return fmt.Sprintf("the step runs%s; %d of its tasks have failed", ran, e.badEnds())
	case r.State == step.Running:
		return fmt.Sprintf("the step runs%s, and nothing of it has failed", ran)
	case r.State == step.Completing:
		return "the tasks have ended, and the rest of the step is being ended"
	case r.State == step.Completed && slices.ContainsFunc(r.Tasks, func(t step.Task) bool { return t.State == step.TaskFailed }):
		return "it has exit code 0, and tasks of it never ran the command"
	case r.State == step.Completed:
		return fmt.Sprintf("the step ran%s, and all of its tasks ended well", ran)
	}
	text := fmt.Sprintf("the step ended as %s", r.State)
	if r.ExitCode != nil {
		text += fmt.Sprintf(" with exit code %d", *r.ExitCode)
	}
	if r.Started == nil {
		return text + ", before its tasks ran"
	}
	return text + ", having run" + ran
}

func (e *explainer) badEnds() (n int) {
	for i := range e.rec.Tasks {
		if st := e.rec.Tasks[i].Status; st != nil && *st != 0 {
			n++
		}
	}
	return n
}

// group collects ranks that share a key.
type group[K comparable] struct {
	key   K
	ranks []int
	first *step.Task
}

// groupTasks are the groups of the tasks that have a key, in the order of the first rank.
func groupTasks[K comparable](tasks []step.Task, key func(*step.Task) (K, bool)) (groups []*group[K]) {
	of := make(map[K]*group[K])
	for i := range tasks {
		k, ok := key(&tasks[i])
		if !ok {
			continue
		}
		if of[k] == nil {
			of[k] = &group[K]{key: k, first: &tasks[i]}
			groups = append(groups, of[k])
		}
		of[k].ranks = append(of[k].ranks, tasks[i].Rank)
	}
	return groups
}

// who names the ranks.
func (g *group[K]) who() string { return ranksText(g.ranks) }

func (g *group[K]) list() string { return step.FormatCPUList(g.ranks) }

// ranksText is "rank 3" or "ranks 0-2,7"; a long list is cut.
func ranksText(ranks []int) string {
	word := "ranks "
	if len(ranks) == 1 {
		word = "rank "
	}
	return word + cut(step.FormatCPUList(ranks), ",", 16)
}

// cut keeps the first n items of a list.
func cut(list, sep string, n int) string {
	items := strings.SplitN(list, sep, n+1)
	if len(items) <= n {
		return list
	}
	return strings.Join(items[:n], sep) + sep + "..."
}

// round writes a duration in three digits.
func round(d time.Duration) string {
	switch {
	case d >= 100*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}

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

// lastKill is the last signal to all by which the step is being ended, nil without one.
func (l *eventLog) lastKill() *eventlog.Event {
	for i := len(l.kills) - 1; i >= 0; i-- {
		if l.kills[i].Text != "" { // else it is for what the tasks have left
			return &l.kills[i]
		}
	}
	return nil
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
	if e.RC != nil && *e.RC != 0 {
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
