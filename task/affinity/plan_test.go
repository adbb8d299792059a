package affinity

import (
	"os"
	"strings"
	"testing"

	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

// TestAsSlurm: what srun 22.05.8 made of 200 combinations of options, on a machine
// of two sockets, 8 cores and 2 threads.
func TestAsSlurm(t *testing.T) {
	b, err := os.ReadFile("testdata/slurm.tsv")
	if err != nil {
		t.Fatal(err)
	}
	// Where cores run out, which is shared first is not promised.
	differs := map[string]bool{
		"-n20 -c1 -m block:fcyclic --cpu-bind=cores":         true,
		"-n20 -c1 -m block:fcyclic:fcyclic --cpu-bind=cores": true,
	}
	rows := 0
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		cols := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		options, cpus, want := cols[0], cols[1], cols[2]
		rows++
		in, err := input(options)
		if err != nil {
			t.Fatalf("%s: %v", options, err)
		}
		in.Topology = machine(t, "2s8c2t2n", cpus)
		// srun(1) has a third level; Slurm's task/affinity reads over it, ours does not.
		in.Binding.Distribution.Cores = ""
		got, err := MakePlan(in)
		switch {
		case err != nil:
			t.Errorf("%s on %s: %v", options, cpus, err)
		case differs[options] == (got.places() == want):
			t.Errorf("%s on %s:\ngot  %s\nwant %s (differs: %t)", options, cpus, got.places(), want, differs[options])
		}
	}
	if rows < 200 {
		t.Errorf("the table has %d rows", rows)
	}
}

