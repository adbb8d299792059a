package slurmconf

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestWrongValues: every such key with a wrong value tells file, line,
// key, value and what is wanted.
func TestWrongValues(t *testing.T) {
	const (
		yesNo = `neither yes nor no; write yes or no`
		bind  = `; write one of none, boards, sockets, cores, threads, and any of autobind=none|sockets|cores|threads, Verbose, SlurmdOffSpec, SlurmdSpecOverride, OOMKillStep`
		tasks = `; write task/affinity,task/cgroup, one of them, or task/none`
		acct  = `; write some of NoShared, UsePss, OverMemoryKill, DisableGPUAcct, no_file_cache`
		gres  = `; write NAME[:TYPE][:no_consume]:COUNT, such as gpu:a100:2,scratch:100G`
		size  = `; write a number from 0 to 8796093022207`
		times = `; write a percentage from 0 to 1000000, such as 98.5`
	)
	for _, c := range []struct{ file, text, key, value, want string }{
		{"cgroup.conf", "", "CgroupPlugin", "cgroup/v3", "not available; write one of autodetect, cgroup/v1, cgroup/v2, disabled"},
		{"cgroup.conf", "", "CgroupMountpoint", "sys", "not an absolute path; write a path that begins with /"},
		{"cgroup.conf", "", "ConstrainCores", "maybe", yesNo},
		{"cgroup.conf", "", "ConstrainRAMSpace", "2", yesNo},
		{"cgroup.conf", "", "ConstrainSwapSpace", "on", yesNo},
		{"cgroup.conf", "", "ConstrainDevices", "off", yesNo},
		{"cgroup.conf", "", "AllowedRAMSpace", "98%", "not a number" + times},
		{"cgroup.conf", "", "AllowedRAMSpace", "1.2.3", "not a number" + times},
		{"cgroup.conf", "", "AllowedSwapSpace", "-1", "not a number" + times},
		{"cgroup.conf", "", "AllowedSwapSpace", "1000001", "out of range" + times},
		{"cgroup.conf", "", "MaxRAMPercent", "NaN", "not a number" + times},
		{"cgroup.conf", "", "MaxRAMPercent", ".", "not a number" + times},
		{"cgroup.conf", "", "MaxSwapPercent", "100.1", "out of range; write a percentage from 0 to 100, such as 98.5"},
		{"cgroup.conf", "", "MinRAMSpace", "30M", "not a whole number" + size},
		{"cgroup.conf", "", "MemorySwappiness", "101", "out of range; write a number from 0 to 100"},
		{"cgroup.conf", "", "IgnoreSystemd", "y", yesNo},
		{"cgroup.conf", "", "SystemdTimeout", "0", "out of range; write a number from 1 to 65533000"},
		{"cgroup.conf", "", "EnableControllers", "all", yesNo},

		{"cgroup.conf", "", "CgroupSlice", "../x.slice", "not the name of a slice; write a name such as system.slice"},
		{"cgroup.conf", "", "CgroupSlice", ".slice", "not the name of a slice; write a name such as system.slice"},
		{"cgroup.conf", "", "CgroupSlice", "stepd", "not the name of a slice; write a name such as system.slice"},

		{"slurm.conf", "", "TaskPlugin", "task/cray_aries", `"task/cray_aries" is not available` + tasks},
		{"slurm.conf", "", "TaskPlugin", "none,affinity", "none excludes the others" + tasks},
		{"slurm.conf", "", "TaskPlugin", "cgroup,task/cgroup", `"task/cgroup" is given twice` + tasks},
		{"slurm.conf", "", "TaskPlugin", ",", "no plugin is named" + tasks},
		{"slurm.conf", "", "TaskPluginParam", "dies", `"dies" is not known` + bind},
		{"slurm.conf", "", "TaskPluginParam", "cores,Sockets", "cores excludes sockets" + bind},
		{"slurm.conf", "", "TaskPluginParam", "autobind=boards", `"autobind=boards" is not known` + bind},
		{"slurm.conf", "", "TaskPluginParam", "autobind", `"autobind" is not known` + bind},
		{"slurm.conf", "", "TaskPluginParam", "verbose=1", `"verbose=1" is not known` + bind},
		{"slurm.conf", "", "JobContainerType", "job_container/cncu", "not available; write one of none, tmpfs, linux"},
		{"slurm.conf", "", "ProctrackType", "proctrack/sgi_job", "not available; write one of cgroup, linuxproc, pgid"},
		{"slurm.conf", "", "JobAcctGatherType", "jobacct_gather/aix", "not available; write one of none, linux, cgroup"},
		{"slurm.conf", "", "JobAcctGatherFrequency", "30s", "not a whole number; write a number from 0 to 65533"},
		{"slurm.conf", "", "JobAcctGatherFrequency", "cpu=3", `"cpu" is not sampled; write task=SECONDS`},
		{"slurm.conf", "", "JobAcctGatherParams", "UsePss,NoShared", "NoShared excludes UsePss" + acct},
		{"slurm.conf", "", "JobAcctGatherParams", "Pss", `"Pss" is not known` + acct},
		{"slurm.conf", "", "UnkillableStepTimeout", "0", "out of range; write a number from 1 to 65533"},
		{"slurm.conf", "", "DefMemPerCPU", "1G", "not a whole number" + size},
		{"slurm.conf", "", "DefMemPerNode", "-1", "not a whole number" + size},
		{"slurm.conf", "", "MaxMemPerCPU", "8796093022208", "out of range" + size},
		{"slurm.conf", "", "MaxMemPerNode", "much", "not a whole number" + size},
		{"slurm.conf", "", "GresTypes", "gpu,a/b", `"a/b" is no name: it may have letters, digits and -_.+ in it; write names such as gpu,scratch`},
		{"slurm.conf", "PartitionName=p Nodes=ALL ", "DefMemPerNode", "1G", "not a whole number" + size},
		{"slurm.conf", "PartitionName=p Nodes=ALL ", "CpuBind", "board", "not available; write one of none, socket, ldom, core, thread"},
		{"slurm.conf", "NodeName=vm ", "CpuBind", "rank", "not available; write one of none, socket, ldom, core, thread"},
		{"slurm.conf", "NodeName=vm ", "Boards", "0", "out of range; write a number from 1 to 65535"},
		{"slurm.conf", "NodeName=vm ", "Sockets", "x", "not a whole number; write a number from 1 to 65535"},
		{"slurm.conf", "NodeName=vm ", "SocketsPerBoard", "1.5", "not a whole number; write a number from 1 to 65535"},
		{"slurm.conf", "NodeName=vm ", "CoresPerSocket", "65536", "out of range; write a number from 1 to 65535"},
		{"slurm.conf", "NodeName=vm ", "ThreadsPerCore", "two", "not a whole number; write a number from 1 to 65535"},
		{"slurm.conf", "NodeName=vm ", "RealMemory", "2G", "not a whole number; write a number from 1 to 8796093022207"},
		{"slurm.conf", "NodeName=vm ", "MemSpecLimit", "x", "not a whole number" + size},
		{"slurm.conf", "NodeName=vm RealMemory=100 ", "MemSpecLimit", "100", "RealMemory is 100; leave memory to the steps"},
		{"slurm.conf", "NodeName=vm ", "Gres", "gpu:x:y", `cannot parse gres "gpu:x:y": "y" is no count: write digits, and K, M, G, T or P behind them` + gres},
		{"slurm.conf", "NodeName=vm ", "Gres", "gpu:2,gpu:a:1", `cannot parse gres "gpu:2,gpu:a:1": "gpu" is given with and without a type` + gres},
		{"slurm.conf", "NodeName=vm ", "Gres", "gpu:no_consume,gpu", `cannot parse gres "gpu,gpu": "gpu" is given twice` + gres},
	} {
		t.Run(c.key+"="+c.value, func(t *testing.T) {
			files := map[string]string{"slurm.conf": ""}
			files[c.file] = "\n" + c.text + c.key + "=" + c.value + "\n"
			_, probs, dir := load(t, files)
			want := "error: " + c.file + ":2: cannot use " + c.key + `="` + c.value + `": ` + c.want
			if diff := cmp.Diff([]string{want}, lines(probs, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCgroup(t *testing.T) {
	c, probs, dir := load(t, map[string]string{
		"slurm.conf": "",
		"cgroup.conf": `CgroupPlugin=cgroup/V2
CgroupMountpoint=/cg/
ConstrainCores=yes
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
ConstrainDevices=yes
AllowedRAMSpace=101.5
AllowedSwapSpace=.5
MaxRAMPercent=90
MaxSwapPercent=0
MinRAMSpace=64
MemorySwappiness=0
SignalChildrenProcesses=yes
IgnoreSystemd=yes
IgnoreSystemdOnFailure=yes
SystemdTimeout=2500
EnableControllers=yes
EnableExtraControllers=pids,IO,pids
CgroupSlice=hpc.slice
CgroupAutomount=yes
AllowedDevicesFile=/etc/slurm/devices.conf
TaskAffinity=no
ConstrainKmemSpace=no
AllowedKmemSpace=1
MaxKmemPercent=1
MinKmemSpace=1
CgroupReleaseAgentDir=/x
Frob=1
`,
	})
	zero := 0
	want := Cgroup{
		CgroupPlugin: "cgroup/v2", CgroupMountpoint: "/cg", ConstrainCores: true, ConstrainRAMSpace: true, ConstrainSwapSpace: true, ConstrainDevices: true,
		AllowedRAMSpace: 101.5, AllowedSwapSpace: 0.5, MaxRAMPercent: 90, MaxSwapPercent: 0, MinRAMSpace: 64, MemorySwappiness: &zero,
		IgnoreSystemd: true, SystemdTimeout: 2500e6, EnableControllers: true,
		CgroupSlice: "hpc.slice",
	}
	if diff := cmp.Diff(want, c.Cgroup); diff != "" {
		t.Error(diff)
	}
	told := []string{
		`ignored: cgroup.conf:13: SignalChildrenProcesses: read, not used yet`,
		`ignored: cgroup.conf:15: IgnoreSystemdOnFailure: read, not used yet`,
		`ignored: cgroup.conf:18: EnableExtraControllers: read, not used yet`,
	}
	for i, old := range []string{
		`CgroupAutomount="yes"`, `AllowedDevicesFile="/etc/slurm/devices.conf"`, `TaskAffinity="no"`, `ConstrainKmemSpace="no"`,
		`AllowedKmemSpace="1"`, `MaxKmemPercent="1"`, `MinKmemSpace="1"`, `CgroupReleaseAgentDir="/x"`,
	} {
		told = append(told, "warning: cgroup.conf:"+fmt.Sprint(20+i)+": "+old+": the key is obsolete and has no effect; remove it")
	}
	told = append(told, `error: cgroup.conf:28: cannot use key "Frob": there is none of that name`)
	if diff := cmp.Diff(told, lines(probs, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestTaskPlugins(t *testing.T) {
	for conf, want := range map[string]struct {
		plugins string
		param   TaskPluginParam
	}{
		"":                              {"task/affinity,task/cgroup", TaskPluginParam{}},
		"TaskPlugin=task/none":          {"", TaskPluginParam{}},
		"TaskPlugin=cgroup,affinity":    {"task/cgroup,task/affinity", TaskPluginParam{}},
		"TaskPluginParam=None,verbose":  {"task/affinity,task/cgroup", TaskPluginParam{Bind: "none", Verbose: true}},
		"TaskPluginParam=Autobind=none": {"task/affinity,task/cgroup", TaskPluginParam{Autobind: "none"}},
		"TaskPluginParam=cores,SlurmdSpecOverride\nNodeName=vm CpuBind=Socket\nPartitionName=p Nodes=ALL CpuBind=ldom": {
			"task/affinity,task/cgroup", TaskPluginParam{Bind: "sockets"},
		},
		"TaskPluginParam=cores\nNodeName=vm\nPartitionName=p Nodes=ALL CpuBind=ldom": {"task/affinity,task/cgroup", TaskPluginParam{Bind: "ldoms"}},
	} {
		c, probs, _ := load(t, map[string]string{"slurm.conf": conf + "\n"})
		if got := strings.Join(c.TaskPlugin, ","); got != want.plugins || c.TaskPluginParam != want.param || len(probs) > 0 {
			t.Errorf("%q: %q, %+v, %v", conf, got, c.TaskPluginParam, probs)
		}
	}
}

// TestMemory: which keys of memory count, and whether they do.
func TestMemory(t *testing.T) {
	for _, c := range []struct {
		name, conf                       string
		consumable                       bool
		defCPU, defNode, maxCPU, maxNode uint64
		problems                         []string
	}{
		{"nothing told", "", true, 0, 0, 0, 0, nil},
		{"linear", "SelectType=select/linear\n", false, 0, 0, 0, 0, nil},
		{"linear with memory", "SelectType=select/linear\nSelectTypeParameters=CR_Memory\n", true, 0, 0, 0, 0, nil},
		{"cores", "SelectTypeParameters=CR_Core,CR_ONE_TASK_PER_CORE\n", false, 0, 0, 0, 0, nil},
		{"cores and memory", "SelectTypeParameters=cr_core_memory\n", true, 0, 0, 0, 0, nil},
		{"a slip", "SelectTypeParameters=CR_Core_Memroy\n", false, 0, 0, 0, 0, []string{
			`warning: slurm.conf:1: SelectTypeParameters="CR_Core_Memroy": flag "CR_Core_Memroy" is not known and has no effect`,
		}},
		{"unlimited", "DefMemPerCPU=UNLIMITED\nMaxMemPerNode=infinite\n", true, 0, 0, 0, 0, nil},
		{"both", "DefMemPerCPU=1\nMaxMemPerCPU=5\nDefMemPerNode=2\nMaxMemPerNode=6\n", true, 1, 2, 5, 6, []string{
			`error: slurm.conf:3: cannot use DefMemPerNode beside DefMemPerCPU of slurm.conf:1; remove one of them`,
			`error: slurm.conf:4: cannot use MaxMemPerNode beside MaxMemPerCPU of slurm.conf:2; remove one of them`,
		}},
		{"above its bound", "DefMemPerCPU=9\nMaxMemPerCPU=5\n", true, 9, 0, 5, 0, []string{
			`error: slurm.conf:1: cannot use DefMemPerCPU=9: it is more than the 5 MiB that a step may ask for; write it lower, or MaxMemPerCPU higher`,
		}},
		{"the partition's win", "DefMemPerCPU=1\nMaxMemPerNode=9\nNodeName=vm\nPartitionName=DEFAULT MaxMemPerNode=8\nPartitionName=p Nodes=ALL DefMemPerNode=3\nPartitionName=q Nodes=ALL DefMemPerCPU=4\n", true, 0, 3, 0, 8, nil},
		{"above the partition's bound", "DefMemPerNode=9\nNodeName=vm\nPartitionName=p Nodes=ALL MaxMemPerNode=5\n", true, 0, 9, 0, 5, []string{
			`error: slurm.conf:3: cannot use DefMemPerNode=9: it is more than the 5 MiB that a step may ask for; write it lower, or MaxMemPerNode higher`,
		}},
		{"a partition that has both", "NodeName=vm\nPartitionName=p Nodes=ALL DefMemPerNode=3 DefMemPerCPU=1\n", true, 1, 0, 0, 0, []string{
			`error: slurm.conf:2: cannot use DefMemPerNode beside DefMemPerCPU; remove one of them`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, probs, dir := load(t, map[string]string{"slurm.conf": c.conf})
			if got.MemoryIsConsumable() != c.consumable || got.DefMemPerCPU != c.defCPU || got.DefMemPerNode != c.defNode || got.MaxMemPerCPU != c.maxCPU || got.MaxMemPerNode != c.maxNode {
				t.Errorf("got %v, %d, %d, %d, %d", got.MemoryIsConsumable(), got.DefMemPerCPU, got.DefMemPerNode, got.MaxMemPerCPU, got.MaxMemPerNode)
			}
			if diff := cmp.Diff(c.problems, lines(probs, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestTogether: keys of two files that cannot be together.
func TestTogether(t *testing.T) {
	for _, c := range []struct {
		name, slurm, cgroup string
		proctrack, tasks    string
		problems            []string
	}{
		{"all well", "TaskPlugin=task/cgroup\n", "ConstrainCores=yes\nConstrainRAMSpace=yes\n", "proctrack/cgroup", "task/cgroup", nil},
		{"no cgroups, and none asked for", "", "CgroupPlugin=disabled\nConstrainCores=yes\n", "proctrack/linuxproc", "task/affinity", nil},
		{"no cgroups, asked for", "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup\nJobAcctGatherType=jobacct_gather/cgroup\n", "CgroupPlugin=disabled\n", "proctrack/linuxproc", "", []string{
			`error: slurm.conf:1: cannot use ProctrackType="proctrack/cgroup": cgroup.conf has CgroupPlugin=disabled; write another one, or CgroupPlugin=autodetect into cgroup.conf`,
			`error: slurm.conf:2: cannot use TaskPlugin="task/cgroup": cgroup.conf has CgroupPlugin=disabled; write another one, or CgroupPlugin=autodetect into cgroup.conf`,
			`error: slurm.conf:3: cannot use JobAcctGatherType="jobacct_gather/cgroup": cgroup.conf has CgroupPlugin=disabled; write another one, or CgroupPlugin=autodetect into cgroup.conf`,
		}},
		{"constraints without their plugin", "TaskPlugin=task/affinity\n", "ConstrainCores=yes\nConstrainDevices=no\nConstrainSwapSpace=yes\n", "proctrack/cgroup", "task/affinity", []string{
			`warning: cgroup.conf:1: ConstrainCores="yes": it has no effect without task/cgroup; add task/cgroup to TaskPlugin in slurm.conf`,
			`warning: cgroup.conf:3: ConstrainSwapSpace="yes": it has no effect without task/cgroup; add task/cgroup to TaskPlugin in slurm.conf`,
		}},
		{"memory that is not given out", "SelectTypeParameters=CR_CPU\n", "ConstrainCores=yes\nConstrainRAMSpace=yes\n", "proctrack/cgroup", "task/affinity,task/cgroup", []string{
			`warning: cgroup.conf:2: ConstrainRAMSpace="yes": no memory is given out to steps: MaxRAMPercent of the node's limits each; write SelectTypeParameters=CR_Core_Memory into slurm.conf`,
		}},
		{"swappiness alone", "", "MemorySwappiness=10\n", "proctrack/cgroup", "task/affinity,task/cgroup", []string{
			`warning: cgroup.conf:1: MemorySwappiness="10": it has no effect without ConstrainSwapSpace; write ConstrainSwapSpace=yes`,
		}},
		{"two of a pair in one line", "NodeName=vm Sockets=2 SocketsPerBoard=2\n", "", "proctrack/cgroup", "task/affinity,task/cgroup", []string{
			`error: slurm.conf:1: cannot use SocketsPerBoard beside Sockets; remove one of them`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, probs, dir := load(t, map[string]string{"slurm.conf": c.slurm, "cgroup.conf": c.cgroup})
			if tasks := strings.Join(got.TaskPlugin, ","); got.ProctrackType != c.proctrack || tasks != c.tasks {
				t.Errorf("got %q, %q", got.ProctrackType, tasks)
			}
			if diff := cmp.Diff(c.problems, lines(probs, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
