package task

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"stepd/eventlog"
	"stepd/internal/linux"
	"stepd/step"
	"stepd/step/launch"
)

// hostPhase is how far the plugins' host is, as Run's goroutine knows it. Its process may
// have ended since: gone is closed then.
type hostPhase string

const (
	hostAbsent      hostPhase = "absent"
	hostStarted     hostPhase = "started"
	hostSetUp       hostPhase = "set up"      // its board can be read
	hostInitialised hostPhase = "initialised" // the plugins' exit hooks are owed
	hostBusy        hostPhase = "busy"        // it has not answered wait, and takes no other command
	hostDead        hostPhase = "dead"
)

var hostMoves = moves[hostPhase]{
	hostAbsent:      {hostStarted},
	hostStarted:     {hostSetUp, hostDead},
	hostSetUp:       {hostInitialised, hostDead},
	hostInitialised: {hostBusy, hostDead},
	hostBusy:        {hostDead},
}

// hostProcess is spankhost as a process, which plugins may crash, stop or hang at any
// time. Host is nil before start; its calls are for Run's goroutine where ports.go does
// not say otherwise.
type hostProcess struct {
	Host
	plan       *Plan
	tracker    Tracker
	accounting Accounting
	messages   *messages
	ledger     *ledger
	causes     *causes
	budget     *killBudget
	monoBase   int64 // wall clock minus CLOCK_MONOTONIC, ns

	gone chan struct{} // closed when the process has ended

	mu     sync.Mutex
	phase  hostPhase               // guarded by mu
	inUse  Host                    // guarded by mu: the host, nil until it was set up
	pid    int                     // guarded by mu: 0 before start, -1 after the end
	status step.ExitStatus         // guarded by mu, valid when gone is closed
	early  map[int]step.ExitStatus // guarded by mu: children that ended before start
	why    string                  // guarded by mu: why stepd has killed it

	eviction struct {
		sync.Mutex      // held while the kernel moves it, which may take 30 ms
		done       bool // guarded by the lock
	}
	inside atomic.Bool // it may be in the tasks' cgroup
}

// isHost reports whether a process is the host. Any goroutine may call it.
func (h *hostProcess) isHost(pid int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return pid == h.pid
}

func newHostProcess(p *Plan, d *Deps, m *messages, l *ledger, c *causes, b *killBudget) *hostProcess {
	return &hostProcess{
		plan: p, tracker: d.Tracker, accounting: d.Accounting, messages: m, ledger: l, causes: c, budget: b, monoBase: d.Now().UnixNano() - int64(linux.Uptime()),
		phase: hostAbsent, gone: make(chan struct{}), early: make(map[int]step.ExitStatus),
	}
}

// move changes the phase; an illegal move is logged and changes nothing.
func (h *hostProcess) move(to hostPhase) {
	h.mu.Lock()
	phase, err := hostMoves.move("spankhost", h.phase, to)
	h.phase = phase
	if phase == hostSetUp {
		h.inUse = h.Host
	}
	h.mu.Unlock()
	if err != nil {
		h.messages.log(err.Error())
	}
}

func (h *hostProcess) is(phase hostPhase) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase == phase
}

// giveUp notes that a host that still waits for tasks takes no other command.
func (h *hostProcess) giveUp() {
	if !h.is(hostDead) {
		h.move(hostBusy)
	}
}

// start names the process; it may have ended already.
func (h *hostProcess) start(host Host) {
	h.Host = host
	h.move(hostStarted)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pid = host.PID()
	if status, ok := h.early[h.pid]; ok {
		h.status, h.pid = status, -1
		close(h.gone)
	}
	h.early = nil
}

// childEnded is called by the reaper. It reports whether the child's end is dealt with:
// it is the host, or may be.
func (h *hostProcess) childEnded(pid int, status step.ExitStatus) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch h.pid {
	case 0:
		h.early[pid] = status
	case pid:
		h.status, h.pid = status, -1 // the number may come again
		close(h.gone)
	default:
		return false
	}
	return true
}

// board is the host for other goroutines than Run's, which may ask it where its
// processes are; nil before it was set up.
func (h *hostProcess) board() Host {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inUse
}

func (h *hostProcess) isGone() bool {
	select {
	case <-h.gone:
		return true
	default:
		return false
	}
}

// end is how it has ended; the caller has seen gone closed.
func (h *hostProcess) end() step.ExitStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status
}

// blame notes why stepd kills it: the first reason is the true one.
func (h *hostProcess) blame(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.why = cmp.Or(h.why, why)
}

// evict moves the host out of the tasks' cgroup, once, and returns when it is out: before the
// tasks are frozen, or killed as a whole. It may be called from any goroutine.
func (h *hostProcess) evict() {
	h.eviction.Lock()
	defer h.eviction.Unlock()
	if h.eviction.done || h.isGone() {
		return
	}
	h.eviction.done = true
	switch err := h.tracker.EvictHost(h.PID()); {
	case err == nil:
		h.inside.Store(false)
		h.accounting.HostMoved()
	case !h.isGone():
		h.messages.log(err.Error())
	}
}

