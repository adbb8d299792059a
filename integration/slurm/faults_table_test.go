package slurm

import (
	"fmt"
)

// phase is how far a step has come.
type phase int

const (
	phaseLaunch phase = iota // no task has exec'd
	phaseRuns                // the tasks run
	phaseEnding              // they have ended
)

// moment is when a process is killed: when a line of the step's event log is written, where
// the step stops for it.
type moment struct {
	name  string
	phase phase
	line  string // of the event log: a part of it
}

// The stages of a launch (task/run.go), and of a step's end.
var (
	launchStages = []string{
		"proctrack", "spankhost", "load", "init", "task_pre_setuid", "streams", "user_init", "fork",
		"track", "task_pre_launch_priv", "task_post_fork", "gate",
	}
	endStages = []string{"kill", "usage", "task_post_step", "exit", "undo spankhost", "undo proctrack"}
)

// moments are those that the event log tells, in the order of a step's life.
func moments() (all []moment) {
	add := func(p phase, name, line string) { all = append(all, moment{name: name, phase: p, line: line}) }
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
	add(phaseEnding, "end", `"event":"end"`)
	return all
}

// between are the moments from the one of the first name to the one of the last.
func between(first, last string) (some []moment) {
	in := false
	for _, m := range moments() {
		in = in || m.name == first
		if in {
			some = append(some, m)
		}
		if m.name == last {
			return some
		}
	}
	panic("no such moments: " + first + ", " + last)
}

// kind is a way in which a step comes to be. Its tasks have a child in a session of its own,
// wait for a line of the FIFO $GATE, and exit with 7.
type kind struct {
	name  string
	args  func(name string) []string
	batch bool
}

const gatedTask = `setsid sleep 1000 & read x <"$GATE"; exit 7`

var (
	srunKind = kind{name: "srun", args: func(name string) []string {
		return []string{"srun", "-Q", "-J", name, "-n2", "sh", "-c", gatedTask}
	}}
	// ptyKind's victim is srun itself, which sends what is typed and the window's sizes.
	ptyKind = kind{name: "srun --pty", args: func(name string) []string {
		return []string{"srun", "-Q", "-J", name, "--pty", "sh", "-c", gatedTask}
	}}
	batchKind = kind{name: "sbatch", batch: true, args: func(name string) []string {
		return []string{"sbatch", "-W", "-Q", "-J", name, "-o", "/dev/null", "--wrap", gatedTask}
	}}
)

// both is the victim where a step daemon and its keeper are killed.
const both = "slurmstepd and stepkeeper"

// fault is one point: who is killed when, in a step of what kind.
type fault struct {
	victim string
	at     moment
	kind   kind
}

func (f fault) String() string {
	return fmt.Sprintf("%s of %s at %s", f.victim, f.kind.name, f.at.name)
}

// client is the victim where the srun of a terminal is killed.
const client = "srun"

// faultTable is each victim at each moment at which it lives; the kinds take turns, and each
// round begins with the other one. The srun of a terminal is a victim of its own.
func faultTable(round int) (all []fault) {
	spread := func(victim, first, last string, kinds ...kind) {
		for i, m := range between(first, last) {
			all = append(all, fault{victim, m, kinds[(i+round)%len(kinds)]})
		}
	}
	spread("slurmstepd", "state STARTING", "end", srunKind, batchKind)
	spread("spankhost", "end of spankhost", "end of exit", srunKind, batchKind)
	spread("stepkeeper", "state STARTING", "end", srunKind, batchKind)
	spread(both, "state STARTING", "end", srunKind, batchKind)
	spread(client, "state STARTING", "end", ptyKind)
	return all
}

// few keeps every nth point: what make test has the time for.
func few[T any](all []T, n int) (some []T) {
	for i := 0; i < len(all); i += n {
		some = append(some, all[i])
	}
	return some
}