// What was not, or could not be measured: by srun(1)'s words.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		machine, cpus, options string
		want                   string // places
		kind                   step.CPUBindKind
		why                    string
	}{
		{"2c", "0-1", "-n2", "0 1", "cores", "as many cores as tasks"},
		{"2c", "0-1", "-n1", "", "sockets", "one socket, one task: all of it, which is the machine"},
		{"2c", "0-1", "-n2 --cpu-bind=map_cpu:1,0", "1 0", "map_cpu", ""},
		{"2c", "0", "-n2 -O --cpu-bind=none", "0 0", "mask_cpu", "a part of the node: its CPUs are not left"},
		{"2c", "0-1", "-n2 --cpu-bind=none", "", "none", "all of the node: nothing to be done"},
		{"2c", "0-1", "-n3 -O --cpu-bind=cores", "0-1 0-1 0-1", "mask_cpu", "more tasks than CPUs share all"},
		{"2c", "0-1", "-n4 -O --cpu-bind=rank", "0 1 0 1", "rank", "in turn"},
		{"2s8c2t2n", "2,5,9", "-n3 --cpu-bind=rank", "2 5 9", "rank", "of the step's CPUs, by number"},

		// ldoms: the CPUs of a memory node that are the step's.
		{"2s8c2t4n", "0-31", "-n4 --cpu-bind=ldoms", "0-3,16-19 4-7,20-23 8-11,24-27 12-15,28-31", "ldoms", "tasks take turns at the nodes"},
		{"2s8c2t4n", "0-31", "-n2 --cpu-bind=ldoms", "0-3,16-19 4-7,20-23", "ldoms", ""},
		{"2s8c2t4n", "0-31", "-n2 -m block:block --cpu-bind=ldoms", "0-3,16-19 0-3,16-19", "ldoms", "block fills a node first"},
		{"2s8c2t4n", "0-31", "-n2 -c8 -m block:block --cpu-bind=ldoms", "0-3,16-19 4-7,20-23", "ldoms", ""},
		{"2s8c2t4n", "0-31", "-n5 --cpu-bind=rank_ldom", "0-3,16-19 4-7,20-23 8-11,24-27 12-15,28-31 0-3,16-19", "rank_ldom", ""},
		{"2s8c2t4n", "0-31", "-n2 --cpu-bind=map_ldom:3,1", "12-15,28-31 4-7,20-23", "map_ldom", ""},
		{"2s8c2t4n", "0-31", "-n2 --cpu-bind=mask_ldom:9,0x2", "0-3,12-19,28-31 4-7,20-23", "mask_ldom", ""},
		{"2s8c2t4n", "0-5", "-n2 --cpu-bind=map_ldom:1,0", "4-5 0-3", "map_ldom", "only what the step has of it"},
		{"arm", "0-7", "-n2 --cpu-bind=ldoms", "0-7 0-7", "ldoms", "without memory nodes a socket is an ldom"},
		{"arm", "0-7", "-n1 --cpu-bind=map_ldom:0", "0-7", "map_ldom", ""},
		{"sparse", "0,8,16,24,32,40,48,56", "-n2 --cpu-bind=map_ldom:8,0", "32,40,48,56 0,8,16,24", "map_ldom", "nodes have the kernel's numbers"},
		{"sparse", "0,8,16,24,32,40,48,56", "-n2", "0,8,16,24 32,40,48,56", "sockets", "as many sockets as tasks"},
		{"sparse", "0,8,16,24,32,40,48,56", "-n4 --cpu-bind=threads", "0 32 8 40", "threads", ""},

		{"adjacent", "0-15", "-n8", "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15", "cores", ""},
		{"adjacent", "0-15", "-n8 --hint=nomultithread", "0 2 4 6 8 10 12 14", "threads", "the first thread of each core"},
		{"adjacent", "0-15", "-n4 --cpu-bind=boards", "0-15 0-15 0-15 0-15", "boards", "the kernel tells of no boards: the node is one"},

		// The third level counts where it is written.
		{"adjacent", "0-15", "-n4 -m block:block:cyclic --cpu-bind=threads", "0 2 4 6", "threads", "the next core for the next task"},
		{"adjacent", "0-15", "-n4 -c2 -m block:block:fcyclic --cpu-bind=threads", "0,2 4,6 8,10 12,14", "threads", "each CPU of the next core"},
		{"adjacent", "0-15", "-n10 -m block:block:cyclic --cpu-bind=threads", "0 2 4 6 8 10 12 14 1 3", "threads", ""},

		// Cores with one thread beside those with two; 3 and 10 are offline.
		{"hybrid", "0-2,4-9,11", "-n7", "0-1 2 4-5 6-7 8 9 11", "cores", "each core is one, whatever its threads"},
		{"hybrid", "0-2,4-9,11", "-n4 -c2 --cpu-bind=cores", "0-1 2,4-5 6-7 8-9", "cores", "cores until there are as many CPUs"},
		{"hybrid", "0-11", "-n10", "0 1 2 4 5 6 7 8 9 11", "threads", "what is offline is left out"},

		{"onlineonly", "0-3", "-n2 --cpu-bind=cores", "0 1", "cores", "nothing told: a CPU is a core of one socket"},
		{"nothing", "4-7", "-n4", "4 5 6 7", "cores", ""},
		{"nothing", "4-7", "-n2 --cpu-bind=map_cpu:7,4", "7 4", "map_cpu", ""},

		// More than there is by slurm.conf: nothing can be bound.
		{"2c", "0-63", "-n64", "", "none", "CPUs=64 on a machine of 2"},
		{"2c", "0-63", "-n64 --cpu-bind=none", "", "none", ""},
	} {
		got, err := plan(t, machine(t, c.machine, c.cpus), c.options)
		if err != nil {
			t.Errorf("%s %s %s: %v", c.machine, c.cpus, c.options, err)
			continue
		}
		if c.machine == "2c" && c.options == "-n1" {
			c.want = "0-1"
		}
		if got.places() != c.want || got.Kind != c.kind {
			t.Errorf("%s %s %s: %s\ngot  %q by %s\nwant %q by %s", c.machine, c.cpus, c.options, c.why, got.places(), got.Kind, c.want, c.kind)
		}
	}
}