// signalTasks sends a signal to every process of the tasks, past a host that is among them where
// that can be: a kill in a step's first moments would wait for the host's move. It cannot be for
// SIGKILL where the host starts a script for each task that ends, which would be hit. Any goroutine
// may call it.
func (h *hostProcess) signalTasks(sig syscall.Signal) error {
	if h.inside.Load() && !h.isGone() {
		if sig != syscall.SIGKILL {
			return h.tracker.Signal(sig, h.PID())
		}
		if !h.startsEpilogs() && h.tracker.Signal(sig, h.PID()) == nil {
			return nil
		}
		h.evict()
	}
	return h.tracker.Signal(sig, 0)
}

func (h *hostProcess) startsEpilogs() bool {
	return slices.ContainsFunc(taskScripts(h.plan.Spec), func(s launch.TaskScript) bool { return s.Epilog })
}

// isAlone reports whether no process of the tasks is left. The host need not be moved then.
func (h *hostProcess) isAlone() (bool, error) {
	pids, err := h.tracker.PIDs()
	return err == nil && !slices.ContainsFunc(pids, func(pid int) bool { return !h.isHost(pid) }), err
}

// isOutside notes that the host was never in the tasks' cgroup.
func (h *hostProcess) isOutside() {
	h.eviction.Lock()
	defer h.eviction.Unlock()
	h.eviction.done = true
}

// wait waits for the end of a host that was killed. One that sleeps in the
// kernel (state D, a file server that does not answer) does not die: stepd does not
// wait for it for ever.
func (h *hostProcess) wait() error {
	ctx, cancel := h.budget.context()
	defer cancel()
	select {
	case <-h.gone:
		return h.budget.spent(nil)
	case <-ctx.Done():
		return fmt.Errorf("cannot kill spankhost (pid %d): it is %w", h.PID(), context.Cause(ctx))
	}
}

// dyingTime is how long a host may take from the end of its channel to its own.
const dyingTime = 2 * time.Second

// ends waits for the end of a process whose channel has ended, for dyingTime.
func (h *hostProcess) ends() bool {
	select {
	case <-h.gone:
		return true
	case <-time.After(dyingTime):
		return false
	}
}

// died is called once the host is dead or has closed its control channel. It returns
// why, and which plugin is to blame if one is.
func (h *hostProcess) died() (plugin *launch.HookError, why error) {
	if !h.ends() {
		h.blame("closed its control channel")
		h.Kill()
		_ = h.wait() // the teardown waits once more, and reports it
	}
	h.move(hostDead)
	h.mu.Lock()
	cause := hookEnd(h.status, h.why)
	h.mu.Unlock()
	hook, ok := h.Crash(-1, cause)
	if !ok {
		return nil, fmt.Errorf("spankhost (pid %d): %s", h.PID(), cause)
	}
	h.ledger.write(func(rec *step.Record) { noteCrash(rec, hook) })
	return hook, hook
}

// endedAsAsked reports whether the host has done all that exit asks of it and did
// not say so, since a plugin had closed its channel.
func (h *hostProcess) endedAsAsked() bool {
	at := h.Where(-1)
	return h.ends() && h.end() == 0 && (!at.InHook() || at.Plugin < 0) // no plugin: it is at exit(3)
}

// hear gets every record of the host's log channel, on one goroutine.
func (h *hostProcess) hear(r launch.HostRecord) {
	switch {
	case r.Fail != nil:
		if r.LocalID >= 0 && r.LocalID < len(h.plan.Ranks) { // else a task that runs as the user wrote it
			h.ledger.noteFailure(r.LocalID, *r.Fail)
			h.messages.launchFailure(r.LocalID, r.Fail)
		}
	case r.Limit != nil:
		h.messages.event(eventlog.Event{Event: eventlog.EventLimit, Text: r.Text})
	default:
		h.messages.plugin(r)
	}
}

// logHooks writes the hooks that have ended into the event log.
func (h *hostProcess) logHooks(last bool) {
	if h.Host == nil {
		return
	}
	hooks := h.Hooks(last)
	h.strictCodes(hooks)
	for calls := range slices.Chunk(hooks, eventlog.HookCallsMax) {
		h.messages.audience.Hooks(eventlog.HookCalls{Base: h.monoBase, Plugin: h.PluginName, Calls: calls, Ranks: h.plan.Ranks})
	}
}

// strictFailure makes a required plugin's late failure, which changes nothing
// in Slurm, the step's with SpankStrict=yes: it ends non-zero then, with the
// tasks' code where that is higher.
func (h *hostProcess) strictFailure(err error) {
	if hook, ok := errors.AsType[*launch.HookError](err); ok && hook.Required && h.plan.Spec.Spank.Strict {
		h.ledger.strict(hook.Error())
	}
}

