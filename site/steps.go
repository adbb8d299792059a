package site

import (
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/step"
)

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
		Strict:        strict, RequireSafe: s.conf.Stepd.RequireSafePlugins,
	}
}
