package integration

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// slowness is how long each thing takes that a timeline must name: a gap that is as long is one that it does not.
const slowness = 300 * time.Millisecond

// TestRootTimelineAccounts: in the log of a real step each moment has a bar, from the request to the
// end, whatever of the step takes long, or crashes; and the bar has its name.
func TestRootTimelineAccounts(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "KillWait=1\n"})
	marks := n.markFile(t)
	slow := n.userFile(t, "slow", fmt.Sprintf("#!/bin/sh\nexec sleep %v\n", slowness.Seconds()), 0o755)
	n.script(t, "slow.sh", marks, fmt.Sprintf("exec sleep %v", slowness.Seconds()))
	life := func(t *testing.T, does string) string {
		return life(t, n, "slow", marks, "-fno-builtin", "-DTASK_HOOKS", `-DIN=".0]"`, "-DFAILS="+does)
	}
	sleeps := fmt.Sprintf("usleep(%d)", slowness.Microseconds())
	run := []string{"run", "-n2"}
	for _, c := range []struct {
		name, hook, does string // a plugin that does it in its hook
		args             []string
		bar              string // that is at least as long
	}{
		{"tasks", "", "", append(run, slow), "task 0"},
		{"TaskProlog", "", "", append(run, "--task-prolog="+slow, "true"), "task_prolog"},
		{"TaskEpilog", "", "", append(run, "--task-epilog="+slow, "true"), "task_epilog"},
		{"init", "init", sleeps, append(run, "true"), "init"},
		{"user_init", "user_init", sleeps, append(run, "true"), "user_init"},
		{"task_init", "task_init", sleeps, append(run, "true"), "slow.so: task_init"},
		{"task_exit", "task_exit", sleeps, append(run, "true"), "slow.so: task_exit"},
		{"exit", "exit", sleeps, append(run, "true"), "exit"},
		{"crash in user_init", "user_init", sleeps + ";abort()", append(run, "true"), "user_init"},
		{"crash in task_init", "task_init", sleeps + ";abort()", append(run, "true"), "slow.so: task_init"},
		{"crash in exit", "exit", sleeps + ";abort()", append(run, "true"), "exit"},
		{"no such command", "", "", append(run, "/none"), ""},
		{"KillWait", "", "", []string{"run", "-K", "-n2", "sh", "-c", "trap '' TERM; [ $SLURM_PROCID = 0 ] && exit 3; sleep 100; sleep 100"}, "task 1"},
		{"batch", "", "", []string{"batch", "-W", slow}, "task 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.stack(t)
			if c.hook != "" {
				n.stack(t, "required "+life(t, c.does)+" "+c.hook)
			}
			_ = n.ctl(t, c.args...)
			accounted(t, n, n.lastEnded(t).id(), c.bar)
		})
	}
	n.stack(t)
	for _, name := range []string{"Prolog", "Epilog"} {
		t.Run(name, func(t *testing.T) {
			n.restartWith(t, name+"=slow.sh\n")
			if r := n.ctl(t, append(run, "true")...); r.code != 0 {
				t.Fatal(r)
			}
			bar := "prolog"
			if name == "Epilog" { // it runs when the step's end is known
				bar = ""
			}
			accounted(t, n, n.lastEnded(t).id(), bar)
		})
	}
}

// accounted reports each time of a step that has no bar, and a bar that is missing.
func accounted(t *testing.T, n *node, id, bar string) {
	t.Helper()
	r := n.ctl(t, "timeline", "--json", id)
	var doc struct {
		Timeline struct {
			Sections []struct {
				Name  string
				Spans []struct {
					Name  string
					Begin int64 `json:"begin_us"`
					End   int64 `json:"end_us"`
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.code != 0 {
		t.Fatal(err, r)
	}
	type span struct {
		name       string
		begin, end int64
	}
	var spans []span
	found := bar == ""
	for _, section := range doc.Timeline.Sections {
		for _, s := range section.Spans {
			spans = append(spans, span{section.Name + " " + s.Name, s.Begin, s.End})
			found = found || s.Name == bar && s.End-s.Begin >= slowness.Microseconds()*9/10 // an exec is seen a little later than it is
		}
	}
	var first, last struct{ Time time.Time }
	lines := strings.Split(strings.TrimSuffix(n.ctl(t, "events", id).out, "\n"), "\n")
	for line, event := range map[string]any{lines[0]: &first, lines[len(lines)-1]: &last} {
		if err := json.Unmarshal([]byte(line), event); err != nil {
			t.Fatal(err, line)
		}
	}
	spans = append(spans, span{"the end of the log", last.Time.Sub(first.Time).Microseconds(), last.Time.Sub(first.Time).Microseconds()})
	slices.SortFunc(spans, func(a, b span) int { return int(a.begin - b.begin) })
	at, before := int64(0), "the request"
	for _, s := range spans {
		// A machine with other work stops a process for some time anywhere.
		if gap := time.Duration(s.begin-at) * time.Microsecond; gap > slowness/2 {
			t.Errorf("%v from %s to %s have no bar", gap, before, s.name)
		}
		if s.end > at {
			at, before = s.end, s.name
		}
	}
	text := n.ctl(t, "timeline", id).out
	if !found || t.Failed() {
		t.Errorf("no bar %q of %v: %s", bar, slowness, text)
	}
	// What is on the screen of a terminal says it in its first three lines.
	lines = strings.Split(text, "\n")
	if !strings.HasPrefix(lines[0], "step "+strings.Replace(id, "4294967291", "batch", 1)+"  ") || !regexp.MustCompile(`^  (it ended well|task \d|killed by|"slow.so"|cancel|.*ended)`).MatchString(lines[1]) || !strings.Contains(lines[2], "launch ") {
		t.Errorf("the first lines are %q", lines[:3])
	}
}

// TestRootIDs: output, explain, timeline and the others take the same ids, for the one step of a batch job.
func TestRootIDs(t *testing.T) {
	n := startNode(t, site{})
	if r := n.ctl(t, "batch", "-W", "--wrap=echo one line"); r.code != 0 {
		t.Fatal(r)
	}
	n.idle(t)
	for _, verb := range []string{"output", "explain", "timeline", "events", "show", "stat", "ps"} {
		whole := n.ctl(t, verb, "1")
		if whole.code != 0 || verb != "output" && verb != "events" && !strings.Contains(whole.out, "1.batch") || strings.Contains(whole.out, "1.4294967291") {
			t.Errorf("%s 1: %v", verb, whole)
		}
		for _, id := range []string{"1.batch", "1.4294967291"} {
			if r := n.ctl(t, verb, id); r != whole {
				t.Errorf("%s %s: %v, and by its job %v", verb, id, r, whole)
			}
		}
	}
}