func TestSiteDefaults(t *testing.T) {
	for _, c := range []struct {
		site    step.AffinityConf
		options string
		want    string
	}{
		{step.AffinityConf{Default: srunopt.CPUBindSockets}, "-n8", "0-15 0-15 0-15 0-15 0-15 0-15 0-15 0-15"},
		{step.AffinityConf{Default: srunopt.CPUBindNone}, "-n8", ""},
		{step.AffinityConf{Default: srunopt.CPUBindNone}, "-n2 --cpu-bind=cores", "0-1 2-3"},
		{step.AffinityConf{Autobind: srunopt.CPUBindThreads}, "-n8", "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15"},
		{step.AffinityConf{Autobind: srunopt.CPUBindThreads}, "-n3", "0 1 2"},
		{step.AffinityConf{Autobind: srunopt.CPUBindCores}, "-n3", "0-1 2-3 4-5"},
		{step.AffinityConf{}, "-n3", "0-15 0-15 0-15"},
	} {
		in, err := input(c.options)
		if err != nil {
			t.Fatal(err)
		}
		in.Topology, in.Site = machine(t, "adjacent", "0-15"), c.site
		p, err := MakePlan(in)
		if err != nil || p.places() != c.want {
			t.Errorf("%+v %s: got %q, %v; want %q", c.site, c.options, p.places(), err, c.want)
		}
	}
}

// Bad input: what is said, and that nothing is cut off in silence.
func TestRefusals(t *testing.T) {
	for _, c := range []struct{ machine, cpus, options, want string }{
		{"2c", "0-1", "-n2 --cpu-bind=map_cpu:0,40", "cannot bind task 1 (--cpu-bind=map_cpu): CPU 40 is not the step's: it has CPUs 0-1"},
		{"2c", "0", "-n1 --cpu-bind=map_cpu:1", "CPU 1 is not the step's: it has CPUs 0"},
		{"2c", "0-1", "-n2 --cpu-bind=mask_cpu:1,ff", "cannot bind task 1 (--cpu-bind=mask_cpu): CPUs 2-7 are not the step's: it has CPUs 0-1"},
		{"hybrid", "0-11", "-n1 --cpu-bind=map_cpu:3", "CPU 3 is offline"},
		{"hybrid", "0-11", "-n1 --cpu-bind=mask_cpu:40f", "CPUs 3,10 are offline"},
		{"hybrid", "3,10", "-n1", "all CPUs of the step (3,10) are offline"},
		{"2s8c2t4n", "0-5", "-n1 --cpu-bind=map_ldom:2", "the step has no CPU of ldom 2: its CPUs 0-5 are of ldoms 0-1"},
		{"2s8c2t4n", "0-31", "-n1 --cpu-bind=mask_ldom:10", "the step has no CPU of ldom 4: its CPUs 0-31 are of ldoms 0-3"},
		{"2s8c2t2n", "0-31", "-n20 --threads-per-core=1", "cannot place 20 tasks of 1 CPU on 1 thread of each core (16 in all, on the step's CPUs 0-31); --overcommit shares them"},
		{"2s8c2t2n", "0-31", "-n4 --threads-per-core=3", "cannot use 3 threads of each core (--threads-per-core): the step's cores have 2"},
		{"2s8c2t2n", "0-31", "-n17 --ntasks-per-core=1", "cannot place 17 tasks (--ntasks-per-core=1): the step's CPUs 0-31 are of 16 cores"},
		{"2s8c2t2n", "0-7", "-n5 --ntasks-per-socket=4", "cannot place 5 tasks (--ntasks-per-socket=4): the step's CPUs 0-7 are of 1 socket"},
		{"2c", "0-63", "-n2 --cpu-bind=cores", "cannot bind tasks (--cpu-bind=cores): the step has CPUs 2-63, which this machine has not"},
		{"2c", "0-1", "-n2 --mem-bind=rank", "cannot bind the memory of task 1 (--mem-bind=rank): there is no memory node 1: there are 0"},
		{"2c", "0-1", "-n2 --mem-bind=map_mem:7", "cannot bind the memory of task 0 (--mem-bind=map_mem): there is no memory node 7: there are 0"},
		{"2c", "0-1", "-n2 --mem-bind=mask_mem:1,3", "cannot bind the memory of task 1 (--mem-bind=mask_mem): there is no memory node 1"},
		{"2c", "0-1", "-n2 --mem-bind=mask_mem:0", "the mask names no memory node: there are 0"},
		{"sparse", "0,8", "-n1 --mem-bind=map_mem:255", "node 255 is without memory: 0,8 have some"},
		{"arm", "0-1", "-n1 --mem-bind=map_mem:0", "the kernel has no memory nodes"},
	} {
		p, err := plan(t, machine(t, c.machine, c.cpus), c.options)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s %s:\ngot  %v %v\nwant %s", c.machine, c.cpus, c.options, p, err, c.want)
		}
	}
	// A list that is longer than the step has tasks: only what is used counts.
	if p, err := plan(t, machine(t, "2c", "0-1"), "-n2 --cpu-bind=map_cpu:0,1,2,3"); err != nil || p.places() != "0 1" {
		t.Errorf("a long map: %v", err)
	}
	if p, err := plan(t, machine(t, "2s8c2t4n", "0-31"), "-n1 --mem-bind=map_mem:4"); err != nil || p.Mem[0].Mode != launch.MemBound || CPUSet(p.Mem[0].Nodes).String() != "4" {
		t.Errorf("a node with memory alone: %v", err)
	}
}

