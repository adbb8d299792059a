package site

import (
	"fmt"
	"testing"

	"stepd/node/selection"
	"stepd/slurmconf"
)

// TestSpecCPUs: which CPUs no job gets, on a node of two sockets of four cores with two threads.
func TestSpecCPUs(t *testing.T) {
	var cpus []int
	for cpu := range 16 {
		cpus = append(cpus, cpu)
	}
	line := slurmconf.Node{Sockets: 2, CoresPerSocket: 4, ThreadsPerCore: 2}
	for _, c := range []struct {
		name  string
		count int
		list  []int
		cores bool
		want  []int
	}{
		{"none", 0, nil, true, nil},
		{"the last core", 1, nil, true, []int{14, 15}},
		{"one of each socket", 2, nil, true, []int{6, 7, 14, 15}},
		{"and then the core before", 3, nil, true, []int{6, 7, 12, 13, 14, 15}},
		{"more than the node has", 99, nil, true, cpus},
		{"a list", 0, []int{0, 9}, true, []int{0, 1, 8, 9}},
		{"without known cores", 1, nil, false, []int{15}},
		{"a list without known cores", 0, []int{0, 9}, false, []int{0, 9}},
	} {
		cfg := selection.Config{CPUs: cpus}
		if c.cores {
			cfg.Cores = believedCores(cpus, &line)
		}
		n := line
		n.CoreSpecCount, n.CPUSpecList = c.count, c.list
		if got := specCPUs(&cfg, &n); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if cores := believedCores(cpus, &slurmconf.Node{CPUs: 16}); cores != nil {
		t.Errorf("a line without cores: %v", cores)
	}
	if got := cpusOfCores(&selection.Config{CPUs: cpus, Cores: believedCores(cpus, &line)}, []int{7, 0, 99}); fmt.Sprint(got) != "[0 1 14 15]" {
		t.Errorf("the CPUs of cores 0 and 7: %v", got)
	}
}
