package spec

import (
	"slices"
	"strings"

	"stepd/slurmconf"
	"stepd/srunopt"
	"stepd/step"
)

// site is what slurm.conf and the files beside it mean for every step.
func site(c *slurmconf.Config) step.Site {
	out := step.Site{
		Cluster: c.ClusterName, SlurmConf: c.File,
		KillWaitS: seconds(c.KillWait), UnkillableS: seconds(c.UnkillableStepTimeout),
		PropagatePrio: c.PropagatePrioProcess,
		Acct: step.Accounting{
			Gather: c.JobAcctGatherType, FrequencyS: seconds(c.JobAcctGatherFrequency),
			UsePss: c.JobAcctGatherParams.UsePss, NoShared: c.JobAcctGatherParams.NoShared,
			OverMemoryKill: c.JobAcctGatherParams.OverMemoryKill,
		},
		Spank: step.SpankConf{
			Plugstack: c.PlugStackConfig, PluginDirs: c.PluginDir,
			AllowReleases: c.Stepd.SpankAllowReleases,
			HookTimeoutS:  seconds(c.Stepd.HookTimeout), ExitGraceS: seconds(c.Stepd.ExitGrace),
			Strict: c.Stepd.SpankStrict, RequireSafe: c.Stepd.RequireSafePlugins,
		},
	}
	for _, p := range c.LaunchParameters {
		out.Spank.Strict = out.Spank.Strict || strings.EqualFold(p, "spank_strict")
	}
	if slices.Contains(c.TaskPlugin, "task/affinity") {
		// slurmd's half of the plugin has decided: what it did not bind stays unbound.
		out.Affinity = &step.AffinityConf{Default: srunopt.CPUBindNone}
	}
	out.Scripts.Prolog, out.Scripts.Epilog, out.Scripts.TimeoutS = c.TaskProlog, c.TaskEpilog, seconds(c.PrologEpilogTimeout)
	out.MPIConf.PMI2, out.MPIConf.PMIx = c.Stepd.PMI2, c.Mpi
	return out
}
