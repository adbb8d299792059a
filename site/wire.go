package site

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/acct"
	"stepd/internal/build"
	"stepd/internal/lookup"
	"stepd/jobcontainer"
	"stepd/mpi"
	"stepd/node"
	"stepd/node/place"
	"stepd/node/scripts"
	"stepd/node/selection"
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
	tracker, err := place.NewTracker(log, place.Config{
		ProctrackType: s.conf.ProctrackType, Cgroup: s.conf.Cgroup, Spankhost: spankhost,
		Spool: s.Spool, IsDefault: filepath.Clean(s.Spool) == slurmconf.DefaultSpool,
	})
	if err != nil {
		return node.Config{}, err
	}
	containers, containerType, err := s.containers(tracker, spankhost, log)
	if err != nil {
		return node.Config{}, err
	}
	gres := place.Gres(s.conf)
	cfg := node.Config{
		Version: build.Version(),
		RunDir:  s.Run, SpoolDir: s.Spool, Log: log, StepdLog: logFile, StepdPath: stepd,
		NodeName: s.conf.Node.Name, Site: s.steps(has.unbindable, log),

		CPUs: has.cpus, Cores: nodeCores(log, has.cpus, has.bindable()), MemoryBytes: has.memory, Memory: s.memory(has.memory), Gres: gres,
		Limits: place.NewLimits(s.conf, tracker, gres, has.memory, has.bindable()), Binding: binding, Preview: s.preview,
		DrainReason: strings.Join(s.drain, "; "), Fallbacks: has.fallbacks(),

		Users: lookup.New(spankhost), Tracker: tracker, Containers: containers, ContainerType: containerType,
		LeftUsage: s.leftUsage(tracker),
		Plugins:   plugins.document, StackDigest: s.stackDigest, QuarantineAfter: s.conf.Stepd.QuarantineAfter,
		MPIDefault: s.conf.MpiDefault, MPITypes: mpi.Names(), Scripts: s.scripts(),
	}
	s.rules(&cfg)
	return cfg, nil
}

// rules fills in what the site wants of jobs and steps, and the bounds that it sets them.
func (s *Site) rules(cfg *node.Config) {
	c, own := s.conf, s.conf.Stepd
	cfg.MaxTasks = c.MaxTasksPerNode
	cfg.InteractiveStep = s.interactiveStep()
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

// stackDigest reads the stack as root, who gets a lease on it: what clients that
// cannot see a writer compare their reading with.
func (s *Site) stackDigest() (string, error) {
	stack, err := spank.ReadStack(s.conf.PlugStackConfig, s.conf.PluginDir)
	return stack.Digest, err
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
