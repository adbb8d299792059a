// Package health is whether a node takes jobs, and why it does not: it is drained by an
// administrator or for what has happened on it, processes are left on it that SIGKILL does not
// end, its plugins crash, its spool does not answer.
//
// It does not know jobs or steps that run: package node reports what has happened, and asks.
//
// Begin with Gate, through which requests come, and New, which restores what a Health knows.
package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/internal/child"
	"stepd/node/scripts"
	"stepd/node/state"
	"stepd/step"
	"stepd/step/launch"
)

// Config is what a Health works with. All fields are required.
type Config struct {
	Gate  *Gate
	Store *state.State
	// BootID is linux.BootID's.
	BootID string
	// DrainReason drains the node at the start; "" does not.
	DrainReason string
	// QuarantineAfter crashes in a row a plugin is left out, or drains the node where it is
	// required; 0 is never.
	QuarantineAfter int
	// EndStep is Tracker.EndStep, and Timeout bounds what it may take before its processes
	// count as unkillable (UnkillableStepTimeout).
	EndStep func(context.Context, *step.Record) error
	Timeout time.Duration
	// Found is called for each step of which processes are left, and Released when nothing is
	// left of it any more.
	Found    func()
	Released func(id step.ID)
	// Able returns why the node can start no step; nil is that it can.
	Able func() error
	// Go runs a goroutine that the node waits for, and Stopping is closed when it stops.
	Go       func(func())
	Stopping <-chan struct{}
	Log      *logrus.Logger
}

// Health is why the node is drained, and the steps of which processes are left that SIGKILL
// does not end. Both change together: a node is drained for such processes as long as they
// live. Make it with New; methods may be called from several goroutines.
type Health struct {
	cfg Config
	// Plugins are those that crash.
	Plugins *Quarantine

	mu      sync.Mutex              // orders changes of the drain, too
	held    map[step.ID]*state.Held // guarded by mu
	awaited map[step.ID]bool        // guarded by mu: the steps whose end a goroutine waits for
	trying  bool                    // guarded by mu: a goroutine is in awaitAble
}

// New restores what an earlier noded has stored. It drains the node where the state has lost
// something: an administrator is to look at that.
func New(cfg Config) (*Health, error) {
	h := &Health{cfg: cfg, awaited: make(map[step.ID]bool)}
	drained, err := cfg.Store.Drain()
	if err != nil {
		return nil, err
	}
	cfg.Gate.Set(drained)
	if h.held, err = cfg.Store.Held(); err != nil {
		return nil, err
	}
	crashes, err := cfg.Store.Crashes()
	if err != nil {
		return nil, err
	}
	h.Plugins = &Quarantine{limit: cfg.QuarantineAfter, store: cfg.Store, drain: h.Drain, log: cfg.Log, crashes: crashes}
	why, keys, err := cfg.Store.Damage()
	if err == nil && why != "" {
		h.Drain(why)
		err = state.LogOwed(cfg.Store.SettleDamage(keys), cfg.Log)
	}
	if err != nil {
		return nil, err
	}
	if why := cfg.DrainReason; why != "" {
		h.Drain(why)
	}
	return h, nil
}

// SetDrain changes the state for ever, and then for the next request, as an administrator
// wants it.
func (h *Health) SetDrain(d state.Drain) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !d.Drained {
		h.waiveLocked()
	}
	d = h.stamped(d)
	if err := h.cfg.Store.SetDrain(d); err != nil {
		return err
	}
	h.cfg.Gate.Set(d)
	return nil
}

// noteLocked changes the state for what has happened.
func (h *Health) noteLocked(d state.Drain) {
	d = h.stamped(d)
	h.cfg.Gate.Set(d)
	if err := state.LogOwed(h.cfg.Store.NoteDrain(d), h.cfg.Log); err != nil {
		h.cfg.Log.Errorf("%v: it is tried again", err)
	}
}

// stamped is d with the time since when it holds.
func (h *Health) stamped(d state.Drain) state.Drain {
	switch old := h.cfg.Gate.Drain(); {
	case !d.Drained:
	case old.Same(d), old.Drained && d.Owner == state.OwnerHeld && old.Owner == d.Owner:
		d.Since, d.By = old.Since, old.By
	default:
		d.Since = time.Now()
	}
	return d
}

