package node

import (
	"context"
	"os"
	"runtime"
	"slices"
)

// nodeDoc is the node document of `node status --json` (design §7). Fields may
// be added, none goes.
type nodeDoc struct {
	Name        string `json:"name"`
	State       string `json:"state"`
	Reason      string `json:"reason"`
	CPUs        int    `json:"cpus"`
	FreeCPUs    int    `json:"free_cpus"`
	MemoryBytes uint64 `json:"memory_bytes"`
	// UsedMB is the memory that jobs were given, in MB.
	UsedMB    uint64     `json:"memory_used_mb"`
	Gres      []gresDoc  `json:"gres"`
	Proctrack string     `json:"proctrack"`
	Container string     `json:"container"`
	Fallbacks []Fallback `json:"fallbacks"`
	Jobs      []jobDoc   `json:"jobs"`
	// Unkillable are steps of which processes are left that SIGKILL does not end.
	Unkillable []heldDoc `json:"unkillable"`
	// Daemon is noded itself.
	Daemon  daemonDoc `json:"daemon"`
	Plugins []Plugin  `json:"plugins"`
}

// gresDoc is one kind of generic resource in the node document.
type gresDoc struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Count uint64 `json:"count"`
	Used  uint64 `json:"used"`
	// UsedIndex are the numbers of the devices that jobs have: "0-1,3".
	UsedIndex string `json:"used_index"`
}

func (n *Node) status(ctx context.Context) nodeDoc {
	u := n.reg.usage()
	d := nodeDoc{
		Name: n.cfg.NodeName, State: nodeState(u.drained.Drained, len(u.jobs)), Reason: u.drained.Reason,
		CPUs: len(n.cfg.CPUs), FreeCPUs: u.freeCPU, MemoryBytes: n.cfg.MemoryBytes,
		UsedMB: u.usedMB, Gres: u.gres,
		Proctrack: n.cfg.Tracker.Kind(), Container: n.cfg.ContainerType,
		Fallbacks: n.fallbackList(), Jobs: u.jobs, Plugins: []Plugin{},
		Unkillable: n.heldDocs(), Daemon: daemonNow(),
	}
	if n.cfg.Plugins != nil {
		d.Plugins = append(d.Plugins, n.cfg.Plugins(ctx)...)
		n.markQuarantined(d.Plugins)
	}
	return d
}

// daemonDoc is what noded itself takes: what grows here with the number of steps
// that were run is a leak.
type daemonDoc struct {
	PID        int `json:"pid"`
	Goroutines int `json:"goroutines"`
	// OpenFiles is null where /proc cannot tell.
	OpenFiles *int `json:"open_files"`
	// HeapBytes is the memory that Go's objects take.
	HeapBytes uint64 `json:"heap_bytes"`
}

func daemonNow() daemonDoc {
	d := daemonDoc{PID: os.Getpid(), Goroutines: runtime.NumGoroutine()}
	if dir, err := os.Open("/proc/self/fd"); err == nil {
		if names, err := dir.Readdirnames(-1); err == nil {
			open := len(names) - 1 // without dir itself
			d.OpenFiles = &open
		}
		dir.Close()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	d.HeapBytes = m.HeapInuse
	return d
}

// nodeState is Slurm's word for the node.
func nodeState(drained bool, jobs int) string {
	switch {
	case drained && jobs > 0:
		return "DRAINING"
	case drained:
		return "DRAINED"
	case jobs > 0:
		return "ALLOCATED"
	}
	return "IDLE"
}

// AddFallback adds to the fallbacks that the node document shows.
func (n *Node) AddFallback(f Fallback) {
	n.fallbacks.Lock()
	defer n.fallbacks.Unlock()
	n.cfg.Fallbacks = append(slices.Clone(n.cfg.Fallbacks), f)
}

func (n *Node) fallbackList() []Fallback {
	n.fallbacks.Lock()
	defer n.fallbacks.Unlock()
	all := append(append([]Fallback{}, n.cfg.Fallbacks...), n.cfg.Tracker.Fallbacks()...)
	if err := n.silence(); err != nil {
		all = append(all, Fallback{What: "spool", Why: err.Error() + "; nothing new is taken"})
	}
	return all
}
