package slurmconf

import (
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"stepd/srunopt"
	"stepd/step"
)

// DefaultSpool is the spool of a noded whose files and flags name none.
const DefaultSpool = "/var/spool/stepd"

// Config is what a node daemon needs of a site's files. The fields have the
// names of the keys; a comment gives the default and where the field differs
// from what is written. Load makes it; afterwards it is only read.
type Config struct {
	// File is slurm.conf as an absolute path, "" without one.
	File string

	// ClusterName is in lower case, as in Slurm. Default "local".
	ClusterName string
	// Node is this host's NodeName line. Without any line in the file it is a
	// node of the host's short name with all its values by default.
	Node Node
	// Partition is the default partition if this node is in it, else the first
	// one that holds the node, else "".
	Partition string

	// SpoolDir is SlurmdSpoolDir with "/stepd" added: slurmd's own spool is
	// never ours. Default /var/spool/stepd.
	SpoolDir string
	// SlurmdLogFile is absolute, "" by default. In these two the first %h is the
	// host's name and the first %n the node's.
	SlurmdLogFile string
	// SlurmdDebug is a word: quiet, fatal, error, info (the default), verbose,
	// debug, debug2 to debug5. A number in the file becomes its word.
	SlurmdDebug string

	// ProctrackType is "proctrack/cgroup" (the default), "proctrack/linuxproc"
	// or "proctrack/pgid".
	ProctrackType string
	// TaskPlugin lists "task/affinity" and "task/cgroup" in the order of the
	// file; nil is task/none. Default: both, each where the node lets it.
	TaskPlugin []string
	// TaskPluginParam is zero by default: automatic binding.
	TaskPluginParam TaskPluginParam
	// JobContainerType is "none" (the default), "tmpfs" or "linux". Slurm 25.11 calls
	// the key NamespaceType; both names are read. It is "none" too where
	// job_container.conf says BasePath=none for this node.
	JobContainerType string
	// MpiDefault is "none" (the default), "pmi2" or a "pmix".
	MpiDefault string

	// PlugStackConfig is absolute; default plugstack.conf beside slurm.conf,
	// "" without a slurm.conf. The file need not exist.
	PlugStackConfig string
	// PluginDir are the directories to search for plugins that are named
	// without one, in order. Default: where Slurm's packages put plugins.
	PluginDir []string

	// Prolog and Epilog may be given several times, and each may be a glob
	// pattern. Relative ones are beneath slurm.conf's directory.
	Prolog, Epilog []string
	PrologFlags    []string
	// PrologEpilogTimeout 0, the default, is no bound.
	PrologEpilogTimeout    time.Duration
	TaskProlog, TaskEpilog string

	// KillWait is 30 s by default, UnkillableStepTimeout 60 s, MinJobAge 300 s.
	KillWait, UnkillableStepTimeout, MinJobAge time.Duration
	UnkillableStepProgram                      string

	// PropagateResourceLimits are the limits to propagate, in upper case and
	// without RLIMIT_: all ten by default, the key's limits, or all but the
	// limits of PropagateResourceLimitsExcept.
	PropagateResourceLimits []string
	// PropagatePrioProcess is 0 (the default), 1 or 2.
	PropagatePrioProcess int

	// JobAcctGatherType is "none" (the default), "linux" or "cgroup".
	JobAcctGatherType string
	// JobAcctGatherFrequency is the interval of task sampling: 30 s by
	// default, 0 is never. What is left at a task's end is read in any case.
	JobAcctGatherFrequency time.Duration
	JobAcctGatherParams    JobAcctGatherParams

	// SelectType and SelectTypeParameters report whether memory is given out: see
	// MemoryIsConsumable.
	SelectType           string // default "select/cons_tres"
	SelectTypeParameters []string
	// DefMemPerCPU and DefMemPerNode are the memory of a step that asks for none,
	// in MiB; at most one of them is not 0. MaxMemPerCPU and MaxMemPerNode bound
	// what it may ask for. 0, the default, is no limit. Where the partition says
	// them, they are the partition's.
	DefMemPerCPU, DefMemPerNode uint64
	MaxMemPerCPU, MaxMemPerNode uint64

	// GresTypes are the names of generic resources that the site has. Gres is
	// what this node has of them, in the order of its NodeName's Gres=, devices
	// in the order of gres.conf: Gres= says how much, gres.conf which devices.
	// What gres.conf has beyond Gres= is left out with a warning; where it has
	// less, the lower count holds and DrainReasons says so.
	GresTypes []string
	Gres      []Gres
	// DrainReasons are why this node should be drained, although its files can
	// be used: "gres/gpu: slurm.conf has 2, gres.conf 1".
	DrainReasons []string

	// MaxTasksPerNode is 65533 by default, the highest value.
	MaxTasksPerNode  int
	LaunchParameters []string
	// InteractiveStepOptions are what salloc gives to srun where LaunchParameters has
	// use_interactive_step: "--interactive --preserve-env --pty $SHELL" by default.
	InteractiveStepOptions string

	// Stepd is stepd.conf, Container this node's part of job_container.conf.
	Stepd     Stepd
	Container Container
	// Cgroup is cgroup.conf.
	Cgroup Cgroup
	// Mpi is mpi.conf; zero fields are the PMIx plugin's defaults.
	Mpi step.PMIxConf
}

