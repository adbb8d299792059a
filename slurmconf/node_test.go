package slurmconf

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNodes(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		want       Node
		partition  string
		problems   []string
	}{
		{"by name", "NodeName=a,vm,b CPUs=3\n", Node{Name: "vm", CPUs: 3}, "", nil},
		{"by full name", "NodeName=vm CPUs=1\nNodeName=vm.site.org CPUs=2\n", Node{Name: "vm.site.org", CPUs: 2}, "", nil},
		{"by host name", "NodeName=n[1-3] NodeHostname=x,vm,y NodeAddr=10.0.0.[1-3] Procs=2\n", Node{Name: "n2", CPUs: 2}, "", nil},
		{"one host for many", "NodeName=n[1-3] NodeHostname=vm\n", Node{Name: "n1"}, "", nil},
		{
			"defaults add up", "GresTypes=gpu\nNodeName=DEFAULT CPUs=2 RealMemory=5\nNodeName=DEFAULT Gres=gpu:1\nNodeName=vm CPUs=4\n",
			Node{Name: "vm", CPUs: 4, RealMemory: 5, Gres: []NodeGres{{Name: "gpu", Count: 1}}}, "",
			[]string{`warning: slurm.conf:4: NodeName="vm": gpu:1, but gres.conf has 0; the node is drained: mend one of them`},
		},
		{
			"topology", "NodeName=vm Boards=2 SocketsPerBoard=3 CoresPerSocket=4 ThreadsPerCore=2\n",
			Node{Name: "vm", CPUs: 48, Boards: 2, Sockets: 3, CoresPerSocket: 4, ThreadsPerCore: 2}, "", nil,
		},
		{"some topology", "NodeName=vm CoresPerSocket=4\n", Node{Name: "vm", CPUs: 4, CoresPerSocket: 4}, "", nil},
		{"CPUs win", "NodeName=vm CPUs=2 Sockets=8\n", Node{Name: "vm", CPUs: 2, Sockets: 8}, "", nil},
		{"nothing told", "NodeName=vm\n", Node{Name: "vm"}, "", nil},
		{
			"the only one", "NodeName=other CPUs=64\n", Node{Name: "other", CPUs: 64}, "",
			[]string{`warning: slurm.conf:1: no node is named "vm.site.org": taking "other", the only one, for this host`},
		},
		{
			"not among them", "NodeName=n[1-2]\n", Node{Name: "vm"}, "",
			[]string{`error: slurm.conf: cannot find this host "vm.site.org" among 2 nodes; add NodeName=vm, or NodeHostname=vm.site.org to a node`},
		},
		{"no nodes", "\n", Node{Name: "vm"}, "", nil},
		{
			"twice", "NodeName=vm CPUs=1\nNodeName=a,vm CPUs=2\n", Node{Name: "vm", CPUs: 1}, "",
			[]string{`error: slurm.conf:2: cannot take node "vm" again: it is in slurm.conf:1 already; remove one of them`},
		},
		{
			"lists of two lengths", "NodeName=vm,b NodeHostname=x,y,z\n", Node{Name: "vm"}, "",
			[]string{`error: slurm.conf:1: cannot use NodeHostname="x,y,z": 3 names for 2 nodes; name as many as NodeName does`},
		},
		{
			"bad names", "NodeName=n[1-\nNodeName=ALL\nNodeName=\"\"\nNodeName=a/b\nNodeName=vm\n", Node{Name: "vm"}, "",
			[]string{
				`error: slurm.conf:1: cannot use NodeName="n[1-": cannot expand host list "n[1-": a bracket is not closed; write a list such as n[1-3,5],m`,
				`error: slurm.conf:2: cannot use NodeName="ALL": the name is reserved; give the node another name`,
				`error: slurm.conf:3: cannot use NodeName="": the list is empty; write a list such as n[1-3,5],m`,
				`error: slurm.conf:4: cannot use NodeName="a/b": "a/b" is no name for a node; write letters, digits, dots and dashes`,
			},
		},
		{
			"bad numbers", "NodeName=vm CPUs=0 RealMemory=big\n", Node{Name: "vm"}, "",
			[]string{
				`error: slurm.conf:1: cannot use CPUs="0": out of range; write a number from 1 to 65535`,
				`error: slurm.conf:1: cannot use RealMemory="big": not a whole number; write a number from 1 to 8796093022207`,
			},
		},
		{"default partition", "NodeName=vm\nPartitionName=a Nodes=vm\nPartitionName=b Nodes=v[a-b]\nPartitionName=c Nodes=vm,x Default=yes\n", Node{Name: "vm"}, "c", []string{`warning: slurm.conf:3: Nodes="v[a-b]": cannot expand host list "v[a-b]": "a-b" is no range of numbers; write a list such as n[1-3,5],m`}},
		{"default beside a bad list", "NodeName=vm\nPartitionName=DEFAULT Nodes=ALL\nPartitionName=b Nodes=v[a-b]\n", Node{Name: "vm"}, "b", []string{`warning: slurm.conf:3: Nodes="v[a-b]": cannot expand host list "v[a-b]": "a-b" is no range of numbers; write a list such as n[1-3,5],m`}},
		{"default elsewhere", "NodeName=vm,x\nPartitionName=DEFAULT Nodes=ALL\nPartitionName=c Nodes=x Default=yes\nPartitionName=d\nPartitionName=e\n", Node{Name: "vm"}, "d", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, probs, dir := load(t, map[string]string{"slurm.conf": c.conf})
			if diff := cmp.Diff(c.want, got.Node); diff != "" {
				t.Error(diff)
			}
			if got.Partition != c.partition {
				t.Errorf("partition %q, want %q", got.Partition, c.partition)
			}
			if diff := cmp.Diff(c.problems, lines(probs, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestContainer(t *testing.T) {
	const tmpfs = "JobContainerType=job_container/tmpfs\nNodeName=vm\n"
	for _, c := range []struct {
		name, conf string
		kind, base string
		script     string
		problems   []string
	}{
		{"plain", "BasePath=/b InitScript=/i\n", "tmpfs", "/b", "/i", nil},
		{"several lines", "AutoBasePath=true\nBasePath=/b\nInitScript=/i\n", "tmpfs", "/b", "/i", nil},
		{"for the node", "NodeName=x BasePath=/x\nNodeName=v[a,m] BasePath=/y\nNodeName=u,vm BasePath=/b InitScript=/i\n", "tmpfs", "/b", "/i", []string{
			`error: job_container.conf:2: cannot use NodeName="v[a,m]": cannot expand host list "v[a,m]": "a" is no range of numbers; write a list such as n[1-3,5],m`,
		}},
		{"over the common ones", "NodeName=vm BasePath=/b\nBasePath=/a InitScript=/i\n", "tmpfs", "/b", "/i", nil},
		{"switched off here", "BasePath=/a\nNodeName=vm BasePath=None\n", "none", "", "", nil},
		{"nothing for the node", "NodeName=x BasePath=/a\n", "tmpfs", "", "", []string{
			`error: job_container.conf: cannot make job containers: no BasePath for node vm; write BasePath=DIRECTORY, or JobContainerType=job_container/none into slurm.conf`,
		}},
		{"mistakes, on other nodes' lines too", "BasePath=b Frob=1\nNodeName=x Shared=maybe BasePath=/x\nBasePath=/b InitScript=/i\n", "tmpfs", "/b", "/i", []string{
			`error: job_container.conf:1: cannot use BasePath="b": not an absolute path; write a path that begins with /`,
			`error: job_container.conf:1: cannot use key "Frob": there is none of that name`,
			`error: job_container.conf:2: cannot use Shared="maybe": neither yes nor no; write yes or no`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, probs, dir := load(t, map[string]string{"slurm.conf": tmpfs, "job_container.conf": c.conf})
			if got.JobContainerType != c.kind || got.Container.BasePath != c.base || got.Container.InitScript != c.script {
				t.Errorf("got %q, %+v", got.JobContainerType, got.Container)
			}
			if diff := cmp.Diff(c.problems, lines(probs, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestContainerNamespaces(t *testing.T) {
	for _, c := range []struct {
		kind, conf string
		pid, user  bool
		problems   []string
	}{
		{"linux", "BasePath=/b\n", false, false, nil},
		{"linux", "BasePath=/b CloneNSFlags=CLONE_NEWNS|CLONE_NEWPID|CLONE_NEWUSER\n", true, true, nil},
		{"linux", "BasePath=/b CloneNSFlags=CLONE_NEWPID,clone_newuser\nNodeName=vm CloneNSFlags=CLONE_NEWUSER\n", false, true, nil},
		{"linux", "BasePath=/b CloneNSFlags=CLONE_NEWNET\n", false, false, []string{
			`error: job_container.conf:1: cannot use CloneNSFlags="CLONE_NEWNET": "CLONE_NEWNET" is not available; write CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, parted by commas`,
		}},
		{"linux", "BasePath=/b CloneNSFlags=CLONE_NEWPID EntireStepInNS=yes\n", true, false, []string{
			"error: job_container.conf: cannot use EntireStepInNS with CLONE_NEWPID: plugins would find no /proc/self; leave out one of them",
		}},
		{"tmpfs", "BasePath=/b CloneNSFlags=CLONE_NEWPID\n", true, false, []string{
			"error: job_container.conf: cannot use CloneNSFlags with job_container/tmpfs, which makes a mount namespace alone; write JobContainerType=job_container/linux into slurm.conf",
		}},
		{"tmpfs", "BasePath=/b CloneNSFlags=CLONE_NEWNS\n", false, false, nil},
		{"linux", "AutoBasePath=yes\n", false, false, []string{
			"error: job_container.conf: cannot make job containers: no BasePath for node vm; write BasePath=DIRECTORY, or JobContainerType=job_container/none into slurm.conf",
		}},
	} {
		t.Run(c.kind+" "+c.conf, func(t *testing.T) {
			got, probs, dir := load(t, map[string]string{"slurm.conf": "NamespaceType=namespace/" + c.kind + "\nNodeName=vm\n", "job_container.conf": c.conf})
			if got.JobContainerType != c.kind || got.Container.PIDNamespace != c.pid || got.Container.UserNamespace != c.user {
				t.Errorf("got %q, %+v", got.JobContainerType, got.Container)
			}
			if diff := cmp.Diff(c.problems, lines(probs, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestNodeNamed: the node whose name was set is taken, wherever the file is read.
func TestNodeNamed(t *testing.T) {
	for _, c := range []struct {
		as, node string
		problems []string
	}{
		{"x", "x", nil},
		{"y", "y", []string{`error: slurm.conf: cannot find node "y" among 2 nodes; add NodeName=y, or give noded another --node-name`}},
	} {
		dir := write(t, map[string]string{"slurm.conf": "NodeName=vm,x Port=7 NodeAddr=10.0.0.[1-2]\n"})
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
	}
}
