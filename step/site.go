package step

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"
)

// Site is what a site's settings mean for every step of a node. Package site builds it once
// from the site's files, and noded copies it into each Spec: a new key of slurm.conf touches
// the parser, a field here and the package that uses the field. JSON has the fields in the
// Spec's own object.
type Site struct {
	Cluster   string `json:"cluster"`              // "" has no name
	Partition string `json:"partition"`            // "" is none
	SlurmConf string `json:"slurm_conf,omitempty"` // the file, "" without one

	// KillWaitS is the time between SIGTERM and SIGKILL, in seconds. UnkillableS bounds the
	// wait for the end of killed processes, in seconds (UnkillableStepTimeout); 0, in the Spec
	// of an older noded, is 60.
	KillWaitS   int `json:"kill_wait_s"`
	UnkillableS int `json:"unkillable_s,omitempty"`
	// Propagate are the resource limits that the client's shell passes on to the tasks, in
	// upper case without RLIMIT_; nil is all.
	Propagate []string `json:"propagate,omitzero"`
	// PropagatePrio is PropagatePrioProcess: 0, 1 or 2.
	PropagatePrio int `json:"propagate_prio,omitempty"`
	// Scripts are run around each task: TaskProlog and TaskEpilog, "" for none. TimeoutS
	// bounds each script in seconds (PrologEpilogTimeout); 0 is no bound.
	Scripts struct {
		Prolog   string `json:"prolog,omitempty"`
		Epilog   string `json:"epilog,omitempty"`
		TimeoutS int    `json:"timeout_s,omitempty"`
	} `json:"scripts,omitzero"`
	// ReplayBytes is how much output is kept for clients that attach, in bytes (ReplayBytes of
	// stepd.conf); of a terminal it is 64 KiB at least.
	ReplayBytes int64 `json:"replay_bytes,omitempty"`

	// Affinity is nil where task/affinity is not among the task plugins: no task is bound.
	Affinity *AffinityConf `json:"affinity,omitempty"`
	// Acct is how the node accounts for the step. In a Spec the frequency is the request's
	// where it has one.
	Acct Accounting `json:"acct"`
	// MPIConf is what the MPI plugins are given: mpi.conf, and the PMI keys of stepd.conf.
	MPIConf struct {
		PMI2 PMI2Conf `json:"pmi2,omitzero"`
		PMIx PMIxConf `json:"pmix,omitzero"`
	} `json:"mpi_conf,omitzero"`
	Spank SpankConf `json:"spank"`
}

// AffinityConf is the site's TaskPluginParam for task/affinity.
type AffinityConf struct {
	// Default is the type for steps that ask for none: "none", "cores", "sockets" and the
	// like. It takes the place of the automatic binding.
	Default CPUBindKind `json:"default,omitempty"`
	// Autobind is the type where the automatic binding finds no match (Autobind=).
	Autobind CPUBindKind `json:"autobind,omitempty"`
	// Verbose reports each task's binding where the user does not say.
	Verbose bool `json:"verbose,omitempty"`
	// Off is the reason why no task can be bound to CPUs here: slurm.conf's CPUs are not the
	// machine's. "" lets tasks be bound.
	Off string `json:"off,omitempty"`
}

// Accounting is how the node accounts for a step (slurm.conf). The zero value
// samples nothing and reads what the kernel tells at the ends of tasks.
type Accounting struct {
	// Gather is JobAcctGatherType without its prefix; "" is "none".
	Gather string `json:"gather,omitempty"`
	// FrequencyS is the time between samples, 0 for none.
	FrequencyS int `json:"frequency_s,omitempty"`
	// UsePss counts a page that n processes share as 1/n of one, NoShared leaves
	// shared pages out (JobAcctGatherParams).
	UsePss   bool `json:"use_pss,omitempty"`
	NoShared bool `json:"no_shared,omitempty"`
	// OverMemoryKill ends a step whose sampled memory is over its limit.
	OverMemoryKill bool `json:"over_memory_kill,omitempty"`
}

