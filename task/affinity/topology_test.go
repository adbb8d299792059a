package affinity

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"stepd/srunopt"
	"stepd/step"
)

// shape is a topology in short: CPUs by socket/core@ldom.
func shape(topo *Topology) string {
	var out []string
	for _, p := range topo.PUs {
		out = append(out, fmt.Sprintf("%d:%d/%d@%d", p.CPU, p.Socket, p.Core, p.Ldom))
	}
	return strings.Join(out, " ")
}

func TestReadTopology(t *testing.T) {
	for _, c := range []struct {
		machine, cpus, shape string
		nodes                string
		threads, width       int
		whole                bool
		offline, missing     string
		guessed              string
	}{
		{machine: "2c", cpus: "0-1", shape: "0:0/0@0 1:0/1@0", nodes: "0", threads: 1, width: 2, whole: true},
		{machine: "2c", cpus: "1-3", shape: "1:0/0@0", nodes: "0", threads: 1, width: 2, missing: "2-3"},
		{machine: "2s8c2t2n", cpus: "0,8,15-16", shape: "0:0/0@0 16:0/0@0 8:1/1@1 15:1/2@1", nodes: "0-1", threads: 2, width: 32},
		{machine: "2s8c2t4n", cpus: "0,4,8,12", shape: "0:0/0@0 4:0/1@1 8:1/2@2 12:1/3@3", nodes: "0-3", threads: 2, width: 32},
		{machine: "2s8c2t4n", cpus: "12", shape: "12:0/0@0", nodes: "3", threads: 2, width: 32},
		{
			machine: "hybrid", cpus: "0-11", shape: "0:0/0@0 1:0/0@0 2:0/1@0 4:0/2@0 5:0/2@0 6:0/3@0 7:0/3@0 8:0/4@0 9:0/5@0 11:0/6@0",
			nodes: "0", threads: 2, width: 12, whole: true, offline: "3,10",
		},
		{machine: "sparse", cpus: "0,24,32", shape: "0:0/0@0 24:0/1@0 32:1/2@1", nodes: "0,8", threads: 1, width: 64},
		{machine: "sparse", cpus: "1", shape: "", threads: 0, width: 64, offline: "1"},
		{machine: "arm", cpus: "0-7", shape: "0:0/0@0 1:0/1@0 2:0/2@0 3:0/3@0 4:0/4@0 5:0/5@0 6:0/6@0 7:0/7@0", threads: 1, width: 8, whole: true, guessed: "memory nodes"},
		{machine: "onlineonly", cpus: "1-4", shape: "1:0/0@0 2:0/1@0 3:0/2@0", threads: 1, width: 4, missing: "4", guessed: "cores, sockets, memory nodes"},
		{machine: "nothing", cpus: "2,9", shape: "2:0/0@0 9:0/1@0", threads: 1, width: 10, whole: true, guessed: "which CPUs are online, cores, sockets, memory nodes"},
	} {
		topo := machine(t, c.machine, c.cpus)
		if got := shape(topo); got != c.shape {
			t.Errorf("%s %s:\ngot  %s\nwant %s", c.machine, c.cpus, got, c.shape)
		}
		got := fmt.Sprintf("%s %d %d %t %s %s %s", step.FormatCPUList(topo.Nodes), topo.Threads, topo.Width, topo.Whole, topo.Offline, topo.Missing, topo.Guessed)
		want := fmt.Sprintf("%s %d %d %t %s %s %s", c.nodes, c.threads, c.width, c.whole, c.offline, c.missing, c.guessed)
		if got != want {
			t.Errorf("%s %s: got %s, want %s", c.machine, c.cpus, got, want)
		}
	}
}

// TestThisMachine: the running kernel's files can be read, and its CPUs are
// found.
func TestThisMachine(t *testing.T) {
	topo, err := ReadTopology(os.DirFS("/sys"), []int{0})
	if err != nil || len(topo.PUs) != 1 || topo.Width < 1 {
		t.Errorf("got %+v, %v", topo, err)
	}
}

