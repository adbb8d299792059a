package node

import (
	"fmt"
	"strings"
	"testing"

	"stepd/step"
)

// TestPlaceSpawned: which nodes get which ranks of a spawned step.
func TestPlaceSpawned(t *testing.T) {
	n := &Node{cfg: Config{NodeName: "n2"}}
	n.cfg.Others = &Cluster{
		Nodes: []ClusterNode{{"n1", "10.0.0.1:6818"}, {"n2", "10.0.0.2:6818"}, {"n3.site", "ib3:7000"}, {"n4", "10.0.0.4:6818"}},
		List:  func(names []string) string { return strings.Join(names, "+") },
	}
	several := &job{jobRecord: jobRecord{ID: 7, Nodes: []string{"n1", "n2", "n3.site"}}}
	own := &job{jobRecord: jobRecord{ID: 8}}
	for _, c := range []struct {
		j     *job
		tasks []int // of each command
		hosts []string
		want  string // or words of the error
	}{
		{several, []int{9}, nil, "n1 n2 n3.site"},
		{several, []int{2}, nil, "n2 n3.site"},
		{several, []int{1}, nil, "n2"},
		{own, []int{5}, nil, "n2"},
		{own, []int{5}, []string{"localhost"}, "n2[0 1 2 3 4]"},
		{several, []int{3}, []string{"n3"}, "n3.site[0 1 2]"},
		{several, []int{3}, []string{"ib3,n1.domain"}, "n1[2] n3.site[0 1]"},
		{several, []int{5}, []string{"n2:3, 10.0.0.1"}, "n1[3 4] n2[0 1 2]"},
		{several, []int{5}, []string{"n1:2,n2:1"}, "n1[0 1 2] n2[3 4]"},
		{several, []int{2}, []string{"n1:5,n2"}, "n1[0 1]"},
		{several, []int{2, 3}, []string{"n3", ""}, "n1[2] n2[3] n3.site[0 1 4]"},
		{several, []int{1}, []string{"n4"}, `its hint host names "n4", which is no node of job 7 (n1+n2+n3.site)`},
		{several, []int{1, 1}, []string{"", "n1:0"}, "command 2 of 2: its hint host has \"n1:0\": after the colon"},
		{several, []int{1}, []string{"n1,"}, `names ""`},
		{several, []int{1}, []string{"", ""}, "2 hints for 1 commands"},
	} {
		req := &step.Request{}
		for _, tasks := range c.tasks {
			req.NTasks += tasks
			req.Apps = append(req.Apps, step.App{NTasks: tasks})
		}
		nodes, ranks, err := n.placeSpawned(c.j, req, c.hosts)
		var got []string
		for _, name := range nodes {
			if ranks != nil {
				name += fmt.Sprint(ranks[name])
			}
			got = append(got, name)
		}
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v %q: %v, want %q", c.tasks, c.hosts, err, c.want)
			}
			continue
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v %q: %q, want %q", c.tasks, c.hosts, strings.Join(got, " "), c.want)
		}
	}
}