// Drain drains the node for what has happened on it. The first reason stays
// until the node is resumed; steps that run go on.
func (h *Health) Drain(reason string) {
	reason = child.Message(reason) // a plugin's words may be in it
	h.mu.Lock()
	defer h.mu.Unlock()
	switch d := h.cfg.Gate.Drain(); {
	case d.Owner != "" && d.Drained:
		// Two reasons, and the end of one must not end the other.
		reason = d.Reason + "; " + reason
	case d.Drained && d.Reason == reason: // as before a restart, or of the job before
		return
	case d.Drained:
		h.cfg.Log.Warnf("the node is drained already (%s); now there is also: %s", d.Reason, reason)
		return
	}
	h.cfg.Log.Errorf("draining the node: %s", reason)
	h.noteLocked(state.Drain{Drained: true, Reason: reason})
}

// Kill ends what is left of a step. left reports that processes stay, which rec then names.
func (h *Health) Kill(rec *step.Record) (left bool, err error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), h.cfg.Timeout,
		fmt.Errorf("still there %v after SIGKILL (UnkillableStepTimeout)", h.cfg.Timeout))
	defer cancel()
	err = h.cfg.EndStep(ctx, rec)
	survivors, left := errors.AsType[*launch.SurvivorsError](err)
	if left {
		rec.Survivors, rec.SurvivorsTotal = survivors.Survivors, survivors.Total
	}
	return left, err
}

// End is Kill that holds the processes which stay, and waits for their end. It reports whether
// nothing is left.
func (h *Health) End(rec *step.Record, log logrus.FieldLogger) bool {
	left, err := h.Kill(rec)
	if err != nil {
		log.Errorf("%v", err)
	}
	if left {
		h.Hold(rec)
		h.AwaitEmpty(rec.ID)
	}
	return err == nil
}

// Text is why the node is drained for a step, in Slurm's words and ours.
func Text(held *state.Held) string {
	left := launch.SurvivorsError{Survivors: held.Rec.Survivors, Total: held.Rec.SurvivorsTotal}
	return child.Message(fmt.Sprintf("step %s: %s", held.Rec.ID.Name(), left.Left()))
}

// drainKillFailed begins the reason of a drain, as Slurm has it.
const drainKillFailed = "Kill task failed: "

// Hold notes that processes of a step are left, and drains the node for as long
// as they are. The wait itself begins with AwaitEmpty, when stepd has ended. Who has tried to end
// them has logged the error.
func (h *Health) Hold(rec *step.Record) {
	held := &state.Held{Rec: *rec, Since: time.Now()}
	held.Rec.Command = nil
	held.Rec.BootID = cmp.Or(held.Rec.BootID, h.cfg.BootID)
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.held[rec.ID]; old != nil {
		held.Since, held.Waived, held.Programmed = old.Since, old.Waived, old.Programmed
	} else {
		h.cfg.Found()
	}
	h.held[rec.ID] = held
	h.storeLocked(rec.ID)
	switch d := h.cfg.Gate.Drain(); {
	case !d.Drained, d.Owner == state.OwnerHeld:
		h.cfg.Log.Infof("draining the node: %s", Text(held))
		h.drainForHeldLocked()
	default:
		h.cfg.Log.Infof("the node is drained already (%s); now there is also: %s", d.Reason, Text(held))
	}
}

// storeLocked stores what is known of a step.
func (h *Health) storeLocked(id step.ID) {
	var err error
	if held := h.held[id]; held != nil {
		err = h.cfg.Store.PutHeld(held)
	} else {
		err = h.cfg.Store.DropHeld(id)
	}
	if err != nil {
		h.cfg.Log.Errorf("%v: it is tried again", err)
	}
}

// drainForHeldLocked makes the drain say what is held, or ends it where nothing is
// that it is for. The drain is the caller's to change.
func (h *Health) drainForHeldLocked() {
	var texts []string
	for _, held := range h.listLocked() {
		if !held.Waived {
			texts = append(texts, Text(held))
		}
	}
	d := state.Drain{}
	if len(texts) > 0 {
		d = state.Drain{Drained: true, Owner: state.OwnerHeld, Reason: drainKillFailed + strings.Join(texts, "; ")}
	}
	h.noteLocked(d)
}

// listLocked is all that is held, by number.
func (h *Health) listLocked() []*state.Held {
	list := make([]*state.Held, 0, len(h.held))
	for _, held := range h.held {
		list = append(list, held)
	}
	slices.SortFunc(list, func(a, b *state.Held) int {
		return cmp.Or(cmp.Compare(a.Rec.ID.Job, b.Rec.ID.Job), cmp.Compare(a.Rec.ID.Step, b.Rec.ID.Step))
	})
	return list
}

// Holds reports whether something is left of the step, and HoldsJob of any step of the job, or
// of any job where job is 0.
func (h *Health) Holds(id step.ID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held[id] != nil
}

