package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/acct"
	"stepd/jobcontainer"
	"stepd/mpi"
	"stepd/node"
	"stepd/slurmconf"
	"stepd/spank"
	"stepd/spank/lint"
	"stepd/step"
	"stepd/task/affinity"
)

var (
	_ node.Containers = jobcontainer.None{}
	_ node.Containers = (*jobcontainer.Tmpfs)(nil)
	_ node.Users      = (*node.Lookup)(nil)
)

// config wires the node with what the site has and wants.
func (s *site) config(log *logrus.Logger, logFile *os.File, plugins *plugstack) (node.Config, error) {
	stepd, spankhost, err := programs()
	if err != nil {
		return node.Config{}, err
	}
	cpus, bindable, err := s.cpus()
	if err != nil {
		return node.Config{}, err
	}
	memory := s.conf.Node.RealMemory << 20
	if memory == 0 {
		if memory, err = machineMemory(); err != nil {
			return node.Config{}, err
		}
	}
	tracker, err := newTracker(log, trackerConfig{
		proctrackType: s.conf.ProctrackType, cgroup: s.conf.Cgroup, spankhost: spankhost,
		spool: s.spool, isDefault: filepath.Clean(s.spool) == slurmconf.DefaultSpool,
	})
	if err != nil {
		return node.Config{}, err
	}
	containers, containerType, err := s.containers(tracker, spankhost, log)
	if err != nil {
		return node.Config{}, err
	}
	var fallbacks []node.Fallback
	unbindable := ""
	if !bindable {
		unbindable = fmt.Sprintf("NodeName CPUs=%d is more than the machine has", len(cpus))
		log.Warnf("fallback: no CPU binding: %s", unbindable)
		fallbacks = append(fallbacks, node.Fallback{What: "CPU binding", Why: unbindable})
	}
	gres := gresOf(s.conf)
	cluster, err := s.cluster(log)
	if err != nil {
		return node.Config{}, err
	}
	return node.Config{
		Memory: s.memory(memory), Gres: gres, Limits: s.limits(tracker, gres, memory, bindable), Binding: binding, Preview: s.preview,
		NodeName: s.conf.Node.Name, Cluster: s.conf.ClusterName, Partition: s.conf.Partition,
		RunDir: s.run, SpoolDir: s.spool, SlurmConf: s.conf.File,
		CPUs: cpus, MemoryBytes: memory, MaxTasks: s.conf.MaxTasksPerNode,
		MaxArraySize: s.conf.MaxArraySize, NoRequeue: s.conf.JobRequeue == 0,
		Spank: s.spank(), Scripts: s.scripts(), QuarantineAfter: s.conf.Stepd.QuarantineAfter,
		MPIDefault: s.conf.MpiDefault, MPITypes: mpi.Names(), SpawnMax: s.conf.Stepd.SpawnStepsMax, NamesMax: s.conf.Stepd.PublishedNamesMax, MPI: step.MPIConf{PMI2: s.conf.Stepd.PMI2, PMIx: s.conf.Mpi},
		Acct: s.accounting(), LeftUsage: s.leftUsage(tracker),
		PropagatePrio: s.conf.PropagatePrioProcess,
		Propagate:     s.conf.PropagateResourceLimits, TaskScripts: s.taskScripts(),
		KillWait: s.conf.KillWait, UnkillableTimeout: s.conf.UnkillableStepTimeout,
		UnkillableProgram: s.conf.UnkillableStepProgram,
		MinJobAge:         s.conf.MinJobAge, KeepSteps: s.conf.Stepd.KeepSteps, ReplayBytes: s.conf.Stepd.ReplayBytes, NoNewPrivs: s.conf.Stepd.NoNewPrivs,
		Cores: nodeCores(log, cpus, bindable), Affinity: s.affinity(unbindable), StepdPath: stepd, StepdNetPath: stepdNet(), StepdLog: logFile, ContainerType: containerType,
		Others: cluster, Users: node.NewLookup(spankhost), Tracker: tracker, Containers: containers,
		PerUser: node.PerUser{
			Steps: s.conf.Stepd.UserStepsMax, Connections: s.conf.Stepd.UserConnectionsMax,
			RequestBytes: s.conf.Stepd.UserRequestBytes, ReplayBytes: s.conf.Stepd.UserReplayBytes,
		},
		DrainReason: strings.Join(s.drain, "; "), Fallbacks: fallbacks, Plugins: plugins.document, StackDigest: s.stackDigest, Log: log,
	}, nil
}

