package integration

import (
	"strconv"
	"testing"
)

// TestRootSelectLinear: with select/linear a job has the node for itself, unless CPUs are shared;
// a reload changes what later jobs get, and running ones keep what they have.
func TestRootSelectLinear(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "SelectType=select/linear\n"})
	p, step := startStubborn(t, n)
	whole := "the step does not fit: it needs the whole node (SelectType=select/linear), and of its 64 CPUs 0 are free"
	refused(t, "a second job", n.ctl(t, "run", "true"), whole)
	if r := n.ctl(t, "run", "--overcommit", "true"); r.code != 0 {
		t.Errorf("a job that shares CPUs: %v", r)
	}
	if r := n.ctl(t, "run", "--jobid", strconv.Itoa(int(step.JobID)), "sh", "-c", "echo $SLURM_CPUS_ON_NODE"); r.code != 0 || r.out != "1\n" {
		t.Errorf("a step of the job: %v", r)
	}
	n.conf(t, "64", "SelectTypeParameters=CR_CPU\n")
	n.hup(t, "noded: ready")
	refused(t, "beside a job that has all", n.ctl(t, "run", "true"), "of its 64 CPUs 0 are free")
	n.ctl(t, "cancel", step.id())
	p.wait(t)
	p, step = startStubborn(t, n)
	if r := n.ctl(t, "run", "true"); r.code != 0 {
		t.Errorf("a second job with CR_CPU: %v", r)
	}
	n.conf(t, "64", "SelectType=select/linear\n")
	n.hup(t, "noded: ready")
	refused(t, "beside a job of two CPUs", n.ctl(t, "run", "true"), "and of its 64 CPUs 62 are free")
	n.ctl(t, "cancel", step.id())
	p.wait(t)
	n.checkClean(t)
}
