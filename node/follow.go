package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/internal/child"
	"stepd/node/selection"
	"stepd/node/spool"
	"stepd/node/state"
	"stepd/step"
)

// follower is noded's side of one step: who owns its state changes from the
// reservation (Launch or its end) to the launch, and from the start of stepd (or
// its adoption) to the loop, until nothing of the step is left.
type follower struct {
	n   *Node
	id  step.ID
	job *job
	log *logrus.Entry

	// proc and link are the loop's. link is nil where stepd could not be
	// reached: then its end is all that is awaited.
	proc *child.Process
	link *link
	// known: the store has the stepd already. launched: this noded has started it. foreign is
	// then that it is not of this release, "" where it is.
	known, launched bool
	foreign         string
	// unanswered is why the loop has killed a stepd that did not answer, zero if it did not;
	// doomed tells the loop to do so (silent.go).
	unanswered unanswered
	doomed     chan unanswered

	mu    sync.Mutex
	rec   step.Record // guarded by mu; only the owner changes it
	phase stepPhase   // guarded by mu
	// What was asked for before stepd could be told, guarded by mu: cancelled is why the step was
	// cancelled, "" if not, and abandoned is closed with it; suspendBy is the user who has suspended
	// it, or its job, nil if none; orphaned is that the process that has launched it has ended.
	cancelled string
	abandoned chan struct{}
	suspendBy *uint32
	orphaned  bool
	silent    time.Time // guarded by mu: until when endSilent waits, zero if it does not
	// claimed is closed when a reservation is launched or given back.
	claimed chan struct{}
	res     *reservation    // the owner's, until the launch; nil after it
	by      uint32          // who asked for the step
	share   selection.Share // what it has of its job
	parent  *step.ID        // the step that has spawned it, nil without one
	replay  int64           // what it may keep of its output, of its user's
	asks    atomic.Int32    // what stepd has asked and not been answered yet
	// caughtUp is closed when stepd, which is followed, has suspended the step if that was asked
	// for before.
	caughtUp chan struct{}

	// met is closed when a stepd that was found again has said how the step is, or
	// will not.
	met  chan struct{}
	meet func() // closes met

	// moved is closed when the step has left STARTING, or has ended.
	moved    chan struct{}
	movedOff func() // closes moved

	// stored is closed when the store has the final record, or has refused it.
	stored   chan struct{}
	storedIs func() // closes stored

	// ended is closed when the record is final and nothing is left of the step.
	ended chan struct{}
}

// stepPhase is how far a step has come on its way to a stepd, and from there to its end.
type stepPhase string

const (
	stepReserved  stepPhase = "reserved"  // it waits for its launch
	stepLaunching stepPhase = "launching" // its launch, or its end without one, is under way
	stepStarting  stepPhase = "starting"  // its stepd is being started, or was found: a cancel is for stepd
	stepFollowed  stepPhase = "followed"  // its stepd can be told things
	stepSettled   stepPhase = "settled"   // its final record is made and, where possible, stored
	stepDropped   stepPhase = "dropped"   // it is settled, and never had a stepd
)

// stepMoves are the legal changes of a step's phase.
var stepMoves = map[stepPhase][]stepPhase{
	stepReserved:  {stepLaunching},
	stepLaunching: {stepStarting, stepDropped},
	stepStarting:  {stepFollowed, stepSettled},
	stepFollowed:  {stepSettled},
}

// hasStepd reports whether the step has, or had, a stepd.
func (p stepPhase) hasStepd() bool { return p == stepStarting || p == stepFollowed || p == stepSettled }

// moveLocked changes the phase. An illegal move is logged, and changes nothing.
func (f *follower) moveLocked(to stepPhase) {
	if !slices.Contains(stepMoves[f.phase], to) {
		f.log.Errorf("internal error: the step is %s and cannot become %s", f.phase, to)
		return
	}
	f.phase = to
}

// is reports whether the step is in one of the phases.
func (f *follower) is(phases ...stepPhase) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(phases, f.phase)
}