// taskScripts are those that the site runs around each task.
func (s *site) taskScripts() step.TaskScripts {
	return step.TaskScripts{
		Prolog: s.conf.TaskProlog, Epilog: s.conf.TaskEpilog,
		TimeoutS: int((s.conf.PrologEpilogTimeout + time.Second - 1) / time.Second),
	}
}

// accounting is how the site accounts for steps.
func (s *site) accounting() step.Accounting {
	p := s.conf.JobAcctGatherParams
	return step.Accounting{
		Gather: s.conf.JobAcctGatherType, FrequencyS: int(s.conf.JobAcctGatherFrequency / time.Second),
		UsePss: p.UsePss, NoShared: p.NoShared, OverMemoryKill: p.OverMemoryKill,
	}
}

// leftUsage reads what a dead stepd can no longer tell.
func (s *site) leftUsage(tracker node.Tracker) func(*step.Record) (*step.StepUsage, error) {
	return func(rec *step.Record) (*step.StepUsage, error) {
		pt := step.Proctrack{Kind: tracker.Kind(), Dir: rec.Cgroup, Tasks: rec.CgroupTasks}
		return acct.ReadCgroups(pt, rec.CgroupV1, s.conf.JobAcctGatherType, time.Now())
	}
}

// cpus are the node's CPU numbers. NodeName CPUs= is believed, above the
// hardware too: then the numbers are no longer the machine's, and
// nothing can be bound to them.
func (s *site) cpus() (cpus []int, bindable bool, err error) {
	cpus, err = machineCPUs()
	want := s.conf.Node.CPUs
	switch {
	case err != nil:
		return nil, false, err
	case want == 0:
		return cpus, true, nil
	case want <= len(cpus):
		return cpus[:want], true, nil
	}
	cpus = cpus[:0]
	for i := range want {
		cpus = append(cpus, i)
	}
	return cpus, false, nil
}

// nodeCores are the cores of the node's CPUs, for what requests say of them; nil
// where the kernel does not tell.
func nodeCores(log *logrus.Logger, cpus []int, bindable bool) (cores []node.Core) {
	if !bindable {
		return nil
	}
	t, err := affinity.ReadTopology(os.DirFS("/sys"), cpus)
	if err != nil {
		log.Warnf("what steps say of cores is not heeded: %v", err)
		return nil
	}
	last := -1
	for _, p := range t.PUs {
		if p.Core != last {
			cores = append(cores, node.Core{Socket: p.Socket})
			last = p.Core
		}
		c := &cores[len(cores)-1]
		c.CPUs = append(c.CPUs, p.CPU)
	}
	return cores
}

// affinity is what tasks are bound to by default; nil is nothing, and no
// --cpu-bind is heeded. unbindable says why none can be, "" if they can.
func (s *site) affinity(unbindable string) *step.AffinityConf {
	if !slices.Contains(s.conf.TaskPlugin, "task/affinity") {
		return nil
	}
	p := s.conf.TaskPluginParam
	return &step.AffinityConf{Default: step.CPUBindKind(p.Bind), Autobind: step.CPUBindKind(p.Autobind), Verbose: p.Verbose, Off: unbindable}
}

