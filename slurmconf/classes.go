package slurmconf

import (
	"fmt"
	"slices"
	"strings"
)

// The keys of slurm.conf(5), releases 22.05 to 26.05, that are not read here are of two classes.
// testdata/slurm.conf.keys lists them all, by release.

// unsupported are the keys on which slurmd, slurmstepd, srun, salloc or sbatch act, and noded and
// stepctl do not: a site that has them expects something of its nodes and of its users' commands.
var unsupported = lowerWords(`
	AcctGatherEnergyType AcctGatherFilesystemType AcctGatherInterconnectType AcctGatherNodeFreq AcctGatherProfileType BcastExclude BcastParameters
	CliFilterParameters CliFilterPlugins CoreSpecPlugin CpuFreqDef CpuFreqGovernors DefCpuPerGPU DefMemPerGPU DisableRootJobs EioTimeout EpilogTimeout
	GetEnvTimeout GpuFreqDef HealthCheckInterval HealthCheckNodeState HealthCheckProgram HealthCheckTimeout KillOnBadExit LogTimeFormat MpiParams
	NodeFeaturesPlugins OverTimeLimit PrEpParameters PrEpPlugins PrivateData PrologTimeout RebootProgram SlurmdHttpAuthParameters SlurmdParameters
	SlurmdSyslogDebug SlurmdUser SrunEpilog SrunPortRange SrunProlog SwitchParameters SwitchType UsePAM VSizeFactor WaitTime X11Parameters`)

// controllers are the keys of slurmctld and slurmdbd, of the plugins that they load, and of the
// messages among Slurm's daemons.
var controllers = lowerWords(`
	AccountingStorageBackupHost AccountingStorageEnforce AccountingStorageExternalHost AccountingStorageHost AccountingStorageParameters
	AccountingStoragePass AccountingStoragePort AccountingStorageTRES AccountingStorageType AccountingStorageUser AccountingStoreFlags
	AllowSpecResourcesUsage AuthAltParameters AuthAltTypes AuthInfo AuthType BackupAddr BackupController BatchStartTimeout BurstBufferType
	CertgenParameters CertgenType CertmgrParameters CertmgrType CommunicationParameters CompleteWait ControlAddr ControlMachine CredType
	DataParserParameters DependencyParameters EnforcePartLimits EpilogMsgTime EpilogSlurmctld ExtSensorsFreq ExtSensorsType FairShareDampeningFactor
	FederationParameters FirstJobId GroupUpdateForce GroupUpdateTime HashPlugin HttpParserType InactiveLimit JobCompHost JobCompLoc JobCompParams
	JobCompPass JobCompPassScript JobCompPort JobCompType JobCompUser JobRequeue JobSubmitPlugins LaunchType LicenseParameters Licenses MailDomain
	MailProg MaxArraySize MaxBatchRequeue MaxDBDMsgs MaxJobCount MaxJobId MaxNodeCount MaxStepCount MCSParameters MCSPlugin MessageTimeout
	MetricsAuthUsers MetricsParameters MetricsType PowerParameters PowerPlugin PreemptExemptTime PreemptMode PreemptParameters PreemptType
	PriorityCalcPeriod PriorityDecayHalfLife PriorityFavorSmall PriorityFlags PriorityMaxAge PriorityParameters PrioritySiteFactorParameters
	PrioritySiteFactorPlugin PriorityType PriorityUsageResetPeriod PriorityWeightAge PriorityWeightAssoc PriorityWeightFairshare PriorityWeightJobSize
	PriorityWeightPartition PriorityWeightQOS PriorityWeightTRES PrologSlurmctld ReconfigFlags RequeueExit RequeueExitHold ResumeFailProgram
	ResumeProgram ResumeRate ResumeTimeout ResvEpilog ResvOverRun ResvProlog ReturnToService RoutePlugin SchedulerParameters SchedulerTimeSlice
	SchedulerType ScronParameters SlurmctldAddr SlurmctldDebug SlurmctldHost SlurmctldHttpAuthParameters SlurmctldLogFile SlurmctldParameters
	SlurmctldPidFile SlurmctldPlugstack SlurmctldPort SlurmctldPrimaryOffProg SlurmctldPrimaryOnProg SlurmctldSyslogDebug SlurmctldTimeout SlurmdPort
	SlurmdTimeout SlurmSchedLogFile SlurmSchedLogLevel SlurmUser StateSaveLocation SuspendExcNodes SuspendExcParts SuspendExcStates SuspendProgram
	SuspendRate SuspendTime SuspendTimeout TCPTimeout TLSParameters TLSType TopologyParam TopologyPlugin TrackWCKey TreeWidth UrlParserType`)

// classOf is the class of a key of slurm.conf that is not read; "" is none of Slurm's keys.
func classOf(key string) Class {
	switch key = strings.ToLower(key); {
	case slices.Contains(unsupported, key):
		return ClassUnsupported
	case slices.Contains(controllers, key):
		return ClassController
	}
	return ""
}

// launchParameters are the words of LaunchParameters, by what they are here; "" is a word that holds.
var launchParameters = map[string]Class{
	"use_interactive_step": "", "spank_strict": "",
	"lustre_no_flush": "", // nothing is flushed
	"send_gids":       "", // the node looks them up once for each step
	// The groups of a user are never the client's word here.
	"disable_send_gids": ClassController, "srun_exclusive_allocation": ClassController,
	"batch_step_set_cpu_freq": ClassUnsupported, "interactive_step_set_cpu_freq": ClassUnsupported, "cray_net_exclusive": ClassUnsupported,
	"enable_nss_slurm": ClassUnsupported, "mem_sort": ClassUnsupported, "mpir_use_nodeaddr": ClassUnsupported, "slurmstepd_memlock": ClassUnsupported,
	"slurmstepd_memlock_all": ClassUnsupported, "test_exec": ClassUnsupported, "ulimit_pam_adopt": ClassUnsupported,
}

// launchWords reports each word of LaunchParameters that does not hold.
func launchWords(l *loader) {
	s, ok := l.told["launchparameters"]
	if !ok || l.probs.unread {
		return
	}
	for _, word := range l.cfg.LaunchParameters {
		switch class, known := launchParameters[strings.ToLower(word)]; {
		case !known:
			l.probs.value(s, s.pairs[0], &flaw{SeverityWarning, fmt.Sprintf("word %q is not known and has no effect", word), ""})
		case class != "":
			l.probs.ignored(s, s.pairs[0].key+"="+word, class)
		}
	}
}

func lowerWords(s string) []string { return strings.Fields(strings.ToLower(s)) }

// isForeignLine reports whether key begins a line of several KEY=VALUE pairs that
// does not concern a node daemon.
func isForeignLine(key string) bool {
	return slices.Contains([]string{"slurmctldhost", "nodeset", "downnodes", "frontendname", "switchname"}, strings.ToLower(key))
}
