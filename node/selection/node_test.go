package selection

import (
	"strings"
	"testing"
)

// TestConfirm: jobs that run keep their memory when the node has less, and the jobs that have no
// room are named. A job that does not run any more counts for nothing.
func TestConfirm(t *testing.T) {
	for _, c := range []struct {
		name string
		mem  Memory
		says string // "" is that all fit
	}{
		{"as before", Memory{MB: 4000, Consumable: true}, ""},
		{"not given out", Memory{MB: 1000}, ""},
		{"too little for the last", Memory{MB: 3000, Consumable: true}, "the node has 3000 MB of memory for jobs (RealMemory), and its jobs have 3500 MB: job 3 has 1000 MB"},
		{"too little for two", Memory{MB: 2000, Consumable: true}, "job 1 has 2500 MB, job 3 has 1000 MB"},
	} {
		n := New(Config{CPUs: []int{0, 1, 2, 3}, Memory: c.mem})
		jobs := []*Job{
			n.JobInit(3, Saved{Share: Share{CPUs: []int{2}, MB: 1000}}),
			n.JobInit(2, Saved{Share: Share{CPUs: []int{1}}}),
			n.JobInit(1, Saved{Share: Share{CPUs: []int{0}, MB: 2500}}),
		}
		n.JobInit(4, Saved{Share: Share{CPUs: []int{3}, MB: 500}})
		err := n.Confirm(jobs)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
		if used := n.Info().UsedMB; used != 4000 {
			t.Errorf("%s: the jobs have %d MB", c.name, used)
		}
	}
}

// TestHeldError: the jobs have numbers, but for those that are being started.
func TestHeldError(t *testing.T) {
	e := &HeldError{CPUs: []int{0, 1}, Jobs: []uint32{0, 0, 3, 5}}
	if got, want := e.Error(), "its CPUs 0-1 were given to other jobs while it was suspended: a job that is being started, job 3, job 5"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