const (
	// ackDeadline bounds a send to a stepd that does not read.
	ackDeadline = time.Second
	// leaveMax is what a stepd may take to exit after its result was taken, beyond ExitGrace.
	leaveMax = 10 * time.Second
	// lastWords is how long records are awaited of a stepd that has ended: they
	// are in the socket already, unless another process holds its other end.
	lastWords = time.Second
	// stopListen is how long noded listens on when it stops: what a stepd has
	// told its client already is on its way to us too.
	stopListen = 50 * time.Millisecond
	// stopLinger is how long a step that is ending may delay noded's stop, so
	// that nothing of it is left: ExitGrace's default and some more.
	stopLinger = 3 * time.Second
)

// newFollower makes the follower of a step that is stepReserved, or was found: stepStarting.
func newFollower(n *Node, j *job, rec step.Record, phase stepPhase) *follower {
	met, moved, stored := make(chan struct{}), make(chan struct{}), make(chan struct{})
	return &follower{
		doomed: make(chan unanswered, 2), // size 2: a cancel and the time limit; the loop may have ended
		stored: stored, storedIs: sync.OnceFunc(func() { close(stored) }),
		moved: moved, movedOff: sync.OnceFunc(func() { close(moved) }),
		met: met, meet: sync.OnceFunc(func() { close(met) }), parent: rec.Parent,
		n: n, id: rec.ID, job: j, rec: rec, phase: phase, ended: make(chan struct{}), claimed: make(chan struct{}), caughtUp: make(chan struct{}), abandoned: make(chan struct{}),
		log: n.log.WithField("step", rec.ID.Name()),
	}
}

// begin starts the loop for a stepd that runs now.
func (f *follower) begin(p *child.Process, c *stepapi.Conn) {
	f.proc = p
	if c != nil {
		f.link = &link{conn: c, log: f.log}
	}
	f.mu.Lock()
	f.moveLocked(stepFollowed)
	suspendBy, orphaned, limited := f.suspendBy, f.orphaned, f.rec.TimeLimitS > 0
	f.mu.Unlock()
	f.update(func(rec *step.Record) {
		f.known = rec.StepdPID == p.PID && rec.StepdStart == p.Start && rec.BootID == f.n.boot
		rec.StepdPID, rec.StepdStart, rec.BootID = p.PID, p.Start, f.n.boot
	})
	f.n.work.Go(f.follow)
	if limited {
		f.n.work.Go(func() { watchLimit(f) })
	}
	if orphaned {
		f.n.work.Go(func() { f.link.send(&stepapi.Msg{Type: stepapi.TypeLauncherLost}) })
	}
	if suspendBy == nil {
		close(f.caughtUp)
		return
	}
	f.n.work.Go(func() {
		defer close(f.caughtUp)
		f.suspendLate(*suspendBy)
	})
}

// hasStepd reports whether there is, or was, a stepd to ask.
func (f *follower) hasStepd() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.phase.hasStepd()
}

// record returns a copy that the caller may keep.
func (f *follower) record() *step.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	rec := f.rec
	rec.Tasks = append([]step.Task(nil), f.rec.Tasks...)
	return &rec
}

func (f *follower) update(change func(*step.Record)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.rec)
}

// follow is the loop. It ends when the step is cleaned up, or with noded.
func (f *follower) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	var helpers sync.WaitGroup
	defer helpers.Wait() // after the cancel and the closes below
	defer cancel()
	left := true // stepd has, or goes on without this noded
	defer func() {
		if left {
			f.proc.Close()
		}
	}()
	defer f.meet()

	if !f.known {
		// The next noded finds it by this; by its socket if this one dies before.
		if err := f.n.store.Put(f.record()); err != nil {
			f.log.Errorf("%v", err)
		}
	}
	msgs := make(chan *stepapi.Msg)
	if f.link == nil {
		close(msgs)
		f.meet()
	} else {
		defer f.link.conn.Close()
		helpers.Go(func() { f.link.receive(ctx, msgs) })
		f.link.send(&stepapi.Msg{Type: stepapi.TypeHello, Version: stepapi.Version, Role: stepapi.RoleNoded})
	}
	exited := make(chan error, 1) // size 1: the waiter never waits for us
	helpers.Go(func() { exited <- f.proc.Wait(ctx) })
	left = f.hearOut(msgs, exited)
}