// strictCodes does the same for codes of which no answer tells, such as of an option's callback:
// with SpankStrict=yes no required plugin fails for nothing.
func (h *hostProcess) strictCodes(hooks []launch.HookTime) {
	if !h.plan.Spec.Spank.Strict {
		return
	}
	for i := range hooks {
		call := &hooks[i]
		if call.RC == 0 || call.EndNS == 0 || !h.Required(call.Plugin) {
			continue
		}
		e := launch.HookError{Plugin: h.PluginName(call.Plugin), Hook: call.Hook, Required: true, RC: &call.RC}
		if call.LocalID >= 0 && call.LocalID < len(h.plan.Ranks) {
			e.Rank = &h.plan.Ranks[call.LocalID]
		}
		h.ledger.strict(e.Error())
	}
}

// noteCrash keeps the plugin that took its process down. The first one is the step's.
// SIGKILL comes from elsewhere, such as the kernel for want of memory, and what does not
// end at once after a cancel has its due.
func noteCrash(rec *step.Record, h *launch.HookError) {
	if h.Hook == "slurm_spank_task_init" {
		return // a user's own process, which he may send any signal
	}
	if h.Cause == "killed by SIGKILL" || strings.Contains(h.Cause, afterCancel) {
		return
	}
	if h.RC == nil && h.Path != "" && rec.PluginCrash == nil {
		rec.PluginCrash = &step.PluginCrash{Path: h.Path, Hook: h.Hook, Required: h.Required, Cause: h.Error()}
	}
}

// hookEnd words how a process ended inside a hook; cause is why stepd has killed it.
func hookEnd(st step.ExitStatus, cause string) string { return cmp.Or(cause, launch.HookEnd(st)) }

// hookWatch bounds the hooks by HookTimeout. A hook begins without a system
// call, so nothing in the kernel can tell: the board is looked at, four times
// within the bound, and only where a bound was configured.
type hookWatch struct {
	limit time.Duration
	why   string // which bound it is
	tick  *time.Ticker
	c     <-chan time.Time
}

// afterCancel is why a hook is ended when its step was.
const afterCancel = "after the step was cancelled (KillWait in slurm.conf)"

func newHookWatch(seconds int) *hookWatch {
	w := &hookWatch{why: "(HookTimeout in stepd.conf)"}
	w.bound(seconds)
	return w
}

// bound sets the limit unless a shorter one is set already; 0 sets none.
func (w *hookWatch) bound(seconds int) {
	limit := time.Duration(seconds) * time.Second
	if limit <= 0 || (w.limit > 0 && w.limit <= limit) {
		return
	}
	w.stop()
	w.limit = limit
	w.tick = time.NewTicker(limit / 4)
	w.c = w.tick.C
}

func (w *hookWatch) stop() {
	if w.tick != nil {
		w.tick.Stop()
	}
}

// overdue reports whether the host or a task is in a hook beyond the limit.
// still is for how long it may have stood still in there.
func (w *hookWatch) overdue(p launch.HostPlace, still time.Duration) bool {
	return p.InHook() && linux.Uptime()-time.Duration(p.SinceNS)-still > w.limit
}

func (w *hookWatch) cause() string { return fmt.Sprintf("did not return within %v %s", w.limit, w.why) }

// checkHost kills the host if it is in a hook for too long.
func (w *hookWatch) checkHost(h *hostProcess) {
	if board := h.board(); board != nil && w.overdue(board.Where(-1), 0) {
		h.blame(w.cause())
		board.Kill()
	}
}

// killIdle kills a host that owes an answer and is in no hook: it is stopped,
// or waits for something in the kernel. Of a hook the board has the beginning.
func (w *hookWatch) killIdle(h *hostProcess) {
	if board := h.board(); board != nil && !board.Where(-1).InHook() {
		h.blame("did not answer " + w.why)
		board.Kill()
	}
}

// guard watches the host while Run waits for its answer outside of the
// loop: HookTimeout bounds its hooks, and after a cancel KillWait does, since
// nothing else can end a hook. A host that is stopped has its own bound. The returned function
// ends the watch.
func (h *hostProcess) guard() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		w := newHookWatch(h.plan.Spec.Spank.HookTimeoutS)
		defer func() { w.stop() }()
		stops := newStopWatch(h)
		defer stops.End()
		stops.look()
		cancelled := h.causes.cancelled
		var late <-chan time.Time
		for {
			select {
			case <-done:
				return
			case <-w.c:
				w.checkHost(h)
			case <-stops.MayBe:
				stops.look()
			case <-stops.Late:
				stops.kill()
			case <-cancelled:
				cancelled = nil
				wait := max(1, h.plan.Spec.KillWaitS)
				w.bound(wait)
				w.why = afterCancel
				late = time.After(time.Duration(wait) * time.Second)
			case <-late:
				w.killIdle(h)
			}
		}
	})
	return func() { close(done); wg.Wait() }
}
