package step

import "time"

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