// TestWithin: whatever is asked, each rank has some of the step's CPUs and no
// others, and every CPU asked for is bound where nothing is shared.
func TestWithin(t *testing.T) {
	machines := []struct{ name, cpus string }{
		{"2c", "0-1"}, {"2s8c2t2n", "0-31"}, {"2s8c2t2n", "3,5-9,19,22"}, {"2s8c2t4n", "0-6,20-31"}, {"hybrid", "0-11"},
		{"hybrid", "1-2,5-9"}, {"sparse", "0,8,16,24,32,40,48,56"}, {"arm", "2-7"}, {"adjacent", "1-14"}, {"nothing", "0-2"},
	}
	binds := []string{"", "sockets", "cores", "threads", "ldoms", "boards", "rank", "rank_ldom", "none"}
	dists := []string{"*", "block:block", "block:fcyclic", "plane=2", "block:cyclic:cyclic", "block:block:fcyclic", "block:fcyclic:cyclic"}
	for _, m := range machines {
		topo := machine(t, m.name, m.cpus)
		have := topo.CPUs()
		for _, bind := range binds {
			for _, dist := range dists {
				d, err := srunopt.ParseDistribution(dist, "")
				if err != nil {
					t.Fatal(err)
				}
				for n := 1; n <= have.Len()+1; n++ {
					for _, c := range []int{1, 2, 3, have.Len()/2 + 1, have.Len()} {
						if c > have.Len() {
							continue
						}
						in := Input{Topology: topo, NTasks: n, CPUsPerTask: c, Overcommit: true}
						in.Binding.CPU.Kind, in.Binding.Distribution = step.CPUBindKind(bind), d
						check(t, m.name, in, have)
						if t.Failed() {
							return
						}
					}
				}
			}
		}
	}
}

func check(t *testing.T, name string, in Input, have CPUSet) {
	t.Helper()
	p, err := MakePlan(in)
	if err != nil {
		t.Errorf("%s %+v: %v", name, in.Binding, err)
		return
	}
	if p.CPUs == nil {
		if p.Kind != srunopt.CPUBindNone {
			t.Errorf("%s %+v: not bound", name, in.Binding)
		}
		return
	}
	if len(p.CPUs) != in.NTasks {
		t.Errorf("%s %+v: %d tasks, %d sets", name, in.Binding, in.NTasks, len(p.CPUs))
		return
	}
	var threads CPUSet
	for rank, s := range p.CPUs {
		if s.Len() == 0 || s.without(have).Len() > 0 {
			t.Errorf("%s %+v n=%d c=%d: rank %d has %q of %q", name, in.Binding, in.NTasks, in.CPUsPerTask, rank, s, have)
		}
		if kind := p.Kind; in.NTasks*in.CPUsPerTask <= have.Len() && (kind == srunopt.CPUBindThreads || kind == srunopt.CPUBindCores) {
			if s.Len() < in.CPUsPerTask || kind == srunopt.CPUBindThreads && (s.Len() != in.CPUsPerTask || threads.and(s).Len() > 0) {
				t.Errorf("%s %+v n=%d c=%d: rank %d has %q, others %q", name, in.Binding, in.NTasks, in.CPUsPerTask, rank, s, threads)
			}
			threads = threads.or(s)
		}
	}
}