// TestManyCPUs: more than a cpu_set_t of the C library holds.
func TestManyCPUs(t *testing.T) {
	topo := machine(t, "1500", "0-1499")
	p, err := plan(t, topo, "-n1500")
	if err != nil {
		t.Fatal(err)
	}
	if got := p.CPUs[1499].Len(); p.Kind != srunopt.CPUBindCores || got != 1 || !p.CPUs[2].Has(1000) {
		t.Errorf("%s: rank 1499 has %s, rank 2 %s", p.Kind, p.CPUs[1499], p.CPUs[2])
	}
	if p.list != "" {
		t.Errorf("1,500 masks of 2,048 bits fit into a variable?")
	}
	for _, e := range p.Env() {
		if len(e) > step.VariableMax {
			t.Errorf("%.40s has %d bytes", e, len(e))
		}
	}
	if _, err := plan(t, topo, "-n1 --cpu-bind=map_cpu:1400"); err != nil {
		t.Error(err)
	}
}

func TestBrokenSys(t *testing.T) {
	tree := sysTree(t, "2c")
	tree["devices/system/cpu/online"] = &fstest.MapFile{Data: []byte("0-x\n")}
	_, err := ReadTopology(tree, []int{0})
	if err == nil || !strings.Contains(err.Error(), `"/sys/devices/system/cpu/online"`) {
		t.Errorf("got %v", err)
	}
	// A kernel that lists a CPU among the siblings of others alone.
	tree = sysTree(t, "2c")
	tree["devices/system/cpu/cpu1/topology/core_cpus_list"] = &fstest.MapFile{Data: []byte("0\n")}
	if topo, err := ReadTopology(tree, []int{0, 1}); err != nil || topo.Guessed != "cores" || shape(topo) != "0:0/0@0 1:0/1@0" {
		t.Errorf("got %+v, %v", topo, err)
	}
}

// FuzzTopology: whatever a kernel, or who has mounted something over /sys, shows,
// each CPU is in exactly one place, and a step can be planned on it.
func FuzzTopology(f *testing.F) {
	f.Add("0-3", "0-3", "0-1", "0-3", "0", "0-3")
	f.Add("0,2", "0-3", "", "2", "1", "")
	f.Add("0-3", "", "0,2", "0-1", "0-1", "2-3")
	f.Fuzz(func(t *testing.T, online, possible, core, pkg, nodes, cpus string) {
		tree := fstest.MapFS{}
		for name, text := range map[string]string{
			"cpu/online": online, "cpu/possible": possible, "cpu/cpu0/topology/core_cpus_list": core, "cpu/cpu2/topology/thread_siblings_list": core,
			"cpu/cpu0/topology/package_cpus_list": pkg, "cpu/cpu1/topology/package_cpus_list": pkg, "node/online": nodes,
			"node/node0/cpulist": cpus, "node/node1/cpulist": core,
		} {
			if text != "" {
				tree["devices/system/"+name] = &fstest.MapFile{Data: []byte(text)}
			}
		}
		var sys fs.FS = tree
		topo, err := ReadTopology(sys, []int{0, 1, 2, 3})
		if err != nil {
			return
		}
		if n := len(topo.PUs); n != topo.CPUs().Len() || n+topo.Offline.Len()+topo.Missing.Len() != 4 {
			t.Fatalf("%+v", topo)
		}
		p, err := MakePlan(Input{Topology: topo, NTasks: 3, CPUsPerTask: 1, Overcommit: true, Binding: step.Binding{CPU: step.CPUBind{Kind: srunopt.CPUBindLdoms}}})
		if err != nil {
			return
		}
		for _, s := range p.CPUs {
			if s.Len() == 0 || s.without(topo.CPUs()).Len() > 0 {
				t.Fatalf("%+v: %v", topo, p.CPUs)
			}
		}
	})
}