// HoldsJob is documented with Holds.
func (h *Health) HoldsJob(job uint32) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.held {
		if id.Job == job || job == 0 {
			return true
		}
	}
	return false
}

// waiveLocked notes that an administrator has resumed the node in spite of what is
// held: the wait goes on, and its end changes nothing.
func (h *Health) waiveLocked() {
	for _, held := range h.listLocked() {
		if !held.Waived {
			held.Waived = true
			h.storeLocked(held.Rec.ID)
		}
	}
}

// ClaimProgram returns a held step for which UnkillableStepProgram is to be run now; nil where
// nothing is held, or the program was run for it.
func (h *Health) ClaimProgram(id step.ID) *state.Held {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.held[id]
	if held == nil || held.Programmed {
		return nil
	}
	held.Programmed = true
	h.storeLocked(id)
	return held
}

// AwaitEmpty waits until the kernel says that nothing is left of a held step, and ends the
// drain that was for it. Only the first call for a step does so; none waits.
func (h *Health) AwaitEmpty(id step.ID) {
	h.mu.Lock()
	held, begun := h.held[id], h.awaited[id]
	h.awaited[id] = true
	h.mu.Unlock()
	if begun || held == nil {
		return
	}
	h.cfg.Go(func() {
		ctx, stop := child.Until(context.Background(), context.Canceled, h.cfg.Stopping)
		defer stop()
		switch err := h.cfg.EndStep(ctx, &held.Rec); {
		case err == nil:
			h.release(held)
		case ctx.Err() == nil: // else the next noded waits
			h.cfg.Log.WithField("step", id.Name()).Errorf("cannot wait for the end of what is left: %v (the next start of noded tries again)", err)
		}
	})
}

// release forgets a held step of which nothing is left.
func (h *Health) release(held *state.Held) {
	id := held.Rec.ID
	log := h.cfg.Log.WithField("step", id.Name())
	h.mu.Lock()
	delete(h.held, id)
	delete(h.awaited, id)
	h.storeLocked(id)
	log.Infof("nothing is left of the step any more, %v after it was given up", time.Since(held.Since).Round(time.Millisecond))
	if d := h.cfg.Gate.Drain(); d.Drained && d.Owner == state.OwnerHeld {
		if h.drainForHeldLocked(); !h.cfg.Gate.Drain().Drained {
			log.Info("the node is not drained any more")
		}
	}
	h.mu.Unlock()
	h.cfg.Released(id)
}

// Recover waits again for what an earlier noded waited for. Steps that run
// are their followers' to end.
func (h *Health) Recover(running map[step.ID]bool) {
	h.mu.Lock()
	list := h.listLocked()
	h.mu.Unlock()
	if h.cfg.Gate.Drain().Owner == state.OwnerFault {
		h.cfg.Go(h.awaitAble)
	}
	for _, held := range list {
		if !running[held.Rec.ID] {
			h.AwaitEmpty(held.Rec.ID)
		}
	}
}

// Docs is what is held, for the node document.
func (h *Health) Docs() []api.NodeUnkillable {
	h.mu.Lock()
	defer h.mu.Unlock()
	docs := []api.NodeUnkillable{}
	for _, held := range h.listLocked() {
		docs = append(docs, api.NodeUnkillable{ID: held.Rec.ID, IDName: held.Rec.ID.Name(), Since: held.Since, Text: Text(held), Processes: held.Rec.Survivors, Total: held.Rec.SurvivorsTotal})
	}
	return docs
}

// Gate is where requests for a place come in: it is closed when noded stops, and while the
// node is drained. Methods may be called from several goroutines.
type Gate struct {
	// Changed is called when requests that wait may be refused now.
	Changed func()
	// Silence returns why the spool is not to be asked: the node is drained as long as it
	// returns an error. nil is never.
	Silence func() error

	mu      sync.Mutex
	closing bool        // guarded by mu
	drained state.Drain // guarded by mu: the drain that is stored
}

// Close refuses all requests from now on.
func (g *Gate) Close() {
	g.mu.Lock()
	g.closing = true
	g.mu.Unlock()
	g.Changed()
}

// Closing reports whether Close was called.
func (g *Gate) Closing() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closing
}

// Set sets the drain, which its caller has stored or will store.
func (g *Gate) Set(d state.Drain) {
	g.mu.Lock()
	g.drained = d
	g.mu.Unlock()
	g.Changed()
}

// Drain is the drain that was set, and DrainNow the drain that counts now: a spool that does
// not answer drains the node as well.
func (g *Gate) Drain() state.Drain {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.drained
}

