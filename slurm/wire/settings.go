package wire

import (
	"slices"
	"strings"
)

// Settings are the keys of slurm.conf that slurmd sends to a step daemon, as slurmd has them:
// since 23.02. An earlier step daemon reads the file. A key that is not set has its default,
// or is "".
type Settings struct {
	Cluster                          string
	AuthType, AuthInfo, AuthAltTypes string
	CredType, HashPlugin, TLSType    string
	CommunicationParameters          string
	ControllerAddrs                  []string // of each SlurmctldHost, in order
	ControllerAddr                   string   // SlurmctldAddr
	ControllerPort                   uint32   // the first
	ControllerPorts                  uint16   // how many, of the range
	MessageTimeout, TCPTimeout       uint16   // s
	SlurmUser, SlurmdUser            uint32
	Flags                            uint32 // of the yes-or-no keys
	DebugFlags                       uint64

	KillWait, UnkillableTimeout    uint16 // s
	UnkillableProgram              string
	TaskProlog, TaskEpilog         string
	TaskPlugin                     string
	TaskPluginParam                uint32
	LaunchParameters               string
	MPIDefault                     string
	PluginDir, PlugStack           string
	PropagatePrioProcess           uint16
	PropagateLimits, ExceptLimits  string
	ProctrackType                  string
	PrologFlags                    uint16
	JobFileAppend                  uint16
	X11Parameters                  string
	TreeWidth                      uint16
	Spool, TmpFS                   string
	TopologyPlugin, TopologyParam  string
	AcctFreq, AcctType, AcctParams string // JobAcctGather…
	EnergyType, ProfileType        string // AcctGather…
	InterconnectType, FSType       string
	GresTypes                      string
	ContainerType, SwitchType      string // of 25.11 on, NamespaceType
	SelectType                     string
	CPUFreqDef, CPUFreqGovernors   uint32
}

// late are the keys that the first minor versions of a release do not send, from those that
// came last to those that came first: which minor version slurmd is, it does not say. (23.02.1,
// .4 and .5, 23.11.5, 24.05.1, 25.11.6.)
var late = map[Release][][]string{
	V2302: {{"SlurmctldTimeout"}, {"RoutePlugin", "TopologyParam", "TopologyPlugin"}, {"ClusterName"}},
	V2311: {{"ClusterName"}},
	V2405: {{"SrunPortRange"}},
	V2511: {{"EpilogMsgTime"}},
}

// sends reports whether slurmd's minor version is taken to send a key.
func sends(r *reader, key string) bool { return !slices.Contains(r.absent, key) }

// decodeSettings reads the keys, in the order of their names in Slurm.
func decodeSettings(r *reader) *Settings {
	s := new(Settings)
	if r.since(V2405) {
		r.u16("AccountingStorageEnforce")
		r.str("AccountingStorageParameters")
		r.str("AccountingStorageType")
	}
	s.EnergyType, s.ProfileType = r.str("AcctGatherEnergyType"), r.str("AcctGatherProfileType")
	s.InterconnectType, s.FSType = r.str("AcctGatherInterconnectType"), r.str("AcctGatherFilesystemType")
	r.u16("AcctGatherNodeFreq")
	s.AuthAltTypes, s.AuthInfo = r.str("AuthAltTypes"), r.str("AuthInfo")
	r.str("AuthAltParameters")
	s.AuthType = r.str("AuthType")
	if r.before(V2405) {
		r.str("CoreSpecPlugin")
	}
	if sends(r, "ClusterName") {
		s.Cluster = r.str("ClusterName")
	}
	s.CommunicationParameters, s.Flags = r.str("CommunicationParameters"), r.u32("flags")
	s.ControllerAddrs = r.strs("SlurmctldHost")
	s.CPUFreqDef, s.CPUFreqGovernors = r.u32("CpuFreqDef"), r.u32("CpuFreqGovernors")
	s.CredType, s.DebugFlags = r.str("CredType"), r.u64("DebugFlags")
	if r.since(V2405) {
		r.strs("Epilog")
	}
	if r.since(V2511) && sends(r, "EpilogMsgTime") {
		r.u32("EpilogMsgTime")
	}
	s.GresTypes = r.str("GresTypes")
	r.str("GpuFreqDef")
	if r.since(V2405) {
		s.HashPlugin = r.str("HashPlugin")
	}
	s.AcctFreq, s.AcctType, s.AcctParams = r.str("JobAcctGatherFrequency"), r.str("JobAcctGatherType"), r.str("JobAcctGatherParams")
	r.u16("JobAcctGatherParams=OverMemoryKill")
	s.ContainerType = r.str("JobContainerType")
	s.JobFileAppend = r.u16("JobFileAppend")
	for range 3 {
		r.u32("KeepAliveTime")
	}
	s.KillWait, s.LaunchParameters = r.u16("KillWait"), r.str("LaunchParameters")
	r.u16("LogTimeFormat")
	if r.since(V2405) {
		r.u32("MaxStepCount")
		r.u16("MaxTasksPerNode")
	}
	settingsFromM(r, s)
	return s
}

