package task

import (
	"slices"
	"strings"
	"testing"

	"stepd/step"
	"stepd/step/launch"
)

// A process that was killed for want of memory makes the step's end, whatever
// its tasks say of it.
func TestOutOfMemory(t *testing.T) {
	one := 1
	kill := step.OOMKill{Rank: &one, PID: 77, Command: "hog", Level: "step"}
	for _, c := range []struct {
		name  string
		group step.OOMGroup
		v1    map[string]string
		ends  []launch.TaskEnd
		code  int
		kills bool
	}{
		{"the task itself", step.OOMGroupNone, nil, []launch.TaskEnd{{LocalID: 0}, {LocalID: 1, Status: 9}}, 137, false},
		{"its child", step.OOMGroupNone, nil, []launch.TaskEnd{{LocalID: 0}, {LocalID: 1}}, exitOOM, false},
		{"together, by the kernel", step.OOMGroupStep, nil, []launch.TaskEnd{{LocalID: 0, Status: 9}, {LocalID: 1, Status: 9}}, 137, false},
		{"together, by us", step.OOMGroupStep, map[string]string{"memory": "/m"}, []launch.TaskEnd{{LocalID: 0, Status: 9}, {LocalID: 1, Status: 9}}, 137, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.spec.Confine = step.Confinement{OOMGroup: c.group, V1: c.v1}
			r.ends = c.ends
			killed := make(chan struct{})
			r.during["kill"] = func() { close(killed) }
			r.during["wait"] = func() {
				if r.st.OutOfMemory(kill); c.kills {
					<-killed
				}
			}
			rec := r.run(t)
			if rec.State != step.OutOfMemory || *rec.ExitCode != c.code || rec.Reason != kill.String() || len(rec.OOM) != 1 {
				t.Errorf("the record is %+v", rec)
			}
			if !slices.Contains(r.said, "stepd-vm: error: "+kill.String()) {
				t.Errorf("the user was told %q", r.said)
			}
			if got := slices.Contains(r.calls, "kill"); got != c.kills {
				t.Errorf("the rest was killed by us: %v, want %v (%v)", got, c.kills, r.calls)
			}
		})
	}
}

// A step whose children die of it for ever reports a bounded number of them.
func TestOutOfMemoryForEver(t *testing.T) {
	r := newRig(t)
	r.during["wait"] = func() {
		for i := range oomReportedMax + 7 {
			r.st.OutOfMemory(step.OOMKill{PID: i + 1, Command: "hog", Level: "step"})
		}
	}
	rec := r.run(t)
	if len(rec.OOM) != oomKillsMax {
		t.Errorf("the record has %d kills", len(rec.OOM))
	}
	var told []string
	for _, line := range r.said {
		if strings.Contains(line, "hog") {
			told = append(told, line)
		}
	}
	if len(told) != oomReportedMax || !slices.Contains(r.said, "stepd-vm: error: and 7 more, killed for want of memory") {
		t.Errorf("%d were told of; last %q", len(told), r.said[len(r.said)-1])
	}
}
