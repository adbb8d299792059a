package site

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/acct"
	"stepd/internal/build"
	"stepd/internal/lookup"
	"stepd/jobcontainer"
	"stepd/mpi"
	"stepd/node"
	"stepd/node/place"
	"stepd/node/scripts"
	"stepd/node/selection"
	"stepd/proctrack"
	"stepd/slurmconf"
	"stepd/spank"
	"stepd/spank/lint"
	"stepd/step"
)

var (
	_ node.Containers = jobcontainer.None{}
	_ node.Containers = (*jobcontainer.Tmpfs)(nil)
	_ node.Users      = (*lookup.Service)(nil)
)

// Config wires the node with what the site has and wants.
func (s *Site) Config(log *logrus.Logger, logFile *os.File, plugins *Plugstack) (node.Config, error) {
	stepd, spankhost, err := programs()
	if err != nil {
		return node.Config{}, err
	}
	has, err := s.machine(log)
	if err != nil {
		return node.Config{}, err
	}
	tracker, err := place.NewTracker(log, placeConfig(s, spankhost))
	if err != nil {
		return node.Config{}, err
	}
	has.confine(place.MemoryAbove(tracker))
	containers, containerType, err := s.containers(tracker, spankhost, log)
	if err != nil {
		return node.Config{}, err
	}
	gres := place.Gres(s.conf)
	selected, err := s.selection(has, gres, log)
	if err != nil {
		return node.Config{}, err
	}
	cfg := node.Config{
		Version: build.Version(),
		RunDir:  s.Run, SpoolDir: s.Spool, SlurmdSpool: s.conf.SlurmdSpoolDir, Log: log, StepdLog: logFile, StepdPath: stepd, Programs: []string{stepd, spankhost}, MPIPrograms: mpiPrograms(stepd),
		NodeName: s.conf.Node.Name, Site: s.steps(has.unbindable, log),

		Select: selected, MemoryBytes: has.memory,
		Limits: place.NewLimits(s.conf, tracker, gres, has.memory, has.bindable()), Binding: binding, Preview: s.preview,
		DrainReason: strings.Join(s.drain, "; "), Fallbacks: has.fallbacks(),

		Users: lookup.New(spankhost), Tracker: tracker, Containers: containers, ContainerType: containerType,
		LeftUsage: s.leftUsage(tracker),
		Plugins:   plugins.document, Stack: s.stack, StackChanged: plugins.changed, QuarantineAfter: s.conf.Stepd.QuarantineAfter,
		DebugFlags: s.conf.DebugFlags, MPIDefault: s.conf.MpiDefault, MPITypes: mpi.Names(), Scripts: s.scripts(),
	}
	s.rules(&cfg)
	return cfg, nil
}

func placeConfig(s *Site, spankhost string) place.Config {
	return place.Config{
		ProctrackType: s.conf.ProctrackType, Cgroup: s.conf.Cgroup, Spankhost: spankhost,
		Spool: s.Spool, IsDefault: filepath.Clean(s.Spool) == slurmconf.DefaultSpool,
	}
}

// rules fills in what the site wants of jobs and steps, and the bounds that it sets them.
func (s *Site) rules(cfg *node.Config) {
	c, own := s.conf, s.conf.Stepd
	cfg.MaxTasks = c.MaxTasksPerNode
	cfg.InteractiveStep, cfg.MemoryUnlimited = s.interactiveStep(), memoryUnlimited(s.conf, cfg.Tracker.Kind())
	cfg.NoNewPrivs, cfg.UnkillableProgram = own.NoNewPrivs, c.UnkillableStepProgram
	cfg.MinJobAge, cfg.KeepSteps = c.MinJobAge, own.KeepSteps
	cfg.SpoolTimeout = own.SpoolTimeout
	cfg.SpawnMax, cfg.NamesMax = own.SpawnStepsMax, own.PublishedNamesMax
	cfg.PerUser = node.PerUser{
		Steps: own.UserStepsMax, Connections: own.UserConnectionsMax,
		RequestBytes: own.UserRequestBytes, ReplayBytes: own.UserReplayBytes,
	}
}

