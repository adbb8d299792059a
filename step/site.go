package step

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"
)

// AffinityConf is what the site says about task/affinity: TaskPluginParam.
type AffinityConf struct {
	// Default is the type for steps that ask for none: CPUBindNone, or one that is
	// dealt, as CPUBindCores. It goes before the automatic binding.
	Default CPUBindKind `json:"default,omitempty"`
	// Autobind is the type where the automatic binding finds no match (Autobind=).
	Autobind CPUBindKind `json:"autobind,omitempty"`
	// Verbose reports each task's binding where the user does not say.
	Verbose bool `json:"verbose,omitempty"`
	// Off says why no task can be bound to CPUs here: their numbers are not the
	// machine's. "" lets them be bound.
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

// TaskScripts are TaskProlog and TaskEpilog of slurm.conf; "" is none.
type TaskScripts struct {
	Prolog string `json:"prolog,omitempty"`
	Epilog string `json:"epilog,omitempty"`
	// TimeoutS bounds each in seconds (PrologEpilogTimeout); 0 is none.
	TimeoutS int `json:"timeout_s,omitempty"`
}

// SpankConf is what stepd needs to read the plugin stack.
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
	// crashed too often (QuarantineAfter).
	Quarantined []Quarantine `json:"quarantined,omitempty"`
	// Debug lets the log hear what plugins say to slurm_verbose and slurm_debug.
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

// MPIConf is what a site's files say to the MPI plugins: mpi.conf, and the PMI
// keys of stepd.conf. noded reads them, stepd finds them in its Spec. The zero
// value of each field is the plugin's default.
type MPIConf struct {
	PMI2 PMI2Conf `json:"pmi2,omitzero"`
	PMIx PMIxConf `json:"pmix,omitzero"`
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