// hearOut handles what stepd says until it has exited, or noded stops. It returns false
// where stepd does not end: then another one has it.
func (f *follower) hearOut(msgs <-chan *stepapi.Msg, exited <-chan error) (left bool) {
	var leave, stuck, listened, lingered <-chan time.Time
	leaveMax := f.n.leaveMax + time.Duration(f.n.cfg.Site.Spank.ExitGraceS)*time.Second
	stopping := f.n.stopping
	in := msgs
	for {
		select {
		case m, ok := <-in:
			if !ok {
				in = nil // stepd closes its end before it exits
				continue
			}
			if f.handle(m) {
				leave = time.After(leaveMax)
			}
		case <-leave:
			f.log.Warnf("stepd (pid %d) did not exit within %v of its result: killing it", f.proc.PID, leaveMax)
			if err := f.n.killStepd(f.proc); err != nil {
				f.log.Errorf("cannot kill stepd: %v", err)
			}
			stuck = time.After(f.n.leaveMax)
		case why := <-f.doomed:
			f.unanswered = why
			if err := f.n.killStepd(f.proc); err != nil {
				f.log.Errorf("cannot kill stepd: %v", err)
			}
			stuck = time.After(f.n.leaveMax)
		case <-stuck:
			f.goOnWithout()
			return false
		case err := <-exited:
			if err != nil {
				f.log.Errorf("cannot wait for stepd (pid %d): %v", f.proc.PID, err)
				return true
			}
			f.drain(in)
			f.finish()
			return true
		case <-stopping:
			stopping = nil
			listened, lingered = time.After(stopListen), time.After(stopLinger)
		case <-listened:
			if !f.ending() {
				return true
			}
		case <-lingered:
			return true
		}
	}
}

// drain handles what a stepd that has exited said last.
func (f *follower) drain(msgs <-chan *stepapi.Msg) {
	if msgs == nil {
		return
	}
	limit := time.After(lastWords)
	for {
		select {
		case m, ok := <-msgs:
			if !ok {
				return
			}
			f.handle(m)
		case <-limit:
			return
		}
	}
}

// handle takes one record of stepd's. It returns true for the result.
func (f *follower) handle(m *stepapi.Msg) (result bool) {
	f.n.cfg.debug(f.log, "Steps", "stepd says %q", m.Type)
	switch m.Type {
	case stepapi.TypeHello:
		defer f.meet()
		if m.Version != stepapi.Version {
			f.otherVersion(m.Version)
			return false
		}
		f.merge(m.Record)
	case stepapi.TypeState:
		f.merge(m.Record)
	case stepapi.TypeTaskExit:
		f.taskExit(m)
	case stepapi.TypeAsk:
		f.asked(m)
	case stepapi.TypeResult:
		if f.is(stepSettled) {
			f.link.send(&stepapi.Msg{Type: stepapi.TypeAck})
			return true
		}
		if m.Record == nil || !spool.IsFinal(m.Record.State) {
			f.log.Error("internal error: stepd sent a result that is not final")
			return false
		}
		if f.settle(m.Record) {
			f.link.send(&stepapi.Msg{Type: stepapi.TypeAck})
		}
		return true
	}
	return false
}