// interactiveStep is what alloc without a command gives to run.
func (s *Site) interactiveStep() string {
	for _, p := range s.conf.LaunchParameters {
		if strings.EqualFold(p, "use_interactive_step") {
			return s.conf.InteractiveStepOptions
		}
	}
	return ""
}

// memoryUnlimited is why a step may use more memory than it has asked for, where steps are
// tracked by kind.
func memoryUnlimited(c *slurmconf.Config, kind string) string {
	switch {
	case c.JobAcctGatherParams.OverMemoryKill && c.JobAcctGatherType != "none":
		return ""
	case !slices.Contains(c.TaskPlugin, "task/cgroup"):
		return "TaskPlugin of slurm.conf has no task/cgroup"
	case !c.Cgroup.ConstrainRAMSpace && !c.Cgroup.ConstrainSwapSpace:
		return "cgroup.conf has no ConstrainRAMSpace=yes"
	case kind == proctrack.KindLinuxProc || kind == proctrack.KindPGID:
		return fmt.Sprintf("there are no cgroups here (tracking is %s)", kind)
	}
	return ""
}

// leftUsage reads what a dead stepd can no longer tell.
func (s *Site) leftUsage(tracker node.Tracker) func(*step.Record) (*step.StepUsage, error) {
	return func(rec *step.Record) (*step.StepUsage, error) {
		pt := step.Proctrack{Kind: tracker.Kind(), Dir: rec.Cgroup, Tasks: rec.CgroupTasks}
		return acct.ReadCgroups(pt, rec.CgroupV1, s.conf.JobAcctGatherType, time.Now())
	}
}

// memory is how the node's memory of so many bytes is given out.
func (s *Site) memory(bytes uint64) selection.Memory {
	mb := bytes >> 20
	return selection.Memory{
		MB: mb - min(s.conf.Node.MemSpecLimit, mb), Consumable: s.conf.MemoryIsConsumable(),
		DefPerCPU: s.conf.DefMemPerCPU, DefPerNode: s.conf.DefMemPerNode,
		MaxPerCPU: s.conf.MaxMemPerCPU, MaxPerNode: s.conf.MaxMemPerNode,
	}
}

// scripts are the site's prolog and epilog.
func (s *Site) scripts() scripts.Config {
	stack := &stackID{file: s.conf.PlugStackConfig, dirs: s.conf.PluginDir}
	out := scripts.Config{
		Prolog: s.conf.Prolog, Epilog: s.conf.Epilog, Timeout: s.conf.PrologEpilogTimeout, StackID: stack.ID,
		Unsafe: unsafeScript,
	}
	for _, f := range s.conf.PrologFlags {
		// The others imply it (slurm.conf(5)). Of DeferBatch and RunInJob nothing is to be
		// done: a script always waits for the prolog, which is always in the job's cgroup.
		switch strings.ToLower(f) {
		case "alloc", "contain", "x11", "deferbatch", "runinjob", "forcerequeueonfail":
			out.AtAlloc = true
		case "nohold":
			out.NoHold = true
		case "serial":
			out.Serial = true
		}
	}
	if s.conf.SlurmdLogFile != "" {
		out.Dir = filepath.Dir(s.conf.SlurmdLogFile)
	}
	return out
}

// unsafeScript reports which users beside root may change a program that runs as root.
func unsafeScript(path string) error {
	for _, p := range spank.Way(path) {
		if why, remedy := spank.UnsafeFile(p); why != "" {
			return fmt.Errorf("%q %s, and root runs it: %s", p, why, remedy)
		}
	}
	return nil
}