// SpankConf is the part of the settings by which stepd reads and runs the plugin stack.
type SpankConf struct {
	// Plugstack is the file; empty means that there is none.
	Plugstack  string   `json:"plugstack,omitempty"`
	PluginDirs []string `json:"plugin_dirs,omitempty"`
	// AllowReleases lists further releases to accept ("20.11", "any").
	AllowReleases []string `json:"allow_releases,omitempty"`
	// HookTimeoutS bounds each hook, in seconds; 0 is no bound.
	HookTimeoutS int  `json:"hook_timeout_s,omitempty"`
	Strict       bool `json:"strict,omitempty"`
	// RequireSafe refuses a stack that users other than root may change.
	RequireSafe bool `json:"require_safe,omitempty"`
	// Quarantined are optional plugins that are left out, because they have
	// crashed too often (QuarantineAfter). noded fills it in for each step.
	Quarantined []Quarantine `json:"quarantined,omitempty"`
	// Debug logs the plugins' slurm_verbose and slurm_debug messages.
	Debug bool `json:"debug,omitempty"`
	// JSONLog makes the log one of JSON lines, as noded's is.
	JSONLog bool `json:"json_log,omitempty"`
}

// Quarantine is an optional plugin that is left out of steps.
type Quarantine struct {
	Path  string `json:"path"`
	Times int    `json:"times"` // crashes in a row
	Hook  string `json:"hook"`  // of the last one
}

// Why is the cause in words.
func (q Quarantine) Why() string {
	return fmt.Sprintf("crashed %d times in a row, last in %s", q.Times, q.Hook)
}

// String is the line for user and log.
func (q Quarantine) String() string {
	return fmt.Sprintf("spank: optional plugin %q is left out: it %s; stepctl node resume takes it in again", filepath.Base(q.Path), q.Why())
}

// Quarantine finds a plugin by its path.
func (c *SpankConf) Quarantine(path string) (q Quarantine, ok bool) {
	i := slices.IndexFunc(c.Quarantined, func(q Quarantine) bool { return q.Path == path })
	if i < 0 {
		return Quarantine{}, false
	}
	return c.Quarantined[i], true
}

// PMI2Conf bounds what the ranks of a step may ask of stepd by PMI-1 and PMI-2.
// The zero value of each field is its default, which is named beside it.
type PMI2Conf struct {
	// KeyBytes1 bounds a key or a service name under PMI-1, where clients are
	// told it as keylen_max: 256.
	KeyBytes1 int `json:"key_bytes_1,omitempty"`
	// KeyBytes2 bounds a key or a service name under PMI-2: 64, the
	// PMI2_MAX_KEYLEN that clients are compiled with.
	KeyBytes2 int `json:"key_bytes_2,omitempty"`
	// ValueBytes bounds a value or a port: 1024, the PMI2_MAX_VALLEN that
	// clients are compiled with; PMI-1 clients are told it as vallen_max.
	ValueBytes int `json:"value_bytes,omitempty"`
	// FrameBytes bounds a PMI-1 line, a PMI-1 spawn block and a PMI-2 frame:
	// 65536.
	FrameBytes int `json:"frame_bytes,omitempty"`
	// Attributes bounds the key=value pairs of one message: 1024.
	Attributes int `json:"attributes,omitempty"`
	// KeysPerRank bounds the keys that one rank may hold in the key value
	// space, in the node's attributes and in the name service together: 4096.
	KeysPerRank int `json:"keys_per_rank,omitempty"`
	// TotalBytes bounds the memory of all that the ranks store: 32 MiB.
	TotalBytes int `json:"total_bytes,omitempty"`
	// QueueBytes bounds the answers that wait for a rank that does not read:
	// 256 KiB. Beyond it the rank's connection is closed.
	QueueBytes int `json:"queue_bytes,omitempty"`
	// WaitsPerRank bounds the node attributes that one rank may wait for at
	// the same time: 64.
	WaitsPerRank int `json:"waits_per_rank,omitempty"`
	// CloseGrace is how long a rank that closed its connection in the middle
	// is given to end, so that its exit status can be told: 1 s.
	CloseGrace time.Duration `json:"close_grace,omitempty"`
	// FenceTimeout bounds how long ranks wait in a fence for others that live:
	// then the step ends and the missing ranks are named. 0 is no bound.
	FenceTimeout time.Duration `json:"fence_timeout,omitempty"`
}

// PMIxConf are the keys of Slurm's mpi.conf that have a meaning here.
type PMIxConf struct {
	// Timeout bounds what waits for another node: a fence, a key: 300 s
	// (PMIxTimeout).
	Timeout time.Duration `json:"timeout,omitempty"`
	// Debug lets the PMIx server log what it does (PMIxDebug).
	Debug bool `json:"debug,omitempty"`
	// Env is set for the PMIx server and for the tasks: "NAME=VALUE" (PMIxEnv).
	Env []string `json:"env,omitempty"`
	// KeepTopology lets each task find out by itself what the machine is like
	// (PMIxShareServerTopology=no).
	KeepTopology bool `json:"keep_topology,omitempty"`
}