// memory is how the node's memory of so many bytes is given out.
func (s *site) memory(bytes uint64) node.Memory {
	mb := bytes >> 20
	return node.Memory{
		MB: mb - min(s.conf.Node.MemSpecLimit, mb), Consumable: s.conf.MemoryIsConsumable(),
		DefPerCPU: s.conf.DefMemPerCPU, DefPerNode: s.conf.DefMemPerNode,
		MaxPerCPU: s.conf.MaxMemPerCPU, MaxPerNode: s.conf.MaxMemPerNode,
	}
}

// limits confines steps where the tracker has cgroups; what a site asks for and
// the tracker has not is told by each step's plan.
func (s *site) limits(tracker node.Tracker, gres []step.Gres, memory uint64, bindable bool) node.Limits {
	var at limitPlaces = noPlaces{tracker.Kind()}
	if t, ok := tracker.(*cgroupTracker); ok {
		at = t
	}
	return newLimits(s.conf, at, gres, memory, bindable)
}

func (s *site) spank() step.SpankConf {
	strict := s.conf.Stepd.SpankStrict
	for _, p := range s.conf.LaunchParameters {
		strict = strict || strings.EqualFold(p, "spank_strict")
	}
	return step.SpankConf{
		Plugstack: s.conf.PlugStackConfig, PluginDirs: s.conf.PluginDir,
		AllowReleases: s.conf.Stepd.SpankAllowReleases,
		// Rounded up: a limit below a second must not become none.
		HookTimeoutS: int((s.conf.Stepd.HookTimeout + time.Second - 1) / time.Second),
		Strict:       strict, RequireSafe: s.conf.Stepd.RequireSafePlugins,
	}
}

// scripts are the site's prolog and epilog.
func (s *site) scripts() node.Scripts {
	stack := &stackID{file: s.conf.PlugStackConfig, dirs: s.conf.PluginDir}
	out := node.Scripts{
		Prolog: s.conf.Prolog, Epilog: s.conf.Epilog, Timeout: s.conf.PrologEpilogTimeout, StackID: stack.ID,
		Unsafe: unsafeScript,
	}
	for _, f := range s.conf.PrologFlags {
		// The other two imply it (slurm.conf(5)).
		switch strings.ToLower(f) {
		case "alloc", "contain", "x11":
			out.AtAlloc = true
		case "serial":
			out.Serial = true
		}
	}
	if s.conf.SlurmdLogFile != "" {
		out.Dir = filepath.Dir(s.conf.SlurmdLogFile)
	}
	return out
}

// unsafeScript tells who beside root may change what is run as root.
func unsafeScript(path string) error {
	for _, p := range spank.Way(path) {
		if why, remedy := spank.UnsafeFile(p); why != "" {
			return fmt.Errorf("%q %s, and root runs it: %s", p, why, remedy)
		}
	}
	return nil
}

// lint is what the check of the plugin stack is told.
func (s *site) lint() lint.Config {
	_, spankhost, err := programs()
	if err != nil {
		spankhost = "spankhost" // a finding says that it cannot be read
	}
	return lint.Config{
		Plugstack: s.conf.PlugStackConfig, PluginDirs: s.conf.PluginDir,
		AllowReleases: s.conf.Stepd.SpankAllowReleases, RequireSafe: s.conf.Stepd.RequireSafePlugins,
		Host: spankhost,
	}
}

// stackDigest reads the stack as root, who gets a lease on it: what clients that
// cannot see a writer compare their reading with.
func (s *site) stackDigest() (string, error) {
	stack, err := spank.ReadStack(s.conf.PlugStackConfig, s.conf.PluginDir)
	return stack.Digest, err
}

// stackProblems are the findings about the plugin stack, for --check.
func (s *site) stackProblems() []slurmconf.Problem {
	var out []slurmconf.Problem
	for _, f := range lint.Check(s.lint()).Findings {
		severity := slurmconf.SeverityWarning
		if f.Severity == spank.SeverityError {
			severity = slurmconf.SeverityError
		}
		out = append(out, slurmconf.Problem{Severity: severity, File: f.File, Line: f.Line, Text: f.Text, Remedy: f.Remedy})
	}
	return out
}
