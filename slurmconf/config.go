package slurmconf

import "time"

// Config is all that a node daemon takes from the site's files. Load fills in
// the defaults; they are named at each field.
type Config struct {
	// File is the slurm.conf that was read, "" without one.
	File string

	ClusterName string // default "cluster"
	// Node is this host's own line, or the defaults where there is none.
	Node Node
	// Nodes are all that NodeName lines name.
	Nodes []Node

	SlurmdSpoolDir string // default "": the daemon's own
	SlurmdPidFile  string
	SlurmdLogFile  string
	SlurmdDebug    string // default "info"
	TmpFS          string // default "/tmp"

	ProctrackType    string   // default "proctrack/cgroup"
	TaskPlugin       []string // default none
	JobContainerType string   // default "job_container/none"
	MpiDefault       string   // default "none"
	PlugStackConfig  string   // default plugstack.conf beside File
	PluginDir        []string // default none

	Prolog, Epilog         []string // patterns
	PrologFlags            []string
	PrologEpilogTimeout    time.Duration // default 65534 s
	TaskProlog, TaskEpilog string

	KillWait                      time.Duration // default 30 s
	UnkillableStepTimeout         time.Duration // default 60 s
	UnkillableStepProgram         string
	PropagateResourceLimits       []string // default ALL
	PropagateResourceLimitsExcept []string
	PropagatePrioProcess          int // 0 to 2

	JobAcctGatherType      string // default "jobacct_gather/none"
	JobAcctGatherFrequency string
	SelectType             string
	SelectTypeParameters   []string
	GresTypes              []string
	MaxTasksPerNode        int           // default 65533 (rulings 23)
	MinJobAge              time.Duration // default 300 s
	LaunchParameters       []string
	DebugFlags             []string

	// Own are the keys of stepd.conf.
	Own Own
	// Container is job_container.conf.
	Container Container
	// Cgroup and Mpi are the pairs of cgroup.conf and mpi.conf, keys in small
	// letters.
	Cgroup, Mpi map[string]string
}

// Own are our own keys: in slurm.conf they would stop a real slurmd, so they
// live in stepd.conf beside it (rulings 22).
type Own struct {
	HookTimeout        time.Duration // default 0: none
	SpankAllowReleases []string
	QuarantineAfter    int // default 0: never
	SpankStrict        bool
	NoNewPrivs         bool
	RequireSafePlugins bool
	MetricsListen      string
	KeepSteps          int // default 1000
	ReplayBytes        int64
}

// Node is one node of a NodeName line.
type Node struct {
	Name string
	Addr string // NodeAddr; default NodeHostname, default Name
	// Host is NodeHostname; default Name.
	Host string
	// CPUs is what the line says, or the product of its boards, sockets, cores
	// and threads; 0 where it says nothing: the machine's own.
	CPUs         int
	RealMemoryMB uint64 // 0: the machine's own
	TmpDiskMB    uint64
	Gres         string
	Features     []string
}

// Container is job_container.conf.
type Container struct {
	AutoBasePath   bool
	BasePath       string
	Dirs           []string
	InitScript     string
	Shared         bool
	EntireStepInNS bool
}
