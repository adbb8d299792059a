package step

import (
	"fmt"
	"strings"
	"time"
)

// WorstTask finds the task whose end is the step's: of several, that with the
// highest code, 128+n for a signal, and of those with the same code the first. at
// is its index, -1 where all have ended well.
func WorstTask(tasks []Task) (code int, signal *int, at int) {
	at = -1
	for i := range tasks {
		t := &tasks[i]
		c := 0
		switch {
		case t.Signal != nil:
			c = 128 + *t.Signal
		case t.ExitCode != nil:
			c = *t.ExitCode
		case t.State == TaskExited:
			c = 1 // its status was lost with the host
		case t.State == TaskRunning:
			c = 1 // it does not die
		}
		if c > code {
			code, signal, at = c, t.Signal, i
		}
	}
	return code, signal, at
}

// MergeParts makes rec, the record of a step of several nodes, out of the final
// records of its parts, by node id. The state and the reason are those of the
// part that ended the step; the exit code is the highest, as on one node. ending is
// why the head has ended the parts itself, "" if it has not; now is the end.
func MergeParts(rec *Record, parts []*Record, ending string, now time.Time) {
	byRank := make(map[int]*Task, len(rec.Tasks))
	for i := range rec.Tasks {
		byRank[rec.Tasks[i].Rank] = &rec.Tasks[i]
	}
	rec.Ended = &now
	all := parts
	for _, p := range parts {
		for _, t := range p.Tasks {
			if own := byRank[t.Rank]; own != nil {
				node := own.Node
				*own = t
				own.Node = node
			}
		}
		if p.Started != nil && (rec.Started == nil || p.Started.Before(*rec.Started)) {
			rec.Started = p.Started
		}
		rec.OOM = append(rec.OOM, p.OOM...)
		for _, held := range p.HeldOpen {
			rec.HeldOpen = append(rec.HeldOpen, fmt.Sprintf("node %q: %s", p.Node, held))
		}
		rec.SuspendedSeconds = max(rec.SuspendedSeconds, p.SuspendedSeconds)
		if rec.PluginCrash == nil {
			rec.PluginCrash = p.PluginCrash
		}
		rec.Survivors = append(rec.Survivors, p.Survivors...)
		rec.SurvivorsTotal += p.SurvivorsTotal
	}
	rec.StdoutBytes = sumOf(all, func(p *Record) *int64 { return p.StdoutBytes })
	rec.StderrBytes = sumOf(all, func(p *Record) *int64 { return p.StderrBytes })
	rec.Suspended, rec.SuspendedBy = nil, nil
	parts = rec.goOnWithout(parts)
	code, signal, _ := WorstTask(tasksOf(parts))
	for _, p := range parts {
		if p.ExitCode != nil && *p.ExitCode > code {
			code, signal = *p.ExitCode, p.Signal
		}
		rec.StepdLost = rec.StepdLost || p.StepdLost
	}
	rec.State = Completed
	cause := causeOf(parts)
	if cause != nil {
		rec.State, rec.Reason = cause.State, cause.Reason
		if rec.Reason != "" && cause.State != NodeFail && cause.Node != "" {
			rec.Reason = fmt.Sprintf("node %q: %s", cause.Node, cause.Reason)
		}
		if cause.Aborted && cause.ExitCode != nil {
			code, signal = *cause.ExitCode, nil
		}
		code = max(code, 1)
	}
	if ending != "" && cause != nil && cause.State == Cancelled {
		rec.Reason = ending
	}
	if rec.Reason == "" && len(rec.LostNodes) > 0 {
		l := rec.LostNodes[0]
		rec.Reason = fmt.Sprintf("node %q is lost: %s; the step went on without it (--no-kill)", l.Node, l.Reason)
	}
	rec.ExitCode, rec.Signal = &code, signal
}

// LostPart tells whether the end of a part was seen by nobody: its node was lost, or
// its stepd.
func LostPart(p *Record) bool { return p.State == NodeFail || p.StepdLost }