// defaults is the configuration without any file.
func defaults(hostname string) *Config {
	return &Config{
		ClusterName:             "local",
		Node:                    Node{Name: shortName(hostname)},
		SpoolDir:                DefaultSpool,
		SlurmdDebug:             "info",
		ProctrackType:           "proctrack/cgroup",
		TaskPlugin:              []string{"task/affinity", "task/cgroup"},
		JobContainerType:        "none",
		MpiDefault:              "none",
		PluginDir:               defaultPluginDir(),
		KillWait:                30 * time.Second,
		UnkillableStepTimeout:   60 * time.Second,
		MinJobAge:               300 * time.Second,
		PropagateResourceLimits: srunopt.ResourceLimits(),
		JobAcctGatherType:       "none",
		JobAcctGatherFrequency:  30 * time.Second,
		SelectType:              "select/cons_tres",
		MaxTasksPerNode:         65533,
		InteractiveStepOptions:  "--interactive --preserve-env --pty $SHELL",
		Stepd:                   Stepd{KeepSteps: 1000, SpoolTimeout: 20 * time.Second},
		Container:               Container{CloneNSScriptWait: 10 * time.Second, CloneNSEpilogWait: 10 * time.Second},
		Cgroup:                  defaultCgroup(),
	}
}

// defaultPluginDir lists where Slurm's own install, Red Hat's and Debian's
// packages put plugins.
func defaultPluginDir() []string {
	dirs := []string{"/usr/lib64/slurm", "/usr/lib/slurm", "/usr/local/lib/slurm"}
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu", "ppc64le": "powerpc64le-linux-gnu"}[runtime.GOARCH]
	if triplet != "" {
		dirs = append(dirs, filepath.Join("/usr/lib", triplet, "slurm-wlm"), filepath.Join("/usr/lib", triplet, "slurm"))
	}
	return dirs
}

func shortName(hostname string) string {
	short, _, _ := strings.Cut(hostname, ".")
	return short
}

// MemoryIsConsumable reports whether memory is given out to steps: then the
// defaults and bounds above apply to steps that ask for none, and cgroup.conf's
// ConstrainRAMSpace has an effect. It is so with a CR_*_Memory or CR_Memory in
// SelectTypeParameters, and, as in Slurm, where that key is not set and
// SelectType is not select/linear.
func (c *Config) MemoryIsConsumable() bool {
	if c.SelectTypeParameters == nil {
		return c.SelectType != "select/linear"
	}
	return slices.ContainsFunc(c.SelectTypeParameters, func(w string) bool {
		w = strings.ToLower(w)
		return strings.HasPrefix(w, "cr_") && strings.HasSuffix(w, "_memory")
	})
}