// otherVersion: a stepd that runs on from before an upgrade is followed to its end. One
// that this noded has started is another release's than this noded is, as are all that it
// would start.
func (f *follower) otherVersion(v int) {
	if !f.launched {
		f.log.Errorf("stepd speaks version %d of its protocol, noded %d: its end alone is followed", v, stepapi.Version)
		return
	}
	f.foreign = fmt.Sprintf("cannot launch with %q: it speaks version %d of the step protocol, and noded %d: restart noded, or install programs of one release", f.n.cfg.StepdPath, v, stepapi.Version)
	f.n.health.Drain(f.foreign)
	if err := f.n.killStepd(f.proc); err != nil {
		f.log.Errorf("cannot kill stepd: %v", err)
	}
}

// ending reports whether the step's tasks have ended.
func (f *follower) ending() bool { return f.is(stepSettled) || f.record().State == step.Completing }

// merge takes over what stepd has told. A final record comes with the result only.
func (f *follower) merge(rec *step.Record) {
	if rec == nil || f.is(stepSettled) || rec.State.Final() {
		return
	}
	f.update(func(own *step.Record) { own.Merge(rec) })
	if rec.State != step.Pending && rec.State != step.Starting {
		f.movedOff()
	}
}

func (f *follower) taskExit(m *stepapi.Msg) {
	if m.Status == nil {
		return
	}
	f.update(func(own *step.Record) {
		for i := range own.Tasks {
			// A record may have reported the end before, and where a task failed.
			if own.Tasks[i].Status == nil && slices.Contains(m.Ranks, own.Tasks[i].Rank) {
				own.Tasks[i].End(*m.Status)
			}
		}
	})
}

// settle makes rec's end the step's end, and stores it. From then on the
// step's CPUs are free. It returns false where the record could not be stored:
// then stepd gets no Ack and leaves its result file for the next noded.
func (f *follower) settle(rec *step.Record) (stored bool) {
	endExtern(rec)
	f.n.places.blameInit(rec)
	if rec.Ended == nil {
		now := time.Now()
		rec.Ended = &now
	}
	f.mu.Lock()
	f.rec.Merge(rec)
	if f.phase == stepLaunching {
		f.moveLocked(stepDropped)
	} else {
		f.moveLocked(stepSettled)
	}
	f.mu.Unlock()
	f.movedOff()
	// Before any client gets the end, and asks for the next step.
	if rec.Drain != "" {
		f.n.health.Drain(rec.Drain)
	}
	if rec.SurvivorsTotal > 0 {
		f.n.health.Hold(f.record())
	}
	f.n.health.Plugins.Step(rec)
	whole := f.record()
	forgotten, err := f.n.store.Finish(whole)
	if err = state.LogOwed(err, f.log); err != nil {
		f.log.Errorf("%v: it is tried again", err)
	}
	f.storedIs()
	f.n.spool.Forget(forgotten)
	f.n.store.Weigh(f.id, whole.UID, f.n.spool.LogSize(f.id))
	f.n.spool.KeepOutput(f.id, rec.UID, f.n.cfg.Site.ReplayBytes)
	others, idle := f.n.reg.settle(f)
	for _, other := range others {
		f.n.cancelLater(other, jobEnded)
	}
	if idle && !f.n.scripts.OwesEpilog(f.job.scripts) {
		f.n.reg.free(f.job)
	}
	if u := rec.Usage; u != nil && f.n.cfg.wants("JobAccountGather") {
		text, _ := json.Marshal(u) // it has no value that JSON has not
		f.n.cfg.debug(f.log, "JobAccountGather", "%s", text)
	}
	f.log.WithField("state", rec.State).WithField("reason", rec.Reason).Info("step ended")
	return err == nil
}

// link is the connection to a step's stepd.
type link struct {
	conn    *stepapi.Conn
	log     *logrus.Entry
	sending sync.Mutex // one goroutine at a time sends
}

// send tells stepd something. One that could not be reached, since it was going or is of
// another version, is told nothing: its link is nil.
func (l *link) send(m *stepapi.Msg) {
	if l == nil {
		return
	}
	l.sending.Lock()
	defer l.sending.Unlock()
	// A failed deadline or send means that stepd is going; its exit is reported elsewhere.
	_ = l.conn.SetWriteDeadline(time.Now().Add(ackDeadline))
	if err := l.conn.Send(m); err != nil {
		l.log.Debugf("stepd takes no %q record: %v", m.Type, err)
	}
}

