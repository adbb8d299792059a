package slurmconf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stepd/step"
)

// write makes files in a fresh directory and returns the directory.
func write(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// load loads slurm.conf and files beside it on the host "vm.site.org".
func load(t testing.TB, files map[string]string) (*Config, []Problem, string) {
	t.Helper()
	dir := write(t, files)
	c, probs, err := Load(filepath.Join(dir, "slurm.conf"), "vm.site.org")
	if err != nil {
		t.Fatal(err)
	}
	return c, probs, dir
}

// lines are the problems as "severity: text", with dir cut out of them.
func lines(probs []Problem, dir string) []string {
	var out []string
	for _, p := range probs {
		out = append(out, strings.ReplaceAll(string(p.Severity)+": "+p.String(), dir+"/", ""))
	}
	return out
}

func TestNoFile(t *testing.T) {
	c, probs, err := Load("", "vm.site.org")
	if err != nil || len(probs) > 0 {
		t.Fatalf("got %v, %v", probs, err)
	}
	if diff := cmp.Diff(defaults("vm.site.org"), c); diff != "" {
		t.Error(diff)
	}
	for what, ok := range map[string]bool{
		"no file":    c.File == "" && c.PlugStackConfig == "",
		"the host":   c.Node.Name == "vm" && c.Node.CPUs == 0 && c.Node.RealMemory == 0,
		"spool":      c.SpoolDir == "/var/spool/stepd",
		"kill wait":  c.KillWait == 30*time.Second && c.UnkillableStepTimeout == time.Minute,
		"tasks":      c.MaxTasksPerNode == 512,
		"plugins":    c.ProctrackType == "proctrack/cgroup" && c.JobContainerType == "none" && c.MpiDefault == "none",
		"cluster":    c.ClusterName == "local",
		"limits":     len(c.PropagateResourceLimits) == 10,
		"own keys":   c.Stepd.KeepSteps == 1000 && c.Stepd.HookTimeout == 0,
		"plugin dir": len(c.PluginDir) >= 3,
	} {
		if !ok {
			t.Errorf("%s: %+v", what, c)
		}
	}
}

func TestMissingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.conf")
	if c, _, err := Load(path, "vm"); err == nil || c != nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v, %v", c, err)
	}
	dir := t.TempDir()
	if _, _, err := Load(dir, "vm"); err == nil {
		t.Errorf("a directory was read")
	}
}

