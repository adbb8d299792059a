package step

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestMergeParts(t *testing.T) {
	num := func(n int) *int { return &n }
	// part is node N's record, whose tasks (ranks at, at+1, ...) ended with those codes.
	part := func(node string, at int, state State, reason string, codes ...int) *Record {
		r := &Record{Node: node, State: state, Reason: reason, ExitCode: num(0)}
		for i, c := range codes {
			status := ExitStatus(c << 8)
			r.Tasks = append(r.Tasks, Task{Rank: at + i, LocalID: i, State: TaskExited, ExitCode: num(c), Status: &status})
			r.ExitCode = num(max(*r.ExitCode, c))
		}
		return r
	}
	told := func(r *Record, why EndCause, name string) *Record {
		r.EndedBy = &NodeEnd{Name: name, Why: why, Reason: "it went wrong"}
		r.Reason = r.EndedBy.String()
		return r
	}
	aborted := part("n1", 0, Failed, "task 0 called abort", 1)
	aborted.Aborted, aborted.ExitCode = true, num(6)
	lost := &Record{Node: "n2", State: NodeFail, Reason: `node "n2" is lost: silence`, ExitCode: num(1), Tasks: []Task{{Rank: 1, State: TaskExited}}}
	for _, c := range []struct {
		name   string
		parts  []*Record
		ending string
		state  State
		code   int
		reason string
	}{
		{name: "well", parts: []*Record{part("n1", 0, Completed, "", 0), part("n2", 1, Completed, "", 0)}, state: Completed},
		{name: "the highest code", parts: []*Record{part("n1", 0, Failed, "task 0: a", 3), part("n2", 1, Failed, "task 1: b", 9)}, state: Failed, code: 9, reason: `node "n1": task 0: a`},
		{name: "one fails", parts: []*Record{part("n1", 0, Completed, "", 0), part("n2", 1, Failed, "task 1: b", 2)}, state: Failed, code: 2, reason: `node "n2": task 1: b`},
		{
			name:  "who has ended it tells why",
			parts: []*Record{told(part("n1", 0, Cancelled, "", 143), EndBadExit, "n2"), part("n2", 1, Failed, "task 1: b", 7)},
			state: Failed, code: 143, reason: `node "n2": task 1: b`,
		},
		{
			name:  "an abort's code is the step's",
			parts: []*Record{aborted, told(part("n2", 1, Cancelled, "", 137), EndAbort, "n1")},
			state: Failed, code: 6, reason: `node "n1": task 0 called abort`,
		},
		{
			name:   "a lost node",
			parts:  []*Record{part("n1", 0, Cancelled, "ended", 143), lost},
			ending: `node "n2" is lost: silence`, state: NodeFail, code: 143, reason: `node "n2" is lost: silence`,
		},
		{
			name:   "a lost node, of which another one has told the third",
			parts:  []*Record{part("n1", 0, Cancelled, "ended", 143), lost, told(part("n3", 2, Cancelled, "", 143), EndCancel, "n1")},
			ending: `node "n2" is lost: silence`, state: NodeFail, code: 143, reason: `node "n2" is lost: silence`,
		},
		{
			name:  "told of a lost node, whose noded knows of a clean end",
			parts: []*Record{told(part("n1", 0, Cancelled, "", 143), EndLost, "n2"), part("n2", 1, Completed, "", 0)},
			state: NodeFail, code: 143, reason: `node "n2" is lost: it went wrong`,
		},
		{
			name: "a lost node, for which its head has cancelled one part, which has told another",
			parts: []*Record{
				part("n1", 0, Cancelled, `node "n2" is lost: silence`, 143), lost, told(part("n3", 2, Cancelled, "", 143), EndCancel, "n1"),
			},
			ending: `node "n2" is lost: silence`, state: NodeFail, code: 143, reason: `node "n2" is lost: silence`,
		},
		{
			name:   "cancelled by somebody",
			parts:  []*Record{part("n1", 0, Cancelled, "cancelled", 143), part("n2", 1, Cancelled, "cancelled", 143)},
			ending: "by uid 0", state: Cancelled, code: 143, reason: "by uid 0",
		},
		{
			name:   "a cancel that came too late",
			parts:  []*Record{part("n1", 0, Completed, "", 0), part("n2", 1, Completed, "", 0)},
			ending: "by uid 0", state: Completed,
		},
		{
			name:  "memory before a bad exit",
			parts: []*Record{part("n1", 0, Failed, "task 0: a", 1), part("n2", 1, OutOfMemory, "out of memory", 137)},
			state: OutOfMemory, code: 137, reason: `node "n2": out of memory`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := &Record{NTasks: 2, Tasks: []Task{{Rank: 0, Node: "n1"}, {Rank: 1, Node: "n2"}}}
			MergeParts(rec, c.parts, c.ending, time.Now())
			if rec.State != c.state || rec.ExitCode == nil || *rec.ExitCode != c.code || rec.Reason != c.reason {
				t.Errorf("got %s %d %q, want %s %d %q", rec.State, *rec.ExitCode, rec.Reason, c.state, c.code, c.reason)
			}
			if rec.Ended == nil || rec.Tasks[1].Node != "n2" || rec.Tasks[1].State != TaskExited {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// The step's record tells that one of its stepds was lost: what its tasks did then is
// no word of theirs.
func TestMergePartsStepdLost(t *testing.T) {
	code := 143
	ended := func(node string, lost bool) *Record {
		return &Record{Node: node, State: Failed, StepdLost: lost, Reason: "r", ExitCode: &code}
	}
	for _, lost := range []bool{false, true} {
		rec := new(Record)
		MergeParts(rec, []*Record{ended("n1", false), ended("n2", lost)}, "", time.Now())
		if rec.StepdLost != lost {
			t.Errorf("a part's %v is %v", lost, rec.StepdLost)
		}
	}
}

// With NoKill the parts whose ends nobody saw do not count, and are named.
func TestMergePartsWithout(t *testing.T) {
	num := func(n int) *int { return &n }
	part := func(node string, rank, code int, state State) *Record {
		status := ExitStatus(code << 8)
		return &Record{Node: node, State: state, ExitCode: num(code), Tasks: []Task{{Rank: rank, State: TaskExited, ExitCode: num(code), Status: &status}}}
	}
	gone := func(node string, rank int, reason string) *Record {
		return &Record{Node: node, State: Failed, StepdLost: true, Reason: reason, ExitCode: num(1), Tasks: []Task{{Rank: rank, State: TaskExited}}}
	}
	knows := func(p *Record, node, reason string) *Record {
		p.LostNodes = []LostNode{{node, reason}}
		return p
	}
	cut := &Record{Node: "n3", State: NodeFail, Reason: `node "n3" is lost: silence`, ExitCode: num(1), Tasks: []Task{{Rank: 2, State: TaskExited}}}
	for _, c := range []struct {
		name   string
		parts  []*Record
		state  State
		code   int
		reason string
		lost   string
	}{
		{
			"two are lost", []*Record{knows(part("n1", 0, 0, Completed), "n2", "its stepd: SIGKILL"), gone("n2", 1, "stepd was killed"), cut},
			Completed, 0, `node "n2" is lost: its stepd: SIGKILL; the step went on without it (--no-kill)`, "[{n2 its stepd: SIGKILL} {n3 silence}]",
		},
		{"what the others say", []*Record{part("n1", 0, 4, Failed), gone("n2", 1, "stepd was killed"), part("n3", 2, 0, Completed)}, Failed, 4, "", "[{n2 stepd was killed}]"},
		{
			"one that only the first could not hear", []*Record{knows(part("n1", 0, 0, Completed), "n2", "silence"), knows(part("n2", 1, 3, Failed), "n1", "silence"), part("n3", 2, 0, Completed)},
			Failed, 3, "", "[{n2 silence}]",
		},
		{"all", []*Record{gone("n1", 0, "x"), gone("n2", 1, "y"), gone("n3", 2, "z")}, Failed, 1, `node "n1": x`, "[]"},
		{"none", []*Record{part("n1", 0, 0, Completed), part("n2", 1, 0, Completed), part("n3", 2, 0, Completed)}, Completed, 0, "", "[]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := &Record{NoKill: true, NTasks: 3, Tasks: []Task{{Rank: 0, Node: "n1"}, {Rank: 1, Node: "n2"}, {Rank: 2, Node: "n3"}}}
			MergeParts(rec, c.parts, "", time.Now())
			if rec.State != c.state || *rec.ExitCode != c.code || c.reason != "" && rec.Reason != c.reason || fmt.Sprint(rec.LostNodes) != c.lost {
				t.Errorf("%s, %d, %q, lost %v", rec.State, *rec.ExitCode, rec.Reason, rec.LostNodes)
			}
			for i := range rec.Tasks {
				if lost := rec.Tasks[i].Status == nil && len(rec.LostNodes) > 0; lost != (rec.Tasks[i].Why != "") {
					t.Errorf("task %d: %+v", i, rec.Tasks[i])
				}
			}
		})
	}
}

// TestShowParts: a step runs when all of its parts do.
func TestShowParts(t *testing.T) {
	for _, c := range []struct {
		parts string // S, R, C, or - for one that is not known
		want  State
	}{{"SS", Starting}, {"RS", Starting}, {"R-", Starting}, {"RR", Running}, {"RC", Running}, {"CC", Completing}} {
		var parts []*Record
		for _, p := range strings.Split(c.parts, "") {
			states := map[string]State{"S": Starting, "R": Running, "C": Completed}
			if p == "-" {
				parts = append(parts, nil)
				continue
			}
			parts = append(parts, &Record{State: states[p]})
		}
		rec := &Record{State: Starting}
		ShowParts(rec, parts)
		if rec.State != c.want {
			t.Errorf("%s: %s, want %s", c.parts, rec.State, c.want)
		}
	}
}
