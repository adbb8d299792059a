package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// phase is how far a step has come.
type phase int

const (
	phaseEarly  phase = iota // it has no stepd
	phaseLaunch              // no task has exec'd
	phaseRuns                // the tasks run
	phaseEnding              // they have ended
)

// moment is when a process is killed: when a line of the step's event log is written, or
// while a plugin's hook or a site's script hangs.
type moment struct {
	name  string
	phase phase
	line  string // of the event log: a part of it
	next  string // of the event log: with it the moment is over
	hook  string
	// script is prolog, epilog, task-prolog or task-epilog.
	script string
}

// The stages of a launch (task/run.go), and of a step's end.
var (
	launchStages = []string{
		"proctrack", "spankhost", "load", "init", "mpi_prefork", "task_pre_setuid", "streams", "user_init", "fork",
		"track", "task_pre_launch_priv", "task_post_fork", "gate",
	}
	endStages = []string{"kill", "usage", "task_post_step", "exit", "undo spankhost", "undo proctrack", "undo log"}
)

// logMoments are those that the event log tells, in the order of a step's life.
func logMoments() (all []moment) {
	add := func(p phase, name, line string) { all = append(all, moment{name: name, phase: p, line: line}) }
	add(phaseEarly, "accepted", `"event":"accepted"`)
	add(phaseLaunch, "state STARTING", `"state":"STARTING"`)
	for _, s := range launchStages {
		add(phaseLaunch, "begin of "+s, `"stage_start","phase":"`+s+`"`)
		if s != "gate" { // after it they run
			add(phaseLaunch, "end of "+s, `"stage_end","phase":"`+s+`"`)
		}
	}
	add(phaseRuns, "end of gate", `"stage_end","phase":"gate"`)
	add(phaseRuns, "state RUNNING", `"state":"RUNNING"`)
	add(phaseEnding, "task_exit", `"event":"task_exit"`)
	add(phaseEnding, "state COMPLETING", `"state":"COMPLETING"`)
	for _, s := range endStages {
		add(phaseEnding, "end of "+s, `"stage_end","phase":"`+s+`"`)
	}
	add(phaseEnding, "the step's usage", `"event":"usage"`)
	add(phaseEnding, "end", `"event":"end"`)
	for i := range all[1:] {
		all[i].next = all[i+1].line
	}
	return all
}

// after are the moments from the one of that name on, to the one before the other ("":
// to the last).
func after(all []moment, name, before string) []moment {
	find := func(name string) int { return slices.IndexFunc(all, func(m moment) bool { return m.name == name }) }
	if before == "" {
		return all[find(name):]
	}
	return all[find(name):find(before)]
}

// stepKind is a way in which a step comes to be. Its tasks wait for a line of the FIFO
// $GATE, and exit with 7.
type stepKind struct {
	name string
	args func(n *node, pmi string) []string
	// job: the job goes on without its client.
	job bool
}

const gated = `read x <"$GATE"; exit 7`

var stepKinds = []stepKind{
	{name: "run", args: func(*node, string) []string { return []string{"run", "sh", "-c", gated} }},
	{name: "three tasks", args: func(*node, string) []string { return []string{"run", "-n", "3", "-l", "sh", "-c", "echo up; " + gated} }},
	{name: "batch", job: true, args: func(*node, string) []string {
		return []string{"batch", "-W", "-o", "/dev/null", "--wrap", gated}
	}},
	{name: "step of an allocation", args: func(n *node, _ string) []string {
		return []string{"alloc", "-Q", n.bin, "run", "sh", "-c", gated}
	}},
	{name: "pmi2", args: func(_ *node, pmi string) []string {
		return []string{"run", "-n", "2", "--mpi=pmi2", "bash", "-c", pmi + "hello\nread x <\"$GATE\"\nbye\nexit 7"}
	}},
	{name: "pmix", args: func(*node, string) []string { return []string{"run", "-n", "2", "--mpi=pmix", "sh", "-c", gated} }},
}

// gateLines are enough for the tasks of any kind.
const gateLines = "\n\n\n\n"

// fault is one point: who is killed when, in a step of what kind.
type fault struct {
	victim string
	at     moment
	kind   stepKind
}

func (f fault) String() string { return fmt.Sprintf("%s at %s, %s", f.victim, f.at.name, f.kind.name) }

// faultLane is a noded and the points that are tried on it, one after the other.
type faultLane struct {
	name   string
	points []fault
	// held: stepd stops at a line of the event log, which it writes late else: a launch is
	// over before. Such a stepd is built for the test.
	held bool
	// conf writes further files of the site, and returns lines for slurm.conf.
	conf func(t testing.TB, n *node) string
}

