package slurmconf

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What a noded must know of the other nodes of its file.
func TestAllNodes(t *testing.T) {
	for _, c := range []struct {
		name, conf, stepd string
		as                string
		node              string
		nodes             []Node
		partition         []string
		problems          []string
	}{
		{
			name: "ports and addresses", conf: "NodeName=n[1-3] NodeAddr=10.0.0.[1-3] Port=[7001-7003] CPUs=2\nNodeName=m Port=9\nPartitionName=p Nodes=n[2-3],m\n", as: "n2", node: "n2",
			nodes: []Node{
				{Name: "n1", NodeHostname: "n1", NodeAddr: "10.0.0.1", Port: 7001, CPUs: 2}, {Name: "n2", NodeHostname: "n2", NodeAddr: "10.0.0.2", Port: 7002, CPUs: 2},
				{Name: "n3", NodeHostname: "n3", NodeAddr: "10.0.0.3", Port: 7003, CPUs: 2}, {Name: "m", NodeHostname: "m", NodeAddr: "m", Port: 9},
			},
			partition: []string{"n2", "n3", "m"},
		},
		{
			name: "one port for all", conf: "NodeName=vm,x Port=77\n", as: "", node: "vm",
			nodes:     []Node{{Name: "vm", NodeHostname: "vm", NodeAddr: "vm", Port: 77}, {Name: "x", NodeHostname: "x", NodeAddr: "x", Port: 77}},
			partition: []string{"vm", "x"},
		},
		{
			name: "too few ports", conf: "NodeName=vm,x Port=7,8,9\n", node: "vm",
			nodes:     []Node{{Name: "vm", NodeHostname: "vm", NodeAddr: "vm"}, {Name: "x", NodeHostname: "x", NodeAddr: "x"}},
			partition: []string{"vm", "x"},
			problems:  []string{`error: slurm.conf:1: cannot use Port="7,8,9": not a port for each of 2 nodes; write one port, or as many as NodeName names`},
		},
		{
			name: "a name that is not there", conf: "NodeName=vm,x\n", as: "y", node: "y",
			nodes:     []Node{{Name: "vm", NodeHostname: "vm", NodeAddr: "vm"}, {Name: "x", NodeHostname: "x", NodeAddr: "x"}},
			partition: []string{"vm", "x"},
			problems:  []string{`error: slurm.conf: cannot find node "y" among 2 nodes; add NodeName=y, or give noded another --node-name`},
		},
		{
			name: "half of TLS, and what is no address", conf: "NodeName=vm\n", node: "vm",
			stepd:     "TLSKey=k\nListenAddress=here\nStepPorts=9-8\nNodeTimeout=0\n",
			nodes:     []Node{{Name: "vm", NodeHostname: "vm", NodeAddr: "vm"}},
			partition: []string{"vm"},
			problems: []string{
				`error: stepd.conf:1: cannot use TLSKey="k": there is no TLSCertificate; write all of TLSCertificate, TLSKey and TLSCA, or none`,
				`error: stepd.conf:2: cannot use ListenAddress="here": not an IP address; write an address such as 10.1.0.7`,
				`error: stepd.conf:3: cannot use StepPorts="9-8": it is empty; write FIRST-LAST, such as 60001-63000`,
				`error: stepd.conf:4: cannot use NodeTimeout="0": out of range; write a number from 1 to 65533`,
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := write(t, map[string]string{"slurm.conf": c.conf, "stepd.conf": c.stepd})
			got, probs, err := LoadAs(filepath.Join(dir, "slurm.conf"), "vm.site.org", c.as)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.problems, lines(probs, dir)); diff != "" {
				t.Error(diff)
			}
			if got.Node.Name != c.node {
				t.Errorf("node %q, want %q", got.Node.Name, c.node)
			}
			if diff := cmp.Diff(c.nodes, got.Nodes); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.partition, got.PartitionNodes); diff != "" {
				t.Error(diff)
			}
		})
	}
}