// Lint is the configuration of the check of the plugin stack.
func (s *Site) Lint() lint.Config {
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

// stack reads the stack as root, who gets a lease on it: its digest is what clients that
// cannot see a writer compare their reading with.
func (s *Site) stack() (node.Stack, error) {
	stack, err := spank.ReadStack(s.conf.PlugStackConfig, s.conf.PluginDir)
	return node.Stack{Digest: stack.Digest, Copy: stack.Copy}, err
}

// stackProblems are the findings about the plugin stack, for --check.
func (s *Site) stackProblems() []slurmconf.Problem {
	var out []slurmconf.Problem
	for _, f := range lint.Check(s.Lint()).Findings {
		severity := slurmconf.SeverityWarning
		if f.Severity == spank.SeverityError {
			severity = slurmconf.SeverityError
		}
		out = append(out, slurmconf.Problem{Severity: severity, File: f.File, Line: f.Line, Text: f.Text, Remedy: f.Remedy})
	}
	return out
}

// containers makes the job container plugin that the site wants.
func (s *Site) containers(tracker node.Tracker, spankhost string, log *logrus.Logger) (node.Containers, string, error) {
	kind := s.conf.JobContainerType
	if kind == "none" {
		return jobcontainer.None{}, kind, nil
	}
	tag, err := proctrack.RootName(s.Spool)
	if err != nil {
		return nil, "", err
	}
	c := s.conf.Container
	conf := jobcontainer.Config{
		BasePath: c.BasePath, AutoBasePath: c.AutoBasePath, Dirs: c.Dirs, InitScript: c.InitScript,
		Shared: c.Shared, EntireStepInNS: c.EntireStepInNS,
		CloneNSScript: c.CloneNSScript, CloneNSScriptWait: c.CloneNSScriptWait,
		CloneNSEpilog: c.CloneNSEpilog, CloneNSEpilogWait: c.CloneNSEpilogWait,
		RunDir: filepath.Join(s.Run, "jobs"), NodeTag: strings.TrimPrefix(tag, "stepd-"),
		NodeName: s.conf.Node.Name, HostName: s.hostname, SlurmConf: s.conf.File,
		Warn: func(err error) { log.Warnf("%v", err) },
	}
	if kind == "linux" {
		conf.PIDNamespace, conf.UserNamespace, conf.Keeper = c.PIDNamespace, c.UserNamespace, spankhost
		conf.Place = func(job uint32) (jobcontainer.Place, error) { return keeperPlace(tracker, job) }
	}
	t, err := jobcontainer.NewTmpfs(conf)
	return t, kind, err
}

// checkContainers finds why job containers could not be made. It makes nothing, and its
// errors name what mends them.
func (s *Site) checkContainers() error {
	_, spankhost, err := programs()
	if err != nil {
		spankhost = "spankhost" // without which noded does not start
	}
	c, _, err := s.containers(nil, spankhost, silent()) // no tracker: it is asked for nothing
	if t, ok := c.(*jobcontainer.Tmpfs); ok && err == nil {
		err = t.Check()
	}
	return err
}

// keeperPlace is where process 1 of a job's pid namespace lives: in a place of its
// own, not among the job's tasks and not with prolog and epilog, which end before it.
func keeperPlace(tracker node.Tracker, job uint32) (jobcontainer.Place, error) {
	id := step.ID{Job: job, Step: node.KeeperPlace}
	leaf, err := tracker.MakeScripts(id)
	return jobcontainer.Place{Leaf: leaf, Add: func(pid int) error {
		return tracker.AddStepd(id, pid)
	}}, err
}

// hiddenDirs are the directories in whose place each job has one of its own.
func hiddenDirs(c *slurmconf.Config) []string {
	if dirs := c.Container.Dirs; len(dirs) > 0 {
		return dirs
	}
	return []string{"/tmp", "/dev/shm"}
}

// checkHidden warns of directories of noded's that no task sees, since each job has
// one of its own in the place of one above them.
func (s *Site) checkHidden() {
	if s.conf.JobContainerType == "none" {
		return
	}
	for _, own := range []struct{ what, dir, lost, remedy string }{
		{"run", s.Run, "stepctl in a job does not reach noded", "--run-dir names another one"},
		{"spool", s.Spool, "batch scripts are not found", "--spool-dir, or SlurmdSpoolDir, names another one"},
	} {
		for _, d := range hiddenDirs(s.conf) {
			if rel, err := filepath.Rel(d, own.dir); err != nil || !filepath.IsLocal(rel) {
				continue
			}
			s.problems = append(s.problems, slurmconf.Problem{
				Severity: slurmconf.SeverityWarning, File: s.conf.File,
				Text:   fmt.Sprintf("the %s directory %q lies in %q, in whose place each job has one of its own: %s", own.what, own.dir, d, own.lost),
				Remedy: fmt.Sprintf("%s, or leave %s out of Dirs= in job_container.conf", own.remedy, d),
			})
		}
	}
}

// steps is what the settings mean for every step. unbindable says why no task can be bound to
// CPUs here, "" if tasks can.
func (s *Site) steps(unbindable string, log *logrus.Logger) step.Site {
	c := s.conf
	out := step.Site{
		Cluster: c.ClusterName, Partition: c.Partition, SlurmConf: c.File,
		KillWaitS: seconds(c.KillWait), UnkillableS: seconds(c.UnkillableStepTimeout),
		Propagate: c.PropagateResourceLimits, PropagatePrio: c.PropagatePrioProcess,
		ReplayBytes: c.Stepd.ReplayBytes,
		Affinity:    s.affinity(unbindable), Acct: s.accounting(), Spank: s.spank(),
	}
	out.Scripts.Prolog, out.Scripts.Epilog, out.Scripts.TimeoutS = c.TaskProlog, c.TaskEpilog, seconds(c.PrologEpilogTimeout)
	out.MPIConf.PMI2, out.MPIConf.PMIx = c.Stepd.PMI2, c.Mpi
	_, out.Spank.JSONLog = log.Formatter.(*logrus.JSONFormatter)
	out.Spank.Debug = log.IsLevelEnabled(logrus.DebugLevel)
	return out
}

// seconds rounds up: a limit below a second must not become 0, which is none or a default.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// accounting is how the site accounts for steps.
func (s *Site) accounting() step.Accounting {
	p := s.conf.JobAcctGatherParams
	return step.Accounting{
		Gather: s.conf.JobAcctGatherType, FrequencyS: seconds(s.conf.JobAcctGatherFrequency),
		UsePss: p.UsePss, NoShared: p.NoShared, OverMemoryKill: p.OverMemoryKill,
	}
}

// affinity is what tasks are bound to by default. nil is nothing: then --cpu-bind has no effect.
func (s *Site) affinity(unbindable string) *step.AffinityConf {
	if !slices.Contains(s.conf.TaskPlugin, "task/affinity") {
		return nil
	}
	p := s.conf.TaskPluginParam
	return &step.AffinityConf{Default: step.CPUBindKind(p.Bind), Autobind: step.CPUBindKind(p.Autobind), Verbose: p.Verbose, Off: unbindable}
}

// spank is what stepd and noded need to read the plugin stack.
func (s *Site) spank() step.SpankConf {
	strict := s.conf.Stepd.SpankStrict
	for _, p := range s.conf.LaunchParameters {
		strict = strict || strings.EqualFold(p, "spank_strict")
	}
	return step.SpankConf{
		Plugstack: s.conf.PlugStackConfig, PluginDirs: s.conf.PluginDir,
		AllowReleases: s.conf.Stepd.SpankAllowReleases,
		HookTimeoutS:  seconds(s.conf.Stepd.HookTimeout),
		ExitGraceS:    seconds(s.conf.Stepd.ExitGrace),
		Strict:        strict, RequireSafe: s.conf.Stepd.RequireSafePlugins,
	}
}

// program finds one of our own programs: beside this one, else in
// ../libexec/stepd; never by PATH or environment.
func program(self, name string) (string, error) {
	dir := filepath.Dir(self)
	tried := []string{filepath.Join(dir, name), filepath.Join(filepath.Dir(dir), "libexec", "stepd", name)}
	for _, path := range tried {
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("cannot find program %q: neither %q nor %q can be executed", name, tried[0], tried[1])
}

// programs finds stepd and spankhost.
func programs() (stepd, spankhost string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", "", fmt.Errorf("cannot find the own program: %w", err)
	}
	if stepd, err = program(self, "stepd"); err != nil {
		return "", "", err
	}
	spankhost, err = program(self, "spankhost")
	return stepd, spankhost, err
}

// mpiPrograms are the programs of MPI types that this installation has, beside stepd.
func mpiPrograms(stepd string) map[string]string {
	out := make(map[string]string)
	if path := filepath.Join(filepath.Dir(stepd), "pmixhost"); unix.Access(path, unix.X_OK) == nil {
		out[mpi.PMIx] = path
	}
	return out
}
