package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRootLoadJob: slurm_load_job answers with the job's own values, as slurmctld 22.05.8 does
// (measured with the same plugin calls), in every context that knows the job, prolog and epilog
// included; it answers required and optional plugins alike.
func TestRootLoadJob(t *testing.T) {
	waits(t)
	if matches, _ := filepath.Glob("/usr/include/slurm/slurm.h"); matches == nil {
		missing(t, "no Slurm headers: apt-get install libslurm-dev")
	}
	n := startNode(t, site{})
	so := n.path("job.so")
	compile(t, "-std=gnu11", "-fPIC", "-shared", "../spank/host/tests/job_plugin.c", "-o", so)
	script := n.userFile(t, "job.sh", "#!/bin/sh\nexit 3\n", 0o755)
	begin := time.Now().Unix()
	for _, required := range []string{"required", "optional"} {
		n.stack(t, required+" "+so)
		for _, c := range []struct {
			name       string
			args       []string
			code       int
			record     string // behind "records 1 job N "
			num, array string
			local      bool // a local side shows the user the same
			end        string
		}{
			{
				"run", []string{"run", "-J", "a", "-n2", "-c2", "-t", "5", "true"}, 0, "name a", "num 1 nodes 4 cpus 2 tasks 2 per_task restarts 0 batch 0",
				"array 0 fffffffe limit 5 start ", true, "state 32771 ",
			},
			{
				"batch", []string{"batch", "-W", "-J", "b", "-n3", "-t", "1:30:00", "-o", "/dev/null", script}, 3, "name b",
				"num 1 nodes 3 cpus 3 tasks 1 per_task restarts 0 batch 1", "array 0 fffffffe limit 5a start ", false, "state 32773 ",
			},
			{
				"a step in an allocation", []string{"alloc", "-J", "c", "-n4", "stepctl", "run", "-J", "inner", "-n1", "-t", "1", "true"}, 0, "name c",
				"num 1 nodes 4 cpus 4 tasks 1 per_task restarts 0 batch 0", "array 0 fffffffe limit ffffffff start ", true, "state 32771 ",
			},
		} {
			t.Run(required+" "+c.name, func(t *testing.T) {
				before := len(n.log.String())
				r := n.do(t, call{args: c.args, env: n.withStepctl()})
				if r.code != c.code {
					t.Fatal(r)
				}
				n.idle(t)
				log := n.log.String()[before:]
				id := fmt.Sprintf("records 1 job %d ", n.last(t).JobID)
				// prolog, init of the step and epilog at least
				for word, times := range map[string]int{
					id + "state 1 ": 2, id + c.end: 1, c.record: 3, c.num: 3, c.array: 3, "nodes vm batch_host vm partition p cluster golden": 3, "shared fffe": 3,
				} {
					if got := strings.Count(log, word); got < times {
						t.Errorf("%q is logged %d times, want %d, in\n%s", word, got, times, log)
					}
				}
				if c.local {
					contains(t, "stderr", r.err, id+"state 1 ", c.record, c.num, c.array)
				}
				var start, end int64
				if _, rest, found := strings.Cut(log, c.array); !found {
					return
				} else if _, err := fmt.Sscanf(rest, "%d end %d ", &start, &end); err != nil || start < begin || start > time.Now().Unix() || end <= start {
					t.Errorf("start %d, end %d, %v", start, end, err)
				}
			})
		}
	}
}