// kinds returns the kinds with these names, in their order.
func kinds(names ...string) (found []stepKind) {
	for _, name := range names {
		found = append(found, stepKinds[slices.IndexFunc(stepKinds, func(k stepKind) bool { return k.name == name })])
	}
	return found
}

// spread gives each moment the next of the kinds; with each round it begins one
// further on.
func spread(round int, victim string, moments []moment, of []stepKind) (all []fault) {
	for i, m := range moments {
		all = append(all, fault{victim, m, of[(i+round)%len(of)]})
	}
	return all
}

// faultLanes is the table. Of a victim there are only moments at which it lives.
func faultLanes(round int) []faultLane {
	all := logMoments()
	var container []moment
	for i, m := range after(all, "state STARTING", "") {
		if i%5 == round%5 {
			container = append(container, m)
		}
	}
	var inside []fault
	for _, victim := range []string{"stepd", "noded", "stepctl"} {
		inside = append(inside, spread(round, victim, container, kinds("run", "three tasks", "batch"))...)
	}
	return []faultLane{
		{name: "stepd", held: true, points: spread(round, "stepd", after(all, "state STARTING", ""), stepKinds)},
		{name: "spankhost", held: true, points: spread(round, "spankhost", after(all, "end of spankhost", "end of exit"), stepKinds)},
		{name: "stepctl", held: true, points: spread(round, "stepctl", all, stepKinds)},
		{name: "noded", held: true, points: spread(round, "noded", all, stepKinds)},
		{name: "pmixhost", held: true, points: spread(round, "pmixhost", after(all, "end of mpi_prefork", "end of exit"), kinds("pmix"))},
		{name: "container", held: true, points: inside, conf: func(t testing.TB, n *node) string {
			n.write(t, "job_container.conf", "AutoBasePath=true\nBasePath="+n.path("base")+"\n")
			return "JobContainerType=job_container/tmpfs\n"
		}},
		{name: "hooks", points: hookPoints(round)},
		{name: "scripts", points: scriptPoints(round), conf: hangingScripts},
	}
}

// hookPoints are the points while a plugin's hook hangs, and while the tasks run.
func hookPoints(round int) (points []fault) {
	both := kinds("three tasks", "batch")
	for i, hook := range remoteHooks {
		m := moment{name: hook, phase: phaseLaunch, hook: hook}
		if hook == "task_exit" || hook == "exit" {
			m.phase = phaseEnding
		}
		for j, victim := range []string{"stepd", "spankhost"} {
			points = append(points, fault{victim, m, both[(i+j+round)%2]})
		}
	}
	running := after(logMoments(), "state RUNNING", "task_exit")
	for i, victim := range []string{"stepd", "spankhost", "noded", "stepctl"} {
		points = append(points, spread(round+i, victim, running, both)...)
	}
	return points
}

// scriptPoints are the points while a script of the site runs.
func scriptPoints(round int) (points []fault) {
	both := kinds("run", "batch")
	for _, s := range []struct {
		script  string
		phase   phase
		victims []string
	}{
		{"prolog", phaseEarly, []string{"prolog", "noded", "stepctl"}},
		{"task-prolog", phaseLaunch, []string{"task-prolog", "stepd", "spankhost", "noded", "stepctl"}},
		{"task-epilog", phaseEnding, []string{"task-epilog", "stepd", "spankhost", "noded", "stepctl"}},
		{"epilog", phaseEnding, []string{"epilog", "noded"}},
	} {
		for i, victim := range s.victims {
			m := moment{name: "the middle of " + s.script, phase: s.phase, script: s.script}
			points = append(points, fault{victim, m, both[(i+round)%2]})
		}
	}
	return points
}

// hangingScripts makes scripts that hang where a file says so: they write their pid to
// NAME.pid then.
func hangingScripts(t testing.TB, n *node) string {
	var conf strings.Builder
	for name, key := range map[string]string{"prolog": "Prolog", "epilog": "Epilog", "task-prolog": "TaskProlog", "task-epilog": "TaskEpilog"} {
		path := n.path(name + ".sh")
		text := fmt.Sprintf("#!/bin/sh\n[ -e %[1]s.hang ] || exit 0\necho $$ >%[1]s.pid\nwhile [ -e %[1]s.hang ]; do sleep 0.02; done\n", filepath.Join(n.wd, name))
		must(t, os.WriteFile(path, []byte(text), 0o755))
		fmt.Fprintf(&conf, "%s=%s\n", key, path)
	}
	return conf.String()
}
