package task

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"stepd/eventlog"
	"stepd/internal/linux"
	"stepd/step"
	"stepd/step/launch"
)

// prefork gives the step its MPI servers, which count ranks over all of its components. They may
// still change the environment that user_init sees.
func (l *startup) prefork(ctx context.Context) (err error) {
	if l.d.MPI == nil {
		return nil
	}
	l.push("mpi", l.d.MPI.Close)
	spec := l.plan.Spec
	l.mpi, err = l.d.MPI.Prefork(ctx, launch.MPIJob{
		Spec:     spec.MPISpec(),
		HostPID:  l.host.PID(),
		Abort:    l.mpiAbort,
		Log:      func(text string) { l.d.Audience.Log(launch.LogInfo, text) },
		Progress: func(rank int, p step.MPIProgress) { l.progress.note(rank-spec.FirstRank, ofComponent(spec, p)) },
		Tasks:    func() []launch.MPITask { return mpiTable(spec, l.Record().Tasks) },
		Signal: func(ranks []int, sig syscall.Signal) error {
			own := make([]int, len(ranks))
			for i, r := range ranks {
				own[i] = r - spec.FirstRank
			}
			return l.toRanks(own, sig)
		},
		Cancel: func(reason string) { _ = l.Cancel(reason) }, // it has no error
		Peers:  l.d.Peers,
		Job:    l.d.Job,
	})
	return err
}

// ofComponent is MPI's word on a rank with ranks as the component's record has them. Other components'
// ranks have none there.
func ofComponent(spec *step.Spec, p step.MPIProgress) step.MPIProgress {
	ranks, _ := step.ParseCPUList(p.WaitsFor) // nil with an error
	if spec.AllLayout == nil || len(ranks) == 0 {
		return p
	}
	for i, r := range ranks {
		if ranks[i] = r - spec.FirstRank; ranks[i] < 0 || ranks[i] >= spec.NTasks {
			p.Waiting, p.WaitsFor = fmt.Sprintf("%s for ranks %s of all components", p.Waiting, p.WaitsFor), ""
			return p
		}
	}
	p.WaitsFor = step.FormatCPUList(ranks)
	return p
}

// mpiTable is how the tasks of this node are: what a debugger is to attach to.
func mpiTable(spec *step.Spec, tasks []step.Task) []launch.MPITask {
	all := make([]launch.MPITask, len(tasks))
	for i := range tasks {
		t := &tasks[i]
		all[i] = launch.MPITask{Rank: spec.SeenRank(t.Rank), State: t.State, Status: t.Status}
		if t.PID != nil {
			all[i].PID = *t.PID
		}
		if t.State == step.TaskRunning {
			// What runs now: a script may have exec'd another program since. One that has
			// just ended has none.
			all[i].Program, _ = os.Readlink(fmt.Sprintf("/proc/%d/exe", all[i].PID))
		}
	}
	return all
}

// SpawnedAborted ends the step because one that a task of rank has spawned was
// aborted. It may be called from any goroutine.
func (s *Step) SpawnedAborted(rank, code int, text string) { s.mpiAbort(rank, code, text) }

// awaitSpawned keeps the step until those that it has spawned have ended: they
// write to its streams. Where the step itself has failed, they are ended.
func (t *teardown) awaitSpawned(err error) {
	if t.d.Spawned == nil || t.d.Spawned.Running() == 0 {
		return
	}
	if err != nil {
		t.d.Spawned.Cancel("the step that has spawned it, " + t.plan.Spec.ID.Name() + ", has failed")
	}
	t.part("spawned", func() error { t.d.Spawned.Close(); return nil })
}

// reportLaunched reports to the step that has spawned this one when every task has exec'd
// or ended: MPI_Comm_spawn returns then.
func (l *loop) reportLaunched() {
	if l.tasks.launched && !l.launchReported && l.plan.Spec.Parent != nil {
		l.launchReported = true
		l.d.Audience.State(l.Record())
	}
}

// lookMax bounds the processes that are looked at when a step is ended: before
// SIGTERM, which must not be late.
const lookMax = 64

// mpiProgress notes how far the ranks have come in their MPI start-up, and what the
// step's processes do. Any goroutine may use it.
type mpiProgress struct {
	used     bool // the step has an MPI plugin
	messages *messages
	ledger   *ledger
	host     *hostProcess
	tasks    *taskTable

	mu       sync.Mutex  // taken before the ledger's
	kept     bool        // guarded by mu: the step's end has begun
	stall    *time.Timer // guarded by mu: runs while ranks come further
	reported time.Time   // guarded by mu: when noded heard last
}

// note keeps how far a rank is, as the MPI plugin says. Once the step's end has begun it
// stays as it was: ranks that are being killed say nothing about why.
func (m *mpiProgress) note(rank int, p step.MPIProgress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept {
		return
	}
	if id, ours := m.messages.plan.localID(rank); ours {
		m.ledger.write(func(rec *step.Record) { rec.Tasks[id].MPI = &p })
		m.awaitStall()
	}
}

const (
	// stallAfter is how long no rank comes further until their state is reported to
	// noded: should this process be killed, explain has it for a start that hangs.
	stallAfter = time.Second
	// stallPause is the least between two such reports, for programs that fence now and
	// then.
	stallPause = 10 * time.Second
)

