package launch

import "time"

// Usage is what the kernel reports about a process at its end: of itself and of the
// children that it waited for (getrusage(2)).
type Usage struct {
	User, System          time.Duration
	MaxRSSBytes           int64 // the largest of these processes, not their sum
	MinorFaults           int64
	MajorFaults           int64
	BlocksRead, BlocksOut int64 // of 512 bytes, from and to storage
	// IO is /proc/PID/io, read before the process was reaped; "" where it was not read.
	IO string
}

// MemMode is how the kernel takes memory for a task, as set_mempolicy(2) numbers it.
type MemMode uint32

const (
	MemPreferred MemMode = 1 // of the node, and of others where it has none
	MemBound     MemMode = 2 // of the nodes, and of no others
	MemLocal     MemMode = 4 // of the node on which the task runs
)

// MemPolicy is the memory policy of one task, or of all (LocalID AllRanks).
type MemPolicy struct {
	LocalID int
	Mode    MemMode
	// Nodes are the memory nodes as the kernel's bit mask; empty for MemLocal.
	Nodes []uint64
}