// TestUnreadableBeside: a file that exists and cannot be read is not taken
// for a missing file.
func TestUnreadableBeside(t *testing.T) {
	dir := write(t, map[string]string{"slurm.conf": ""})
	if err := os.Mkdir(filepath.Join(dir, "stepd.conf"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(filepath.Join(dir, "slurm.conf"), "vm"); err == nil || !strings.Contains(err.Error(), "stepd.conf") {
		t.Errorf("got %v", err)
	}
}

func TestAllKeys(t *testing.T) {
	c, probs, dir := load(t, map[string]string{
		"slurm.conf": `
ClusterName=Golden
SlurmdSpoolDir=/srv/%n/%h
SlurmdPidFile=/run/x-%n.pid
SLURMDLOGFILE = "/var/log/my slurmd.log"
SlurmdDebug=5
NodeName=vm CPUs=64 RealMemory=2048 Gres=gpu:2 State=UNKNOWN
PartitionName=first Nodes=vm
PartitionName=p Nodes=ALL Default=YES
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity,cgroup
TaskPluginParam=Cores,autobind=Threads,Verbose,SlurmdOffSpec,OOMKillStep
JobContainerType=job_container/tmpfs
MpiDefault=pmi2
PlugStackConfig=stack.conf
PluginDir=/a:/b/
Prolog=/etc/p.sh
Prolog=pro.d/*
Epilog=/etc/e.sh
PrologFlags=Alloc,Contain
PrologEpilogTimeout=20
TaskProlog=/tp
TaskEpilog=te
KillWait=0x10
UnkillableStepTimeout=90
UnkillableStepProgram=/u
MinJobAge=10
PropagateResourceLimitsExcept=nproc,RLIMIT_CORE
PropagatePrioProcess=2
JobAcctGatherType=jobacct_gather/cgroup
JobAcctGatherFrequency=task=15,energy=3
JobAcctGatherParams=UsePss,OverMemoryKill,DisableGPUAcct,no_file_cache,NoOverMemoryKill
SelectType=select/linear
SelectTypeParameters=CR_Core,CR_Memory
DefMemPerCPU=100
MaxMemPerNode=2000
GresTypes=gpu,bandwidth
MaxTasksPerNode=512
TmpFS=/scratch
LaunchParameters=use_interactive_step,\
   # nothing
InteractiveStepOptions="--interactive --pty bash -l"
DebugFlags=cpu_bind,Backfill,JobContainer
`,
		"stepd.conf":         "HookTimeout=7\nExitGrace=3\nSpankAllowReleases=20.11,any\nQuarantineAfter=2\nSpankStrict=yes\nNoNewPrivs=1\nRequireSafePlugins=true\nMetricsListen=127.0.0.1:9\nUserStepsMax=11\nUserConnectionsMax=12\nUserRequestBytes=0x200000\nUserReplayBytes=131072\nKeepSteps=5\nStepProcessesPercent=12.5\nSpoolTimeout=9\nReplayBytes=4096\nPeerPorts=60001-60999\nSpawnStepsMax=20\nPublishedNamesMax=21\nPMI1KeyBytes=100\nPMI2KeyBytes=101\nPMI2ValueBytes=1025\nPMI2FrameBytes=70000\nPMI2Attributes=17\nPMI2KeysPerRank=18\nPMI2TotalBytes=0x100000\nPMI2QueueBytes=300000\nPMI2WaitsPerRank=19\nPMI2CloseGrace=2\nPMI2FenceTimeout=60\nPMI2SpawnTimeout=61\n",
		"cgroup.conf":        "# c\nConstrainCores=yes\n",
		"gres.conf":          "Name=gpu File=/dev/null,/dev/zero\n",
		"mpi.conf":           "\nPMIxDebug=1\nPMIxTimeout=20\nPMIxEnv=A=1;B=x=y\nPMIxShareServerTopology=no\n",
		"job_container.conf": "BasePath=/var/base/%n AutoBasePath=true Dirs=/tmp,/var/tmp\n",
	})
	want := &Config{
		File: filepath.Join(dir, "slurm.conf"), ClusterName: "golden",
		Node:           Node{Name: "vm", CPUs: 64, RealMemory: 2048, Gres: []NodeGres{{Name: "gpu", Count: 2}}},
		Partition:      "p",
		SlurmdSpoolDir: "/srv/vm/vm.site.org", SpoolDir: "/srv/vm/vm.site.org/stepd", SlurmdLogFile: "/var/log/my slurmd.log", SlurmdDebug: "debug",
		ProctrackType: "proctrack/linuxproc", TaskPlugin: []string{"task/affinity", "task/cgroup"},
		TaskPluginParam: TaskPluginParam{Bind: "cores", Autobind: "threads", Verbose: true, OOMKillStep: true}, JobContainerType: "tmpfs", MpiDefault: "pmi2",
		PlugStackConfig: filepath.Join(dir, "stack.conf"), PluginDir: []string{"/a", "/b"},
		Prolog: []string{"/etc/p.sh", filepath.Join(dir, "pro.d/*")}, Epilog: []string{"/etc/e.sh"}, PrologFlags: []string{"Alloc", "Contain"},
		PrologEpilogTimeout: 20 * time.Second, TaskProlog: "/tp", TaskEpilog: filepath.Join(dir, "te"),
		KillWait: 16 * time.Second, UnkillableStepTimeout: 90 * time.Second, MinJobAge: 10 * time.Second, UnkillableStepProgram: "/u",
		PropagateResourceLimits: []string{"AS", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "RSS", "STACK"}, PropagatePrioProcess: 2,
		JobAcctGatherType: "cgroup", JobAcctGatherFrequency: 15 * time.Second,
		JobAcctGatherParams: JobAcctGatherParams{UsePss: true, OverMemoryKill: true}, DefMemPerCPU: 100, MaxMemPerNode: 2000,
		SelectType: "select/linear", SelectTypeParameters: []string{"CR_Core", "CR_Memory"}, GresTypes: []string{"gpu", "bandwidth"},
		Gres:            []Gres{{Name: "gpu", Count: 2, Files: []string{"/dev/null", "/dev/zero"}, Flags: gpuEnv(), File: filepath.Join(dir, "gres.conf"), Line: 1}},
		MaxTasksPerNode: 512, LaunchParameters: []string{"use_interactive_step"}, DebugFlags: []string{"CPU_Bind", "JobContainer"}, InteractiveStepOptions: "--interactive --pty bash -l",
		Stepd: Stepd{
			HookTimeout: 7 * time.Second, SpawnStepsMax: 20, PublishedNamesMax: 21, SpankAllowReleases: []string{"20.11", "any"}, QuarantineAfter: 2, SpankStrict: true, NoNewPrivs: true,
			RequireSafePlugins: true, MetricsListen: "127.0.0.1:9", UserStepsMax: 11, UserConnectionsMax: 12, UserRequestBytes: 2 << 20, UserReplayBytes: 131072, KeepSteps: 5, StepProcessesPercent: new(12.5), SpoolTimeout: 9 * time.Second, ExitGrace: 3 * time.Second, ReplayBytes: 4096, PeerPorts: [2]uint16{60001, 60999},
			PMI2: step.PMI2Conf{
				KeyBytes1: 100, KeyBytes2: 101, ValueBytes: 1025, FrameBytes: 70000, Attributes: 17, KeysPerRank: 18, TotalBytes: 1 << 20,
				QueueBytes: 300000, WaitsPerRank: 19, CloseGrace: 2 * time.Second, FenceTimeout: time.Minute, SpawnTimeout: 61 * time.Second,
			},
		},
		Container: Container{
			BasePath: "/var/base/%n", AutoBasePath: true, Dirs: []string{"/tmp", "/var/tmp"},
			CloneNSScriptWait: 10 * time.Second, CloneNSEpilogWait: 10 * time.Second,
		},
		Cgroup: func() Cgroup { c := defaultCgroup(); c.ConstrainCores = true; return c }(),
		Mpi:    step.PMIxConf{Timeout: 20 * time.Second, Debug: true, Env: []string{"A=1", "B=x=y"}, KeepTopology: true},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
	unread := []string{
		`ignored: slurm.conf:4: SlurmdPidFile: read, not used yet`,
		`ignored: slurm.conf:39: TmpFS: read, not used yet`,
	}
	if diff := cmp.Diff(unread, lines(probs, dir)); diff != "" {
		t.Error(diff)
	}
}

// TestEveryMistakeIsTold: one bad line does not hide the next, and the field
// keeps its default.
func TestEveryMistakeIsTold(t *testing.T) {
	c, probs, dir := load(t, map[string]string{"slurm.conf": `KillWait=x
KillWait=70000
KillWait=-1
MaxTasksPerNode=010
MaxTasksPerNode=0
SlurmdSpoolDir=spool
ProctrackType=proctrack/cray_aries
MpiDefault=lam
PropagateResourceLimits=core,foo
PropagatePrioProcess=3
SlurmdDebug=loud
PluginDir=/a:b
ClusterName=../x
JobAcctGatherFrequency=task=often
junk
KillWait=
TaskProlog="/a
TaskProlog="/a"b
KillWait+=5
MinJobAge=5 KillWait=6
=5
include
`})
	want := []string{
		`error: slurm.conf:1: cannot use KillWait="x": not a whole number; write a number from 0 to 65533`,
		`warning: slurm.conf:2: KillWait was set at slurm.conf:1 already: this one counts; remove one of them`,
		`error: slurm.conf:2: cannot use KillWait="70000": out of range; write a number from 0 to 65533`,
		`warning: slurm.conf:3: KillWait was set at slurm.conf:2 already: this one counts; remove one of them`,
		`error: slurm.conf:3: cannot use KillWait="-1": not a whole number; write a number from 0 to 65533`,
		`error: slurm.conf:4: cannot use MaxTasksPerNode="010": a leading zero makes it an octal number for Slurm; write a number from 1 to 65533`,
		`warning: slurm.conf:5: MaxTasksPerNode was set at slurm.conf:4 already: this one counts; remove one of them`,
		`error: slurm.conf:5: cannot use MaxTasksPerNode="0": out of range; write a number from 1 to 65533`,
		`error: slurm.conf:6: cannot use SlurmdSpoolDir="spool": not an absolute path; write a path that begins with /`,
		`error: slurm.conf:7: cannot use ProctrackType="proctrack/cray_aries": not available; write one of cgroup, linuxproc, pgid`,
		`error: slurm.conf:8: cannot use MpiDefault="lam": there is no such MPI type; write one of none, pmi2, pmix`,
		`error: slurm.conf:9: cannot use PropagateResourceLimits="core,foo": "foo" is no limit; write ALL, NONE or some of AS,CORE,CPU,DATA,FSIZE,MEMLOCK,NOFILE,NPROC,RSS,STACK`,
		`error: slurm.conf:10: cannot use PropagatePrioProcess="3": out of range; write a number from 0 to 2`,
		`error: slurm.conf:11: cannot use SlurmdDebug="loud": not available; write one of quiet, fatal, error, info, verbose, debug, debug2, debug3, debug4, debug5`,
		`error: slurm.conf:12: cannot use PluginDir="/a:b": "b" is not an absolute path; write paths that begin with /`,
		`error: slurm.conf:13: cannot use ClusterName="../x": not a name for a cluster; write at most 40 letters and digits`,
		`error: slurm.conf:14: cannot use JobAcctGatherFrequency="task=often": not a whole number; write a number from 0 to 65533`,
		`error: slurm.conf:15: cannot read "junk"; write KEY=VALUE, and quotes around a value with blanks`,
		`error: slurm.conf:16: cannot read the value of "KillWait": there is none; write KEY=VALUE, and quotes around a value with blanks`,
		`error: slurm.conf:17: cannot read the value of "TaskProlog": no closing quote in "\"/a"; write KEY=VALUE, and quotes around a value with blanks`,
		`error: slurm.conf:18: cannot read the value of "TaskProlog": no blank behind the closing quote in "\"/a\"b"; write KEY=VALUE, and quotes around a value with blanks`,
		`error: slurm.conf:19: cannot use "+=" after key "KillWait"; write KEY=VALUE, and quotes around a value with blanks`,
		`error: slurm.conf:20: cannot use KillWait behind MinJobAge; write it on a line of its own`,
		`error: slurm.conf:21: cannot read "=5"; write KEY=VALUE, and quotes around a value with blanks`,
		`error: slurm.conf:22: cannot include nothing; name a file behind it`,
	}
	if diff := cmp.Diff(want, lines(probs, dir)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(defaults("vm.site.org"), c, cmp.FilterPath(func(p cmp.Path) bool {
		return p.Last().String() == ".File" || p.Last().String() == ".PlugStackConfig" || p.Last().String() == ".MinJobAge" ||
			p.Last().String() == ".Mpi"
	}, cmp.Ignore())); diff != "" {
		t.Errorf("a wrong value was taken: %s", diff)
	}
}

func TestKeysThatAreNotRead(t *testing.T) {
	_, probs, dir := load(t, map[string]string{
		"slurm.conf": "SlurmctldHost=a(1.2.3.4) \nSchedulerType=sched/backfill\nKillWiat=5\nHookTimeout=3\nPropagateResourceLimits=ALL\nPropagateResourceLimitsExcept=CORE\nPrologFlags=alloc,frob\n" +
			"NodeName=vm Weight=3 Frob=4 CPUSs=2\nDownNodes=vm State=DOWN\nDependencyParameters=kill_invalid_depend\nJobRequeue=0\nMaxArraySize=50\nHealthCheckProgram=/x\n",
		"stepd.conf": "KeepStep=5\nMaxTasksPerNode=4\n",
	})
	want := []string{
		`ignored: slurm.conf:1: SlurmctldHost: the controller's`,
		`ignored: slurm.conf:2: SchedulerType: the controller's`,
		`warning: slurm.conf:3: KillWiat is not a known key; is "killwait" meant?`,
		`warning: slurm.conf:4: HookTimeout is not a key of this file and is not read; move it to stepd.conf beside slurm.conf: a real slurmd stops at it here`,
		`error: slurm.conf:6: cannot use PropagateResourceLimitsExcept beside PropagateResourceLimits of slurm.conf:5; remove one of them`,
		`warning: slurm.conf:7: PrologFlags="alloc,frob": flag "frob" is not known and has no effect`,
		`warning: slurm.conf:8: Frob is not a key of Slurm's, releases 22.05 to 26.05`,
		`warning: slurm.conf:8: CPUSs is not a key of Slurm's, releases 22.05 to 26.05`,
		`ignored: slurm.conf:9: DownNodes: the controller's`,
		`ignored: slurm.conf:10: DependencyParameters: the controller's`,
		`ignored: slurm.conf:11: JobRequeue: the controller's`,
		`ignored: slurm.conf:12: MaxArraySize: the controller's`,
		`ignored: slurm.conf:13: HealthCheckProgram: not supported here`,
		`error: stepd.conf:1: cannot use key "KeepStep": there is none of that name; is "keepsteps" meant?`,
		`error: stepd.conf:2: cannot use key "MaxTasksPerNode": there is none of that name`,
	}
	if diff := cmp.Diff(want, lines(probs, dir)); diff != "" {
		t.Error(diff)
	}
}

// TestUnsupportedKeys: what is listed as not supported is read nowhere.
func TestUnsupportedKeys(t *testing.T) {
	keys := (&loader{cfg: &Config{}}).slurmKeys()
	for _, key := range unsupported {
		if keys[key] != nil {
			t.Errorf("%s is read", key)
		}
	}
}

func TestProblemsAreBounded(t *testing.T) {
	_, probs, _ := load(t, map[string]string{"slurm.conf": strings.Repeat("junk\n", 3*problemsMax)})
	if len(probs) != problemsMax+1 || !strings.Contains(probs[problemsMax].Text, "not listed: 2000") {
		t.Errorf("%d problems, the last %q", len(probs), probs[len(probs)-1])
	}
}

func FuzzLoad(f *testing.F) {
	for _, s := range []string{
		"ClusterName=c\nNodeName=vm CPUs=4\nPartitionName=p Nodes=ALL\n", "include %c.x\n", "a\\\nb=c # d\n", "A=\"b c\"\\#\n",
		"NodeName=DEFAULT CPUs=2\nNodeName=n[1-3] NodeHostname=h[1-3]\n", "Include slurm.conf\n", "BasePath=/x Dirs=/tmp\n", "KillWait=9\r\n",
		"GresTypes=a,gpu\nNodeName=vm Gres=gpu:t:2,a:no_consume:3G CpuSpecList=0-3,1\nName=gpu Type=t File=/dev/x[0-1] Flags=amd_gpu_env\n",
		"ConstrainRAMSpace=yes\nAllowedRAMSpace=98.5\nMemorySwappiness=3\n", "TaskPlugin=task/none\nTaskPluginParam=autobind=cores\nDefMemPerCPU=3\n",
	} {
		f.Add(s, s)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, slurm, other string) {
		for name, text := range map[string]string{"slurm.conf": slurm, "job_container.conf": other, "stepd.conf": other, "cgroup.conf": other, "gres.conf": other} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		c, probs, err := Load(filepath.Join(dir, "slurm.conf"), "vm")
		if err != nil {
			t.Fatal(err)
		}
		if len(probs) > problemsMax+1 {
			t.Errorf("%d problems", len(probs))
		}
		if c.MaxTasksPerNode < 1 || c.KillWait < 0 || c.Node.Name == "" || c.Node.CPUs < 0 || c.Node.CPUs > hardMax || !filepath.IsAbs(c.SpoolDir) {
			t.Errorf("values that cannot be: %+v", c)
		}
		for _, g := range c.Gres {
			if devices := g.Devices(); g.Name == "" || g.Count == 0 || devices != nil && uint64(len(devices)) != g.Count {
				t.Errorf("a resource that cannot be: %+v", g)
			}
		}
		for _, p := range probs {
			if p.Severity == "" || p.Text == "" {
				t.Errorf("an empty problem: %+v", p)
			}
		}
	})
}