// goOnWithout leaves out the parts whose ends do not count, as NoKill says: those of
// lost nodes, which it names. Where all are lost, all of them count.
func (r *Record) goOnWithout(parts []*Record) (left []*Record) {
	if !r.NoKill {
		return parts
	}
	lost := make(map[string]string)
	var names []string
	note := func(node, reason string) {
		if _, known := lost[node]; !known {
			names = append(names, node)
			lost[node] = reason
		}
	}
	for i, p := range parts {
		if i == 0 { // the others hear of losses from node 0; of its own it has nothing to tell
			for _, l := range p.LostNodes {
				note(l.Node, l.Reason)
			}
		}
		if LostPart(p) {
			note(p.Node, strings.TrimPrefix(p.Reason, fmt.Sprintf("node %q is lost: ", p.Node)))
			continue
		}
		left = append(left, p)
	}
	if len(left) == 0 {
		return parts
	}
	for _, name := range names {
		r.LostNodes = append(r.LostNodes, LostNode{Node: name, Reason: lost[name]})
	}
	for i := range r.Tasks {
		t := &r.Tasks[i]
		if reason, is := lost[t.Node]; is && t.Status == nil {
			t.Why = "its node is lost: " + reason
		}
	}
	return left
}

// tasksOf are the tasks of those parts.
func tasksOf(parts []*Record) (tasks []Task) {
	for _, p := range parts {
		tasks = append(tasks, p.Tasks...)
	}
	return tasks
}

// sumOf adds a figure of the parts up, nil where it is not known of one of them.
func sumOf(parts []*Record, of func(*Record) *int64) *int64 {
	var sum int64
	for _, p := range parts {
		n := of(p)
		if n == nil {
			return nil
		}
		sum += *n
	}
	return &sum
}

// endedBy is what the parts were told by another one.
func endedBy(parts []*Record) *NodeEnd {
	for _, p := range parts {
		if p.EndedBy != nil {
			return p.EndedBy
		}
	}
	return nil
}

// causeOf is the part that has ended the step; nil where all have ended well.
func causeOf(parts []*Record) (cause *Record) {
	rank := func(p *Record) int {
		n := 0
		switch p.State {
		case Completed:
			return 0
		case Cancelled:
			n = 1
		case Failed:
			n = 2
		case Timeout:
			n = 3
		case OutOfMemory:
			n = 4
		case NodeFail:
			n = 5
		}
		if p.EndedBy == nil {
			n += 10 // it was not told by another
		}
		return n
	}
	for _, p := range parts {
		if p.State == NodeFail && p.EndedBy == nil {
			return p // what others were told came of it
		}
	}
	e := endedBy(parts)
	for _, p := range parts {
		switch {
		case rank(p) == 0:
		case e != nil && e.Name == p.Node && p.EndedBy == nil && (p.State != Cancelled || !lostOne(parts)):
			return p
		case cause == nil || rank(p) > rank(cause):
			cause = p
		}
	}
	if cause != nil && cause.EndedBy != nil && e.Why == EndLost {
		lost := *cause
		lost.State, lost.Reason = NodeFail, e.String()
		return &lost
	}
	return cause
}

// lostOne tells whether nobody can tell of a part any more: then the others were
// cancelled for that.
func lostOne(parts []*Record) bool {
	for _, p := range parts {
		if p.State == NodeFail {
			return true
		}
	}
	return false
}

// ShowParts makes rec the record of a step of several nodes that runs, out of the
// records of its parts by node id; nil is one that nothing was heard of.
func ShowParts(rec *Record, parts []*Record) {
	byRank := make(map[int]*Task, len(rec.Tasks))
	for i := range rec.Tasks {
		byRank[rec.Tasks[i].Rank] = &rec.Tasks[i]
	}
	running, ending := len(parts), 0
	for _, p := range parts {
		if p == nil {
			running--
			continue
		}
		for _, t := range p.Tasks {
			if own := byRank[t.Rank]; own != nil {
				node := own.Node
				*own = t
				own.Node = node
			}
		}
		switch {
		case p.State == Pending || p.State == Starting:
			running--
		case p.State != Running:
			ending++
		}
		if p.Started != nil && (rec.Started == nil || p.Started.Before(*rec.Started)) {
			rec.Started = p.Started
		}
		if p.Suspended != nil {
			rec.Suspended, rec.SuspendedBy = p.Suspended, p.SuspendedBy
		}
		if rec.Reason == "" {
			rec.Reason = p.Reason
		}
	}
	switch {
	case len(parts) > 0 && ending == len(parts):
		rec.State = Completing
	case running == len(parts):
		rec.State = Running
	}
}
