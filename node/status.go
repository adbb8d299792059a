package node

import (
	"context"
	"os"
	"runtime"
	"slices"

	"stepd/api"
	"stepd/node/state"
)

// Status is the node document (docs/json.md).
func (n machine) Status(ctx context.Context) api.Node {
	u := n.reg.usage()
	d := api.Node{
		Name: n.cfg.NodeName, State: nodeState(u.drained.Drained, len(u.jobs)), Reason: u.drained.Reason,
		CPUs: len(n.cfg.CPUs), FreeCPUs: u.freeCPU, MemoryBytes: n.cfg.MemoryBytes,
		UsedMB: u.usedMB, Gres: u.gres,
		Proctrack: n.cfg.Tracker.Kind(), Container: n.cfg.ContainerType,
		Fallbacks: n.fallbackList(), Jobs: u.jobs, Plugins: []Plugin{},
		Unkillable: n.health.Docs(), Daemon: daemonNow(),
	}
	if n.cfg.Plugins != nil {
		d.Plugins = append(d.Plugins, n.cfg.Plugins(ctx)...)
		n.health.Plugins.Mark(d.Plugins)
	}
	return d
}

func daemonNow() api.NodeDaemon {
	d := api.NodeDaemon{PID: os.Getpid(), Goroutines: runtime.NumGoroutine()}
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

// Drain drains the node for an administrator: it takes no more steps.
func (n machine) Drain(reason string) error {
	return n.administer(state.Drain{Drained: true, Reason: reason})
}

// Resume ends a drain, and takes the quarantined plugins in again.
func (n machine) Resume() error { return n.administer(state.Drain{}) }

func (n machine) administer(d state.Drain) error {
	if err := n.health.SetDrain(d); err != nil {
		return api.NewError(api.Internal, err.Error())
	}
	if !d.Drained {
		n.health.Plugins.Forgive()
	}
	n.log.WithField("drained", d.Drained).WithField("reason", d.Reason).Info("drain state changed")
	return nil
}
