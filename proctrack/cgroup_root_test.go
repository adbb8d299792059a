package proctrack

import (
	"testing"
)

func TestRootCgroupKillsWhatTasksStart(t *testing.T) {
	tests := []struct {
		name, script string
		min          int // processes in the group before the kill, at least
	}{
		{"one process", `echo ready; exec sleep 1000`, 1},
		{"double-forked daemon", `( ( sleep 1000 & ) & ) ; echo ready; exec sleep 1000`, 2},
		{"own session", `setsid sh -c 'echo ready; exec setsid sleep 1000' & wait`, 2},
		{"ignores every signal", `trap '' HUP INT QUIT TERM USR1 USR2; echo ready; while :; do sleep 1000; done`, 1},
		{"stopped", `sleep 1000 & kill -STOP $!; echo ready; kill -STOP $$`, 2},
		{"200 processes that keep forking", bomb, 100},
		{"a chain of short-lived processes", comet, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, c := testStep(t)
			spawnIn(t, c, tt.script)
			pids, err := c.PIDs()
			if err != nil || len(pids) < tt.min {
				t.Fatalf("PIDs() = %d processes, %v; want at least %d", len(pids), err, tt.min)
			}
			if err := c.Kill(shortly(t)); err != nil {
				t.Fatal(err)
			}
			if pids, err := c.PIDs(); err != nil || len(pids) != 0 {
				t.Errorf("after Kill: PIDs() = %v, %v; want none", pids, err)
			}
		})
	}
}

// bomb starts 200 shells, each of which starts one process after the other.
const bomb = `i=0; while [ $i -lt 200 ]; do (while :; do (exit 0); done) & i=$((i+1)); done; echo ready; wait`

// comet moves from process to process: none lives long enough to be aimed at.
const comet = `echo ready; exec >/dev/null; x='sh -c "$1" comet "$1" & exit 0'; exec sh -c "$x" comet "$x"`