// settingsFromM is decodeSettings from MpiDefault on.
func settingsFromM(r *reader, s *Settings) {
	s.MPIDefault, s.MessageTimeout = r.str("MpiDefault"), r.u16("MessageTimeout")
	s.PluginDir, s.PlugStack = r.str("PluginDir"), r.str("PlugStackConfig")
	if r.since(V2311) {
		r.str("PreemptParameters")
	}
	r.str("PrEpParameters")
	r.str("PrEpPlugins")
	s.ProctrackType = r.str("ProctrackType")
	if r.since(V2405) {
		r.strs("Prolog")
		s.PrologFlags = r.u16("PrologFlags")
	}
	s.PropagatePrioProcess = r.u16("PropagatePrioProcess")
	s.PropagateLimits, s.ExceptLimits = r.str("PropagateResourceLimits"), r.str("PropagateResourceLimitsExcept")
	if r.before(V2311) && sends(r, "RoutePlugin") {
		r.str("RoutePlugin")
	}
	s.SelectType = r.str("SelectType")
	r.u16("SelectTypeParameters")
	s.SlurmUser, s.SlurmdUser = r.u32("SlurmUser"), r.u32("SlurmdUser")
	s.ControllerAddr, s.ControllerPort, s.ControllerPorts = r.str("SlurmctldAddr"), r.u32("SlurmctldPort"), r.u16("SlurmctldPort")
	if sends(r, "SlurmctldTimeout") {
		r.u16("SlurmctldTimeout")
	}
	s.Spool = r.str("SlurmdSpoolDir")
	if r.since(V2405) && sends(r, "SrunPortRange") {
		r.u16("SrunPortRange")
		r.u16("SrunPortRange")
	}
	s.SwitchType = r.str("SwitchType")
	r.str("SwitchParameters")
	s.TaskEpilog, s.TaskPlugin, s.TaskPluginParam, s.TaskProlog = r.str("TaskEpilog"), r.str("TaskPlugin"), r.u32("TaskPluginParam"), r.str("TaskProlog")
	s.TCPTimeout = r.u16("TCPTimeout")
	if r.since(V2511) {
		r.str("TLSParameters")
	}
	if r.since(V2405) {
		s.TLSType = r.str("TLSType")
	}
	s.TmpFS = r.str("TmpFS")
	if sends(r, "TopologyPlugin") {
		s.TopologyParam, s.TopologyPlugin = r.str("TopologyParam"), r.str("TopologyPlugin")
	}
	s.TreeWidth = r.u16("TreeWidth")
	s.UnkillableProgram, s.UnkillableTimeout = r.str("UnkillableStepProgram"), r.u16("UnkillableStepTimeout")
	r.u16("VSizeFactor")
	r.u16("WaitTime")
	s.X11Parameters = r.str("X11Parameters")
}

// sendsContainer reports whether slurmd sends the configuration of its plugin for jobs'
// file systems.
func (s *Settings) sendsContainer() bool {
	return s != nil && (strings.HasSuffix(s.ContainerType, "/tmpfs") || strings.HasSuffix(s.ContainerType, "/linux"))
}