// awaitStall begins anew to wait. The caller holds mu.
func (m *mpiProgress) awaitStall() {
	wait := max(stallAfter, time.Until(m.reported.Add(stallPause)))
	if m.stall == nil {
		m.stall = time.AfterFunc(wait, m.reportStall)
		return
	}
	m.stall.Reset(wait)
}

func (m *mpiProgress) reportStall() {
	m.mu.Lock()
	over := m.kept
	m.reported = time.Now()
	m.mu.Unlock()
	if !over {
		m.messages.audience.Progress(m.ledger.copy())
	}
}

// settle is called when the step's end begins, before anything is sent to
// the tasks: it keeps how far they have come, and looks at those that others wait
// for.
func (m *mpiProgress) settle() {
	m.mu.Lock()
	was := m.kept
	m.kept = true
	if m.stall != nil {
		m.stall.Stop()
	}
	m.mu.Unlock()
	if was || !m.used {
		return
	}
	var behind []int
	m.ledger.write(func(rec *step.Record) { behind = laggards(rec.Tasks) })
	looks := m.look(behind[:min(len(behind), lookMax)])
	m.ledger.write(func(rec *step.Record) {
		for place, d := range looks {
			rec.Tasks[place].Doing = d
		}
	})
}

// laggards are the places of tasks that run and have not come as far as others,
// or that wait for nothing while others wait.
func laggards(tasks []step.Task) (places []int) {
	best, waits := 0, false
	for i := range tasks {
		best = max(best, tasks[i].MPI.Depth())
		waits = waits || tasks[i].MPI.Waits()
	}
	for i := range tasks {
		t := &tasks[i]
		if t.Status != nil || t.PID == nil || t.MPI.Finalized() || t.MPI.Waits() {
			continue
		}
		if waits || t.MPI.Depth() < best {
			places = append(places, i)
		}
	}
	return places
}

// look returns what the processes of tasks do, by local id; one that has ended, and
// whose number may be another's, is left out.
func (m *mpiProgress) look(ids []int) map[int]*step.Doing {
	if len(ids) == 0 {
		return nil
	}
	looks := make(map[int]*step.Doing, len(ids))
	m.ledger.write(func(rec *step.Record) {
		for _, id := range ids {
			if t := &rec.Tasks[id]; t.PID != nil && t.Status == nil {
				looks[id] = &step.Doing{PID: *t.PID}
			}
		}
	})
	board := m.host.board()
	for id, d := range looks {
		if !lookAt(d) {
			delete(looks, id)
			continue
		}
		if board != nil {
			inHook(d, board, board.Where(id))
		}
	}
	alive := make(map[int]bool, len(looks))
	m.tasks.each(func(id, pidfd int) {
		if _, asked := looks[id]; asked {
			ended, err := linux.PidfdExited(pidfd)
			alive[id] = err == nil && !ended
		}
	})
	for id := range looks {
		if !alive[id] {
			delete(looks, id)
		}
	}
	return looks
}

// lookAt reads what /proc has of a process without waiting for it: not its
// command line, for which the kernel needs the process's memory.
func lookAt(d *step.Doing) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.PID))
	if err != nil {
		return false
	}
	name, fields := linux.ParseStat(b)
	if len(fields) == 0 {
		return false
	}
	d.Command, d.State = strings.ToValidUTF8(name, "?"), fields[0]
	if w, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", d.PID)); err == nil && string(w) != "0" {
		d.Wchan = string(w)
	}
	return true
}

// inHook adds which hook of a plugin the process is in, or which stage.
func inHook(d *step.Doing, h Host, p launch.HostPlace) {
	switch {
	case p.AtExec:
	case p.InHook():
		d.Plugin, d.Hook = h.PluginName(p.Plugin), p.Hook
		d.HookTime = max(0, linux.Uptime()-time.Duration(p.SinceNS))
	default:
		d.Stage = p.Stage
	}
}

// lookNow adds what all processes of the step do just now to a record of it.
func (m *mpiProgress) lookNow(rec *step.Record) {
	if rec.State.Final() {
		return
	}
	if board := m.host.board(); board != nil && !m.host.isGone() {
		d := &step.Doing{PID: board.PID()}
		if lookAt(d) {
			inHook(d, board, board.Where(-1))
			rec.Host = d
		}
	}
	ids := make([]int, len(rec.Tasks))
	for id := range ids {
		ids[id] = id
	}
	for id, d := range m.look(ids) {
		rec.Tasks[id].Doing = d
	}
}

// conclude returns how far the ranks had come, for the event log of a step that
// did not end well, and takes it out of the record of one that did.
func (m *mpiProgress) conclude(rec *step.Record, state step.State) (events []eventlog.Event) {
	if !m.used {
		return nil
	}
	rec.MPISilent = rec.Started != nil && rec.NTasks > 1 && rec.ID.Step != step.BatchStep &&
		!slices.ContainsFunc(rec.Tasks, func(t step.Task) bool { return t.MPI != nil || t.State == step.TaskFailed })
	if state == step.Completed {
		for i := range rec.Tasks {
			rec.Tasks[i].MPI, rec.Tasks[i].Doing = nil, nil
		}
		return nil
	}
	groups := step.GroupProgress(rec.Tasks)
	for _, g := range groups[:min(len(groups), lookMax)] {
		events = append(events, eventlog.Event{Event: eventlog.EventMPI, Ranks: step.FormatCPUList(g.Ranks), MPI: g.MPI})
	}
	return events
}