// DrainNow is documented with Drain.
func (g *Gate) DrainNow() state.Drain {
	d := g.Drain()
	if d.Drained || g.Silence == nil {
		return d
	}
	if err := g.Silence(); err != nil {
		return state.Drain{Drained: true, Reason: err.Error()}
	}
	return d
}

// Admits returns why a request is refused, as its client's answer. Jobs that run take steps on
// a drained node, which takes no new job.
func (g *Gate) Admits(newJob bool) error {
	if g.Closing() {
		return api.NewError(api.Unavailable, "noded is stopping")
	}
	if !newJob {
		return nil
	}
	if d := g.DrainNow(); d.Drained {
		return api.Errorf(api.FailedPrecondition, "node is drained: %s", d.Reason)
	}
	return nil
}

// Quarantine counts the crashes of plugins, in a row and by file. With
// QuarantineAfter=N an optional plugin that has crashed N times is left out of
// further steps, and a required one drains the node, until Resume or until its
// file is another one.
type Quarantine struct {
	limit int // QuarantineAfter
	store *state.State
	drain func(reason string)
	log   *logrus.Logger

	mu      sync.Mutex
	crashes map[string]state.Crash // guarded by mu: by path
}

func nameFile(path string) state.File {
	info, err := os.Stat(path)
	if err != nil {
		return state.File{}
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return state.File{}
	}
	return state.File{Dev: uint64(st.Dev), Ino: st.Ino, Mtime: info.ModTime().UnixNano()}
}

// Step takes over what an ended step's record says about its plugins: the
// one that crashed, or that none did.
func (q *Quarantine) Step(rec *step.Record) {
	switch {
	case rec.PluginCrash != nil:
		q.Count([]step.PluginCrash{*rec.PluginCrash}, ofStep)
	case rec.Started != nil:
		q.Count(nil, ofStep)
	}
}

// ofStep reports whether a step calls the hook: a run of prolog or epilog says nothing about
// it, nor a step about theirs.
func ofStep(hook string) bool { return !scripts.IsHook(hook) }

// Count counts the plugins that crashed in one run of the stack. Where
// none did, those begin anew whose last crash was in a hook that this run called.
func (q *Quarantine) Count(crashed []step.PluginCrash, called func(hook string) bool) {
	if q.limit <= 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	changed := false
	for path, c := range q.crashes {
		if len(crashed) == 0 && c.Times < q.limit && called(c.Hook) {
			delete(q.crashes, path)
			changed = true
		}
	}
	for _, p := range crashed {
		c := q.crashes[p.Path]
		if file := nameFile(p.Path); c.File != file {
			c = state.Crash{File: file}
		}
		c.Times, c.Hook, c.Required = c.Times+1, p.Hook, p.Required
		q.crashes[p.Path] = c
		changed = true
		is := quarantineOf(p.Path, c)
		switch {
		case c.Times < q.limit:
		case c.Required:
			q.drain(fmt.Sprintf("required plugin %q %s", filepath.Base(p.Path), is.Why()))
		default:
			q.log.Errorf("%s", is)
		}
	}
	if changed {
		q.storeLocked()
	}
}

func quarantineOf(path string, c state.Crash) step.Quarantine {
	return step.Quarantine{Path: path, Times: c.Times, Hook: c.Hook}
}

func (q *Quarantine) storeLocked() {
	if err := q.store.SetCrashes(q.crashes); err != nil {
		q.log.Errorf("%v", err)
	}
}

// List lists the plugins to leave out, by path.
func (q *Quarantine) List() []step.Quarantine {
	if q.limit <= 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []step.Quarantine
	changed := false
	for path, c := range q.crashes {
		switch {
		case c.Times < q.limit || c.Required:
		case nameFile(path) != c.File:
			q.log.Infof("plugin %q was changed: it is taken in again", path)
			delete(q.crashes, path)
			changed = true
		default:
			out = append(out, quarantineOf(path, c))
		}
	}
	if changed {
		q.storeLocked()
	}
	slices.SortFunc(out, func(a, b step.Quarantine) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// Forgive takes all plugins in again.
func (q *Quarantine) Forgive() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.crashes) > 0 {
		clear(q.crashes)
		q.storeLocked()
	}
}

// Mark marks them in the node document.
func (q *Quarantine) Mark(plugins []api.NodePlugin) {
	for _, is := range q.List() {
		for i := range plugins {
			if p := &plugins[i]; p.Path == is.Path && !p.Required {
				p.State, p.Problem = "quarantined", is.Why()+"; stepctl node resume takes it in again"
			}
		}
	}
}
