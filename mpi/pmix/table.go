package pmix

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"stepd/internal/wire"
	"stepd/step"
	"stepd/step/launch"
)

// callTable asks another node of the step for its part of the table of processes.
const callTable = "pmix table"

// States of processes (pmix_proc_state_t).
const (
	procPrepped       = 1
	procRunning       = 5
	procConnected     = 6
	procTerminated    = 20
	procCalledAbort   = 58
	procFailedToStart = 53
	procKilled        = 54 // by a signal
	procNonZero       = 62
)

// tableFanOut bounds how many nodes are asked at a time.
const tableFanOut = 16

// localTable are the processes of this node, by rank.
func (p *Plugin) localTable() []procInfo {
	if p.job.Tasks == nil {
		return nil
	}
	var all []procInfo
	for _, t := range p.job.Tasks() {
		row := procInfo{
			proc: proc{p.world.nspace, uint32(t.Rank)}, host: p.world.hosts[p.here],
			program: t.Program, pid: int64(t.PID), state: p.procState(&t),
		}
		if t.Status != nil {
			row.exitCode = int64(t.Status.Code())
		}
		all = append(all, row)
	}
	return all
}

func (p *Plugin) procState(t *launch.MPITask) uint32 {
	switch t.State {
	case step.TaskRunning:
		p.rankBook.mu.Lock()
		defer p.rankBook.mu.Unlock()
		if r := p.rankOf(proc{p.world.nspace, uint32(t.Rank)}); r != nil && r.phase == phaseConnected {
			return procConnected
		} else if r != nil && r.phase == phaseAborted {
			return procCalledAbort
		}
		return procRunning
	case step.TaskFailed:
		return procFailedToStart
	case step.TaskExited:
		switch {
		case t.Status == nil: // it was lost
			return procTerminated
		case t.Status.Code() == 0:
			return procTerminated
		}
		if _, signaled := t.Status.Signaled(); signaled {
			return procKilled
		}
		return procNonZero
	}
	return procPrepped
}

// table are the processes of the whole step, by rank, which the nodes are asked
// for. One that does not answer makes it an error: half a table would look whole.
func (p *Plugin) table(ctx context.Context) ([]procInfo, error) {
	all := p.localTable()
	if p.job.Peers == nil {
		return all, nil
	}
	var (
		mu     sync.Mutex
		failed error
		asking sync.WaitGroup
	)
	slots := make(chan struct{}, tableFanOut)
	for node, ranks := range p.world.ranks {
		if node == p.here || len(ranks) == 0 {
			continue
		}
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			rows, err := p.tableOf(ctx, node)
			mu.Lock()
			defer mu.Unlock()
			if all = append(all, rows...); err != nil && failed == nil {
				failed = fmt.Errorf("cannot ask node %q for its processes: %w", p.world.hosts[node], err)
			}
		})
	}
	asking.Wait()
	slices.SortFunc(all, func(a, b procInfo) int { return int(a.proc.rank) - int(b.proc.rank) })
	return all, failed
}

func (p *Plugin) tableOf(ctx context.Context, node int) ([]procInfo, error) {
	b, err := p.job.Peers.Call(ctx, node, callTable, nil)
	if err != nil {
		return nil, err
	}
	r := reader{Reader: wire.Reader{B: b}}
	rows := elements(&r, procInfoMin, r.procInfo)
	return rows, r.done()
}

// answerTable sends another node our part.
func (p *Plugin) answerTable() []byte {
	w := &writer{}
	list(w, p.localTable(), w.procInfo)
	return w.B
}