// receive hands records to the loop until stepd closes or ctx ends.
func (l *link) receive(ctx context.Context, msgs chan<- *stepapi.Msg) {
	defer close(msgs)
	stop := context.AfterFunc(ctx, func() { l.conn.Close() })
	defer stop()
	for {
		m, err := l.conn.Hear()
		if err != nil {
			l.log.Debugf("connection to stepd ended: %v", err)
			return
		}
		select {
		case msgs <- m:
		case <-ctx.Done():
			return
		}
	}
}

// asked takes one request of stepd's for its tasks, and answers it when it is
// done: a spawn must not keep the loop from hearing of the step.
func (f *follower) asked(m *stepapi.Msg) {
	if f.asks.Add(1) > stepapi.AsksMax {
		f.asks.Add(-1)
		f.link.send(&stepapi.Msg{Type: stepapi.TypeAnswer, Seq: m.Seq, Error: fmt.Sprintf("step %s waits for %d answers of noded already, the limit", f.id, stepapi.AsksMax)})
		return
	}
	f.n.work.Go(func() {
		defer f.asks.Add(-1)
		reply := &stepapi.Msg{Type: stepapi.TypeAnswer, Seq: m.Seq}
		answer, err := launcher{f.n}.answer(context.Background(), f, m.Ask)
		if err != nil {
			reply.Error = api.MessageOf(err)
		} else {
			reply.Answer = answer
		}
		f.link.send(reply)
	})
}

// answer does what a step's tasks ask for.
func (n launcher) answer(ctx context.Context, f *follower, ask *stepapi.Ask) (*stepapi.Answer, error) {
	if ask == nil {
		return nil, errors.New("internal error: an empty request")
	}
	if ask.Do == stepapi.AskSpawn {
		return n.spawnStep(ctx, f, ask)
	}
	if answer, known, err := f.job.exchange.Answer(ctx, ask); known {
		return answer, err
	}
	return nil, fmt.Errorf("cannot do %.40q: this noded does not know it", ask.Do)
}

// spawnStep starts another step of the job for the tasks of parent. Their stepd,
// which is root's, has made the request out of its own step's.
func (n launcher) spawnStep(ctx context.Context, parent *follower, ask *stepapi.Ask) (*stepapi.Answer, error) {
	var who struct {
		Job *uint32 `json:"job"`
		UID *uint32 `json:"uid"`
	}
	if err := json.Unmarshal(ask.Request, &who); err != nil {
		return nil, fmt.Errorf("cannot parse the request of step %s: %w", parent.id, err)
	}
	if who.Job == nil || who.UID == nil || *who.Job != parent.id.Job || *who.UID != parent.job.UID {
		return nil, fmt.Errorf("internal error: step %s wants a step of another job or user", parent.id)
	}
	if err := n.reg.beginSpawn(parent.job, n.cfg.SpawnMax); err != nil {
		return nil, err
	}
	defer n.reg.endSpawn(parent.job)
	req, err := n.decode(ask.Request)
	if err != nil {
		return nil, err
	}
	know := func(spec *step.Spec) { spec.Parent, spec.Preput = &parent.id, ask.Preput }
	f, _, err := n.reserveAs(ctx, api.Peer{}, req, order{state: step.Starting, size: len(ask.Request), know: know})
	if err != nil {
		return nil, err
	}
	if !f.claim() {
		return nil, api.Errorf(api.Aborted, "step %s was cancelled before its launch", f.id)
	}
	spec, err := f.launch(nil)
	if err != nil {
		return nil, err
	}
	f.log.WithField("parent", parent.id.Name()).WithField("ntasks", spec.NTasks).Info("step spawned")
	return &stepapi.Answer{ID: &f.id, SocketDir: n.spool.StepsDir(), SocketName: n.spool.SocketName(f.id)}, nil
}
